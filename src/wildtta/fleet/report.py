"""What happened to one stream in a mixed batch, as the report of a step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from wildtta.fleet.mapped import Tensors
from wildtta.fleet.step import Finished
from wildtta.fleet.stream_engine import StreamEngine
from wildtta.step.report import StepReport


def report_of(engine: StreamEngine, finished: Finished, place: int) -> StepReport:
    """The report of the stream at ``place``, made when somebody asks: ``engine`` still has the state from after the batch."""
    number, parts = finished.sizes[place], finished.parts
    entropies, usable, features = (parts[name][place, :number] for name in ("entropies", "usable", "features"))
    network = engine.network
    end = next((end for end in finished.ends if place in end.places), None)
    found, result = ({}, {}) if end is None else (end.found, end.result)
    row = 0 if end is None else end.places.index(place)
    if "idle" in found and bool(found["idle"][row]):
        found = {}  # its samples were passed with the others', and nothing was learned from them
    missing = torch.full((), math.nan)

    def count(value: int) -> Tensor:
        return torch.tensor(value)

    def of(table: Tensors, name: str, otherwise: Any) -> Any:
        return table[name][row].detach() if name in table else otherwise

    mask = parts["selection"]["mask"][place, :number] & (end is not None)
    first, last, passes = found.get("first", {}), found.get("last", {}), result.get("passes", {})
    shown: dict[str, Any] = {"e_m": missing, "bank_rows": count(0)}
    shown.update({name: value.clone() for name, value in engine.observed().items()})
    report = StepReport(
        seen=count(number),
        entropies=entropies.masked_fill(~usable, math.nan),
        selected=mask.sum(),
        mask=mask,
        selected_second=of(last, "selected", count(0)),
        gradient_norm=of(found, "first_norm", missing),
        gradient_norm_second=of(found, "second_norm", missing),
        forwards=of(passes, "forwards", count(number)),
        backwards=of(passes, "backwards", count(0)),
        computed_forwards=of(passes, "computed_forwards", count(number)),
        computed_backwards=of(passes, "computed_backwards", count(0)),
        learned=of(result, "learned", torch.tensor(False)),
        loss=of(first, "total", missing),
        step=engine.calls,
        used_redundancy=of(first, "redundancy", None),
        used_inequity=of(first, "inequity", None),
        **shown,
        _distance=engine.distance,
        _features=lambda: (features, network),
    )
    return report.with_more_forwards(finished.compared.get(place, 0))
