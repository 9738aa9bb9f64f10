"""The glyph networks: shape, names, independence of the batch, and the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from wildtta.glyphs import NETWORKS, Glyphs, glyph_atlas, network
from wildtta.glyphs.networks import load_weights, normalise
from wildtta.glyphs.training import TrainingPlan, learning_rate_factor, train_networks

_HEADS = {"resnet_gn": "fc", "vit": "head"}


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_agnostic_with_the_usual_names(name: str) -> None:
    torch.manual_seed(0)
    model = network(name, pretrained=False)
    assert not model.training
    head = getattr(model, _HEADS[name])
    assert isinstance(head, nn.Linear)
    assert head.out_features == 200
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    x = normalise(Glyphs(8).images(range(8)))
    torch.testing.assert_close(model(x)[3:4], model(x[3:4]), rtol=1e-4, atol=1e-4)
    # Stored as float16, with room for the header.
    assert 2 * sum(p.numel() for p in model.parameters()) < 1_480_000


def test_stages_and_blocks() -> None:
    resnet, vit = network("resnet_gn", pretrained=False), network("vit", pretrained=False)
    assert all(isinstance(getattr(resnet, f"layer{i}"), nn.Sequential) for i in (1, 2, 3, 4))
    assert isinstance(vit.blocks, nn.Sequential)
    assert len(vit.blocks) == 12
    assert isinstance(vit.norm, nn.LayerNorm)


def test_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match="resnet_gn, vit, got 'resnet50'"):
        network("resnet50")


def test_learning_rate_rises_then_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 1000) for step in range(1000)]
    assert factors[0] == pytest.approx(1 / 50)
    assert max(factors) == factors[49] == 1.0
    assert factors[524] == pytest.approx(0.5, abs=2e-3)
    assert 0 < factors[-1] < 1e-4


def test_trainer_writes_what_it_measured(tmp_path: Path) -> None:
    lines: list[str] = []
    plan = TrainingPlan(names=("resnet_gn",), steps=4, batch_size=16, test_images=400, corrupted_images=0)
    train_networks(plan, glyph_atlas(), tmp_path, lines.append)
    path = tmp_path / "resnet_gn.safetensors"
    model = network("resnet_gn", pretrained=False)
    load_weights(model, path)
    glyphs = Glyphs(400)
    with torch.inference_mode():
        guesses = model(normalise(glyphs.images(range(400)))).argmax(1)
    accuracy = 100 * (guesses.numpy() == glyphs.labels).mean()
    assert f"clean test accuracy {accuracy:.2f} % on 400 images" in lines[-1]
    with safe_open(path, "pt") as stored:
        assert stored.metadata() == {"network": "resnet_gn", "steps": "4", "batch": "16", "seed": "0"}


@pytest.mark.slow
def test_trainer_learns(tmp_path: Path) -> None:
    """19,200 images are a three-hundredth of the full training, and ten times better than guessing (0.5 %) at least."""
    lines: list[str] = []
    plan = TrainingPlan(names=("resnet_gn",), steps=150, batch_size=128, test_images=1000, corrupted_images=0)
    train_networks(plan, glyph_atlas(), tmp_path, lines.append)
    assert float(lines[-1].split("accuracy ")[1].split(" %")[0]) > 5


def test_wrong_plans_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="got vgg"):
        TrainingPlan(names=("vgg",))
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        TrainingPlan(steps=0)
