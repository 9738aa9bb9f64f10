"""From the bytes of an image file to uint8 RGB."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wildtta.data.errors import BrokenImage


def decode(encoded: bytes, name: str) -> Tensor:
    """A uint8 RGB image [3, H, W] on the CPU; `name` is the file that an error should name."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading image files needs Pillow: pip install 'wildtta[data]'") from error
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            pixels = np.array(image.convert("RGB"))
    # Pillow raises many kinds (OSError, SyntaxError, struct.error, DecompressionBombError ...) on bad bytes.
    except Exception as error:
        raise BrokenImage(f"{name} is no image that can be decoded ({type(error).__name__}: {error})") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def is_jpeg(encoded: bytes) -> bool:
    """Whether the bytes begin as a JPEG does, whatever the file is called."""
    return encoded[:3] == b"\xff\xd8\xff"


def decode_jpegs_on(device: torch.device, encoded: Sequence[Tensor]) -> list[Tensor]:
    """JPEGs (one-dimensional uint8 tensors of file bytes) decoded by the GPU's hardware to uint8 RGB images there.

    The GPU's decoder rounds differently from Pillow's (a grey level or two), so results should not mix the two.
    torchvision deprecates its decoders from 0.29 on (in favour of torchcodec) and still carries them.
    """
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        raise ImportError("decoding on the GPU needs a torchvision that has decode_jpeg: pip install 'wildtta[zoo]'") from error
    decoded: list[Tensor] = decode_jpeg([e.cpu() for e in encoded], mode=ImageReadMode.RGB, device=device)
    return decoded
