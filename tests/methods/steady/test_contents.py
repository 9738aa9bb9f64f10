"""Whether a stream holds many classes, on features whose truth is known, and what follows for a network that is adapted."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import build, images
from wildtta.methods.steady.contents import NAMES, contents, excess, followed, nothing_compared
from wildtta.methods.steady.evidence import many_classes, no_evidence, weighed

CLASSES, WIDTH = 10, 32
ROWS = torch.linalg.qr(torch.randn(WIDTH, CLASSES, generator=torch.Generator().manual_seed(0)).double())[0].T
NUMBER = torch.tensor(64)


def fresh() -> dict[str, Tensor]:
    return nothing_compared(CLASSES, WIDTH, dtype=torch.float64, device=torch.device("cpu"))


def stream(labels: Tensor, *, signal: float = 1.5, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Features of images about their class's row, far from 0, and of scrambled ones about nothing, 64 at a time."""
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, len(labels), WIDTH, generator=draws, dtype=torch.float64) / math.sqrt(WIDTH)
    shift = 5 * torch.randn(2, 1, WIDTH, generator=draws, dtype=torch.float64)
    seen = noise + shift
    seen[0] += signal * ROWS[labels]
    return list(zip(seen[0].split(64), seen[1].split(64), strict=True))


def after(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    state = fresh()
    for features, beside in pairs:
        state |= followed(state, features, beside, torch.ones(64, dtype=torch.bool), ROWS, NUMBER)
    return state


ALL_CLASSES = torch.randint(CLASSES, (512,), generator=torch.Generator().manual_seed(2))
ONE_CLASS = torch.full((512,), 3)


def test_many_classes_are_told_from_one_whatever_they_share() -> None:
    many, one = contents(after(stream(ALL_CLASSES))), contents(after(stream(ONE_CLASS)))
    assert float(many.known) == float(one.known) == 1
    costly = torch.tensor(0.5)
    assert float(many_classes(many, costly)) == 1
    assert float(many.share) > 0.9
    assert float(many_classes(one, torch.zeros(()))) == 0


def test_what_costs_much_must_be_clearer() -> None:
    """By a tenth of the cost, up to a cost of 0.3: from 0.035 and 0.055 on."""
    known = contents(after(stream(ALL_CLASSES)))._replace(excess=torch.tensor(0.055), share=torch.ones(()))
    found = [float(many_classes(known, torch.tensor(cost))) for cost in (-0.1, 0.0, 0.1, 0.2, 0.3, 5.0)]
    assert found == pytest.approx([1, 1, 0.5, 0, 0, 0], abs=1e-6)
    clearer = known._replace(excess=torch.tensor(0.075))
    assert float(many_classes(clearer, torch.tensor(5.0))) == pytest.approx(0.5, abs=1e-6)


def test_weak_classes_are_told_as_well() -> None:
    assert float(excess(after(stream(ALL_CLASSES, signal=0.8)))) > 0.04
    assert float(excess(after(stream(ONE_CLASS, signal=0.8)))) < 0.02


def test_the_excess_equals_its_formula() -> None:
    """One batch in numpy, each size about its own mean."""
    features, beside = (torch.cat(parts) for parts in zip(*stream(ALL_CLASSES[:192]), strict=True))
    state = followed(fresh(), features, beside, torch.ones(192, dtype=torch.bool), ROWS, torch.tensor(192))
    rows = (ROWS - ROWS.mean(0)).numpy()

    def information(centred: np.ndarray) -> float:
        cosines = centred @ rows.T / np.linalg.norm(centred, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
        likely = np.exp(6 * cosines)
        likely /= likely.sum(1, keepdims=True)
        mean = likely.mean(0)
        return float((-(mean * np.log(mean)).sum() + (likely * np.log(likely)).sum(1).mean()) / np.log(CLASSES))

    own, other = features.numpy(), beside.numpy().copy()
    for size in range(3):
        other[size::3] -= other[size::3].mean(0)
    assert float(excess(state)) == pytest.approx(information(own - own.mean(0)) - information(other))
    assert float(state["arrangement"]) == 192


def test_a_run_of_one_class_after_many_shows_in_the_latest_answers() -> None:
    """The images compared are of a longer time, so that the excess is still that of many classes."""
    state = after(stream(torch.cat((ALL_CLASSES, ONE_CLASS[:192]))))
    assert float(excess(state)) > 0.06
    assert float(contents(state).share) < 0.3
    assert float(many_classes(contents(state), torch.zeros(()))) == 0


def test_samples_that_do_not_count_change_nothing() -> None:
    """Those that are not finite, and those that fill up a shape."""
    (features, beside), *_ = stream(ALL_CLASSES[:64])
    usable = torch.ones(64, dtype=torch.bool)
    usable[60:] = False
    spoiled, other = features.clone(), beside.clone()
    spoiled[60:62], other[62:] = math.nan, math.inf
    found = followed(fresh(), spoiled, other, usable, ROWS, torch.tensor(60))
    expected = followed(fresh(), features[:60], beside[:60], usable[:60], ROWS, torch.tensor(60))
    assert found.keys() == expected.keys() == set(NAMES)
    for name in NAMES:
        torch.testing.assert_close(found[name], expected[name])


def test_what_a_stream_holds_decides_over_the_other_signs() -> None:
    """Logits that have a common mean at no cost: a shift to the evidence, unless the stream is known to be of one class."""
    draws = torch.Generator().manual_seed(4)
    shift = torch.randn(CLASSES, generator=draws, dtype=torch.float64)
    strengths = []
    for labels in (ALL_CLASSES, ONE_CLASS):
        known = contents(after(stream(labels)))
        state = no_evidence(CLASSES, dtype=torch.float64, device=torch.device("cpu"))
        for part in ALL_CLASSES.split(64):
            logits = 6 * torch.eye(CLASSES, dtype=torch.float64)[part] + 3 * shift
            state = weighed(state, logits + torch.randn(64, CLASSES, generator=draws, dtype=torch.float64), None, known)
        strengths.append(float(state["strength"]))
    assert strengths[0] > 0.5
    assert strengths[1] == 0


@pytest.mark.parametrize(("classes", "asked"), [(5, False), (6, True), (39, True), (40, False)])
def test_who_is_asked(classes: int, asked: bool) -> None:
    model = wildtta.adapt(build("gn_resnet", classes=classes))
    assert all((name in model.engine.memory) == asked for name in NAMES)


@pytest.mark.parametrize(("size", "steps"), [(64, 12), (1, 1024), (16, 48)])
def test_what_it_costs(size: int, steps: int) -> None:
    """Of the first 512 samples every second is passed twice more, later every eighth."""
    model = wildtta.adapt(build("gn_resnet"))
    with torch.no_grad():
        for number in range(steps):
            model(images("gn_resnet", size, seed=number))
    assert model.cost.forwards == 512 * 2 + (size * steps - 512) * 1.25


def test_vectors_are_not_scrambled() -> None:
    model = wildtta.adapt(build("ln_mlp"))
    for number in range(4):
        model(images("ln_mlp", 64, seed=number))
    assert float(model.engine.memory["compared_number"]) == 0
    assert model.cost.forwards == 4 * 64 * 9 / 8


def test_the_source_answers_for_both() -> None:
    """Features and sums are the bare network's, whatever has been learned."""
    network = build("gn_resnet", dtype=torch.float64)
    model = wildtta.adapt(copy.deepcopy(network), warmup=1)
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    read: list[Tensor] = []
    head.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    expected = torch.zeros(())
    for number in range(3):
        batch = images("gn_resnet", 64, seed=number).double()
        model.engine.memory["strength"].fill_(1.0)
        model(batch)
        with torch.no_grad():
            network(batch[::2])
        expected = math.exp(-32 / 256) * expected + read[-1].sum(0)
    assert float(model.engine.distance()) > 0
    torch.testing.assert_close(model.engine.memory["compared_sum"], expected)
