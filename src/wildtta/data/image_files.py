"""Image files with labels, wherever they lie; decoded to uint8 RGB when asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.image_set import Indices
from wildtta.data.sources import Source

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

MOST_PIXELS = 64_000_000
"""A file of a few kilobytes may promise any number of pixels (a decompression bomb); ImageNet's largest has 61 million."""


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


@dataclass(eq=False)
class EncodedImages:
    """Image files with labels.

    `outputs` is set where the classes are a subset of those of the networks that are usually run on the set
    (ImageNet-R: 200 of 1000): `outputs[c]` is the position of class `c` among the network's outputs. `note`
    says what is unusual about the data found (say, a reduced number of images), for the record of a result.
    """

    files: Sequence[tuple[Source, str]]
    labels: npt.NDArray[np.int64]
    classes: list[str]
    _: KW_ONLY
    outputs: npt.NDArray[np.int64] | None = None
    note: str = ""

    def __len__(self) -> int:
        return len(self.files)

    def where(self, position: int) -> str:
        """The file of an image, as a person would look for it."""
        source, name = self.files[position]
        return source.where(name)

    def encoded(self, position: int) -> bytes:
        source, name = self.files[position]
        try:
            return source.read(name)
        # Archives raise their own kinds (BadZipFile, zlib.error) besides OSError.
        except Exception as error:
            raise BrokenImage(f"{source.where(name)} cannot be read ({type(error).__name__}: {error})") from error

    def decoded(self, position: int) -> Tensor:
        """The image as a uint8 tensor [3, H, W]; a broken file is a `BrokenImage` that names it."""
        return decode(self.encoded(position), self.where(position))

    def __getitem__(self, position: int, /) -> tuple[Tensor, int]:
        return self.decoded(position), int(self.labels[position])

    def images(self, indices: Indices, /) -> Tensor:
        return stack([self.decoded(int(i)) for i in indices])


def decode(
    encoded: bytes, name: str, *, most_pixels: int = MOST_PIXELS, formats: tuple[str, ...] | None = None
) -> Tensor:
    """A uint8 RGB image [3, H, W] on the CPU; `name` is the file that an error should name.

    `most_pixels` bounds what the header may promise, `formats` (Pillow's names) what is tried at all.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading image files needs Pillow: pip install 'wildtta[data]'") from error
    try:
        with Image.open(io.BytesIO(encoded), formats=formats) as image:
            _check_size(image.size, most_pixels)
            pixels = np.array(image.convert("RGB"))
    # Pillow raises many kinds (OSError, SyntaxError, struct.error, DecompressionBombError ...) on bad bytes.
    except Exception as error:
        raise BrokenImage(f"{name} is no image that can be decoded ({type(error).__name__}: {error})") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def check_size(encoded: bytes, name: str) -> None:
    """A `BrokenImage` where the header of an image promises more pixels than any photograph has; nothing is decoded."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            _check_size(image.size)
    except Exception as error:
        raise BrokenImage(f"{name} is no image that can be decoded ({type(error).__name__}: {error})") from error


def _check_size(size: tuple[int, int], most: int = MOST_PIXELS) -> None:
    if size[0] * size[1] > most:
        raise ValueError(f"{size[0]} × {size[1]} pixels; at most {most:,} are decoded")


def decode_jpegs_on(device: torch.device, encoded: Sequence[Tensor]) -> list[Tensor]:
    """JPEGs (uint8 tensors of file bytes) decoded by the GPU's hardware to uint8 RGB images there.

    The GPU's decoder rounds differently from Pillow's (a grey level or two), so results should not mix the
    two. torchvision deprecates its decoders from 0.29 on (in favour of torchcodec) and still carries them.
    """
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        message = "decoding on the GPU needs a torchvision that has decode_jpeg: pip install 'wildtta[zoo]'"
        raise ImportError(message) from error
    decoded: list[Tensor] = decode_jpeg([e.cpu() for e in encoded], mode=ImageReadMode.RGB, device=device)
    return decoded


def stack(images: Sequence[Tensor]) -> Tensor:
    """Images of one size as one tensor [n, 3, H, W]; an error that says what to do if their sizes differ."""
    sizes = sorted({(int(i.shape[-2]), int(i.shape[-1])) for i in images})
    if len(sizes) > 1:
        raise DataError(
            f"images of different sizes cannot form a batch: from {sizes[0][0]}x{sizes[0][1]} to {sizes[-1][0]}x"
            f"{sizes[-1][1]} (HxW); load them with a protocol that has a size: paper, timm, custom:size=..."
        )
    return torch.stack(list(images)) if images else torch.empty(0, 3, 0, 0, dtype=torch.uint8)
