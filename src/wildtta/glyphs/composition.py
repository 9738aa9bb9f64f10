"""From the atlas to images: random face, size, rotation, place, colours and background, batched in torch.

Every random number of image ``i`` is a hash of (seed, split, i, number of the draw): an image does not depend
on its batch, on the images before it, or on the device (but a GPU may round the last bit differently).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from wildtta.glyphs.atlas import INK_SIZE, MASK_SIZE
from wildtta.glyphs.characters import CHARACTERS
from wildtta.randomness import GOLDEN, as_int64, splitmix64_

Split = Literal["train", "test"]

IMAGE_SIZE = 32

# What varies, and how far. Pixels are those of the 32 x 32 image, colours lie in [0, 1].
INK_PIXELS = (13.0, 22.0)
ROTATION_DEGREES = 15.0
SHIFT_PIXELS = 3.0
ASPECT = (0.85, 1.0)
SHEAR = 0.12
CONTRAST = (0.12, 0.55)
MARGIN = 0.05
CHROMA = 0.15
TEXTURE = (0.02, 0.10)
LIGHTING = 0.15
TEXTURE_CELLS = 5

_SCALAR_DRAWS = 19
_DRAWS = _SCALAR_DRAWS + 3 * TEXTURE_CELLS**2
_SPLITS: dict[str, int] = {"train": 0x7472, "test": 0x7465}


def labels_of(indices: torch.Tensor, classes: int = len(CHARACTERS)) -> torch.Tensor:
    """Image ``i`` shows class ``i mod 200``, so that every run of 200 images is balanced."""
    return indices % classes


def render_glyphs(indices: torch.Tensor, *, seed: int, split: Split, atlas: torch.Tensor) -> torch.Tensor:
    """Images ``[n, 3, 32, 32]`` (uint8) at positions ``indices`` (int64), on the device of both tensors.

    The classes are the atlas's, which may be of other characters than the embedded set's.
    """
    draws = uniform_draws(indices, seed=seed, split=split, count=_DRAWS)
    scalars = draws[:, :_SCALAR_DRAWS].T.reshape(_SCALAR_DRAWS, -1, 1, 1, 1)
    face = (draws[:, 0] * atlas.shape[1]).long()
    masks = atlas[labels_of(indices, len(atlas)), face].unsqueeze(1).float() / 255
    ink = place_ink(masks, scalars[1:7].squeeze(2))
    ink_colour, paper_colour = colours(*scalars[7:16])
    noise = draws[:, _SCALAR_DRAWS:].reshape(-1, 3, TEXTURE_CELLS, TEXTURE_CELLS)
    paper = paper_colour + _between(TEXTURE, scalars[16]) * smooth_noise(noise)
    image = paper + (ink_colour - paper) * ink + lighting(*scalars[17:19])
    return image.clamp(0, 1).mul(255).round().to(torch.uint8)


def uniform_draws(indices: torch.Tensor, *, seed: int, split: Split, count: int) -> torch.Tensor:
    """``[n, count]`` in [0, 1): SplitMix64 (Steele, Lea and Flood 2014) of seed, split, index and draw."""
    if split not in _SPLITS:
        raise ValueError(f"split: expected one of {sorted(_SPLITS)}, got {split!r}")
    stream = splitmix64_(torch.tensor(as_int64(seed + _SPLITS[split] * GOLDEN)))
    image = splitmix64_(int(stream) + indices * as_int64(GOLDEN))
    numbers = torch.arange(1, count + 1, device=indices.device) * as_int64(GOLDEN)
    hashed = splitmix64_(image[:, None] + numbers)
    return ((hashed >> 40) & 0xFFFFFF).float() / 2**24


def place_ink(masks: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Scale, squeeze, shear, rotate and move the masks by draws ``[6, n, 1, 1]``; ``[n, 1, 32, 32]``.

    Sampled at twice the image's resolution, about the masks' own, and averaged: no aliasing.
    """
    size, turn, right, down, aspect, shear = draws
    side = 2 * IMAGE_SIZE
    # Mask pixels per output position: the ink is INK_SIZE in the mask and so many pixels in the image.
    zoom = INK_SIZE / (_between(INK_PIXELS, size) * MASK_SIZE / IMAGE_SIZE)
    angle = _symmetric(turn) * torch.pi * ROTATION_DEGREES / 180
    cosine, sine = torch.cos(angle), torch.sin(angle)
    centres = (torch.arange(side, device=masks.device) + 0.5) * (2 / side) - 1
    x = centres.view(1, 1, side) - _symmetric(right) * (2 * SHIFT_PIXELS / IMAGE_SIZE)
    y = centres.view(1, side, 1) - _symmetric(down) * (2 * SHIFT_PIXELS / IMAGE_SIZE)
    upright_y = (cosine * y - sine * x) * zoom
    upright_x = (cosine * x + sine * y) * zoom / _between(ASPECT, aspect)
    upright_x = upright_x + _symmetric(shear) * SHEAR * upright_y
    grid = torch.stack((upright_x, upright_y), dim=-1)
    return F.avg_pool2d(F.grid_sample(masks, grid, mode="bilinear", align_corners=False), 2)


def colours(
    polarity: torch.Tensor, contrast: torch.Tensor, level: torch.Tensor, *chroma: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Colours of ink and paper ``[n, 3, 1, 1]`` whose mean levels differ by at least ``CONTRAST[0]``.

    ``chroma``: six draws, the tints; without their mean over the channels, which would change the contrast.
    """
    difference = _between(CONTRAST, contrast)
    dark = MARGIN + level * (1 - 2 * MARGIN - difference)
    light = dark + difference
    tints = [_symmetric(torch.cat(three, dim=1)) * CHROMA for three in (chroma[:3], chroma[3:])]
    ink_tint, paper_tint = (tint - tint.mean(dim=1, keepdim=True) for tint in tints)
    dark_ink = polarity < 0.5
    return torch.where(dark_ink, dark, light) + ink_tint, torch.where(dark_ink, light, dark) + paper_tint


def smooth_noise(cells: torch.Tensor) -> torch.Tensor:
    """Draws on a coarse grid ``[n, c, g, g]``, interpolated to the image's size, about in [-1, 1].

    Bicubic, as a weighted sum along each axis in turn: on a GPU torch's own kernel takes longer than a
    training step, and a matrix product may round differently in another batch.
    """
    side = cells.shape[-1]
    corners = torch.eye(side, device=cells.device).view(1, 1, side, side)
    weights = F.interpolate(corners, size=(IMAGE_SIZE, side), mode="bicubic", align_corners=True)[0, 0]
    field = _symmetric(cells)
    for _ in range(2):
        field = sum((weights[:, k] * field[..., k, :, None] for k in range(side)), torch.zeros((), device=cells.device))
    return field


def lighting(direction: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    """A linear gradient of brightness over the image, ``[n, 1, 32, 32]``."""
    ramp = torch.linspace(-1, 1, IMAGE_SIZE, device=direction.device)
    angle = direction * (2 * torch.pi)
    slope = torch.cos(angle) * ramp.view(1, 1, 1, -1) + torch.sin(angle) * ramp.view(1, 1, -1, 1)
    return slope * (strength * (LIGHTING / 2))


def _between(bounds: tuple[float, float], draw: torch.Tensor) -> torch.Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * draw


def _symmetric(draw: torch.Tensor) -> torch.Tensor:
    return 2 * draw - 1
