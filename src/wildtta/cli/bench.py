"""``wildtta bench``: a grid of cells into a journal, resumable; ``wildtta merge``: several journals into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wildtta.cli.launching import (
    Data,
    Device,
    Loaders,
    PerDevice,
    Ray,
    Source,
    TensorBoardFolder,
    Threads,
    exit_code,
    one_line_errors,
    print_rows,
)


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("bench")(bench)
    app.command("merge")(merge_journals)


def bench(
    grid: Annotated[Path, typer.Argument(help="A TOML file; its format: python -m pydoc wildtta.bench.grid")],
    journal: Annotated[Path, typer.Option(help="JSONL file to append to; cells that it holds are not run again.")],
    data: Data = None,
    source: Source = None,
    device: Device = "auto",
    per_device: PerDevice = 1,
    ray: Ray = None,
    threads: Threads = 1,
    loaders: Loaders = None,
    tensorboard: TensorBoardFolder = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    table: Annotated[bool, typer.Option(help="Print a table of all cells at the end.")] = True,
) -> None:
    """Run a grid: models x methods x scenarios x corruptions x severities x seeds.

    Every finished cell is in the journal at once; after a kill the same command goes on with what is missing. A cell
    that fails is recorded with its reason and tried again by the next run. Exit code: 0 all done, 1 some cells failed,
    2 the request cannot be run.
    """
    with one_line_errors(journal):
        from wildtta.bench import launch, load_grid, read
        from wildtta.bench.checks import check_cells

        cells = load_grid(grid)
        if dry_run:
            check_cells(cells, None if data is None else str(data))
            done = {row["key"] for row in read(journal) if row["status"] == "ok"} if journal.exists() else set()
            for cell in cells:
                typer.echo(f"{cell.key}  {'done' if cell.key in done else 'to do'}  {cell.describe()}")
            return
        outcome = launch(
            cells,
            journal=journal,
            root=data,
            source=source,
            device=device,
            per_device=per_device,
            ray=ray,
            threads=threads,
            loaders=loaders,
            tensorboard=tensorboard,
        )
        if table:
            print_rows(outcome.rows)
        typer.echo(
            f"{len(outcome.rows)} cells in {journal}: {outcome.ran} run now ({outcome.failed} failed), "
            f"{outcome.found} found"
        )
    raise typer.Exit(exit_code(outcome))


def merge_journals(
    journals: Annotated[list[Path], typer.Argument(help="Journals (.jsonl or .jsonl.gz).")],
    into: Annotated[Path, typer.Option(help="The merged journal (.jsonl or .jsonl.gz); replaced where it exists.")],
    series: Annotated[bool, typer.Option(help="Keep what was recorded per batch: most of a journal's size.")] = True,
) -> None:
    """Merge journals into one: per cell the newest row, and a finished one before a failed one."""
    with one_line_errors():
        from wildtta.bench import merge

        count = merge(journals, into, series=series, say=lambda text: typer.echo(text, err=True))
        typer.echo(f"{count} cells in {into}")
