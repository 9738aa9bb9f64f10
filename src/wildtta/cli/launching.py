"""What the verbs that run cells share: their options, their errors, their table."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from wildtta import bench
from wildtta.bench import BenchError, Cell, Outcome, Row
from wildtta.bench.unadapted import beside_unadapted
from wildtta.report.runs import collapsed
from wildtta.report.table import Table

Device = Annotated[str, typer.Option(help="auto, cpu, cuda (all GPUs), or names with commas: cuda:0,cuda:1.")]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The options of every verb that runs cells; called, it runs some."""

    root: Annotated[Path | None, typer.Option("--data", help="Folder (or zip) of the data.", metavar="DIR")] = None
    source: Annotated[
        Path | None, typer.Option(help="Clean source images, for methods that want some (EATA).", metavar="DIR")
    ] = None
    device: Device = "auto"
    per_device: Annotated[
        int | None,
        typer.Option(min=1, help="Cells at a time on each device. Default: 1 on a GPU; on the CPU one for each core."),
    ] = None
    ray: Annotated[
        str | None, typer.Option(help="Run on a Ray cluster: auto, or its address.", metavar="auto|ADDRESS")
    ] = None
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads of each worker (part of what decides the last digits).")
    ] = 1
    loaders: Annotated[int | None, typer.Option(min=0, help="Decoding processes of each worker, for large data.")] = (
        None
    )
    tensorboard: Annotated[str | None, typer.Option(help="Also write TensorBoard files.", metavar="DIR")] = None
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Begin no cell after so many seconds; the same command goes on later.")
    ] = None

    def __call__(self, cells: Sequence[Cell], *, journal: Path | None, **changes: Any) -> Outcome:
        """:func:`wildtta.bench.launch` with these options; ``changes`` go before them."""
        chosen = {**asdict(self), **changes}
        if chosen["per_device"] is None:
            here = chosen["ray"] is None
            chosen["per_device"] = bench.cells_at_a_time(cells, chosen["device"], chosen["threads"]) if here else 1
        outcome = bench.launch(cells, journal=journal, **chosen)
        if outcome.left:
            typer.echo(f"time is up, {outcome.left} cells are left; run the same command again to go on", err=True)
        return outcome


def runs_cells(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator: on the command line, the parameter ``launch`` becomes the options of :class:`Launch`."""
    own = dict(inspect.signature(verb, eval_str=True).parameters)
    shared = inspect.signature(Launch, eval_str=True).parameters
    del own["launch"]

    @functools.wraps(verb)
    def command(**given: Any) -> None:
        launch = Launch(**{name: given.pop(name) for name in shared})
        verb(**given, launch=launch)

    parameters = [part.replace(kind=part.KEYWORD_ONLY) for part in (*own.values(), *shared.values())]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {part.name: part.annotation for part in parameters}
    return command


@contextmanager
def one_line_errors(journal: Path | None = None) -> Iterator[None]:
    """What the user can mend becomes one line and exit code 2; an interruption says how to go on."""
    try:
        yield
    except BrokenPipeError:
        raise  # `wildtta methods | head`: the reader has seen enough, and click ends without a word
    except (BenchError, ValueError, OSError, ImportError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        typer.echo(f"wildtta: {' '.join(line.strip() for line in lines)}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        safe = f"finished cells are in {journal}; " if journal is not None else ""
        typer.echo(f"\nwildtta: interrupted; {safe}run the same command again to go on", err=True)
        raise typer.Exit(130) from None  # as a shell reports SIGINT


def exit_code(*outcomes: Outcome) -> int:
    """0: all done; 1: some cells failed; 3: the time was up before all had begun."""
    if any(outcome.failed for outcome in outcomes):
        return 1
    return 3 if any(outcome.left for outcome in outcomes) else 0


def pairs(entries: Sequence[str] | None, option: str) -> dict[str, Any]:
    """``name=value`` arguments as a table; values are JSON (``1e-3``, ``null``), ``inf`` or text."""
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


def console(wide: int) -> Any:
    """A console on stdout: as wide as the terminal, or of a fixed width where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else wide)


def print_table(table: Table) -> None:
    """A report's table, and what its marks mean."""
    from wildtta.report.terminal import rich_table

    console(_WIDE).print(rich_table(table))
    for note in table.notes:
        typer.echo(note)


def print_rows(rows: Sequence[Row]) -> None:
    """A table of results, with fewer columns on a narrow terminal; failures follow with their reasons."""
    from rich.table import Table as RichTable

    screen = console(_WIDE)
    good = [(Cell.from_row(row), row) for row in beside_unadapted(rows) if row["status"] == "ok"]
    if good:
        models = list(dict.fromkeys(cell.model_title for cell, _ in good))
        numbers = [name for name in _NUMBERS if screen.width >= _WIDE or name in _ESSENTIAL]
        if not all("miou" in row["metrics"] for _, row in good):  # a column of segmentation alone
            numbers.remove("mIoU %")
        table = RichTable(show_edge=False, pad_edge=False, title=models[0] if len(models) == 1 else None)
        for heading in (["model"] if len(models) > 1 else []) + ["method", "stream"]:
            table.add_column(heading, overflow="fold", min_width=10)
        for heading in numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        for cell, row in good:
            first = [cell.model_title] if len(models) > 1 else []
            table.add_row(*first, cell.title, _stream(cell), *(_NUMBERS[name](row) for name in numbers))
        screen.print(table)
    print_failures(rows)


def print_failures(rows: Iterable[Row]) -> None:
    for row in rows:
        if row["status"] != "ok":
            typer.echo(f"failed: {Cell.from_row(row).describe()}: {row['reason']}", err=True)


_WIDE = 140
_ESSENTIAL = frozenset({"mIoU %", "acc %", "ECE %", "top class %", "ms/batch"})
_NUMBERS: dict[str, Callable[[Row], str]] = {
    "mIoU %": lambda row: f"{row['metrics']['miou']:.2f}",
    "acc %": lambda row: f"{row['metrics']['accuracy']:.2f}",
    "top-5 %": lambda row: f"{row['metrics']['top5']:.2f}",
    "ECE %": lambda row: f"{row['metrics']['ece']:.2f}",
    "NLL": lambda row: f"{row['metrics']['nll']:.3f}",
    # A collapse is marked, since a share alone may be right in a class-ordered stream.
    "top class %": lambda row: f"{row['metrics']['top_class_share']:.1f}{' !' if collapsed(row) else ''}",
    "fwd": lambda row: f"{row['cost']['forwards']:,}",
    "bwd": lambda row: f"{row['cost']['backwards']:,}",
    "ms/batch": lambda row: f"{row['cost']['ms_per_batch']:.1f}",
}


def _stream(cell: Cell) -> str:
    batch = "" if cell.batch_size == 64 else f", batch {cell.batch_size}"
    pace = f", pace {cell.pace:g}" if cell.pace else ""
    return f"{cell.scenario}, {cell.shift}{batch}{pace}{f', seed {cell.seed}' if cell.seed else ''}"
