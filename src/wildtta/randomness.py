"""Where every seeded random number comes from: generators of torch and numpy, and SplitMix64.

A counter is one number that is saved, loaded and reset like all online state, on every device; the state of a generator
is not. What a method draws next therefore depends on the seed and on a counter, nothing else.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

COUNTER = "draws"
GOLDEN = 0x9E3779B97F4A7C15
"""The step of SplitMix64's counter: 2**64 divided by the golden ratio."""


def no_draws_yet() -> dict[str, Tensor]:
    """The declared state: how often a generator was asked for. On the host, where generators are seeded."""
    return {COUNTER: torch.zeros((), dtype=torch.int64)}


def next_generator(memory: dict[str, Tensor], seed: int, device: torch.device) -> torch.Generator:
    """A new generator for every call; the k-th call after the initial state always gives the same one."""
    state = torch.tensor(as_int64((seed * GOLDEN + int(memory[COUNTER]) + 1) * GOLDEN))
    memory[COUNTER].add_(1)
    return torch_generator(int(splitmix64_(state)) & 0x7FFFFFFFFFFFFFFF, device)


def torch_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """torch's generator of this seed; the global one is neither read nor changed."""
    return torch.Generator(device).manual_seed(seed)


def numpy_generator(seed: int) -> np.random.Generator:
    """numpy's generator (PCG64) of this seed."""
    return np.random.default_rng(seed)


def derived_seed(seed: int, number: int) -> int:
    """A 32-bit seed of its own for every number, unrelated to those of neighbouring numbers and seeds."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def splitmix64_(state: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014) on int64, in place: neighbours become unrelated numbers.

    torch multiplies int64 modulo 2**64, as is needed; the masks make its arithmetic right shifts logical ones.
    """
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state.bitwise_xor_((state >> shift).bitwise_and_((1 << (64 - shift)) - 1)).mul_(as_int64(factor))
    return state.bitwise_xor_((state >> 31).bitwise_and_((1 << 33) - 1))


def as_int64(value: int) -> int:
    """The int64 with the lowest 64 bits of an integer."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
