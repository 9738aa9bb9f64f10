"""The commands that train what TTT and DDA need, and adaptation with what they wrote. Figures that mean something take longer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import wildtta
from wildtta.data import corrupt, preprocess
from wildtta.glyphs import Glyphs, network

typer_testing = pytest.importorskip("typer.testing")


# The authors' settings are for 256 pixels; shrunk by 4, a glyph of 32 pixels has no structure left to keep.
FOR_SMALL_IMAGES: dict[str, float] = {"factor": 2, "depth": 30, "guidance": 12.0}


def command(*words: str) -> str:
    """Run a wildtta command in this process; its output."""
    import typer

    from wildtta.cli import training

    app = typer.Typer()
    training.register(app)
    result = typer_testing.CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return str(result.output)


def glyph_stream(corruption: str, severity: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    glyphs = Glyphs(count, seed=11, split="test")
    order = np.random.default_rng(0).permutation(count)
    images = corrupt(glyphs.images(order), corruption, severity, index=order)
    return preprocess(images, "glyphs"), torch.from_numpy(glyphs.labels[order])


def accuracy(adapter: wildtta.Adapter, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> float:
    answers = torch.cat([adapter(batch).argmax(1) for batch in images.split(batch_size)])
    return 100 * float((answers == labels).float().mean())


def test_ttt_train_writes_a_branch_that_ttt_takes(tmp_path: Path) -> None:
    out = tmp_path / "branch.safetensors"
    said = command("ttt-train", "--count", "64", "--epochs", "1", "--batch-size", "32", "--half", "--out", str(out))
    assert "a branch after layer2" in said
    assert {value.dtype for value in load_file(out).values()} == {torch.float16}
    images, _ = glyph_stream("gaussian_noise", 3, 200)
    adapter = wildtta.adapt(network("resnet_gn"), "ttt", branch=out)
    assert torch.isfinite(adapter(images[:2])).all()
    assert bool(adapter.last.learned)


def test_diffusion_train_writes_a_model_that_dda_and_diffusers_take(tmp_path: Path) -> None:
    diffusers = pytest.importorskip("diffusers")
    out = tmp_path / "model"
    sizes = ("--count", "32", "--steps", "2", "--batch-size", "16", "--channels", "8,8")
    command("diffusion-train", *sizes, "--half", "--out", str(out))
    stored = load_file(out / "unet" / "diffusion_pytorch_model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    unet = diffusers.UNet2DModel.from_pretrained(out / "unet")
    assert sum(parameter.numel() for parameter in unet.parameters()) > 1000
    images, _ = glyph_stream("gaussian_noise", 3, 200)
    adapter = wildtta.adapt(network("resnet_gn"), "dda", diffusion=out, steps=6, depth=3, mean=0.5, std=0.25)
    answer = adapter(images[:3])
    assert answer.shape == (3, 200)
    torch.testing.assert_close(answer.exp().sum(1), torch.ones(3), rtol=1e-4, atol=1e-4)  # logarithms of probabilities


@pytest.mark.slow
def test_dda_with_a_trained_model_mends_gaussian_noise(tmp_path: Path) -> None:
    """About half an hour on one CPU core, nearly all of it training; a minute on a GPU."""
    pytest.importorskip("diffusers")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = tmp_path / "model"
    command("diffusion-train", "--steps", "3000", "--batch-size", "32", "--device", device, "--out", str(out))
    images, labels = glyph_stream("gaussian_noise", 5, 200)
    bare = accuracy(wildtta.adapt(network("resnet_gn"), "none"), images, labels, 50)
    adapter = wildtta.adapt(network("resnet_gn"), "dda", diffusion=out, mean=0.5, std=0.25, **FOR_SMALL_IMAGES)
    assert accuracy(adapter, images, labels, 50) > bare + 5
