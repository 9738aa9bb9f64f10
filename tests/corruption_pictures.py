"""Pictures for the tests of the corruptions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

ALL = CORRUPTIONS + EXTRA_CORRUPTIONS


def photographs(count: int, side: int) -> torch.Tensor:
    """Cuts of the recorded photographs: real edges, flat and saturated regions."""
    with np.load(Path(__file__).parent / "corruptions" / "recordings" / "images_64.npz") as archive:
        images = torch.from_numpy(archive["images"]).permute(0, 3, 1, 2)
    cuts = [images[i % 12].roll((5 * (i // 12), 3 * i), (1, 2))[:, :side, :side] for i in range(count)]
    return torch.stack(cuts).contiguous()
