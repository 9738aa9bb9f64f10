"""Health of a representation: redundancy R, inequity I and dimensions that say nothing (SAR²'s signals of collapse).

Of R there are two readings worth watching: on standardised columns (the equation) and on standardised rows (what the
paper uses for GroupNorm networks). Batch-wise values sit on a floor of about D / (B − 1) and can only be compared at
one batch size and width; :class:`FeatureStatistics` gives the values over a whole stream.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wildtta.methods.sar2.redundancy import (
    inequity,
    inequity_of_logits,
    normalise_rows,
    redundancy,
    redundancy_from_moments,
)

SPARSITY_LEVELS: tuple[float, ...] = (0.1, 0.01, 0.001)
"""Below which mean magnitude a feature dimension counts as near zero (the paper's table M)."""


def batch_redundancy_and_inequity(rows: Tensor, head: nn.Linear) -> dict[str, Tensor]:
    """R in both readings and I of one batch of features ``[B, D]``, as 0-dim tensors on their device."""
    with torch.no_grad():
        wide = rows if rows.dtype == torch.float64 else rows.float()
        return {
            "feature_redundancy": redundancy(wide, normalisation="columns"),
            "feature_redundancy_rows": redundancy(wide, normalisation="rows"),
            "feature_inequity": inequity(wide, head.weight.to(wide.dtype), _bias(head, wide.dtype)),
        }


class FeatureStatistics:
    """R, I and sparsity over any number of batches, from sums kept on the features' device in float64.

    Second moments are summed about the first batch's mean: features whose mean is far above their deviation would lose
    their digits otherwise. (Apple's GPUs have no float64; the sums are float32 there.)

    Args:
        moments: also keep the two D × D matrices that R needs; without them only sparsity and I are told.
    """

    def __init__(self, *, moments: bool = True) -> None:
        self._moments = moments
        self._count = 0
        self._sums: dict[str, Tensor] = {}

    def update(self, rows: Tensor) -> None:
        """One batch of features ``[B, D]``."""
        with torch.no_grad():
            wide = rows.to(torch.float32 if rows.device.type == "mps" else torch.float64)
            if not self._sums:
                self._sums["shift"] = wide.mean(0)
            self._add("absolute", wide.abs().sum(0))
            self._add("total", wide.sum(0))
            if self._moments:
                about = wide - self._sums["shift"]
                self._add("first", about.sum(0))
                self._add("second", about.T @ about)
                standard = normalise_rows(wide, "rows")
                self._add("first_rows", standard.sum(0))
                self._add("second_rows", standard.T @ standard)
        self._count += len(rows)

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name].add_(value) if name in self._sums else value

    def sparsity(self) -> dict[str, float]:
        """Percent of the D dimensions whose mean magnitude over all samples is below each level (table M)."""
        magnitude = self._told("absolute") / self._count
        return {str(level): 100 * float((magnitude < level).double().mean()) for level in SPARSITY_LEVELS}

    def health(self, head: nn.Linear) -> dict[str, Any]:
        """R in both readings, I, and the class that the mean feature is taken for (table L, figure D)."""
        mean = (self._told("total") / self._count)[None]
        weight = head.weight.detach().to(mean)
        logits = nn.functional.linear(mean, weight, None if head.bias is None else head.bias.detach().to(mean))
        values: dict[str, Any] = {
            "samples": self._count,
            "inequity": float(inequity_of_logits(logits)),
            "inequity_class": int(logits.argmax()),
        }
        if self._moments:
            of_columns = redundancy_from_moments(self._count, self._sums["first"], self._sums["second"])
            of_rows = redundancy_from_moments(
                self._count, self._sums["first_rows"], self._sums["second_rows"], normalisation="rows"
            )
            values |= {"redundancy": float(of_columns), "redundancy_rows": float(of_rows)}
        return values

    def _told(self, name: str) -> Tensor:
        if not self._count:
            raise ValueError("no features were recorded")
        return self._sums[name]


def _bias(head: nn.Linear, dtype: torch.dtype) -> Tensor | None:
    return None if head.bias is None else head.bias.to(dtype)
