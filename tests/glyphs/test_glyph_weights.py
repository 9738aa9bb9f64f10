"""The packaged weights: small, right about clean glyphs they have never seen, and hurt but not blinded by severity 5."""

from __future__ import annotations

import functools
from math import sqrt

import pytest
import torch

from wildtta.corruptions import CORRUPTIONS, corrupt
from wildtta.glyphs import NETWORKS, Glyphs, network
from wildtta.glyphs.networks import normalise, weights_file


def accuracy(name: str, images: torch.Tensor) -> float:
    """Share of the first glyphs of the test split that the network names, given their (corrupted) images."""
    model, labels = network(name), torch.from_numpy(Glyphs(len(images)).labels)
    with torch.inference_mode():
        guesses = torch.cat([model(normalise(part)).argmax(1) for part in images.split(250)])
    return float((guesses == labels).float().mean())


@functools.cache
def corrupted(corruption: str, count: int) -> torch.Tensor:
    return corrupt(Glyphs(count).images(range(count)), corruption, 5)


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_small_and_load_as_float32(name: str) -> None:
    assert weights_file(name).stat().st_size < 2_000_000
    assert {p.dtype for p in network(name).parameters()} == {torch.float32}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 11])
def test_clean_accuracy(name: str, seed: int) -> None:
    assert accuracy(name, Glyphs(1000, seed=seed, split="test").images(range(1000))) > 0.95


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [200, pytest.param(4000, marks=pytest.mark.slow)])
def test_severity_5_leaves_something_to_read_and_something_to_gain(name: str, count: int) -> None:
    measured = {corruption: accuracy(name, corrupted(corruption, count)) for corruption in CORRUPTIONS}
    errors = 2 if count < 1000 else 0
    low, high = (limit - sign * errors * sqrt(0.15 * 0.85 / count) for limit, sign in ((0.15, 1), (0.85, -1)))
    assert min(measured.values()) >= low, measured
    assert sum(value > high for value in measured.values()) <= 4, measured
    assert 0.30 <= sum(measured.values()) / len(measured) <= 0.65, measured
