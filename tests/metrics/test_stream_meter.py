"""Accuracy, calibration and their bookkeeping against recordings, torchmetrics and direct formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wildtta.metrics import (
    Series,
    StreamMeter,
    adaptive_calibration_error,
    collapsed,
    expected_calibration_error,
    row_collapsed,
)
from wildtta.metrics.series import thin

DATA = Path(__file__).parent / "recordings"
RECORDED = json.loads((DATA / "ece_values.json").read_text())


def _record(logits: torch.Tensor, labels: torch.Tensor, batch: int):
    meter = StreamMeter(labels)
    for part in logits.split(batch):
        meter.update(part)
    return meter.record()


@pytest.mark.parametrize("case", ["a", "b", "c", "tiny"])
def test_calibration_equals_the_recorded_values(case: str) -> None:
    inputs = np.load(DATA / "ece_inputs.npz")
    logits, labels = torch.from_numpy(inputs[f"{case}_logits"]).double(), torch.from_numpy(inputs[f"{case}_labels"])
    record = _record(logits, labels, batch=64)
    hits = torch.from_numpy(record.predicted == record.labels)
    ours = expected_calibration_error(torch.from_numpy(record.confidence), hits)
    assert ours == pytest.approx(RECORDED[case]["own_l1_15_(lo,hi]"], abs=1e-7)
    assert ours == pytest.approx(RECORDED[case]["torchmetrics_l1_15"], abs=1e-6)
    ten = expected_calibration_error(torch.from_numpy(record.confidence), hits, bins=10)
    assert ten == pytest.approx(RECORDED[case]["torchmetrics_l1_10"], abs=1e-6)
    assert hits.double().mean() == pytest.approx(RECORDED[case]["accuracy"], abs=1e-12)


def test_summary_equals_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5000, 30, generator=generator)
    labels = torch.where(
        torch.rand(5000, generator=generator) < 0.5, logits.argmax(1), torch.randint(30, (5000,), generator=generator)
    )
    domains = np.arange(5000) // 2500
    summary = _record(logits, labels, batch=64).summary(30, domains, ["snow", "fog"])
    accuracy = torchmetrics.multiclass_accuracy(logits, labels, 30, average="micro")
    assert summary["accuracy"] == pytest.approx(100 * float(accuracy), abs=1e-4)
    top5 = torchmetrics.multiclass_accuracy(logits, labels, 30, average="micro", top_k=5)
    assert summary["top5"] == pytest.approx(100 * float(top5), abs=1e-4)
    ece = torchmetrics.multiclass_calibration_error(logits, labels, 30, n_bins=15)
    assert summary["ece"] == pytest.approx(100 * float(ece), abs=1e-4)
    assert summary["nll"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    for i, name in enumerate(["snow", "fog"]):
        half = slice(2500 * i, 2500 * (i + 1))
        ours = (logits[half].argmax(1) == labels[half]).float().mean()
        assert summary["per_corruption"][name] == pytest.approx(100 * float(ours), abs=1e-4)
    per_class = torchmetrics.multiclass_accuracy(logits, labels, 30, average="none")
    assert summary["per_class"] == pytest.approx((100 * per_class).tolist(), abs=0.006)
    assert summary["running"][-1] == [5000, pytest.approx(summary["accuracy"], abs=1e-3)]
    assert len(summary["running"]) == 100
    assert sum(summary["histogram"]) == 1000


@given(batch=st.integers(1, 700))
def test_batching_does_not_change_the_record(batch: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(600, 7, generator=generator), torch.randint(7, (600,), generator=generator)
    whole, parts = _record(logits, labels, 600), _record(logits, labels, batch)
    for name in ("labels", "predicted", "rank"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    np.testing.assert_allclose(whole.nll, parts.nll, rtol=1e-6)


def test_the_meter_keeps_its_own_copy_of_the_logits() -> None:
    labels = torch.zeros(4, dtype=torch.int64)
    meter, buffer = StreamMeter(labels), torch.tensor([[5.0, 0.0]])
    for first in (5.0, -5.0, 5.0, 5.0):
        buffer[0, 0] = first
        meter.update(buffer)
    assert meter.record().predicted.tolist() == [0, 1, 0, 0]


def test_adaptive_bins_hold_equal_shares() -> None:
    # Confidences crowded in one bin of equal width: its average hides that one half is too sure, the other too shy.
    confidence = torch.linspace(0.9401, 0.9999, 100, dtype=torch.float64)
    correct = torch.arange(100) < 50
    assert expected_calibration_error(confidence, correct, bins=15) == pytest.approx(0.47, abs=0.01)
    halves = adaptive_calibration_error(confidence, correct, bins=2)
    direct = 0.5 * abs(1 - confidence[:50].mean()) + 0.5 * abs(0 - confidence[50:].mean())
    assert halves == pytest.approx(float(direct), abs=1e-12)


def test_collapse_is_one_class_that_the_labels_do_not_explain() -> None:
    labels = torch.arange(1000) % 10
    everything_three = torch.nn.functional.one_hot(torch.full((1000,), 3), 10).double()
    summary = _record(everything_three, labels, 64).summary(10, np.zeros(1000, int), ["clean"])
    assert summary["collapsed"]
    assert summary["top_class_share"] == 100
    # The same predictions where the stream's end really is all threes.
    rightly = _record(everything_three, torch.full((1000,), 3), 64).summary(10, np.zeros(1000, int), ["clean"])
    assert not rightly["collapsed"]
    assert (summary["top_class_true_share"], rightly["top_class_true_share"]) == (10, 100)
    # A network that is not adapted may prefer a class, but it has not collapsed.
    unadapted = _record(everything_three, labels, 64).summary(10, np.zeros(1000, int), ["clean"], adapts=False)
    assert not unadapted["collapsed"]
    uniform = torch.nn.functional.one_hot(labels, 10).double()
    assert _record(uniform, labels, 64).summary(10, np.zeros(1000, int), ["clean"])["top_class_share"] == 10


def test_collapse_begins_above_a_fifth_of_the_predictions() -> None:
    assert not collapsed(0.2, 0.0, adapts=True)
    assert collapsed(0.201, 0.1, adapts=True)
    assert not collapsed(0.201, 0.101, adapts=True)


def test_a_share_that_the_unadapted_network_has_too_is_no_collapse() -> None:
    """On the glyph ViT and contrast the bare network gives one class nearly half of its answers."""
    assert collapsed(0.48, 0.005, adapts=True)
    assert not collapsed(0.48, 0.005, adapts=True, unadapted_share=0.48)
    # From 0.1 the bar is twice as much, from 0.48 halfway to everything, and all answers are always a collapse.
    assert [collapsed(share, 0.0, adapts=True, unadapted_share=0.11) for share in (0.21, 0.22)] == [False, True]
    assert [collapsed(share, 0.0, adapts=True, unadapted_share=0.48) for share in (0.73, 0.75)] == [False, True]
    assert collapsed(1.0, 0.0, adapts=True, unadapted_share=0.9)
    row = {"top_class_share": 48.0, "unadapted_top_class_share": 47.0}
    assert not row_collapsed(row, adapts=True)
    assert row_collapsed(row | {"top_class_share": 90.0}, adapts=True)


def test_a_handful_of_answers_is_no_collapse() -> None:
    """Of one or two answers one class always has a large share."""
    assert not collapsed(1.0, 0.0, adapts=True, answers=1)
    assert collapsed(1.0, 0.0, adapts=True, answers=20)
    shares = {"top_class_share": 100.0, "top_class_true_share": 0.0}
    assert [row_collapsed({**shares, "samples": n}, adapts=True) for n in (8, 99, 100)] == [False, False, True]
    row = {"top_class_share": 24.4}
    assert row_collapsed(row, adapts=True)
    assert not row_collapsed(row, adapts=False)
    assert not row_collapsed(row | {"top_class_true_share": 20.0}, adapts=True)


def test_non_finite_logits_are_found() -> None:
    logits = torch.randn(100, 5)
    logits[37, 2] = math.nan
    assert _record(logits, torch.zeros(100, dtype=torch.int64), 16).first_non_finite == 37
    assert _record(torch.randn(9, 5), torch.zeros(9, dtype=torch.int64), 4).first_non_finite is None


def test_series_keeps_every_batch_and_thins_by_means() -> None:
    series = Series()
    for i in range(1000):
        series.add({"norm": torch.tensor(float(i)), "selected": i % 2, "absent": None})
    columns = series.read()
    assert set(columns) == {"norm", "selected"}
    np.testing.assert_array_equal(columns["norm"], np.arange(1000))
    thinned = thin(columns, points=100)
    assert thinned["batch"] == list(range(10, 1001, 10))
    assert thinned["norm"] == pytest.approx(np.arange(1000).reshape(100, 10).mean(1))
    assert thin({"x": np.array([1.0, np.nan, np.nan, 3.0])}, points=2)["x"] == [1.0, 3.0]
