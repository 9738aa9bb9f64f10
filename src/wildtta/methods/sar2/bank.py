"""The class-centroid bank of SAR²: one row per predicted class, and the sums over its rows that R and I need.

With C^t the live centroids of this batch's predicted classes and the stored rows of all others, R(C^t) and I(C^t) depend
on the rows through N, Σz and Σzzᵀ alone. The bank keeps these sums over its stored rows; a batch of B samples
replaces at most B rows, so that one evaluation costs O(B·D²) and not O(C·D²). The sums are in float64: features whose mean is
far above their deviation would lose their digits in float32. Every tensor has a fixed shape and nothing is read back
to the host (for the same reason masks fill in place of ``torch.where`` with a number, which copies the number over).

The state is a dict of tensors that the adapter declares, saves, resets and clears:

- ``bank_rows`` [C+1, D]: stored centroids; the last row is a bin for samples that must not write;
- ``bank_filled`` [C+1] bool; ``bank_count`` []: how many classes are stored;
- ``bank_sum`` [D] (float64): Σz over the stored rows as they are;
- ``bank_outer`` [D, D] (float64): Σzzᵀ over the stored rows after row normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wildtta.kernels.passes import kernels_run_on
from wildtta.methods.mapping import is_mapped, streams_first
from wildtta.methods.sar2.redundancy import (
    ColumnRedundancy,
    Normalisation,
    RowRedundancy,
    normalise_rows,
    redundancy_from_moments,
)

State = dict[str, Tensor]


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 where the device has no float64 (Apple's)."""
    return torch.float32 if device.type == "mps" else torch.float64


def empty_bank(classes: int, width: int, *, dtype: torch.dtype, device: torch.device) -> State:
    """A bank without rows."""
    wide = accumulation_dtype(device)
    return {
        "bank_rows": torch.zeros(classes + 1, width, dtype=dtype, device=device),
        "bank_filled": torch.zeros(classes + 1, dtype=torch.bool, device=device),
        "bank_count": torch.zeros((), dtype=torch.int64, device=device),
        "bank_sum": torch.zeros(width, dtype=wide, device=device),
        "bank_outer": torch.zeros(width, width, dtype=wide, device=device),
    }


@dataclass
class Centroids:
    """Live centroids of a batch. Row b belongs to sample b's class, so that shapes do not depend on the labels.

    ``first`` marks one sample per class present (the first that may contribute): sums over rows run over these.
    """

    rows: Tensor
    labels: Tensor
    first: Tensor


def live_centroids(features: Tensor, labels: Tensor, mask: Tensor | None, bin_label: int) -> Centroids:
    """c_i = mean of the features of the samples predicted as class i, for the classes of this batch (with gradient).

    Samples outside ``mask`` contribute nothing and are labelled ``bin_label``.
    """
    contributes, same = _same_class(labels, mask)
    features = features.masked_fill(~contributes[:, None], 0.0)
    weights = same.to(features.dtype)
    rows = weights @ features / weights.sum(1, keepdim=True).clamp(min=1)
    return Centroids(rows, labels.masked_fill(~contributes, bin_label), _first_of_class(contributes, same))


def _same_class(labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which samples contribute, [B], and which pairs of them are of one class, [B, B]."""
    contributes = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
    return contributes, (labels[:, None] == labels[None, :]) & contributes[None, :] & contributes[:, None]


def _first_of_class(contributes: Tensor, same: Tensor) -> Tensor:
    return contributes & ~same.tril(diagonal=-1).any(1)


@dataclass
class Moments:
    """What R and I need of C^t: N and Σz over its rows, the stored Σz and Σzzᵀ, the rows that leave and arrive (normalised)."""

    count: Tensor
    total: Tensor
    stored: Tensor
    outer: Tensor
    arriving: Tensor
    leaving: Tensor

    def redundancy(self, normalisation: Normalisation, variance_floor: float) -> Tensor:
        """R(C^t)."""
        count = self.count.clamp(min=1)
        if normalisation == "columns":
            found: tuple[Tensor, ...] = ColumnRedundancy.apply(
                self.arriving, self.leaving, self.outer, self.stored, count, variance_floor
            )
            return found[0]
        if normalisation in ("rows", "rows_centred"):
            found = RowRedundancy.apply(self.arriving, self.leaving, self.outer, count)
            return found[0]
        # Rows that are centred one by one have the centred sum.
        first = normalise_rows(self.total, normalisation)
        second = self.outer - self.leaving.T @ self.leaving + self.arriving.T @ self.arriving
        return redundancy_from_moments(count, first, second, normalisation=normalisation, variance_floor=variance_floor)

    def mean(self) -> Tensor:
        """μ of the rows of C^t, before any row normalisation: the inequity is the same in every normalisation."""
        return self.total / self.count.clamp(min=1)


def moments(state: State, live: Centroids, normalisation: Normalisation) -> Moments:
    """The sums over C^t: the stored ones, less the rows that live centroids stand in for, plus these."""
    wide = state["bank_sum"].dtype
    known = state["bank_filled"][live.labels] & live.first
    old_rows = state["bank_rows"][live.labels].to(wide).masked_fill(~known[:, None], 0.0)
    rows = live.rows.to(wide).masked_fill(~live.first[:, None], 0.0)
    return Moments(
        count=state["bank_count"] + (live.first & ~known).sum(),
        total=state["bank_sum"] - old_rows.sum(0) + rows.sum(0),
        stored=state["bank_sum"],
        outer=state["bank_outer"],
        arriving=normalise_rows(rows, normalisation),
        leaving=normalise_rows(old_rows, normalisation),
    )


def rows_with(state: State, labels: Tensor, mask: Tensor | None) -> Tensor:
    """How many rows C^t has with a batch of these labels: the stored classes and those that are new in it."""
    first = _first_of_class(*_same_class(labels, mask))
    return state["bank_count"] + (first & ~state["bank_filled"][labels]).sum()


def refresh(
    state: State, live: Centroids, normalisation: Normalisation, *, rate: float, allowed: Tensor | bool = True
) -> None:
    """c̃_i ← (1−λ) c̃_i + λ c_i for the classes present; a class seen for the first time is inserted as it is.

    Nothing changes where ``allowed`` (a boolean, on the device) does not hold.
    """
    wide = state["bank_sum"].dtype
    bin_label = state["bank_rows"].shape[0] - 1
    contributes = allowed & (live.labels != bin_label)
    labels = live.labels.masked_fill(~contributes, bin_label)
    writes = live.first & contributes
    old_rows = state["bank_rows"][labels]
    filled = state["bank_filled"][labels] & contributes
    fresh = live.rows.detach().to(old_rows.dtype)
    # old + λ(new − old) and not (1−λ)·old + λ·new: a row that repeats itself stays bit for bit what it is.
    new_rows = torch.where(filled[:, None], old_rows.lerp(fresh, rate), fresh)
    new_rows = new_rows.masked_fill(~contributes[:, None], 0.0)
    known = filled & writes
    gone, come = old_rows.to(wide).masked_fill(~known[:, None], 0.0), new_rows.to(wide).masked_fill(~writes[:, None], 0.0)
    leaving, arriving = normalise_rows(gone, normalisation), normalise_rows(come, normalisation)
    _add_products(state["bank_outer"], torch.cat((arriving, leaving)), torch.cat((arriving, -leaving)))
    state["bank_sum"].add_(come.sum(0) - gone.sum(0))
    state["bank_count"].add_((writes & ~known).sum())
    # Samples of one class carry the same new row, so that their order does not matter.
    state["bank_rows"][labels] = new_rows
    state["bank_filled"].index_fill_(0, labels, True)
    state["bank_filled"][bin_label].fill_(False)


def _add_products(sums: Tensor, left: Tensor, right: Tensor) -> None:
    """sums ← sums + leftᵀ right, in place: D×D numbers are read and written once.

    torch cannot map this over the streams of a fleet, so it is done here for all of them at once.
    """
    if not is_mapped(sums):
        sums.addmm_(left.T, right)
        return
    tables = [streams_first(value) for value in (sums, left, right)]

    def by_torch() -> None:
        tables[0].baddbmm_(tables[1].mT, tables[2])

    if kernels_run_on(sums.device):
        from wildtta.kernels.changed_products import ChangedProducts, add_products, suits

        if suits(tables[0], tables[1]):
            ChangedProducts.attempt(lambda: add_products(*tables), by_torch)
            return
    by_torch()


def clear(state: State, trigger: Tensor) -> None:
    """Empty the bank where ``trigger`` (a boolean scalar on the device) holds."""
    keep = ~trigger
    state["bank_filled"].logical_and_(keep)
    for name in ("bank_count", "bank_sum"):
        state[name].mul_(keep)
    _clear_where(state["bank_outer"], trigger)


def _clear_where(values: Tensor, trigger: Tensor) -> None:
    """values ← 0 where ``trigger``. Of many streams, only those that are cleared are touched, where a kernel can do that."""
    if not is_mapped(values):
        values.mul_(~trigger)
        return
    table, flags = streams_first(values), streams_first(trigger)

    def by_torch() -> None:
        table.mul_(~flags.view(-1, *[1] * (table.dim() - 1)))

    if kernels_run_on(values.device) and table.is_contiguous():
        from wildtta.kernels.changed_products import ChangedProducts
        from wildtta.kernels.clear_where import clear_where

        ChangedProducts.attempt(lambda: clear_where(table, flags), by_torch)
    else:
        by_torch()


def resum(state: State, normalisation: Normalisation) -> None:
    """Σz and Σzzᵀ anew from the stored rows, so that rounding does not gather over an endless run."""
    wide = state["bank_sum"].dtype
    stored = state["bank_filled"][:-1, None]
    rows = state["bank_rows"][:-1].to(wide).masked_fill(~stored, 0.0)
    state["bank_sum"].copy_(rows.sum(0))
    rows = normalise_rows(rows, normalisation)
    torch.mm(rows.T, rows, out=state["bank_outer"])
