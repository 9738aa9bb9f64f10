"""The bank's R and its written-out gradient against the direct formula over all rows, differentiated by torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from wildtta.methods.sar2 import bank
from wildtta.methods.sar2.redundancy import redundancy

CLASSES, WIDTH, BATCH = 30, 12, 9


def features(kind: str, number: int) -> Tensor:
    values = torch.randn(number, WIDTH, dtype=torch.float64) * torch.linspace(0.2, 2, WIDTH)
    if kind == "dead":
        values[:, 3], values[:, 5] = 0.0, 2.5
    if kind == "far from 0":
        values = values + 20 * torch.linspace(0.2, 2, WIDTH)
    return values


@pytest.mark.parametrize("kind", ["plain", "dead", "far from 0"])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("stored", [0, 1, 20])
def test_value_and_gradient_equal_the_direct_formula(kind: str, floor: float, stored: int) -> None:
    state = bank.empty_bank(CLASSES, WIDTH, dtype=torch.float64, device=torch.device("cpu"))
    for _ in range(stored):
        labels = torch.randint(CLASSES, (BATCH,))
        live = bank.live_centroids(features(kind, BATCH), labels, None, CLASSES)
        bank.refresh(state, live, "columns", rate=0.9, allowed=torch.tensor(True))
    labels = torch.randint(CLASSES, (BATCH,))
    ours = features(kind, BATCH).requires_grad_()
    live = bank.live_centroids(ours, labels, None, CLASSES)
    from_sums = bank.moments(state, live, "columns").redundancy("columns", floor)
    (gradient,) = torch.autograd.grad(from_sums, ours)

    theirs = ours.detach().clone().requires_grad_()
    rows = []
    for label in range(CLASSES):
        if (labels == label).any():
            rows.append(theirs[labels == label].mean(0))
        elif state["bank_filled"][label]:
            rows.append(state["bank_rows"][label])
    direct = redundancy(torch.stack(rows), variance_floor=floor)
    (expected,) = torch.autograd.grad(direct, theirs)
    assert torch.isclose(from_sums, direct, rtol=1e-9)
    assert (gradient - expected).abs().max() <= 1e-9 * expected.abs().max()
