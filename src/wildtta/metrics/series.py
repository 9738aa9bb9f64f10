"""Small numbers per batch (gradient norm, entropy, redundancy ...), kept on the device until the stream ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_POINTS = 400
_BLOCK = 256


class Series:
    """Rows of named scalars, one row per batch.

    The names are those of the first batch. Values may be numbers, 0-dim tensors on any device, or None (a gap).
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._block: list[Tensor] = []
        self._blocks: list[Tensor] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """One batch's values; no device is waited for."""
        if not self._names:
            self._names = tuple(values)
        device = next((value.device for value in values.values() if isinstance(value, Tensor)), torch.device("cpu"))
        self._block.append(torch.stack([_scalar(values.get(name), device) for name in self._names]))
        if len(self._block) == _BLOCK:
            self._blocks.append(torch.stack(self._block))
            self._block.clear()

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every batch's values by name, float64; gaps are NaN. Names that never had a value are left out."""
        rows = [*self._blocks, torch.stack(self._block)] if self._block else self._blocks
        if not rows:
            return {}
        table = torch.cat([row.cpu() for row in rows]).double().numpy()
        columns = {name: table[:, i] for i, name in enumerate(self._names)}
        return {name: column for name, column in columns.items() if not np.isnan(column).all()}


def _scalar(value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(device=device, dtype=torch.float32, copy=True).reshape(())
    # A fill on the device needs no copy from the host, so nothing waits.
    return torch.full((), math.nan if value is None else float(value), dtype=torch.float32, device=device)


def thin(columns: Mapping[str, np.ndarray[Any, Any]], points: int = _POINTS) -> dict[str, list[float | None]]:
    """Means over consecutive windows so that at most ``points`` values are left; ``batch`` gives each window's end.

    A window without a value is None.
    """
    length = max((len(column) for column in columns.values()), default=0)
    if length == 0:
        return {}
    ends = np.unique(np.linspace(0, length, min(points, length) + 1).astype(int)[1:])
    starts = np.concatenate([[0], ends[:-1]])
    thinned: dict[str, list[float | None]] = {"batch": [int(end) for end in ends]}
    for name, column in columns.items():
        valid = ~np.isnan(column)
        sums = np.add.reduceat(np.where(valid, column, 0.0), starts)
        counts = np.add.reduceat(valid.astype(int), starts)
        thinned[name] = [_rounded(total / count) if count else None for total, count in zip(sums, counts, strict=True)]
    return thinned


def _rounded(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
