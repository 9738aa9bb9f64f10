"""The stream that does not wait: which batches a method of some cost has time for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wildtta
from toy_networks import batches
from toy_networks import build as build_network
from wildtta.bench import BenchError, Cell, measured_pace, recorded_milliseconds, run_cell
from wildtta.streams import build, learning_turns

LABELS = np.arange(100) % 10


def simulated(arrivals: int, cost: float) -> list[bool]:
    """A clock: one batch arrives per unit of time; learning begins on arrival if nothing is being learned."""
    free, turns = 0.0, []
    for now in range(arrivals):
        turns.append(free <= now)
        if turns[-1]:
            free = now + cost
    return turns


@pytest.mark.parametrize("cost", [0.4, 1.0, 1.5, 2.0, 2.3, 7.7, 100.0])
def test_turns_are_those_of_a_clock(cost: float) -> None:
    stream = build("mild", LABELS, batch_size=4)
    assert learning_turns(stream, cost).tolist() == simulated(25, cost)


def test_the_clock_starts_again_with_the_adapter_and_forgives_what_no_clock_can_see() -> None:
    separate = build("mild", LABELS, domains=["fog", "snow"], severity=5, batch_size=16)
    assert learning_turns(separate, 3.0).tolist() == [True, False, False, True, False, False, True] * 2
    continual = build("continual", LABELS, domains=["fog", "snow"], severity=5, batch_size=16)
    assert learning_turns(continual, 3.0).tolist() == simulated(14, 3.0)
    assert learning_turns(separate, 1.04).all()
    assert not learning_turns(separate, 1.06).all()
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cost must be a positive number"):
            learning_turns(separate, wrong)


def test_a_cell_at_a_pace_equals_a_loop_that_pauses() -> None:
    options = {"lr": 0.01}
    cell = Cell(model="glyphs:resnet_gn", method="tent", options=options, corruptions=("fog",), limit=96, batch_size=16)
    paced = Cell(**{**cell.to_json(), "pace": 2.2})
    assert paced.key != cell.key
    assert Cell(**{**cell.to_json(), "pace": 0}).key == cell.key
    row, again = run_cell(paced), run_cell(paced)
    assert row["cost"]["learned_batches"] == 2
    assert row["cost"]["backwards"] == 32
    assert row["metrics"] == again["metrics"]
    assert row["metrics"] != run_cell(cell)["metrics"]
    with pytest.raises(BenchError, match="pace must be a number of at least 0"):
        Cell(model="glyphs:resnet_gn", pace=-1.0)


def test_what_arrives_while_learning_is_answered_by_the_last_update() -> None:
    stream = batches("gn_resnet", 5, 8)
    adapter = wildtta.adapt(build_network("gn_resnet"), "tent", lr=0.02)
    turns = [True, False, False, True, False]
    answers = []
    for batch, learns in zip(stream, turns, strict=True):
        if learns:
            answers.append(adapter(batch))
        else:
            with adapter.paused():
                answers.append(adapter(batch))
    twin = wildtta.adapt(build_network("gn_resnet"), "tent", lr=0.02)
    twin(stream[0])
    assert torch.equal(twin.network(stream[2]), answers[2])
    assert torch.equal(twin(stream[3]), answers[3])


def test_a_pace_can_be_measured() -> None:
    cell = Cell(model="glyphs:resnet_gn", method="sar", options={"reliable": None}, corruptions=("fog",), batch_size=16)
    assert 0 < measured_pace(cell, batches=2) < float("inf")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_pace_is_over_the_recorded_network() -> None:
    """A step of Tent makes the network's pass and more, so that it cannot be faster."""
    cell = Cell(model="glyphs:resnet_gn", method="tent", corruptions=("fog",), options={"precision": "tf32"})
    recorded = recorded_milliseconds(cell, device="cuda")
    assert recorded is not None
    assert 0 < recorded < 100
    assert measured_pace(cell, device="cuda") > 1.2
