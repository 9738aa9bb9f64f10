"""Random numbers for the corruptions, one independent source per image.

Every corruption asks a :class:`Draws` for its numbers, in the order in which the official scripts draw them. Two sources
exist: :class:`DeviceDraws` computes them on the images' device from a counter, and :class:`OfficialDraws` takes them from
numpy's legacy generator, so that outputs of the official scripts can be reproduced value for value. In both an image's
numbers depend on its own key alone, never on its neighbours in the batch.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_LOW_32 = 0xFFFFFFFF

Keys = npt.NDArray[np.uint64]


class Draws(Protocol):
    """Source of random numbers for a batch; every method returns one set per image, batch first.

    A shape of three dimensions is an image, given channels first; the official order of its values is rows, columns,
    channels.
    """

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Standard normal numbers ``[N, *shape]``."""

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Uniform numbers in [0, 1), ``[N, *shape]``."""

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Integers from ``low`` to ``high - 1``, int64 ``[N, *shape]``."""

    def poisson(self, images: Tensor, scale: float) -> Tensor:
        """Poisson counts with mean ``scale * images / 255``, elementwise on uint8 ``[N, 3, H, W]``."""

    def integers_below(self, bounds: Sequence[int]) -> list[int]:
        """One integer per image from 0 to its bound - 1, on the host."""


def mix_keys(*parts: int | npt.NDArray[np.int64]) -> Keys:
    """Hash a chain of integers (or arrays of them, broadcast together) to 64 bits, by SplitMix64's finaliser."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = _mix_on_host(
            key + np.asarray(part, dtype=np.int64).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
        )
    return key


def image_keys(seed: npt.NDArray[np.int64], index: npt.NDArray[np.int64], corruption: str, severity: int) -> Keys:
    """One 64-bit key per image from everything that its random numbers may depend on."""
    return mix_keys(seed, index, zlib.crc32(corruption.encode()), severity)


def _mix_on_host(key: Keys) -> Keys:
    key = (key ^ (key >> np.uint64(30))) * np.uint64(_MIX_1)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(_MIX_2)
    return np.asarray(key ^ (key >> np.uint64(31)), dtype=np.uint64)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits (torch has no unsigned multiplication)."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _mix_in_place(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64; the masks make torch's arithmetic right shifts logical ones."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(_signed(factor))
    return bits.bitwise_xor_((bits >> 31).bitwise_and_((1 << 33) - 1))


class DeviceDraws:
    """Counter-based numbers computed on the device: value ``i`` of call ``c`` is SplitMix64 number ``i`` of key (image, c).

    SplitMix64 (Steele, Lea & Flood, OOPSLA 2014) jumps to any position at no cost, so a batch is filled in parallel and
    an image gets the same numbers alone, in a batch of 64 or on another device of the same kind.
    """

    def __init__(self, keys: Keys, device: torch.device) -> None:
        self._keys = keys
        self._device = device
        self._calls = 0

    def _next_keys(self) -> Keys:
        self._calls += 1
        return _mix_on_host(self._keys + np.uint64((self._calls * _GOLDEN) % (1 << 64)))

    def _bits(self, count: int) -> Tensor:
        """``count`` 64-bit numbers per image, int64 ``[N, count]``."""
        keys = torch.from_numpy(self._next_keys().view(np.int64)).to(self._device)
        counter = torch.arange(count, device=self._device, dtype=torch.int64).mul_(_signed(_GOLDEN))
        return _mix_in_place(keys[:, None] + counter)

    def _halves(self, count: int) -> Tensor:
        """``count`` numbers of 32 bits per image, int64 ``[N, count]``."""
        bits = self._bits((count + 1) // 2)
        both = torch.cat((bits & _LOW_32, (bits >> 32).bitwise_and_(_LOW_32)), dim=1)
        return both[:, :count]

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Box-Muller: one 64-bit number gives radius and angle, hence two normal numbers."""
        count = math.prod(shape)
        bits = self._bits((count + 1) // 2)
        low = (bits & _LOW_32).add_(1).to(torch.float32).mul_(2.0**-32)
        angle = (bits >> 32).bitwise_and_(_LOW_32).to(torch.float32).mul_(2.0 * math.pi * 2.0**-32)
        radius = low.log_().mul_(-2.0).clamp_(min=0.0).sqrt_()
        both = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
        return both[:, :count].reshape(-1, *shape)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """32 random bits each, centred in their cell, as float64 (neither 0 nor 1 occurs)."""
        halves = self._halves(math.prod(shape))
        return halves.to(torch.float64).add_(0.5).mul_(2.0**-32).reshape(-1, *shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Multiply-and-shift from 32 random bits: the bias is below (high - low) / 2**32."""
        halves = self._halves(math.prod(shape))
        return (halves * (high - low) >> 32).add_(low).reshape(-1, *shape)

    def poisson(self, images: Tensor, scale: float) -> Tensor:
        """Exact inversion: a pixel has one of 256 means, so the 256 cumulative distributions are tabulated.

        The rows of the table are laid end to end, row v shifted by v, which makes one ascending list: a single binary
        search for ``v + u`` finds the count of every pixel.
        """
        table, columns = _poisson_table(scale, self._device)
        levels = images.to(torch.float64)
        uniform = self.uniform(tuple(images.shape[1:]))
        found = torch.searchsorted(table, uniform.add_(levels), right=True)
        return found.sub_(images.to(torch.int64).mul_(columns)).clamp_(0, columns - 1).to(torch.float64)

    def integers_below(self, bounds: Sequence[int]) -> list[int]:
        bits = self._next_keys() >> np.uint64(32)
        return [int(value) * bound >> 32 for value, bound in zip(bits, bounds, strict=True)]


@functools.lru_cache(maxsize=32)
def _poisson_table(scale: float, device: torch.device) -> tuple[Tensor, int]:
    """Cumulative Poisson distributions of the means ``scale * v / 255``, row v shifted by v, and the row length."""
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
    """Numbers from numpy's legacy generator (MT19937), one per image, in the order of the official scripts."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._generators = [np.random.RandomState(seed) for seed in seeds]
        self._device = device

    def _stack(self, arrays: list[npt.NDArray[np.generic]], shape: tuple[int, ...]) -> Tensor:
        stacked = np.stack(arrays)
        if len(shape) == 3:
            stacked = np.ascontiguousarray(stacked.transpose(0, 3, 1, 2))
        return torch.from_numpy(stacked).to(self._device)

    @staticmethod
    def _order(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        size = self._order(shape)
        return self._stack([np.asarray(generator.normal(size=size)) for generator in self._generators], shape)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        size = self._order(shape)
        return self._stack([np.asarray(generator.uniform(size=size)) for generator in self._generators], shape)

    def integers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        size = self._order(shape)
        draws = [np.asarray(generator.randint(low, high, size=size), dtype=np.int64) for generator in self._generators]
        return self._stack(list(draws), shape)

    def poisson(self, images: Tensor, scale: float) -> Tensor:
        means = images.permute(0, 2, 3, 1).cpu().numpy() / 255.0 * scale
        counts = [
            np.asarray(generator.poisson(mean), dtype=np.float64)
            for generator, mean in zip(self._generators, means, strict=True)
        ]
        return self._stack(list(counts), tuple(images.shape[1:]))

    def integers_below(self, bounds: Sequence[int]) -> list[int]:
        return [int(generator.randint(0, bound)) for generator, bound in zip(self._generators, bounds, strict=True)]
