"""The paper's rows as methods with options: what is switched off is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import wildtta
from wildtta.glyphs import Glyphs, network
from wildtta.paper.recipes import RECIPES, Recipe, tent_rate
from wildtta.paper.settings import BN, GN, VIT

NETWORKS = {GN: "resnet_gn", VIT: "vit"}


def test_tents_rate_is_its_papers() -> None:
    assert [tent_rate(name) for name in (BN, GN, VIT)] == [2.5e-4, 2.5e-4, 1e-3]


def logits_of(name: str, recipe: Recipe) -> Tensor:
    """What a recipe answers on three batches of glyphs."""
    images = Glyphs(192, seed=3).images(list(range(192))).float() / 255
    options: dict[str, Any] = recipe.options_on(name)
    model = wildtta.adapt(network(NETWORKS[name]), recipe.method, **options)
    return torch.cat([model(batch).detach() for batch in images.split(64)])


@pytest.mark.parametrize("name", NETWORKS)
def test_without_its_regulariser_tent_with_one_is_tent(name: str) -> None:
    tent = logits_of(name, RECIPES["Tent"])
    without = logits_of(name, RECIPES["Tent+I"].with_(inequity=None))
    torch.testing.assert_close(without, tent, rtol=0, atol=1e-5)
    for label in ("Tent+I", "Tent+R", "R only"):
        assert not torch.allclose(logits_of(name, RECIPES[label]), tent, rtol=0, atol=1e-5), label
