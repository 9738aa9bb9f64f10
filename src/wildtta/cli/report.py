"""``wildtta report``: journals into Markdown, LaTeX, CSV and one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wildtta.cli.launching import one_line_errors


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report")(report)


def report(
    journals: Annotated[list[Path], typer.Argument(help="Journals (.jsonl or .jsonl.gz); several are merged.")],
    out: Annotated[Path, typer.Option(help="Folder to write to.", metavar="DIR")] = Path("wildtta-report"),
    title: Annotated[str, typer.Option(help="Heading of the report.")] = "wildtta report",
) -> None:
    """Write a report: index.html (one page, no network), report.md, report.tex, numbers.csv, claims.csv, figures/.

    Rows of the paper's experiments become its tables, figures and claims, with the paper's numbers beside them; all
    others become tables of methods against scenarios. A journal that isn't finished gives the part that it has.
    """
    with one_line_errors():
        from wildtta.bench import BenchError, read
        from wildtta.report import write

        rows = read(journals, say=lambda text: typer.echo(text, err=True))
        if not rows:
            raise BenchError(f"{', '.join(map(str, journals))}: no finished cell yet; run some first")
        typer.echo(f"{len(rows)} cells; writing the report ...", err=True)
        written = write(rows, out, title=title)
        typer.echo(f"report: {written.html}")
        for path in (written.markdown, written.latex, written.numbers, written.claims):
            if path is not None:
                typer.echo(f"        {path}")
