"""Random numbers for the corruptions, one independent source per image.

Every corruption asks :data:`Draws` for its numbers, in the order in which the official scripts draw them.
There are two sources: :class:`DeviceDraws` computes them on the images' device from a counter;
:class:`OfficialDraws` takes them from numpy's legacy generator, so that outputs of the official scripts can
be reproduced value for value. In both, an image's numbers depend on its own key alone, never on its
neighbours in the batch, and a result ``[N, *shape]`` has one set per image. A shape of three dimensions is an
image, given channels first; the official order of its values is rows, columns, channels.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.randomness import GOLDEN, as_int64, splitmix64_

Shape = tuple[int, ...]
_LOW_32 = 0xFFFFFFFF


def image_keys(seed: npt.ArrayLike, index: npt.ArrayLike, corruption: str, severity: int) -> Tensor:
    """One 64-bit key per image, int64 on the host: a hash of all that its random numbers depend on."""
    key = torch.zeros(1, dtype=torch.int64)
    for part in (seed, index, zlib.crc32(corruption.encode()), severity):
        key = splitmix64_(key + torch.as_tensor(np.asarray(part, dtype=np.int64)) * as_int64(GOLDEN) + as_int64(GOLDEN))
    return key


def high_bits(numbers: Tensor) -> Tensor:
    """The upper 32 of 64 bits."""
    return (numbers >> 32).bitwise_and_(_LOW_32)


class DeviceDraws:
    """Numbers computed on the device: value ``i`` of call ``c`` is SplitMix64 number ``i`` of key (image, c).

    SplitMix64 jumps to any position at no cost, so a batch is filled in parallel and an image gets the same
    numbers alone, in a batch of 64 or on another device of the same kind.
    """

    def __init__(self, keys: Tensor, device: torch.device) -> None:
        self._keys = keys
        self._device = device
        self._calls = 0

    def _next_keys(self) -> Tensor:
        self._calls += 1
        return splitmix64_(self._keys + as_int64(self._calls * GOLDEN))

    def _bits(self, count: int) -> Tensor:
        """``count`` 64-bit numbers per image, int64 ``[N, count]``."""
        counter = torch.arange(count, device=self._device, dtype=torch.int64).mul_(as_int64(GOLDEN))
        return splitmix64_(self._next_keys().to(self._device)[:, None] + counter)

    def _halves(self, shape: Shape) -> Tensor:
        """Numbers of 32 bits, int64 ``[N, *shape]``."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        return torch.cat((bits & _LOW_32, high_bits(bits)), dim=1)[:, :count].reshape(-1, *shape)

    def normal(self, shape: Shape) -> Tensor:
        """Standard normal, by Box-Muller: one 64-bit number gives radius and angle, hence two numbers."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        low = (bits & _LOW_32).add_(1).to(torch.float32).mul_(2.0**-32)
        angle = high_bits(bits).to(torch.float32).mul_(2.0 * math.pi * 2.0**-32)
        radius = low.log_().mul_(-2.0).clamp_(min=0.0).sqrt_()
        both = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
        return both[:, :count].reshape(-1, *shape)

    def uniform(self, shape: Shape) -> Tensor:
        """From 0 to 1: 32 random bits each, centred in their cell, as float64 (neither 0 nor 1 occurs)."""
        return self._halves(shape).to(torch.float64).add_(0.5).mul_(2.0**-32)

    def integers(self, low: int, high: int, shape: Shape) -> Tensor:
        """From ``low`` to ``high - 1``: 32 random bits, multiplied and shifted; bias < (high - low) / 2**32."""
        return (self._halves(shape) * (high - low) >> 32).add_(low)

    def poisson(self, images: Tensor, scale: float) -> Tensor:
        """Counts with mean ``scale * images / 255`` for uint8 ``[N, 3, H, W]``, by exact inversion.

        A pixel has one of 256 means, so the 256 cumulative distributions are tabulated. The rows of the table
        are laid end to end, row v shifted by v, which makes one ascending list: a single binary search for
        ``v + u`` finds the count of every pixel.
        """
        table, columns = _poisson_table(scale, self._device)
        uniform = self.uniform(tuple(images.shape[1:]))
        found = torch.searchsorted(table, uniform.add_(images.to(torch.float64)), right=True)
        return found.sub_(images.to(torch.int64).mul_(columns)).clamp_(0, columns - 1).to(torch.float64)

    def integers_below(self, bounds: Sequence[int]) -> list[int]:
        """One integer per image from 0 to its bound - 1, on the host."""
        bits = high_bits(self._next_keys()).tolist()
        return [value * bound >> 32 for value, bound in zip(bits, bounds, strict=True)]


@functools.lru_cache(maxsize=32)
def _poisson_table(scale: float, device: torch.device) -> tuple[Tensor, int]:
    """Cumulative Poisson distributions of the means ``scale * v / 255``, row v shifted by v; row length."""
    columns = int(scale + 10.0 * math.sqrt(scale) + 20.0)
    counts = np.arange(columns, dtype=np.float64)
    log_factorials = np.array([math.lgamma(count + 1.0) for count in counts])
    means = scale * np.arange(1, 256, dtype=np.float64)[:, None] / 255.0
    masses = np.exp(counts * np.log(means) - means - log_factorials)
    cumulative = np.ones((256, columns))
    cumulative[1:] = np.minimum(np.cumsum(masses, axis=1), 1.0)
    cumulative[:, -1] = 1.0
    table = cumulative + np.arange(256)[:, None]
    return torch.from_numpy(table.reshape(-1)).to(device), columns


class OfficialDraws:
    """Numbers from numpy's legacy generator (MT19937), one per image, in the official scripts' order."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [np.random.RandomState(seed) for seed in seeds]
        self._device = device

    def _drawn(self, shape: Shape, draw: Callable[[np.random.RandomState, Shape], Any]) -> Tensor:
        size = (*shape[1:], shape[0]) if len(shape) == 3 else shape
        return self._stacked([draw(generator, size) for generator in self._generators])

    def _stacked(self, arrays: list[npt.NDArray[Any]]) -> Tensor:
        stacked = torch.from_numpy(np.stack(arrays))
        return (stacked.permute(0, 3, 1, 2).contiguous() if stacked.ndim == 4 else stacked).to(self._device)

    def normal(self, shape: Shape) -> Tensor:
        return self._drawn(shape, lambda generator, size: generator.normal(size=size))

    def uniform(self, shape: Shape) -> Tensor:
        return self._drawn(shape, lambda generator, size: generator.uniform(size=size))

    def integers(self, low: int, high: int, shape: Shape) -> Tensor:
        return self._drawn(shape, lambda generator, size: generator.randint(low, high, size=size)).long()

    def poisson(self, images: Tensor, scale: float) -> Tensor:
        means = images.permute(0, 2, 3, 1).cpu().numpy() / 255.0 * scale
        pairs = zip(self._generators, means, strict=True)
        return self._stacked([generator.poisson(mean) for generator, mean in pairs]).double()

    def integers_below(self, bounds: Sequence[int]) -> list[int]:
        return [generator.randint(bound) for generator, bound in zip(self._generators, bounds, strict=True)]


Draws: TypeAlias = DeviceDraws | OfficialDraws
