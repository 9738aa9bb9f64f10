"""Learning means something on every model of docs/models.md: objectives fall, and Steady gains by itself under a shift."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

import wildtta
from any_classifier import TABLE, Entry, ask, batch_of, build, name_of
from toy_networks import same_bits, snapshot
from trained_classifiers import accuracy, harmful_shift, trained
from wildtta.methods.registry import config_classes
from wildtta.network.norms import is_batch_norm

OF_EVERY_DAY = ("ResNet (BatchNorm)", "BERT", "CLIP (`wildtta.zero_shot`)", "mean over frames", "Conv1d")
"""The other models are among the slow tests."""
# Rates that fit the losses of small random networks: SAR²'s has R with the weight 1000/D in it.
RATES = {"tent": 5e-4, "sar": 5e-4, "sar2": 2e-6}
# A batch of which every method selects most; ρ that is small beside these few weights.
SETTINGS = {"reliable": 0.95, "warmup": 2, "recovery": None, "sharpness": 0.001}


def _needed(entry: Entry) -> None:
    pytest.importorskip({"plain torch": "torch"}.get(entry.source, entry.source))


def _marks(entry: Entry) -> tuple[pytest.MarkDecorator, ...]:
    return () if entry.name in OF_EVERY_DAY else (pytest.mark.slow,)


@pytest.mark.parametrize("method", RATES)
@pytest.mark.parametrize("entry", [pytest.param(entry, id=name_of(entry), marks=_marks(entry)) for entry in TABLE])
def test_the_objective_falls_on_a_batch_that_is_seen_again(entry: Entry, method: str) -> None:
    """What the method itself minimises: entropy of the selected samples, for SAR² with R and I."""
    _needed(entry)
    known = {item.name for item in dataclasses.fields(config_classes()[method])}
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    adapter, batch = wildtta.adapt(build(entry), method, lr=RATES[method], **settings), batch_of(entry, 0)
    losses = []
    for _ in range(6):
        ask(adapter, batch)
        losses.append(float(adapter.last.loss))
    assert losses[-1] < losses[0]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Online accuracies in %, and whether Steady learned under the shift."""

    clean: float
    steady_clean: float
    shifted: float
    steady_shifted: float
    learned: int


@functools.cache
def _outcome(entry: Entry) -> Outcome:
    """Steady as it comes, on a trained network, where its inputs have shifted and where they have not."""
    network = trained(entry)
    by_statistics = any(map(is_batch_norm, network.modules()))
    before = snapshot(network)
    shift = harmful_shift(network, entry)
    clean, shifted = accuracy(network, entry, 0.0), accuracy(network, entry, shift)
    adapter = wildtta.adapt(network)
    steady_shifted = accuracy(adapter, entry, shift)
    learned = int(adapter.cost.learned)
    moved = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert bool(moved) is not by_statistics
    assert set(moved) <= set(adapter.learned_parameters)
    adapter.reset()
    steady_clean = accuracy(adapter, entry, 0.0)
    assert same_bits(snapshot(adapter.unload()), before) == []
    return Outcome(clean, steady_clean, shifted, steady_shifted, learned)


@pytest.mark.parametrize("entry", [pytest.param(entry, id=name_of(entry), marks=_marks(entry)) for entry in TABLE])
def test_steady_learns_where_a_trained_networks_inputs_have_shifted(entry: Entry) -> None:
    """With its defaults, by the evidence of the stream. Two points: about one deviation of 720 answers."""
    _needed(entry)
    outcome = _outcome(entry)
    assert outcome.learned > 0
    assert outcome.steady_shifted > outcome.shifted - 2
    assert outcome.steady_clean > outcome.clean - 4


@pytest.mark.slow
def test_over_the_table_steady_gains_under_shift_and_keeps_what_was_right() -> None:
    outcomes = [_outcome(entry) for entry in TABLE]
    gains = torch.tensor([outcome.steady_shifted - outcome.shifted for outcome in outcomes])
    kept = torch.tensor([outcome.steady_clean - outcome.clean for outcome in outcomes])
    print("\n".join(f"{name_of(entry)}: {outcome}" for entry, outcome in zip(TABLE, outcomes, strict=True)))
    assert float(gains.mean()) > 4
    assert float((gains > 1).double().mean()) > 0.6
    assert float(kept.mean()) > -0.5
