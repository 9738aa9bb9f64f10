"""Small numbers per batch (gradient norm, entropy, R ...), kept on the device until the stream ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Series:
    """Rows of named scalars, one row per batch.

    Values may be numbers, 0-dim tensors on any device, or None (a gap). What is on a device stays there,
    packed into one small tensor per batch, until :meth:`read`.
    """

    def __init__(self) -> None:
        self._on_host: list[dict[str, float]] = []
        self._on_device: list[tuple[str, ...]] = []
        self._packed: list[Tensor] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """One batch's values; no device is waited for."""
        there = {name: v for name, v in values.items() if isinstance(v, Tensor) and v.device.type != "cpu"}
        here = {name: v for name, v in values.items() if v is not None and name not in there}
        self._on_host.append({name: float(value) for name, value in here.items()})
        self._on_device.append(tuple(there))
        if there:
            # Stacking copies: what a method changes in place later is not seen here.
            self._packed.append(torch.stack([value.detach().float().reshape(()) for value in there.values()]))

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every batch's values by name, float64; gaps are NaN. Names that never had a value are left out."""
        unpacked = iter(torch.cat(self._packed).double().cpu().tolist() if self._packed else ())
        rows = [
            here | {name: next(unpacked) for name in there}
            for here, there in zip(self._on_host, self._on_device, strict=True)
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
        return {name: column for name, column in columns.items() if not np.isnan(column).all()}


def thin(columns: Mapping[str, np.ndarray[Any, Any]], points: int = 400) -> dict[str, list[float | None]]:
    """Means over windows so that at most ``points`` values are left; ``batch`` gives each window's end.

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
