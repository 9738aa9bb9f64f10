"""Kernels of a fleet: norms where every sample has a scale and shift of its own, and the sums of many streams."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_dispatch import SmallViT, on_gpu
from torch import nn

import wildtta


def small_resnet() -> nn.Module:
    """GroupNorm with a ReLU behind it, and without."""
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()]
    second = [nn.Conv2d(8, 12, 3, 2, 1), nn.GroupNorm(3, 12), nn.GELU(), nn.Conv2d(12, 8, 1), nn.GroupNorm(2, 8), nn.ReLU(True)]
    network = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    with torch.no_grad():
        network[-1].weight.mul_(8)
    return network


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    pytest.importorskip("triton")
    script = Path(__file__).with_name("fleet_kernels_interpreted.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.parametrize("norm", ["group norm", "layer norm"])
def test_results_and_gradients_are_those_of_float64(interpreted: dict[str, Any], norm: str) -> None:
    assert len(interpreted[norm]) >= 4
    for case, found in interpreted[norm].items():
        assert max(found) < 3e-6, case


def test_redundancy_from_changed_sums_is_that_of_torchs_operations(interpreted: dict[str, Any]) -> None:
    assert len(interpreted["redundancy"]) == 4
    for case, found in interpreted["redundancy"].items():
        assert max(found) < 1e-11, case
    assert interpreted["added"] < 1e-12


def test_sums_are_cleared_for_the_streams_that_recover_alone(interpreted: dict[str, Any]) -> None:
    assert interpreted["cleared"]


def test_what_takes_a_kernels_place_gives_the_same(interpreted: dict[str, Any]) -> None:
    assert max(interpreted["by torch"]) < 1e-5


@pytest.mark.parametrize("case", ["resnet", "vit"])
def test_a_fleet_learns_the_same_with_the_kernels(interpreted: dict[str, Any], case: str) -> None:
    found = interpreted["fleets"][case]
    assert found["apart"] < 1e-4
    assert found["learned"] > 1e-2, "nothing was learned, so nothing was compared"
    assert found["calls"] >= 4 * 5


@on_gpu
@pytest.mark.parametrize("case", ["resnet", "vit"])
def test_a_fleet_on_a_gpu_learns_the_same_with_the_kernels(case: str) -> None:
    """Against torch's own norms, in float32 without TF32."""
    model: nn.Module = (small_resnet() if case == "resnet" else SmallViT(16)).cuda()
    side, answers = (8 if case == "resnet" else 16), []
    for kernels in (False, True):
        fleet = wildtta.Fleet(copy.deepcopy(model), "sar", lr=1e-3, reliable=2.0, precision="fp32")
        fleet._engine.fast.kernels = kernels
        draw = torch.Generator().manual_seed(1)
        batches = [torch.randn(6, 3, side, side, generator=draw).cuda() for _ in range(8)]
        answers.append(torch.stack([fleet(batch, list("abcabc")) for batch in batches]))
        assert fleet.replayed
    from wildtta.kernels.group_norm import GroupNorm
    from wildtta.kernels.layer_norm import LayerNorm

    assert not GroupNorm.broken
    assert not LayerNorm.broken
    assert (answers[0] - answers[1]).abs().max() < 1e-3 * answers[0].abs().max()


@on_gpu
@pytest.mark.parametrize("width", [96, 2048])
def test_compiled_sums_are_those_of_torchs_operations(width: int) -> None:
    from wildtta.kernels import changed_products as kernels
    from wildtta.methods.sar2.redundancy import changed_products

    draw = torch.Generator().manual_seed(2)

    def values(*shape: int) -> torch.Tensor:
        return torch.randn(3, *shape, width, generator=draw, dtype=torch.float64)

    square = values(width)
    given = square + square.mT, values(1), values(1), values(), values(1)
    wanted, found = changed_products(*given), changed_products(*(value.cuda() for value in given))
    sums = given[0].cuda()
    kernels.add_products(sums, given[1].cuda(), given[2].cuda())
    assert not kernels.ChangedProducts.broken
    for ours, theirs in zip((*found, sums), (*wanted, given[0] + given[1].mT @ given[2]), strict=True):
        assert (ours.cpu() - theirs).abs().max() < 1e-11 * theirs.abs().max()
