"""Redundancy, inequity, sparsity, the entropy surface and the scatter against recordings and direct forms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from wildtta.metrics import (
    FeatureStatistics,
    batch_redundancy_and_inequity,
    entropy_gradient_scatter,
    entropy_surface,
    features,
    filter_normalised_direction,
    tsne,
)

DATA = Path(__file__).parent / "recordings"
VALUES = json.loads((DATA / "ri_values.json").read_text())["values"]
MATRICES = np.load(DATA / "ri_matrices.npz")
CASES = [name for name in MATRICES.files if name not in ("W", "b")]


def _head() -> nn.Linear:
    weight = torch.from_numpy(MATRICES["W"])
    head = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(torch.from_numpy(MATRICES["b"]))
    return head


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch", [1, 5, 12])
def test_streamed_health_equals_the_recorded_values(case: str, batch: int) -> None:
    rows, statistics = torch.from_numpy(MATRICES[case]), FeatureStatistics()
    for part in rows.split(batch):
        statistics.update(part)
    health = statistics.health(_head())
    assert health["redundancy"] == pytest.approx(VALUES[case]["R_batch"], abs=1e-9)
    assert health["redundancy_rows"] == pytest.approx(VALUES[case]["R_feature"], abs=1e-9)
    assert health["inequity"] == pytest.approx(VALUES[case]["I"], abs=1e-9)
    logits = rows.numpy().mean(0) @ MATRICES["W"].T + MATRICES["b"]
    assert health["inequity_class"] == logits.argmax()


@pytest.mark.parametrize("case", CASES)
def test_one_batch_equals_the_recorded_values(case: str) -> None:
    told = batch_redundancy_and_inequity(torch.from_numpy(MATRICES[case]), _head())
    assert float(told["feature_redundancy"]) == pytest.approx(VALUES[case]["R_batch"], abs=1e-9)
    assert float(told["feature_redundancy_rows"]) == pytest.approx(VALUES[case]["R_feature"], abs=1e-9)
    assert float(told["feature_inequity"]) == pytest.approx(VALUES[case]["I"], abs=1e-9)


def test_float32_features_far_from_zero_keep_their_digits() -> None:
    noise = torch.randn(4000, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near, far = FeatureStatistics(), FeatureStatistics()
    for part in noise.split(64):
        near.update(part)
        far.update(part + 1e5)
    head = nn.Linear(16, 4).double()
    assert far.health(head)["redundancy"] == pytest.approx(near.health(head)["redundancy"], rel=1e-6)
    # iid rows: E[R] is about D / (n - 1).
    assert near.health(head)["redundancy"] == pytest.approx(16 / 3999, rel=0.3)


def test_sparsity_counts_dimensions_near_zero() -> None:
    statistics = FeatureStatistics(moments=False)
    scale = torch.tensor([1.0, 0.05, 0.005, 0.0])
    for _ in range(5):
        statistics.update(torch.ones(8, 4) * scale * torch.tensor([1.0, -1.0]).repeat(4)[:, None])
    assert statistics.sparsity() == {"0.1": 75.0, "0.01": 50.0, "0.001": 25.0}


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


def test_features_are_what_the_head_is_given() -> None:
    network, images = _Small().eval(), torch.randn(6, 3, 12, 12)
    torch.testing.assert_close(features(network, network.head, images), network.body(images).detach())
    assert not network.head._forward_pre_hooks


def test_directions_have_each_filters_norm() -> None:
    network = _Small()
    parameters = dict(network.named_parameters())
    direction = filter_normalised_direction(parameters, torch.Generator().manual_seed(3))
    assert set(direction) == {"body.0.weight", "head.weight"}
    for name, drawn in direction.items():
        torch.testing.assert_close(drawn.flatten(1).norm(dim=1), parameters[name].detach().flatten(1).norm(dim=1))


def test_surface_passes_through_the_networks_own_entropy_and_restores_it() -> None:
    network, images = _Small().eval(), torch.randn(32, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    surface = entropy_surface(network, images.split(16), steps=5, span=0.5)
    probabilities = network(images).detach().softmax(1).double()
    direct = float(-(probabilities * probabilities.log()).sum(1).mean())
    assert surface["centre"] == pytest.approx(direct, abs=1e-5)
    assert surface["entropy"][2][2] == pytest.approx(direct, abs=1e-5)
    assert np.std(surface["entropy"]) > 1e-4
    assert surface["axis"] == pytest.approx([-0.5, -0.25, 0, 0.25, 0.5])
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert entropy_surface(network, images.split(16), steps=5, span=0.5) == surface


def test_scatter_equals_a_finite_difference() -> None:
    network, images = _Small().double().eval(), torch.randn(3, 3, 12, 12, dtype=torch.float64)
    norm = network.body[1]
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    scatter = entropy_gradient_scatter(network, images, [norm.weight, norm.bias])
    assert not norm.weight.requires_grad
    assert norm.weight.grad is None
    step = 1e-6
    for i, image in enumerate(images):
        total = 0.0
        for parameter in (norm.weight, norm.bias):
            for j in range(len(parameter)):
                values = []
                for sign in (1, -1):
                    with torch.no_grad():
                        parameter[j] += sign * step
                        p = network(image[None]).softmax(1)
                        values.append(float(-(p * p.log()).sum()))
                        parameter[j] -= sign * step
                total += ((values[0] - values[1]) / (2 * step)) ** 2
        assert scatter["gradient_norm"][i] == pytest.approx(total**0.5, rel=1e-4)


def test_tsne_separates_two_clouds_and_is_seeded() -> None:
    pytest.importorskip("sklearn")
    generator = torch.Generator().manual_seed(0)
    clouds = torch.cat([torch.randn(30, 10, generator=generator), torch.randn(30, 10, generator=generator) + 8])
    plane = tsne(clouds, seed=1)
    assert plane.shape == (60, 2)
    spread = max(plane[:30].std(), plane[30:].std())
    assert np.linalg.norm(plane[:30].mean(0) - plane[30:].mean(0)) > 2 * spread
    np.testing.assert_array_equal(plane, tsne(clouds, seed=1))
