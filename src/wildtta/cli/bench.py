"""``wildtta bench`` runs a grid into a journal; ``merge`` and ``migrate`` make a journal from others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from wildtta.bench import load_grid, merge, read
from wildtta.bench.cell import told_apart
from wildtta.bench.journal import write
from wildtta.bench.launching import check_cells
from wildtta.bench.migration import migrated
from wildtta.cli.launching import Launch, exit_code, one_line_errors, print_rows, runs_cells

_to_stderr = partial(typer.echo, err=True)


def register(app: typer.Typer) -> None:
    app.command("bench")(runs_cells(bench))
    app.command("merge")(merge_journals)
    app.command("migrate")(migrate_journal)


def bench(
    grid: Annotated[Path, typer.Argument(help="A TOML file; its format: python -m pydoc wildtta.bench.grid")],
    journal: Annotated[Path, typer.Option(help="JSONL file to append to; cells that it holds are not run again.")],
    launch: Launch,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
    table: Annotated[bool, typer.Option(help="Print a table of all cells at the end.")] = True,
) -> None:
    """Run a grid: models x methods x scenarios x corruptions x severities x seeds.

    Every finished cell is in the journal at once; after a kill the same command goes on with what is missing.
    A cell that fails is recorded with its reason and tried again by the next run. Exit code: 0 all done, 1
    some cells failed, 2 the request cannot be run, 3 the time (--seconds) was up.
    """
    with one_line_errors(journal):
        cells = load_grid(grid)
        if dry_run:
            check_cells(cells, None if launch.root is None else str(launch.root))
            done = {row["key"] for row in read(journal) if row["status"] == "ok"} if journal.exists() else set()
            for key, line in told_apart(cells).items():
                typer.echo(f"{key}  {'done' if key in done else 'to do'}  {line}")
            return
        outcome = launch(cells, journal=journal)
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
        count = merge(journals, into, series=series, say=_to_stderr)
        typer.echo(f"{count} cells in {into}")


def migrate_journal(
    old: Annotated[Path, typer.Argument(help="A journal of version 0.1 (.jsonl or .jsonl.gz).")],
    new: Annotated[Path, typer.Argument(help="The journal to write (.jsonl or .jsonl.gz); replaced where it exists.")],
) -> None:
    """Translate a journal of version 0.1: methods and options get their present names, rows get new keys.

    No measured value changes. Rows whose setting can no longer be run stay as they were, with a label that
    says so.
    """
    with one_line_errors():
        rows, report = migrated(read(old, say=_to_stderr))
        write(rows, new)
        for line in report:
            typer.echo(line)
        typer.echo(f"{len(rows)} rows in {new}")
