"""Frost textures: the user's photographs where they are found, else generated ones with their statistics.

The photographs of the official scripts are not ours to distribute. They are read, in this order, from the
folder that the caller names, from the folder in the environment variable ``WILDTTA_FROST_DIR``, or from an
installed ``imagecorruptions``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from wildtta.randomness import numpy_generator

FROST_DIR_VARIABLE = "WILDTTA_FROST_DIR"
STEMS = ("frost1", "frost2", "frost3", "frost4", "frost5")
"""The official scripts list a sixth file, but their random choice never reaches it."""

Pixels = npt.NDArray[np.uint8]


def find_folder(frost_dir: str | os.PathLike[str] | None) -> Path | None:
    """Folder of the original photographs, or None where none is known."""
    named = frost_dir or os.environ.get(FROST_DIR_VARIABLE)
    if named:
        return Path(named)
    package = importlib.util.find_spec("imagecorruptions")
    places = (package and package.submodule_search_locations) or ()
    return next((Path(place, "frost") for place in places if Path(place, "frost").is_dir()), None)


@functools.lru_cache(maxsize=16)
def textures_for(
    height: int, width: int, scale: float, folder: Path | None, device: torch.device
) -> tuple[Tensor, ...]:
    """The five textures at ``scale``, uint8 ``[3, rows, columns]``, enlarged where the images are larger."""
    textures = []
    for pixels in generated_textures() if folder is None else [_read(folder, stem) for stem in STEMS]:
        sized = pixels if scale == 1.0 else resize_bilinear(pixels, scale)
        missing = max((height + 1) / sized.shape[0], (width + 1) / sized.shape[1])
        if missing > 1.0:
            sized = resize_bilinear(sized, missing + 0.01)
        textures.append(torch.from_numpy(sized).permute(2, 0, 1).contiguous().to(device))
    return tuple(textures)


def _read(folder: Path, stem: str) -> Pixels:
    found = sorted(path for path in folder.glob(f"{stem}.*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    if not found:
        names = sorted(path.name for path in folder.glob("*"))[:10]
        listing = (", ".join(names) or "nothing") if folder.is_dir() else "no such folder"
        raise FileNotFoundError(
            f"frost textures: expected {', '.join(STEMS)} as .png or .jpg in {folder}, but {stem} is missing "
            f"(found: {listing}). Name another folder or leave it out to use generated textures."
        )
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading frost textures needs Pillow: pip install 'wildtta[data]'") from error
    with Image.open(found[0]) as image:
        return np.array(image.convert("RGB"))


def resize_bilinear(pixels: Pixels, scale: float) -> Pixels:
    """Scale uint8 ``[rows, columns, 3]`` bilinearly, unsmoothed, in 11-bit fixed point as OpenCV does."""
    (top, bottom, weight), (left, right, across) = (_linear_taps(side, scale) for side in pixels.shape[:2])
    source, weight, across = pixels.astype(np.int64), weight[:, None, None], across[:, None]
    rows = source[:, left] * (2048 - across) + source[:, right] * across
    upper = ((2048 - weight) * (rows[top] >> 4)) >> 16
    lower = (weight * (rows[bottom] >> 4)) >> 16
    return np.asarray(((upper + lower + 2) >> 2).clip(0, 255), dtype=np.uint8)


def _linear_taps(length: int, scale: float) -> tuple[npt.NDArray[np.int64], ...]:
    """The two source samples of every output sample, and the 11-bit weight of the second."""
    centres = (((np.arange(max(round(length * scale), 1)) + 0.5) / scale) - 0.5).astype(np.float32)
    first = np.floor(centres).astype(np.int64)
    weight = np.where((first < 0) | (first >= length - 1), 0.0, centres - first)
    first = np.clip(first, 0, length - 1)
    return first, np.minimum(first + 1, length - 1), np.rint(weight * 2048).astype(np.int64)


class Statistics(NamedTuple):
    """What a generated texture shares with its photograph."""

    shape: tuple[int, int]
    mean: tuple[float, float, float]
    """Red, green, blue."""
    deviation: tuple[float, float, float]
    hue_share: tuple[float, float, float]
    """Correlation of a channel with a second field, independent of the brightness."""
    block_deviation: tuple[float, ...]
    """Standard deviation of the grey value's means over blocks of side 1, 2, 4, ... 128."""
    quantiles: tuple[float, ...]
    """Grey values at the shares of ``_SHARES``."""


_SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_FIRST, _SECOND, _FOURTH, _FIFTH = map(
    Statistics,
    ((600, 900), (315, 560), (350, 527), (495, 660)),
    ((77.67, 149.12, 165.74), (200.79, 205.38, 214.48), (137.62, 152.77, 165.18), (112.38, 123.37, 134.75)),
    ((26.9, 16.5, 15.3), (21.4, 22.1, 22.6), (28.5, 28.5, 29.9), (44.4, 43.3, 41.7)),
    ((0.567, 0.0, -0.36), (0.0, 0.0, 0.1), (0.0, 0.0, 0.1), (0.0, 0.0, 0.04)),
    (
        (18.0, 16.6, 15.6, 15.1, 14.7, 14.1, 13.1, 11.7),
        (22.0, 20.6, 19.0, 17.6, 16.2, 14.6, 13.3, 12.3),
        (28.9, 26.0, 23.0, 20.8, 19.1, 18.3, 17.4, 16.3),
        (43.1, 40.0, 37.2, 34.1, 31.3, 28.3, 26.5, 25.0),
    ),
    (
        (82, 97, 104, 109, 118, 129, 142, 155, 163, 177, 219),
        (57, 141, 166, 177, 195, 210, 222, 231, 236, 245, 254),
        (23, 82, 104, 116, 134, 152, 169, 186, 199, 234, 254),
        (26, 45, 60, 71, 92, 119, 151, 183, 203, 238, 255),
    ),
)
PHOTOGRAPHS = (_FIRST, _SECOND, _SECOND, _FOURTH, _FIFTH)
"""The second and third photograph are the same picture."""


@functools.lru_cache(maxsize=1)
def generated_textures() -> tuple[Pixels, ...]:
    """Five textures with the statistics of the photographs, uint8 ``[rows, columns, 3]``."""
    with _on_one_thread():
        unique = {statistics: _generate(statistics, seed) for seed, statistics in enumerate(dict.fromkeys(PHOTOGRAPHS))}
    return tuple(unique[statistics] for statistics in PHOTOGRAPHS)


@contextlib.contextmanager
def _on_one_thread() -> Iterator[None]:
    """About 100 transforms of a small field take a second on one thread. Threads that share their cores with other processes
    wait for each other at every one of them: minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _generate(statistics: Statistics, seed: int) -> Pixels:
    """A texture whose detail, brightness distribution and colours follow ``statistics``.

    All in float64, so that machines which round differently still give the same 8-bit texture.
    """
    generator = numpy_generator(seed)
    brightness = _multiscale_noise(statistics, generator, needle_octaves=4)
    hue = _multiscale_noise(statistics, generator, needle_octaves=0)
    ranks = np.argsort(np.argsort(brightness, axis=None)).reshape(brightness.shape) / (brightness.size - 1)
    grey = np.interp(ranks, _SHARES, statistics.quantiles)
    grey = (grey - grey.mean()) / grey.std()
    channels = [
        mean + deviation * (np.sqrt(1.0 - share**2) * grey + share * hue)
        for mean, deviation, share in zip(statistics.mean, statistics.deviation, statistics.hue_share, strict=True)
    ]
    return np.asarray(np.stack(channels, axis=-1).round().clip(0, 255), dtype=np.uint8)


def _multiscale_noise(
    statistics: Statistics, generator: np.random.Generator, *, needle_octaves: int
) -> npt.NDArray[np.float64]:
    """Noise in octaves, each with the variance that the photograph's blocks lose from one side to the next.

    The finest ``needle_octaves`` are needles of ice, the coarser ones clouds.
    """
    shape, total = statistics.shape, torch.zeros(statistics.shape, dtype=torch.float64)
    # Patches with irregular borders: the number of the smooth field that is largest at a pixel.
    patches = [_clouds(shape, _PATCH_SIDE, generator) for _ in range(_NEEDLE_DIRECTIONS)] if needle_octaves else [total]
    mosaic = torch.stack(patches).argmax(dim=0)
    for octave, variance in enumerate(-np.diff(np.square((*statistics.block_deviation, 0.0)))):
        needles = octave < needle_octaves
        field = _needles(mosaic, 1 << octave, generator) if needles else _clouds(shape, 1 << octave, generator)
        total.add_((field - field.mean()) / field.std(), alpha=float(np.sqrt(variance)))
    return np.asarray((total - total.mean()) / total.std(), dtype=np.float64)


_NEEDLE_DIRECTIONS = 6
_PATCH_SIDE = 30


def _clouds(shape: tuple[int, int], cell: int, generator: np.random.Generator) -> Tensor:
    """Noise on a grid of ``cell`` pixels, smoothly interpolated."""
    grid = [side // cell + 2 for side in shape]
    coarse = torch.from_numpy(generator.standard_normal((1, 1, *grid)))
    return F.interpolate(coarse, size=shape, mode="bicubic", align_corners=False)[0, 0]


def _needles(mosaic: Tensor, width: int, generator: np.random.Generator) -> Tensor:
    """Bundles of parallel needles: directional noise, each patch of the mosaic with its own direction.

    White noise is filtered, per direction, by a band-pass across the needles and a low-pass along them.
    """
    shape = tuple(mosaic.shape)
    spectrum = torch.fft.rfft2(torch.from_numpy(generator.standard_normal(shape)))
    rows = torch.fft.fftfreq(shape[0], dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(shape[1], dtype=torch.float64)[None, :]
    needles = torch.zeros(shape, dtype=torch.float64)
    for direction in range(_NEEDLE_DIRECTIONS):
        angle = np.pi * (direction + 0.5) / _NEEDLE_DIRECTIONS
        along = (columns * np.cos(angle) + rows * np.sin(angle)).square_().mul_(18 * np.pi**2 * width**2)
        across = (rows * np.cos(angle) - columns * np.sin(angle)).square_().mul_(2 * np.pi**2 * width**2)
        passed = torch.exp(-along - 0.25 * across) - torch.exp(-along - across)
        field = torch.fft.irfft2(spectrum * passed, s=shape)
        needles = torch.where(mosaic == direction, field / field.std(), needles)
    return needles
