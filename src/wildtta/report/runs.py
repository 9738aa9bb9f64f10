"""The finished runs of a journal, named and in the order of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    def corruptions(self) -> tuple[str, ...]:
        """The columns it has a part in."""
        return self.cell.corruptions or ("clean",)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """All runs, and the options that every one of them has: told once, and no part of a method's title."""

    runs: Sequence[Run]
    shared: Mapping[str, Any]

    @property
    def told(self) -> str:
        """The shared options: ``precision tf32``."""
        return ", ".join(f"{name} {option_text(value)}" for name, value in sorted(self.shared.items()))


def runs_in(rows: Iterable[Row]) -> Runs:
    """The finished rows, sorted by model, method, stream, corruption and seed."""
    found = [(Cell.from_json(row["cell"]), row) for row in rows if row["status"] == "ok"]
    shared = shared_options([cell.options for cell, _ in found])
    runs = [Run(cell=cell, row=row, method=cell.name or _title(cell, shared)) for cell, row in found]
    return Runs(runs=sorted(runs, key=_place), shared=shared)


def look_up(row: Row, path: str) -> Any:
    """Follow a path such as ``metrics/accuracy`` into a journal row; None where it leads nowhere."""
    place: Any = row
    for name in path.split("/"):
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def collapsed(row: Row) -> bool:
    """Whether the run ended in one class; False where no share of its classes was recorded."""
    metrics = row.get("metrics") or {}
    return "top_class_share" in metrics and row_collapsed(metrics, adapts=row["cell"]["method"] != "none")


def shared_options(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options that all have, with the same value."""
    if not options:
        return {}
    first, *rest = options
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in rest)
    }


def grouped(runs: Iterable[Run], name: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    """Runs by what a function says of them, in the order of their first."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(name(run), []).append(run)
    return groups


def streams_of(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by their stream, streams in a report's order."""
    groups = grouped(runs, lambda run: run.stream)
    return dict(sorted(groups.items(), key=lambda item: stream_order(item[1][0].cell, item[0])))


def _title(cell: Cell, shared: Mapping[str, Any]) -> str:
    return method_name(cell.method, {name: value for name, value in cell.options.items() if name not in shared})


def _place(run: Run) -> tuple[Any, ...]:
    cell = run.cell
    return (
        natural(run.data),
        natural(cell.model_title),
        method_order(cell.method, run.method),
        stream_order(cell, run.stream),
        corruption_order(cell.corruptions),
        cell.seed,
        run.row["key"],
    )
