"""The packaged weights: small, loadable, and right about clean glyphs they have never seen."""

from __future__ import annotations

import pytest
import torch

from wildtta.glyphs import NETWORKS, Glyphs, network
from wildtta.glyphs.networks import normalise, weights_file


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_small(name: str) -> None:
    assert weights_file(name).stat().st_size < 1_500_000


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 11])
def test_clean_accuracy(name: str, seed: int) -> None:
    glyphs = Glyphs(1000, seed=seed, split="test")
    model = network(name)
    with torch.inference_mode():
        guesses = torch.cat([model(normalise(glyphs.images(part))).argmax(1) for part in torch.arange(1000).split(250)])
    assert (guesses.numpy() == glyphs.labels).mean() >= 0.90
