"""What TTT and DDA need on glyphs: packaged, small, trained, and found without being named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import wildtta
from wildtta.bench import Cell
from wildtta.bench.running import run_cell
from wildtta.corruptions import corrupt
from wildtta.glyphs import NETWORKS, Glyphs, network
from wildtta.glyphs.networks import normalise
from wildtta.glyphs.parts import BRANCHES, DIFFUSIONS
from wildtta.methods.dda.diffusion import load_diffusion
from wildtta.methods.ttt.rotation import load_branch, rotate
from wildtta.network.stages import run_to

_DDA = {"diffusion": "glyphs", "factor": 2, "depth": 30, "guidance": 12}


def files() -> Iterator[Path]:
    yield from BRANCHES.values()
    yield from (path for folder in DIFFUSIONS.values() for path in folder.rglob("*") if path.is_file())


def test_all_parts_together_take_less_than_4_megabytes() -> None:
    assert sum(path.stat().st_size for path in files()) < 4_000_000


@pytest.mark.parametrize("name", NETWORKS)
def test_a_branch_tells_turns_of_glyphs_that_it_never_saw(name: str) -> None:
    model, inputs = network(name), normalise(Glyphs(200).images(range(200)))
    branch, stage, mirror = load_branch(f"glyphs:{name}", model)
    assert not mirror, "letters have a reading direction"
    hits = torch.zeros(())
    with torch.inference_mode():
        for turn in range(4):
            turns = torch.full((200,), turn)
            hits += (branch.eval()(run_to(model, stage, rotate(inputs, turns))).argmax(1) == turns).sum()
    # Chance is 25 %. Many glyphs look alike when turned, so that no branch comes near 100.
    assert float(hits) / 800 > 0.4


def test_the_diffusion_model_finds_the_noise() -> None:
    pytest.importorskip("diffusers")
    model = load_diffusion("glyphs")
    assert model.dtype == torch.float32
    clean = Glyphs(64).images(range(64)).float() / 127.5 - 1
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    times = torch.full((64,), 300)
    with torch.inference_mode():
        found = model.unet(model.scheduler.add_noise(clean, noise, times), times).sample
    assert float((found - noise).square().mean()) < 0.05, "1 without training"


def options(**fields: Any) -> dict[str, Any]:
    return dict(Cell(**{"model": "glyphs:vit", **fields}).options)


def test_cells_on_glyphs_have_the_packaged_part_unless_another_is_named() -> None:
    assert options(method="ttt") == {"branch": "glyphs:vit"}
    assert options(method="ttt", options={"lr": 0.01}) == {"branch": "glyphs:vit", "lr": 0.01}
    assert options(method="ttt", options={"branch": "own.safetensors"}) == {"branch": "own.safetensors"}
    assert options(method="ttt", weights="other.safetensors") == {}, "made for the packaged weights"
    assert options(method="ttt", model="timm:resnet18") == {}
    assert options(method="dda") == _DDA
    assert options(method="dda", options={"depth": 10})["depth"] == 10
    assert options(method="dda", options={"diffusion": "own"}) == {"diffusion": "own"}, "nor settings for another"
    assert options(method="dda", data="folder") == {}
    assert options(method="tent") == {}


@pytest.mark.parametrize(("method", "changes"), [("ttt", {}), ("dda", {"depth": 2})])
def test_a_cell_runs_without_naming_the_part(method: str, changes: dict[str, Any]) -> None:
    if method == "dda":
        pytest.importorskip("diffusers")
    cell = Cell(model="glyphs:resnet_bn", method=method, options=changes, corruptions=("fog",), batch_size=1, limit=2)
    row = run_cell(Cell.from_json(cell.to_json()))
    assert row["status"] == "ok"
    assert row["metrics"]["samples"] == 2
    assert row["key"] == cell.key


@pytest.mark.slow
def test_dda_mends_gaussian_noise() -> None:
    pytest.importorskip("diffusers")
    glyphs = Glyphs(128, seed=11)
    inputs = normalise(corrupt(glyphs.images(range(128)), "gaussian_noise", 5))
    labels = torch.from_numpy(glyphs.labels)
    model = network("resnet_gn")
    with torch.inference_mode():
        alone = float((model(inputs).argmax(1) == labels).float().mean())
    adapter = wildtta.adapt(model, "dda", mean=0.5, std=0.25, **_DDA)
    assert float((adapter(inputs).argmax(1) == labels).float().mean()) > alone + 0.1
