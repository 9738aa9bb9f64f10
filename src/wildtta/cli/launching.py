"""What the verbs that run cells share: their options, their errors, their table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from wildtta.bench.campaign import Outcome
from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row

Data = Annotated[Path | None, typer.Option("--data", help="Folder (or zip) of the data.", metavar="DIR")]
Source = Annotated[
    Path | None, typer.Option("--source", help="Clean source images, for methods that want some (EATA).", metavar="DIR")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda (all GPUs), or names with commas: cuda:0,cuda:1.")]
PerDevice = Annotated[int, typer.Option(min=1, help="Cells at a time on each device; small networks leave a GPU idle.")]
Ray = Annotated[str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.", metavar="auto|ADDRESS")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of each worker (part of what decides the last digits).")]
Loaders = Annotated[int | None, typer.Option(min=0, help="Decoding processes of each worker, for large data.")]
TensorBoardFolder = Annotated[
    str | None, typer.Option("--tensorboard", help="Also write TensorBoard files.", metavar="DIR")
]

INTERRUPTED = 130


@contextmanager
def one_line_errors(journal: Path | None = None) -> Iterator[None]:
    """What the user can mend becomes one line and exit code 2; an interruption says how to go on."""
    try:
        yield
    except (BenchError, ValueError, OSError, ImportError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        typer.echo(f"wildtta: {' '.join(line.strip() for line in lines)}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        safe = f"finished cells are in {journal}; " if journal is not None else ""
        typer.echo(f"\nwildtta: interrupted; {safe}run the same command again to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None


def exit_code(outcome: Outcome) -> int:
    """0 where every cell has its numbers, 1 where some failed."""
    return int(any(row["status"] != "ok" for row in outcome.rows))


def pairs(entries: Sequence[str] | None, option: str) -> dict[str, Any]:
    """``name=value`` arguments as a table; values are JSON (``1e-3``, ``true``, ``null``), ``inf`` or text."""
    table: dict[str, Any] = {}
    for entry in entries or ():
        name, equals, text = entry.partition("=")
        if not equals or not name:
            raise BenchError(f"{option} takes name=value, got {entry!r}")
        try:
            table[name] = json.loads(text)
        except ValueError:
            table[name] = float(text) if text in ("inf", "-inf") else text
    return table


def print_rows(rows: Sequence[Row]) -> None:
    """A table of results; what failed comes after it with its reason."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    good = [row for row in rows if row["status"] == "ok"]
    if good:
        table = Table(show_edge=False, pad_edge=False)
        for heading in ("model", "method", "scenario", "shift"):
            table.add_column(heading, overflow="fold")
        for heading in ("acc %", "top-5 %", "ECE %", "NLL", "top class %", "fwd", "bwd", "ms/batch"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in good:
            table.add_row(*_columns(row))
        console.print(table)
    for row in rows:
        if row["status"] != "ok":
            typer.echo(f"failed: {Cell.from_json(row['cell']).describe()}: {row['reason']}", err=True)


def _columns(row: Row) -> list[str]:
    cell, metrics, cost = Cell.from_json(row["cell"]), row["metrics"], row["cost"]
    shift = ", ".join(cell.corruptions) if len(cell.corruptions) < 3 else f"{len(cell.corruptions)} corruptions"
    where = f"{shift} {cell.severity}" if cell.corruptions else "clean"
    seed = f", seed {cell.seed}" if cell.seed else ""
    mark = " !" if metrics["collapsed"] else ""
    return [
        cell.model_title,
        cell.title,
        f"{cell.scenario}, batch {cell.batch_size}{seed}",
        where,
        f"{metrics['accuracy']:.2f}",
        f"{metrics['top5']:.2f}",
        f"{metrics['ece']:.2f}",
        f"{metrics['nll']:.3f}",
        f"{metrics['top_class_share']:.1f}{mark}",
        f"{cost['forwards']:,}",
        f"{cost['backwards']:,}",
        f"{cost['ms_per_batch']:.1f}",
    ]
