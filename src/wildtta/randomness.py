"""Randomness that belongs to the online state: what is drawn next depends on the seed and on a counter, nothing else.

A counter is one number that is saved, loaded and reset like all state, on every device; a generator's own state is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

COUNTER = "draws"


def no_draws_yet() -> dict[str, Tensor]:
    """The declared state: how often a generator was asked for. On the host, where generators are seeded."""
    return {COUNTER: torch.zeros((), dtype=torch.int64)}


def next_generator(memory: dict[str, Tensor], seed: int, device: torch.device) -> torch.Generator:
    """A generator of its own for every call: the k-th call after the first day always gives the same one."""
    generator = torch.Generator(device).manual_seed(_mixed(seed, int(memory[COUNTER])))
    memory[COUNTER].add_(1)
    return generator


def _mixed(seed: int, position: int) -> int:
    """SplitMix64 (Steele, Lea and Flood 2014): neighbouring seeds and positions give unrelated numbers."""
    state = (seed * 0x9E3779B97F4A7C15 + position + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return (state ^ state >> 31) & 0x7FFFFFFFFFFFFFFF
