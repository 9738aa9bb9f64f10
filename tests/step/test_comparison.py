"""Which samples the source answers too, and that a recorded step compares as an eager one does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import build, images
from wildtta.step.comparison import rows_compared
from wildtta.step.graphs import GraphRunner, Recording


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 16, 20, 64, 100])
def test_every_eighth_sample_is_compared(size: int) -> None:
    steps = 8 * 840
    chosen = (rows_compared(step, size) for step in range(1, steps + 1))
    number = sum(len(range(size)[rows]) for rows in chosen if rows is not None)
    # Exactly an eighth where the size and eight divide one another, else a little more or less.
    share = number / (steps * size)
    assert share == 1 / 8 if 8 % size == 0 or size % 8 == 0 else 1 / 16 < share <= 1 / 5


class Rerun:
    """In place of a CUDA graph: the work itself, run again at every replay, as it would be recorded."""

    def __init__(self, runner: GraphRunner, work: Callable[[], Any]) -> None:
        self._engine, self._work, self.recording = runner.engine, work, Recording(self, None)  # type: ignore[arg-type]

    def replay(self) -> None:
        engine, steps = self._engine, self._engine.host_steps
        engine.fixed_shapes = True
        self.recording.result = self._work()
        engine.fixed_shapes, engine.host_steps = False, steps


@pytest.fixture
def rerun(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its second batch on an adapter goes the way of recorded steps, without a graph."""
    monkeypatch.setattr(GraphRunner, "_record", lambda runner, work: Rerun(runner, work).recording)
    monkeypatch.setattr(GraphRunner, "ready_for", lambda runner, _: runner.engine.host_steps > 0)


def course(size: int, batches: int, *, graphs: bool) -> tuple[wildtta.Adapter, list[Tensor], list[int]]:
    """An adapter after a stream in which the evidence is strong all along, its answers, and the samples it passed."""
    model = wildtta.adapt(build("gn_resnet", dtype=torch.float64), "steady", warmup=1, batch_size=size)
    model.cuda_graphs = graphs
    given, passed = [], []
    for number in range(batches):
        model.engine.memory["strength"].fill_(1.0)
        given.append(model(images("gn_resnet", size, seed=number).double()))
        passed.append(int(model.last.forwards))
    assert model.replayed == graphs
    return model, given, passed


@pytest.mark.parametrize(("size", "batches"), [(64, 5), (4, 9), (1, 20)])
def test_a_recorded_step_compares_as_an_eager_one(rerun: None, size: int, batches: int) -> None:
    eager, expected, counted = course(size, batches, graphs=False)
    recorded, given, passed = course(size, batches, graphs=True)
    torch.testing.assert_close(torch.stack(given), torch.stack(expected))
    assert passed == counted
    for name, value in eager.online_state().items():
        torch.testing.assert_close(recorded.online_state()[name], value, equal_nan=True, msg=name)
    assert float(recorded.engine.memory["payoff_number"]) > 0
    assert float(recorded.engine.distance()) > 0
