"""What is remembered of a stream: quick at the start, then about one image of 32."""

from __future__ import annotations

import random

import pytest
import torch

from wildtta.guard.memory import Answered, Memory
from wildtta.guard.samples import Sample


def _filled(size: int, images: int, *, per_look: int, share: float = 1.0) -> tuple[Memory, list[float]]:
    """A memory after a stream of numbered images, of which a look has a share at hand; and who is remembered."""
    memory = Memory(size, random.Random(0))
    for start in range(0, images, per_look):
        at_hand = [float(start + k) for k in range(int(per_look * share))]
        number = memory.newcomers(per_look, len(at_hand))
        memory.remember([Answered(Sample(torch.tensor([[n]])), torch.zeros(2)) for n in at_hand[:number]])
    return memory, [
        float(one.sample.call) for one in memory.draw(len(memory)) if isinstance(one.sample.call, torch.Tensor)
    ]


def test_the_first_images_fill_it() -> None:
    memory, kept = _filled(256, 256, per_look=64)
    assert len(memory) == 256
    assert sorted(kept) == list(range(256))


@pytest.mark.parametrize(("per_look", "share"), [(64, 1.0), (320, 0.1)])
def test_a_flood_of_two_thousand_becomes_a_fifth(per_look: int, share: float) -> None:
    """62 newcomers for 256 places: 1 − (1 − 1/256)^62 = 21.5 %, however often the guard looks."""
    _, kept = _filled(256, 14_000, per_look=per_look, share=share)
    flood = sum(number >= 12_000 for number in kept) / 256
    assert flood == pytest.approx(0.215, abs=0.06)


def test_a_flood_of_two_thousand_is_not_among_the_elders() -> None:
    """A fifth of the memory is newer than three quarters of it."""
    memory, kept = _filled(256, 14_000, per_look=64)
    elders = [float(one.sample.call) for one in memory.elders() if isinstance(one.sample.call, torch.Tensor)]
    assert elders == sorted(kept)[:192]
    assert max(elders) < 12_000


def test_after_the_start_the_first_batches_are_no_longer_most_of_it() -> None:
    _, kept = _filled(256, 1_920, per_look=64)
    assert sum(number < 256 for number in kept) / 256 < 0.55


def test_forgetting_begins_anew() -> None:
    memory, _ = _filled(256, 9_600, per_look=64)
    memory.clear()
    assert len(memory) == 0
    assert memory.newcomers(64, 64) == 64
