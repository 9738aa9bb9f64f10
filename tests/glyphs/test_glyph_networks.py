"""The glyph networks: shape, names, independence of the batch, augmentation and the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from wildtta.glyphs import NETWORKS, Glyphs, glyph_atlas, network
from wildtta.glyphs.augmentation import Augmentation
from wildtta.glyphs.composition import labels_of, render_glyphs
from wildtta.glyphs.networks import load_weights, normalise
from wildtta.glyphs.training import TrainingPlan, learning_rate_factor, train_networks

_HEADS = {"resnet_gn": "fc", "vit": "head", "resnet_bn": "fc"}


@pytest.mark.parametrize("name", NETWORKS)
def test_an_answer_is_independent_of_the_batch_and_names_are_the_usual(name: str) -> None:
    torch.manual_seed(0)
    model = network(name, pretrained=False)
    assert not model.training
    head = getattr(model, _HEADS[name])
    assert isinstance(head, nn.Linear)
    assert head.out_features == 200
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == (name == "resnet_bn")
    x = normalise(Glyphs(8).images(range(8)))
    torch.testing.assert_close(model(x)[3:4], model(x[3:4]), rtol=1e-4, atol=1e-4)


def test_stages_and_blocks() -> None:
    vit = network("vit", pretrained=False)
    for name in ("resnet_gn", "resnet_bn"):
        resnet = network(name, pretrained=False)
        assert all(isinstance(getattr(resnet, f"layer{i}"), nn.Sequential) for i in (1, 2, 3, 4))
    assert isinstance(vit.blocks, nn.Sequential)
    assert len(vit.blocks) == 12
    assert isinstance(vit.norm, nn.LayerNorm)


def test_unknown_network_is_named() -> None:
    with pytest.raises(ValueError, match="resnet_gn, vit, resnet_bn, got 'resnet50'"):
        network("resnet50")


def test_learning_rate_rises_then_falls_to_zero() -> None:
    factors = [learning_rate_factor(step, 1000) for step in range(1000)]
    assert factors[0] == pytest.approx(1 / 50)
    assert max(factors) == factors[49] == 1.0
    assert factors[524] == pytest.approx(0.5, abs=2e-3)
    assert 0 < factors[-1] < 1e-4


@pytest.mark.parametrize("name", ["resnet_gn", "resnet_bn"])
def test_trainer_writes_what_it_measured(tmp_path: Path, name: str) -> None:
    lines: list[str] = []
    plan = TrainingPlan(names=(name,), steps=4, batch_size=16, test_images=400, corrupted_images=0)
    train_networks(plan, glyph_atlas(), tmp_path, lines.append)
    path = tmp_path / f"{name}.safetensors"
    model = network(name, pretrained=False)
    load_weights(model, path)
    glyphs = Glyphs(400)
    with torch.inference_mode():
        guesses = model(normalise(glyphs.images(range(400)))).argmax(1)
    accuracy = 100 * (guesses.numpy() == glyphs.labels).mean()
    assert f"clean test accuracy {accuracy:.2f} % on 400 images" in lines[-1]
    with safe_open(path, "pt") as stored:
        assert stored.metadata() == {"network": name, "steps": "4", "batch": "16", "seed": "0"}


def test_batch_statistics_are_learned_and_stored(tmp_path: Path) -> None:
    plan = TrainingPlan(names=("resnet_bn",), steps=2, batch_size=16, test_images=1, corrupted_images=1)
    lines: list[str] = []
    train_networks(plan, glyph_atlas(), tmp_path, lines.append)
    model = network("resnet_bn", pretrained=False)
    load_weights(model, tmp_path / "resnet_bn.safetensors")
    first = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    assert int(first.num_batches_tracked) == 2
    assert first.running_mean.abs().max() > 0
    assert next(line for line in lines if "severity 5" in line).startswith("resnet_bn: gaussian_noise")


def test_augmentation_degrades_half_of_the_images_and_no_more_than_it_says() -> None:
    images = Glyphs(400).images(range(400))
    nothing = {"warp": 0.0, "clouds": 0.0, "contrast": 1.0, "blur": 0.0, "noise": 0.0}
    assert (Augmentation(**nothing)(images).int() - images.int()).abs().max() <= 1
    for name, limit in {"warp": 1.0, "clouds": 0.1, "contrast": 0.2, "blur": 1.0, "noise": 0.05}.items():
        change = (Augmentation(**{**nothing, name: limit})(images).int() - images.int()).abs().float()
        touched = (change.amax(dim=(1, 2, 3)) > 1).float().mean()
        assert 0.3 < touched < 0.6, name
    noisy = Augmentation(**{**nothing, "noise": 0.05})(images).float() - images.float()
    assert noisy.std(dim=(1, 2, 3)).max() < 1.1 * 0.05 * 255


@pytest.mark.slow
def test_trainer_learns(tmp_path: Path) -> None:
    """19,200 images are a small part of the full training, and ten times better than guessing (0.5 %) at least."""
    lines: list[str] = []
    plan = TrainingPlan(names=("resnet_gn",), steps=150, batch_size=128, test_images=1000, corrupted_images=0)
    train_networks(plan, glyph_atlas(), tmp_path, lines.append)
    assert float(lines[-1].split("accuracy ")[1].split(" %")[0]) > 5


def test_other_characters_make_another_set_and_a_network_of_their_number(tmp_path: Path) -> None:
    few = glyph_atlas()[:7]
    plan = TrainingPlan(names=("resnet_gn",), steps=1, batch_size=8, test_images=8, corrupted_images=0)
    train_networks(plan, few, tmp_path, report=lambda line: None)
    with safe_open(tmp_path / "resnet_gn.safetensors", "pt") as stored:
        assert stored.get_tensor("fc.weight").shape == (7, 152)
    # Image 5 shows character 5 of both atlases, by the same random numbers; image 7 is character 0 of the small one.
    five, seven = torch.tensor([5]), torch.tensor([7])
    whole = render_glyphs(five, seed=0, split="test", atlas=glyph_atlas())
    assert torch.equal(render_glyphs(five, seed=0, split="test", atlas=few), whole)
    assert labels_of(seven, len(few)).item() == 0


def test_wrong_plans_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="got vgg"):
        TrainingPlan(names=("vgg",))
    with pytest.raises(ValueError, match="steps: expected at least 1, got 0"):
        TrainingPlan(steps=0)
