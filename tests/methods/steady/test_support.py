"""What a memory of the stream says about the evidence of a shift."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import build, images
from wildtta.methods.steady.support import faded, supported

CLASSES = 100


def probabilities(number: int, shift: float, seed: int = 0) -> Tensor:
    """Of logits of random classes, all of them moved by ``shift`` times one direction of unit length per class."""
    draws = torch.Generator().manual_seed(seed)
    direction = torch.randn(CLASSES, generator=draws)
    return (torch.randn(number, CLASSES, generator=draws) + shift * direction).softmax(1)


def test_a_shift_on_remembered_samples_agrees_with_any_strength_and_chance_with_none() -> None:
    everywhere = torch.ones(256)
    assert float(supported(probabilities(256, 0.0), everywhere)) == 0.0
    assert float(supported(probabilities(256, 1.0), everywhere)) == 1.0


def test_between_them_it_is_the_share_of_the_mean_that_is_neither_habit_nor_chance() -> None:
    """‖z̄‖² = 0.04·C beside a spread of C: 1 − (0.02 + 0.4/C)·C/(0.04·C) = 0.4, of 0.5."""
    found = [float(supported(probabilities(4000, 0.2, seed), torch.ones(4000))) for seed in range(8)]
    assert sum(found) / len(found) == pytest.approx(0.8, abs=0.1)


def test_samples_of_another_kind_do_not_count_and_few_have_no_say() -> None:
    mixed = torch.cat([probabilities(128, 0.0, 1), probabilities(128, 2.0, 2)])
    assert float(supported(mixed, torch.arange(256) < 128)) == 0.0
    assert float(supported(mixed, torch.arange(256) >= 128)) == 1.0
    assert float(supported(mixed, torch.arange(256) < 63)) == 1.0


def test_what_was_said_fades() -> None:
    support = torch.tensor(0.0, dtype=torch.float64)
    for _ in range(5000 // 50):
        support = faded(support, 50)
    assert float(support) == pytest.approx(1 - math.exp(-1))
    assert float(faded(torch.tensor(1.0), 64)) == 1.0


def test_a_strength_without_support_moves_nothing() -> None:
    moved = []
    for support, novelty in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        adapter = wildtta.adapt(build("gn_resnet"), "steady", warmup=1)
        memory = adapter.engine.memory
        memory["strength"].fill_(1.0)
        memory["support"].fill_(support)
        memory["novelty"].fill_(novelty)
        adapter(images("gn_resnet", 64))
        moved.append(float(adapter.engine.distance()))
    assert moved[0] > 0
    assert moved[1:] == [0, 0]
