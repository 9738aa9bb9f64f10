"""The finished runs of a journal, named and in the order of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wildtta.bench import Cell, Row
from wildtta.metrics import row_collapsed
from wildtta.report.names import SCENARIOS, method_name, option_text
from wildtta.report.order import corruption_order, method_order, natural, stream_order


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished row with its cell; ``method`` is the method's title among the runs it is shown with."""

    cell: Cell
    row: Row
    method: str

    @property
    def labels(self) -> tuple[str, str]:
        """Model and method as a table names them."""
        return self.cell.model_title, self.method

    @property
    def data(self) -> str:
        """The data, and the preprocessing where it isn't the data's own."""
        protocol = "" if self.cell.protocol == "auto" else f", preprocessing {self.cell.protocol}"
        return self.cell.data + protocol

    @property
    def stream(self) -> str:
        """The scenario in words, with what sets it apart."""
        cell = self.cell
        parts = [SCENARIOS.get(cell.scenario, cell.scenario)]
        if cell.corruptions:
            parts.append(f"level {cell.severity}")
        if cell.scenario != "single" and cell.batch_size != 64:
            parts.append(f"batch {cell.batch_size}")
        parts += [f"{name} {value}" for name, value in sorted(cell.scenario_options.items())]
        if "split" in cell.data_options:
            parts.append(str(cell.data_options["split"]))
        return ", ".join(parts)

    @property
    def world(self) -> tuple[Any, ...]:
        """Where data, model, stream and corruptions stand in a report."""
        model, stream = natural(self.cell.model_title), stream_order(self.cell, self.stream)
        return natural(self.data), model, stream, corruption_order(self.cell.corruptions)

    @property
    def corruptions(self) -> tuple[str, ...]:
        """The columns it has a part in."""
        return self.cell.corruptions or ("clean",)


def runs_in(rows: Iterable[Row]) -> tuple[list[Run], str]:
    """The finished rows by model, method, stream, corruption and seed, in whichever order they were finished.

    Options that all of them have (``precision tf32``) are no part of any title; they come in words beside the runs.
    """
    found = [(Cell.from_json(row["cell"]), row) for row in rows if row["status"] == "ok"]
    first, *rest = [cell.options for cell, _ in found] or [{}]
    shared = {key: value for key, value in first.items() if all(key in o and o[key] == value for o in rest)}
    runs = []
    for cell, row in found:
        own = {name: value for name, value in cell.options.items() if name not in shared}
        runs.append(Run(cell=cell, row=row, method=cell.name or method_name(cell.method, own)))
    told = ", ".join(f"{name} {option_text(value)}" for name, value in sorted(shared.items()))
    return sorted(runs, key=_place), told


def look_up(row: Row, path: str) -> Any:
    """Follow a path such as ``metrics/accuracy`` into a journal row; None where it leads nowhere."""
    place: Any = row
    for name in path.split("/"):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def collapsed(row: Row) -> bool:
    """Whether the run collapsed (:mod:`wildtta.metrics.collapse`); False where no share of its classes was recorded."""
    metrics = row.get("metrics") or {}
    return "top_class_share" in metrics and row_collapsed(metrics, adapts=row["cell"]["method"] != "none")


def grouped(runs: Iterable[Run], name: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    """Runs by what a function says of them, in the order of their first."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(name(run), []).append(run)
    return groups


def _place(run: Run) -> tuple[Any, ...]:
    data, model, *stream = run.world
    return data, model, method_order(run.cell.method, run.method), *stream, run.cell.seed, run.row["key"]
