"""What happened to one stream in a mixed batch, as the report of a step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from wildtta.fleet.mapped import Tensors
from wildtta.fleet.step import Seen
from wildtta.fleet.stream_engine import StreamEngine
from wildtta.step.report import StepReport


def report_of(engine: StreamEngine, seen: Seen, ends: Tensors, place: int) -> StepReport:
    """The report of the stream at ``place``; ``ends`` is what :meth:`MixedStep.learn` told."""
    number = seen.grouping.sizes[place]
    own = {name: value[place, :number] for name, value in seen.parts.items() if name in ("entropies", "usable", "features")}
    group, at = _group_of(ends, place)
    found: Tensors = group.get("found") or {}
    missing = torch.full((), math.nan)

    def count(value: int) -> Tensor:
        return torch.tensor(value)

    def of(parts: Tensors, name: str, otherwise: Any) -> Any:
        return parts[name][at].detach() if name in parts else otherwise

    shown: dict[str, Any] = {"e_m": missing, "bank_rows": count(0)}
    shown.update({name: value.clone() for name, value in engine.observed().items()})
    mask = seen.parts["selection"]["mask"][place, :number] if group else torch.zeros(number, dtype=torch.bool)
    passes = group.get("passes", {})
    features, network = own["features"], engine.network
    return StepReport(
        seen=count(number),
        entropies=own["entropies"].masked_fill(~own["usable"], math.nan),
        selected=mask.sum(),
        mask=mask,
        selected_second=of(found.get("last", {}), "selected", count(0)),
        gradient_norm=of(found, "first_norm", missing),
        gradient_norm_second=of(found, "second_norm", missing),
        forwards=of(passes, "forwards", count(number)),
        backwards=of(passes, "backwards", count(0)),
        computed_forwards=of(passes, "computed_forwards", count(number)),
        computed_backwards=of(passes, "computed_backwards", count(0)),
        learned=of(group, "learned", torch.tensor(False)),
        loss=of(found.get("first", {}), "total", missing),
        step=engine.calls,
        used_redundancy=of(found.get("first", {}), "redundancy", None),
        used_inequity=of(found.get("first", {}), "inequity", None),
        **shown,
        _distance=engine.distance,
        _features=lambda: (features, network),
    )


def _group_of(ends: Tensors, place: int) -> tuple[Tensors, int]:
    """The group of streams that ``place`` ended in, and its number there."""
    for group in ends.values():
        if place in group["places"]:
            return group, group["places"].index(place)
    return {}, 0
