"""The attacks of the benchmark do what they say: their inputs stay in bounds and push where they should."""

from __future__ import annotations

import copy
import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import CLASSES, build, images

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import attacks
import poison

LIMIT, EPSILON = 4.0, 0.1
FROM_NOTHING = {"grey", "confident noise"}


@pytest.fixture(params=["gn_resnet", "ln_vit"])
def attacker(request: pytest.FixtureRequest) -> poison.Attacker:
    network, owned = build(request.param), images(request.param, 96).clamp(-LIMIT, LIMIT)
    victim = wildtta.adapt(copy.deepcopy(network), "tent", lr=0.001)
    edge = torch.full((1, 3, 1, 1), LIMIT)
    labels = torch.arange(96) % CLASSES
    draws = torch.Generator().manual_seed(0)
    return poison.Attacker(owned, labels, -edge, edge, torch.full_like(edge, EPSILON), network, victim, 80, draws)


@pytest.mark.parametrize("name", list(poison.ATTACKS))
def test_inputs_are_as_many_as_agreed_and_in_bounds(attacker: poison.Attacker, name: str) -> None:
    sent = []
    for batch in poison.ATTACKS[name](attacker):
        attacker.victim(batch)
        sent.append(batch)
    assert [len(batch) for batch in sent] == [64, 16]
    everything = torch.cat(sent)
    assert float(everything.abs().max()) <= LIMIT + 1e-5
    if name not in FROM_NOTHING:
        owned = attacker.images / 3 if name == "new kind" else attacker.images
        near = torch.cdist(everything.flatten(1), owned.flatten(1), p=float("inf")).min(1).values
        assert float(near.max()) <= EPSILON + 1e-5


def test_the_step_on_poisoned_images_climbs_the_loss_of_the_images_it_aims_at(attacker: poison.Attacker) -> None:
    # The first thing that the attack draws is what it aims at.
    aimed = dataclasses.replace(attacker, generator=torch.Generator().manual_seed(1)).draw(poison.BATCH)

    def harm(batch: Tensor) -> float:
        victim = copy.deepcopy(attacker.victim)
        victim(batch)
        with torch.no_grad():
            return float(
                torch.nn.functional.cross_entropy(victim.network(attacker.images[aimed]), attacker.labels[aimed])
            )

    def first(epsilon: float) -> Tensor:
        draws = torch.Generator().manual_seed(1)
        bound = torch.full_like(attacker.epsilon, epsilon)
        return next(poison.anti_aligned(dataclasses.replace(attacker, epsilon=bound, generator=draws)))

    assert harm(first(0.1)) > harm(first(0.0))


def test_harm_in_the_weights_shows_where_they_are_put_back(attacker: poison.Attacker) -> None:
    warmed, shown = attacker.victim, (attacker.images, attacker.labels)
    warmed(attacker.images[:16])
    victim = copy.deepcopy(warmed)
    weights = victim.engine.learnables.vector()
    victim.engine.learnables.assign(weights + torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)))
    found = attacks.where(victim, warmed, *shown)
    assert found["weights_back"] == attacks.accuracy(warmed, *shown)
    assert found["state_back"] == attacks.accuracy(victim, *shown)
    assert found["source"] == attacks.accuracy(wildtta.adapt(attacker.source, "none"), *shown)
    assert found["distance_before"] < found["distance_after"]


def test_the_table_has_means_and_worst_seeds() -> None:
    rows = [
        {"network": "n", "method": "tent", "guard": guard, "attack": "grey", "before": 50.0, "after": 50.0 - lost}
        for guard, losses in ((False, (4.0, 6.0)), (True, (1.0, 0.0)))
        for lost in losses
    ]
    table = attacks.table(rows)
    assert "| grey | -5.0 (-6.0) | -0.5 (-1.0) |" in table
    assert "| *accuracy before, %* | 50.0 | 50.0 |" in table
