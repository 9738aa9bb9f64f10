"""JPEG compression: baseline JPEG with 4:2:0 chroma in exact integers, batched, without entropy coding.

Entropy coding is lossless, so encoding and decoding equal: colour conversion, chroma averaging, 8 x 8 integer
cosine transform, quantisation, and back with triangle-filter chroma interpolation. Every step follows the
fixed-point definitions of the common "slow integer" codec (ITU-T T.81 with the 13-bit factors of Loeffler,
Ligtenberg & Moschytz, ICASSP 1989), so the result does not depend on device or batch: the matrix products
below sum integers, which float64 represents exactly.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from wildtta.corruptions.draws import Draws
from wildtta.corruptions.filters import pad

LUMA_TABLE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Quantisation steps of T.81, table K.1, rows are vertical frequencies."""

CHROMA_TABLE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
"""Table K.2."""

_BITS = 13
TRANSFORM_HALF = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
"""The 8-point cosine transform with 13 fractional bits: the codec's fixed-point steps on the unit vectors.

Rows are frequencies; the right half mirrors the left, negated in odd rows. The inverse is the transpose.
"""


def jpeg_compression(images: Tensor, draws: Draws, quality: float) -> Tensor:
    """Compress and decompress at a quality from 1 to 100."""
    height, width = images.shape[2:]
    # The last row and column are repeated up to multiples of 16, the side of a block of halved chroma.
    padded = F.pad(images.to(torch.float64), (0, -width % 16, 0, -height % 16), mode="replicate")
    luma, *chroma = _to_ycc(padded.to(torch.int64))
    luma = _code(luma, _steps(LUMA_TABLE, int(quality), images.device))
    steps = _steps(CHROMA_TABLE, int(quality), images.device)
    halves = [_code(_halve(plane), steps)[:, : (height + 1) // 2, : (width + 1) // 2] for plane in chroma]
    planes = (plane[:, :height, :width] for plane in (luma, *map(_double, halves)))
    return _to_rgb(*planes).to(torch.uint8)


def _to_ycc(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Luma and the two chroma planes, 16 fractional bits, rounded (chroma with the half just below)."""
    red, green, blue = rgb.unbind(1)
    offset = (128 << 16) + 32767
    return (
        (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16,
        (-11059 * red - 21709 * green + 32768 * blue + offset) >> 16,
        (32768 * red - 27439 * green - 5329 * blue + offset) >> 16,
    )


def _to_rgb(luma: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    blue, red = blue - 128, red - 128
    channels = (
        luma + ((91881 * red + 32768) >> 16),
        luma + ((-22554 * blue - 46802 * red + 32768) >> 16),
        luma + ((116130 * blue + 32768) >> 16),
    )
    return torch.stack(channels, dim=1).clamp_(0, 255)


def _halve(plane: Tensor) -> Tensor:
    """Mean of 2 x 2 pixels; the rounding offset alternates 1, 2 along a row so that no drift builds up."""
    total = plane[:, ::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, ::2] + plane[:, 1::2, 1::2]
    offset = 1 + torch.arange(total.shape[2], device=plane.device) % 2
    return (total + offset) >> 2


def _double(plane: Tensor) -> Tensor:
    """Interpolate by 2 in both axes with weights 3/4 and 1/4; 16ths are rounded with 8 left and 7 right."""
    count, height, width = plane.shape
    padded = pad(plane, 1, "edge", (1,))
    tall = torch.stack((3 * plane + padded[:, :-2], 3 * plane + padded[:, 2:]), dim=2).reshape(count, -1, width)
    padded = pad(tall, 1, "edge", (2,))
    pair = ((3 * tall + padded[..., :-2] + 8) >> 4, (3 * tall + padded[..., 2:] + 7) >> 4)
    return torch.stack(pair, dim=3).reshape(count, 2 * height, 2 * width)


def _steps(base: tuple[tuple[int, ...], ...], quality: int, device: torch.device) -> Tensor:
    """Quantisation steps of a quality, float64: 50 is the base table, 100 almost none."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor(base, device=device) * scale + 50) // 100).clamp_(1, 255).to(torch.float64)


def _code(plane: Tensor, steps: Tensor) -> Tensor:
    """Transform, quantise, dequantise and transform back the 8 x 8 blocks of ``[N, H, W]``."""
    count, height, width = plane.shape
    blocks = plane.reshape(count, height // 8, 8, width // 8, 8).permute(0, 1, 3, 2, 4) - 128
    transform = transform_matrix(plane.device)
    rows = _descale(blocks.to(torch.float64) @ transform.T, _BITS - 2)
    coefficients = _descale(transform @ rows, _BITS + 2)
    # The transform carries a factor of 8; halves are rounded away from zero.
    quantised = ((coefficients.abs() + 4 * steps) / (8 * steps)).floor_() * coefficients.sign()
    columns = _descale(transform.T @ (quantised * steps), _BITS - 2)
    decoded = _descale(columns @ transform, _BITS + 5).add_(128.0).clamp_(0.0, 255.0).to(torch.int64)
    return decoded.permute(0, 1, 3, 2, 4).reshape(count, height, width)


def _descale(values: Tensor, bits: int) -> Tensor:
    """Divide integers by a power of two, rounding halves up."""
    return values.add_(float(1 << (bits - 1))).mul_(2.0**-bits).floor_()


@functools.lru_cache(maxsize=8)
def transform_matrix(device: torch.device) -> Tensor:
    """The forward transform as a float64 matrix."""
    left = torch.tensor(TRANSFORM_HALF, dtype=torch.float64)
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(4, 1)
    return torch.cat((left, signs * left.flip(1)), dim=1).to(device)
