"""R, I and the entropies: recorded values, finite differences, bounds, and the sums of the bank against the direct form."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from conftest import GOLDEN
from wildtta.methods.losses import entropy, masked_mean
from wildtta.methods.sar2 import bank
from wildtta.methods.sar2.redundancy import (
    NORMALISATIONS,
    inequity,
    normalise_rows,
    redundancy,
    redundancy_from_moments,
)
from wildtta.methods.tent import smoothed_entropy

RECORDED = json.loads((GOLDEN / "ri_values.json").read_text())["values"]
RECORDED_NAME = {
    "columns": "R_batch",
    "rows": "R_feature",
    "rows_centred": "R_feature_center",
    "rows_then_columns": "R_feature_center_batchstd",
}


def _matrices() -> dict[str, Tensor]:
    with np.load(GOLDEN / "ri_matrices.npz", allow_pickle=False) as file:
        return {name: torch.from_numpy(value).double() for name, value in file.items()}


def _from_moments(rows: Tensor, normalisation: str, floor: float = 0.0) -> Tensor:
    normalised = normalise_rows(rows, normalisation)
    return redundancy_from_moments(
        len(rows), normalised.sum(0), normalised.T @ normalised, normalisation=normalisation, variance_floor=floor
    )


FORMS = {"direct": lambda rows, normalisation: redundancy(rows, normalisation=normalisation), "moments": _from_moments}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("matrix", RECORDED)
def test_redundancy_equals_recorded_value_and_gradient_norm(matrix: str, normalisation: str, form: str) -> None:
    rows = _matrices()[matrix].requires_grad_()
    value = FORMS[form](rows, normalisation)
    name = RECORDED_NAME[normalisation]
    assert value.item() == pytest.approx(RECORDED[matrix][name], rel=1e-10, abs=1e-12)
    # The recorded gradient of the constant column is rounding noise; ours is 0 there (its own test is below).
    constant_column = matrix == "zero_and_const_dims" and normalisation == "columns"
    if f"gradnorm_{name}" in RECORDED[matrix] and not constant_column:
        (gradient,) = torch.autograd.grad(value, rows)
        assert gradient.norm().item() == pytest.approx(RECORDED[matrix][f"gradnorm_{name}"], rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("matrix", RECORDED)
def test_inequity_equals_recorded_value_and_gradient_norm(matrix: str) -> None:
    matrices = _matrices()
    rows = matrices[matrix].requires_grad_()
    value = inequity(rows, matrices["W"], matrices["b"])
    assert value.item() == pytest.approx(RECORDED[matrix]["I"], rel=1e-12)
    (gradient,) = torch.autograd.grad(value, rows)
    assert gradient.norm().item() == pytest.approx(RECORDED[matrix]["gradnorm_I"], rel=1e-10)


def test_entropies_equal_the_recorded_functions() -> None:
    with np.load(GOLDEN / "func_values.npz", allow_pickle=False) as file:
        recorded = {name: torch.from_numpy(value) for name, value in file.items()}
    logits = recorded["logits_a"].double().requires_grad_()
    values = entropy(logits)
    torch.testing.assert_close(values.detach(), recorded["softmax_entropy"], rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    torch.testing.assert_close(gradient, recorded["grad_softmax_entropy"], rtol=1e-10, atol=1e-12)
    loss = smoothed_entropy(logits.softmax(-1)).mean() - smoothed_entropy(logits.softmax(-1).mean(0))
    assert loss.item() == pytest.approx(recorded["shot_im_loss"].item(), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, recorded["grad_shot_im_loss"], rtol=1e-10, atol=1e-12)


def test_entropy_of_extreme_logits_is_finite_with_finite_gradient() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    values = entropy(logits)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    assert values.tolist() == pytest.approx([0.0, math.log(3)])
    assert torch.isfinite(gradient).all()


def test_masked_mean_ignores_what_it_must_not_see() -> None:
    values = torch.tensor([1.0, math.nan, 3.0, math.inf], requires_grad=True)
    mean = masked_mean(values, torch.tensor([True, False, True, False]))
    (gradient,) = torch.autograd.grad(mean, values)
    assert mean.item() == 2.0
    assert gradient.tolist() == [0.5, 0.0, 0.5, 0.0]
    empty = masked_mean(values, torch.zeros(4, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(empty, values)
    assert empty.item() == 0.0
    assert gradient.tolist() == [0.0] * 4


# -- gradients -----------------------------------------------------------------------------------------------------------


def _correlated(rows: int, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    mix = torch.randn(width, width, generator=generator, dtype=torch.float64)
    scale = torch.logspace(-1, 0.5, width, dtype=torch.float64)
    return (plain @ mix) * scale + 1.0


def _check_against_differences(function, rows: Tensor) -> None:
    """Central differences in every entry, independent of autograd's own checker."""
    rows = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(rows), rows)
    with torch.no_grad():
        step = 1e-5
        for index in np.ndindex(*rows.shape):
            original = rows[index].item()
            rows[index] = original + step
            above = function(rows).item()
            rows[index] = original - step
            below = function(rows).item()
            rows[index] = original
            difference = (above - below) / (2 * step)
            assert gradient[index].item() == pytest.approx(difference, rel=2e-6, abs=2e-7)


@pytest.mark.parametrize("floor", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("shape", [(12, 5), (4, 7)])
def test_redundancy_gradients_equal_finite_differences(shape: tuple[int, int], normalisation: str, floor: float) -> None:
    rows = _correlated(*shape, seed=3)
    _check_against_differences(lambda z: redundancy(z, normalisation=normalisation, variance_floor=floor), rows)
    _check_against_differences(lambda z: _from_moments(z, normalisation, floor), rows)


def test_inequity_gradients_equal_finite_differences() -> None:
    weight, bias = _correlated(6, 5, seed=1), _correlated(1, 6, seed=2)[0]
    _check_against_differences(lambda z: inequity(z, weight, bias), _correlated(9, 5, seed=4))


def test_dead_columns_contribute_nothing_and_have_no_gradient() -> None:
    rows = _correlated(10, 6, seed=5)
    dead = torch.cat([rows, torch.zeros(10, 1, dtype=torch.float64), torch.full((10, 1), 0.3, dtype=torch.float64)], 1)
    for function in (lambda z: redundancy(z), lambda z: _from_moments(z, "columns")):
        variable = dead.clone().requires_grad_()
        value = function(variable)
        (gradient,) = torch.autograd.grad(value, variable)
        assert value.item() * 7 == pytest.approx(redundancy(rows).item() * 5, rel=1e-10)  # only 1/(D−1) differs
        assert (gradient[:, 6:] == 0).all()


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_variance_floor_replaces_small_variances_and_leaves_large_ones(normalisation: str) -> None:
    rows = _correlated(40, 6, seed=6)
    rows[:, 0] *= 1e-3
    plain = redundancy(rows, normalisation=normalisation)
    floored = redundancy(rows, normalisation=normalisation, variance_floor=0.2)
    if normalisation in ("rows", "rows_centred"):
        assert floored.item() == plain.item()
        return
    normalised = normalise_rows(rows, normalisation)
    centred = normalised - normalised.mean(0)
    variance = centred.square().mean(0)
    expected_variance = torch.maximum(variance, 0.2 * variance.mean())
    assert (expected_variance > variance).any()
    standard = (centred if normalisation == "columns" else normalised) / expected_variance.sqrt()
    correlation = standard.T @ standard / len(rows)
    expected = (correlation.square().sum() - correlation.diagonal().square().sum()) / 5
    assert floored.item() == pytest.approx(expected.item(), rel=1e-10)


# -- bounds --------------------------------------------------------------------------------------------------------------

finite = st.floats(-1e3, 1e3, allow_nan=False, width=32)
matrices = arrays.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(2, 9)), elements=finite)


@given(matrices)
def test_redundancy_lies_between_0_and_d(values: np.ndarray) -> None:
    width = values.shape[1]
    for form in (lambda z: redundancy(z), lambda z: _from_moments(z, "columns")):
        value = form(torch.from_numpy(values)).item()
        assert -1e-9 <= value <= width * (1 + 1e-6)


@given(matrices, st.sampled_from(["rows", "rows_centred", "rows_then_columns"]))
def test_other_normalisations_are_finite_and_not_negative(values: np.ndarray, normalisation: str) -> None:
    value = redundancy(torch.from_numpy(values), normalisation=normalisation).item()
    assert math.isfinite(value)
    assert value >= -1e-6 * max(1.0, float(np.abs(values).max()) ** 4)
    if normalisation == "rows":
        width = values.shape[1]
        assert value <= width**2 / (width - 1) * (1 + 1e-6)


@given(matrices, st.integers(2, 8), st.integers(0, 5))
def test_inequity_lies_between_0_and_ln_c(values: np.ndarray, classes: int, seed: int) -> None:
    rows = torch.from_numpy(values)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, rows.shape[1], generator=generator, dtype=torch.float64)
    value = inequity(rows, weight).item()
    assert -1e-12 <= value <= math.log(classes) + 1e-12


def test_bounds_are_reached() -> None:
    line = torch.arange(7.0, dtype=torch.float64)[:, None] * torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    assert redundancy(line).item() == pytest.approx(3.0)
    square = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    assert redundancy(square).item() == pytest.approx(0.0, abs=1e-15)
    weight = torch.zeros(4, 2, dtype=torch.float64)
    assert inequity(square, weight).item() == pytest.approx(0.0, abs=1e-12)
    biased = inequity(square, weight, torch.tensor([1e3, 0, 0, 0], dtype=torch.float64))
    assert biased.item() == pytest.approx(math.log(4))


def test_redundancy_of_independent_rows_sits_on_its_known_floor() -> None:
    """E[R] ≈ D/(B−1) for independent features (B = 64, D = 256: 4.06)."""
    generator = torch.Generator().manual_seed(0)
    values = [redundancy(torch.randn(64, 256, generator=generator, dtype=torch.float64)).item() for _ in range(20)]
    assert np.mean(values) == pytest.approx(256 / 63, rel=0.02)


# -- the bank ------------------------------------------------------------------------------------------------------------


def _updates(steps: int, classes: int, width: int, batch: int, means: Tensor, seed: int):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        labels = torch.randint(0, classes, (batch,), generator=generator)
        yield means + torch.randn(batch, width, generator=generator), labels


def _reference_bank(rows: dict[int, Tensor], features: Tensor, labels: Tensor, rate: float) -> None:
    """The definition: one dictionary, one loop, float64."""
    for label in labels.unique().tolist():
        centroid = features[labels == label].double().mean(0)
        rows[label] = centroid if label not in rows else (1 - rate) * rows[label] + rate * centroid


@pytest.mark.parametrize(("normalisation", "far"), [("columns", 0.0), *((rule, 20.0) for rule in NORMALISATIONS)])
def test_sums_of_the_bank_stay_equal_to_the_direct_form_over_thousands_of_updates(normalisation: str, far: float) -> None:
    """Features whose mean is 20 deviations away are where sums in float32 would lose their digits."""
    classes, width, batch, steps = 40, 12, 8, 2000
    state = bank.empty_bank(classes, width, dtype=torch.float32, device=torch.device("cpu"))
    allowed = torch.tensor(True)
    reference: dict[int, Tensor] = {}
    means = torch.full((width,), far)
    means[3] = 0.5  # one column is constant: it must stay dead, however many rows came and went
    for step, (features, labels) in enumerate(_updates(steps, classes, width, batch, means, seed=1)):
        features[:, 3] = 0.5
        live = bank.live_centroids(features.double(), labels, None, classes)
        if step % 200 == 199:
            stored = {**reference}
            for label in labels.unique().tolist():
                stored[label] = features[labels == label].double().mean(0)
            direct_rows = torch.stack([stored[label] for label in sorted(stored)])
            sums = bank.moments(state, live, normalisation)
            assert int(sums.count) == len(stored)
            direct = redundancy(direct_rows, normalisation=normalisation).item()
            assert sums.redundancy(normalisation, 0.0).item() == pytest.approx(direct, rel=1e-5)
            torch.testing.assert_close(sums.mean(), direct_rows.mean(0), rtol=1e-5, atol=1e-5)
        bank.refresh(state, live, normalisation, rate=0.9, allowed=allowed)
        _reference_bank(reference, features, labels, 0.9)
    for label, row in reference.items():
        torch.testing.assert_close(state["bank_rows"][label].double(), row, rtol=1e-5, atol=1e-5)
    before = state["bank_outer"].clone()
    bank.resum(state, normalisation)
    torch.testing.assert_close(state["bank_outer"], before, rtol=1e-9, atol=1e-7)


def test_gradient_through_the_banks_sums_equals_the_direct_one() -> None:
    classes, width = 12, 6
    state = bank.empty_bank(classes, width, dtype=torch.float64, device=torch.device("cpu"))
    stored: dict[int, Tensor] = {}
    for features, labels in _updates(5, classes, width, 6, torch.full((width,), 3.0), seed=2):
        live = bank.live_centroids(features.double(), labels, None, classes)
        bank.refresh(state, live, "columns", rate=0.9, allowed=torch.tensor(True))
        _reference_bank(stored, features, labels, 0.9)
    features, labels = next(iter(_updates(1, classes, width, 6, torch.full((width,), 3.0), seed=9)))
    ours = features.double().requires_grad_()
    sums = bank.moments(state, bank.live_centroids(ours, labels, None, classes), "columns")
    (gradient,) = torch.autograd.grad(sums.redundancy("columns", 0.0), ours)
    theirs = features.double().requires_grad_()
    rows = {**stored, **{label: theirs[labels == label].mean(0) for label in labels.unique().tolist()}}
    direct = redundancy(torch.stack([rows[label] for label in sorted(rows)]))
    (expected,) = torch.autograd.grad(direct, theirs)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-11)


def test_bank_inserts_a_first_sight_and_mixes_afterwards() -> None:
    state = bank.empty_bank(3, 2, dtype=torch.float64, device=torch.device("cpu"))
    labels = torch.tensor([1, 1, 2])
    first = torch.tensor([[1.0, 3.0], [3.0, 5.0], [7.0, 7.0]], dtype=torch.float64)
    yes = torch.tensor(True)
    bank.refresh(state, bank.live_centroids(first, labels, None, 3), "columns", rate=0.9, allowed=yes)
    assert state["bank_rows"][1].tolist() == [2.0, 4.0]
    assert state["bank_rows"][2].tolist() == [7.0, 7.0]
    assert state["bank_filled"].tolist() == [False, True, True, False]
    second = torch.tensor([[12.0, 14.0]], dtype=torch.float64)
    live = bank.live_centroids(second, torch.tensor([1]), None, 3)
    bank.refresh(state, live, "columns", rate=0.9, allowed=yes)
    assert state["bank_rows"][1].tolist() == pytest.approx([0.1 * 2 + 0.9 * 12, 0.1 * 4 + 0.9 * 14])
    assert int(state["bank_count"]) == 2


def test_bank_does_not_change_where_it_may_not() -> None:
    state = bank.empty_bank(3, 2, dtype=torch.float32, device=torch.device("cpu"))
    live = bank.live_centroids(torch.randn(4, 2).double(), torch.tensor([0, 1, 1, 2]), None, 3)
    bank.refresh(state, live, "columns", rate=0.9, allowed=torch.tensor(True))
    before = {name: value.clone() for name, value in state.items()}
    poison = bank.live_centroids(torch.full((4, 2), math.nan).double(), torch.tensor([0, 1, 1, 2]), None, 3)
    bank.refresh(state, poison, "columns", rate=0.9, allowed=torch.tensor(False))
    for name, value in state.items():
        assert torch.equal(value, before[name]), name


def test_masked_samples_form_no_centroid() -> None:
    features = torch.tensor([[1.0], [5.0], [9.0]], dtype=torch.float64)
    live = bank.live_centroids(features, torch.tensor([0, 0, 1]), torch.tensor([True, False, False]), 2)
    assert live.first.tolist() == [True, False, False]
    assert live.rows[0].item() == 1.0
    state = bank.empty_bank(2, 1, dtype=torch.float64, device=torch.device("cpu"))
    bank.refresh(state, live, "columns", rate=0.9, allowed=torch.tensor(True))
    assert state["bank_filled"].tolist() == [True, False, False]
