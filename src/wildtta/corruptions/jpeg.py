"""JPEG compression: baseline JPEG with 4:2:0 chroma in exact integer arithmetic, batched, without entropy coding.

Entropy coding is lossless, so encoding and decoding equal: colour conversion, chroma averaging, 8 x 8 integer cosine
transform, quantisation, and back with triangle-filter chroma interpolation. Every step follows the fixed-point
definitions of the common "slow integer" codec (ITU-T T.81 with the 13-bit factors of Loeffler, Ligtenberg & Moschytz,
ICASSP 1989), so the result does not depend on device or batch: the matrix products below sum integers, which float64
represents exactly.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.corruptions.constants import Level
from wildtta.corruptions.draws import Draws

Matrix = npt.NDArray[np.int64]

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


def jpeg_compression(images: Tensor, level: Level, draws: Draws) -> Tensor:
    """Compress and decompress at a quality from 1 to 100; level: (quality,)."""
    del draws
    (quality,) = level
    height, width = images.shape[2:]
    luma, blue, red = _to_ycc(_fill_macroblocks(images).to(torch.int64))
    luma = _code(luma, _table(LUMA_TABLE, int(quality)))
    chroma_height, chroma_width = (height + 1) // 2, (width + 1) // 2
    full = []
    for plane in (blue, red):
        coded = _code(_halve(plane), _table(CHROMA_TABLE, int(quality)))
        full.append(_double(coded[:, :chroma_height, :chroma_width])[:, :height, :width])
    return _to_rgb(luma[:, :height, :width], *full).to(torch.uint8)


def _fill_macroblocks(images: Tensor) -> Tensor:
    """Repeat the last row and column up to multiples of 16, the side of a block of halved chroma."""
    for axis in (2, 3):
        length = images.shape[axis]
        positions = torch.arange(length + -length % 16, device=images.device).clamp_(max=length - 1)
        images = images.index_select(axis, positions)
    return images


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
    """Interpolate by 2 in both axes with weights 3/4 and 1/4; 16ths are rounded with 8 to the left and 7 to the right."""
    count, height, width = plane.shape
    above = torch.cat((plane[:, :1], plane[:, :-1]), dim=1)
    below = torch.cat((plane[:, 1:], plane[:, -1:]), dim=1)
    tall = torch.stack((3 * plane + above, 3 * plane + below), dim=2).reshape(count, 2 * height, width)
    before = torch.cat((tall[:, :, :1], tall[:, :, :-1]), dim=2)
    after = torch.cat((tall[:, :, 1:], tall[:, :, -1:]), dim=2)
    pair = ((3 * tall + before + 8) >> 4, (3 * tall + after + 7) >> 4)
    return torch.stack(pair, dim=3).reshape(count, 2 * height, 2 * width)


def _table(base: tuple[tuple[int, ...], ...], quality: int) -> Matrix:
    """Quantisation table of a quality: 50 is the base table, 100 almost none."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((np.array(base, dtype=np.int64) * scale + 50) // 100, 1, 255)


def _code(plane: Tensor, table: Matrix) -> Tensor:
    """Transform, quantise, dequantise and transform back the 8 x 8 blocks of ``[N, H, W]``."""
    count, height, width = plane.shape
    blocks = plane.reshape(count, height // 8, 8, width // 8, 8).permute(0, 1, 3, 2, 4) - 128
    forward, inverse = _transforms(plane.device)
    steps = torch.from_numpy(table).to(plane.device)

    rows = _descale(blocks.to(torch.float64) @ forward.T, _BITS - 2)
    coefficients = _descale(forward @ rows, _BITS + 2)
    # The transform carries a factor of 8; halves are rounded away from zero.
    steps_8 = (steps * 8).to(torch.float64)
    quantised = ((coefficients.abs() + (steps * 4).to(torch.float64)) / steps_8).floor_() * coefficients.sign()

    columns = _descale(inverse @ (quantised * steps.to(torch.float64)), _BITS - 2)
    decoded = _descale(columns @ inverse.T, _BITS + 5).add_(128.0).clamp_(0.0, 255.0).to(torch.int64)
    return decoded.permute(0, 1, 3, 2, 4).reshape(count, height, width)


def _descale(values: Tensor, bits: int) -> Tensor:
    """Divide integers by a power of two, rounding halves up."""
    return values.add_(float(1 << (bits - 1))).mul_(2.0**-bits).floor_()


@functools.lru_cache(maxsize=8)
def _transforms(device: torch.device) -> tuple[Tensor, Tensor]:
    forward, inverse = forward_matrix(), inverse_matrix()
    return (
        torch.from_numpy(forward.astype(np.float64)).to(device),
        torch.from_numpy(inverse.astype(np.float64)).to(device),
    )


def _factor(value: float) -> int:
    return int(value * (1 << _BITS) + 0.5)


def _odd_rotations(
    first: Matrix, second: Matrix, third: Matrix, fourth: Matrix
) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """The odd half of the 8-point transform in 12 multiplications; it is its own transpose."""
    shared = (first + third + second + fourth) * _factor(1.175875602)
    outer = -(first + fourth) * _factor(0.899976223)
    inner = -(second + third) * _factor(2.562915447)
    odd = shared - (first + third) * _factor(1.961570560)
    even = shared - (second + fourth) * _factor(0.390180644)
    return (
        first * _factor(0.298631336) + outer + odd,
        second * _factor(2.053119869) + inner + even,
        third * _factor(3.072711026) + inner + odd,
        fourth * _factor(1.501321110) + outer + even,
    )


def forward_matrix() -> Matrix:
    """The 8-point forward transform with 13 fractional bits: the fixed-point network applied to the unit vectors."""
    samples = np.eye(8, dtype=np.int64)
    sums = [samples[i] + samples[7 - i] for i in range(4)]
    differences = [samples[i] - samples[7 - i] for i in range(4)]
    outer_sum, inner_sum = sums[0] + sums[3], sums[1] + sums[2]
    outer_difference, inner_difference = sums[0] - sums[3], sums[1] - sums[2]
    rotated = (outer_difference + inner_difference) * _factor(0.541196100)
    seventh, fifth, third, first = _odd_rotations(differences[3], differences[2], differences[1], differences[0])
    return np.stack(
        [
            (outer_sum + inner_sum) << _BITS,
            first,
            rotated + outer_difference * _factor(0.765366865),
            third,
            (outer_sum - inner_sum) << _BITS,
            fifth,
            rotated - inner_difference * _factor(1.847759065),
            seventh,
        ]
    )


def inverse_matrix() -> Matrix:
    """The 8-point inverse transform with 13 fractional bits."""
    inputs = np.eye(8, dtype=np.int64)
    rotated = (inputs[2] + inputs[6]) * _factor(0.541196100)
    low = rotated - inputs[6] * _factor(1.847759065)
    high = rotated + inputs[2] * _factor(0.765366865)
    total, difference = (inputs[0] + inputs[4]) << _BITS, (inputs[0] - inputs[4]) << _BITS
    even = [total + high, difference + low, difference - low, total - high]
    odd = _odd_rotations(inputs[7], inputs[5], inputs[3], inputs[1])[::-1]
    return np.stack([even[i] + odd[i] for i in range(4)] + [even[i] - odd[i] for i in range(3, -1, -1)])
