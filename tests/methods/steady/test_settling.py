"""How far a sample moves a network that has settled."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import build, images
from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs, network
from wildtta.glyphs.networks import normalise
from wildtta.methods.base import Review
from wildtta.methods.steady.settling import followed_way, no_way


def review(*, familiar: float = 1.0, samples: int = 64) -> Review:
    """With 64 remembered samples of a strong shift."""
    shifted = torch.randn(64, 20, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(20)[0]
    return Review(
        probabilities=shifted.softmax(1),
        alike=torch.ones(64),
        novelty=torch.tensor(1.0),
        familiar=torch.tensor(familiar),
        samples=samples,
    )


class Way:
    """A network's way, looked at after every 64 samples; whole steps are taken all along, whatever the pace says."""

    def __init__(self) -> None:
        self._state = no_way(torch.zeros(3), torch.float32)

    def at(self, weights: Tensor, *, strength: float = 1.0, trust: float = 1.0, familiar: float = 1.0) -> float:
        """The pace from there on."""
        state = {**self._state, "pace": torch.ones(()), "recent_trust": torch.tensor(trust)}
        self._state, pace = followed_way(state, weights, torch.tensor(strength), review(familiar=familiar))
        return float(pace)

    @property
    def start(self) -> Tensor:
        return self._state["way_start"]


def paces(distances: list[float], *, familiar: float = 1.0, length: float = 1.0) -> list[float]:
    """The pace after every 64 samples of a way with these distances from its start."""
    way = Way()
    return [way.at(torch.tensor([0.6, 0.8, 0.0]) * far, strength=length, familiar=familiar) for far in distances]


@pytest.mark.parametrize("length", [1.0, 0.25])
def test_steps_are_whole_on_the_way_and_a_hundredth_after_it(length: float) -> None:
    """By the formula: D̄ follows D as exp(−steps/400), and the pace falls from 1 to 0.01 between D̄/D = 0.5 and 0.8."""
    average, expected = 0.0, []
    distances = [0.01 * min(k, 20) for k in range(1, 201)]
    for distance in distances:
        average += (1 - math.exp(-64 * length / 400)) * (distance - average)
        expected.append(1 - 0.99 * min(max((average / distance - 0.5) / 0.3, 0), 1))
    way = paces(distances, length=length)
    assert way == pytest.approx(expected, abs=1e-4)
    assert way[:6] == [1.0] * 6
    assert way[-1] == pytest.approx(0.01)


def test_nothing_settles_where_nothing_was_learned_or_the_kind_is_new() -> None:
    assert paces([0.0] * 60) == [1.0] * 60
    assert paces([0.2] * 60, familiar=0.0) == [1.0] * 60


def test_a_way_back_in_a_flood_is_no_arrival() -> None:
    """Samples of a few classes call for no steps and say nothing about a shift: the way waits."""
    way = Way()
    for k in range(1, 9):
        on_the_way = way.at(torch.tensor([0.01 * k, 0.0, 0.0]))
    assert on_the_way > 0.9
    for k in range(8, 2, -1):
        pace = way.at(torch.tensor([0.01 * k, 0.0, 0.0]), strength=0.0, trust=0.0)
    assert pace == pytest.approx(on_the_way)


def test_a_new_kind_begins_a_new_way_where_the_network_is() -> None:
    place, way = torch.tensor([0.6, 0.8, 0.0]), Way()
    assert [way.at(place) for _ in range(60)][-1] == pytest.approx(0.01)
    assert way.at(place, familiar=0.0) == 1
    torch.testing.assert_close(way.start, place)
    assert [way.at(place + 0.01 * k) for k in range(1, 6)] == [1.0] * 5


def test_so_does_a_rest_that_the_mean_speaks_for_and_no_flood() -> None:
    place, way = torch.tensor([0.6, 0.8, 0.0]), Way()
    assert [way.at(place) for _ in range(60)][-1] == pytest.approx(0.01)
    assert way.at(place, strength=0.0, trust=0.0) == pytest.approx(0.01)
    assert way.at(0.5 * place, strength=0.0) == 1
    torch.testing.assert_close(way.start, 0.5 * place)
    # Small steps afterwards, while the pull still leads back, are no arrival.
    assert [way.at((0.5 - 0.02 * k) * place, strength=0.3) for k in range(1, 6)] == [1.0] * 5


def test_a_settled_network_takes_a_hundredth_of_a_step_and_of_the_way_back() -> None:
    """At rest only the pull is left: 4 % of the way per 64 samples, or 1 − 0.96^0.01 of it."""
    moved, left = [], []
    for pace in (1.0, 0.01):
        for strength, found in ((1.0, moved), (0.0, left)):
            model = wildtta.adapt(build("gn_resnet", dtype=torch.float64), "steady", warmup=1)
            engine = model.engine
            assert engine.source is not None
            away = 0.0 if strength else 0.01
            engine.learnables.assign(engine.source + away)
            for name, value in (("strength", strength), ("pace", pace), ("recent_trust", 1.0)):
                engine.memory[name].fill_(value)
            model(images("gn_resnet", 64).double())
            found.append(engine.learnables.vector() - engine.source)
    torch.testing.assert_close(moved[1] / 0.96**0.01, 0.01 * moved[0] / 0.96)
    torch.testing.assert_close(left[0], torch.full_like(left[0], 0.0096))
    torch.testing.assert_close(left[1], torch.full_like(left[1], 0.01 * 0.96**0.01))


def test_without_a_guard_nothing_settles_and_what_had_settled_moves_again() -> None:
    """What a memory said fades where nobody asks it again: 1 − 0.99/e of a step after 5,000 samples."""
    found = []
    for pace in (1.0, 0.01):
        model = wildtta.adapt(build("gn_resnet"), "steady", warmup=1)
        model.engine.memory["pace"].fill_(pace)
        for _ in range(50):
            model(images("gn_resnet", 100))
        found.append(float(model.engine.memory["pace"]))
    assert found == pytest.approx([1, 1 - 0.99 / math.e], abs=1e-3)


def test_a_guarded_network_settles_on_its_stream_and_learns_a_new_kind_at_full_pace() -> None:
    numbers = np.random.default_rng(0).permutation(2560)
    noisy = normalise(corrupt(Glyphs(2560).images(numbers), "gaussian_noise", 4, index=numbers))
    model = wildtta.adapt(network("resnet_gn"), "steady", guard=wildtta.Guard())
    for batch in noisy.split(64):
        model(batch)
    assert float(model.engine.distance()) > 0.005
    assert float(model.engine.memory["pace"]) < 0.5
    for batch in (0.3 * noisy[:640]).split(64):  # another kind: pale
        model(batch)
    assert float(model.engine.memory["pace"]) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("pace", [1.0, 0.505, 0.01])
def test_a_new_kind_begins_at_the_source_as_far_as_the_weights_had_settled(pace: float) -> None:
    """At a pace of 1 where they are, at a hundredth at the source, on the line between in between."""
    model = wildtta.adapt(build("gn_resnet"))
    engine = model.engine
    assert engine.source is not None
    away = engine.source + torch.linspace(0, 1, len(engine.source))
    engine.learnables.assign(away)
    engine.memory["present"].fill_(3.0)
    engine.memory["way_longest"].fill_(2.0)
    engine.method.begin_kind(engine, {"pace": torch.tensor(pace)})
    expected = engine.source + (pace - 0.01) / 0.99 * (away - engine.source)
    torch.testing.assert_close(engine.learnables.vector(), expected)
    assert float(engine.memory["way_longest"]) == 0
    assert engine.memory["present"].tolist() == [3.0] * len(engine.memory["present"])
