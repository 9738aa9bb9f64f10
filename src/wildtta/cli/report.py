"""``wildtta report``: journals into Markdown, LaTeX, CSV and one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wildtta.bench import BenchError, read
from wildtta.bench.grid import parse_toml
from wildtta.cli.launching import one_line_errors
from wildtta.guard.audit import is_audit
from wildtta.paper import sections
from wildtta.report import MOST_CURVES, TITLE
from wildtta.report.audits import audit_section
from wildtta.report.command import command_line
from wildtta.report.document import Document, gather
from wildtta.report.verdicts import reasons_of, unexplained
from wildtta.report.verdicts import verdicts as verdicts_page
from wildtta.report.writing import write_document, write_page

_OUT = Path("wildtta-report")


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    journals: Annotated[
        list[Path],
        typer.Argument(help="Journals (.jsonl or .jsonl.gz) and guards' audits (.jsonl); several are merged."),
    ],
    out: Annotated[
        Path | None, typer.Option(help=f"Folder to write to; {_OUT} unless there is a --page.", metavar="DIR")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="Write one Markdown page; its figures go into a folder of its name.", metavar="FILE.md"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the report.", metavar="TEXT")] = None,
    intro: Annotated[
        list[Path] | None, typer.Option(help="Markdown to put before the numbers; repeatable.", metavar="FILE.md")
    ] = None,
    figures: Annotated[
        int, typer.Option(min=0, help="Curves along streams at most; 0: no figures at all.", metavar="N")
    ] = MOST_CURVES,
    verdicts: Annotated[
        Path | None,
        typer.Option(help="Write a page on the paper's claims: which hold, which don't.", metavar="FILE.md"),
    ] = None,
    reasons: Annotated[
        Path | None, typer.Option(help="Why claims fail, for --verdicts: a table for each claim.", metavar="FILE.toml")
    ] = None,
) -> None:
    """Write a report: index.html (one file), report.md, report.tex, numbers.csv, claims.csv, figures/.

    Rows of the paper's experiments become its tables, figures and claims, with the paper's numbers beside them.
    All others become tables of methods against scenarios. An unfinished journal gives the part that it has.
    A guard's audit becomes a figure of its evidence and a table of its decisions.
    """
    with one_line_errors():
        words = "\n\n".join(path.read_text(encoding="utf-8").strip() for path in intro or ())
        audits = [path for path in journals if is_audit(path)]
        rows = read([path for path in journals if path not in audits], say=lambda text: typer.echo(text, err=True))
        if not rows and not audits:
            raise BenchError(f"{', '.join(map(str, journals))}: no finished cell yet; run some first")
        told = f" and {len(audits)} audits" if audits else ""
        typer.echo(f"{len(rows)} cells{told}; writing the report ...", err=True)
        command = command_line(
            ["wildtta", "report", *journals],
            ("--out", out),
            ("--page", page),
            ("--title", title),
            *(("--intro", path) for path in intro or ()),
            ("--figures", None if figures == MOST_CURVES else figures),
            ("--verdicts", verdicts),
            ("--reasons", reasons),
        )
        shown, heading = [*sections(rows), *map(audit_section, audits)], title or TITLE
        document = gather(rows, title=heading, sections=shown, intro=words, figures=figures, command=command)
        if page is not None:
            typer.echo(f"page:   {write_page(document, page)}")
        if verdicts is not None:
            _write_verdicts(document, verdicts, reasons)
        if out is not None or (page is None and verdicts is None):
            written = write_document(document, out or _OUT)
            typer.echo(f"report: {written.html}")
            for path in (written.markdown, written.latex, written.numbers, written.claims):
                if path is not None:
                    typer.echo(f"        {path}")


def _write_verdicts(document: Document, page: Path, reasons: Path | None) -> None:
    """The page of verdicts, and on stderr which claims lack a reason."""
    tables = {} if reasons is None else parse_toml(reasons.read_text(encoding="utf-8"))
    known = reasons_of(tables, document.outcomes)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(verdicts_page(document, known), encoding="utf-8")
    for line in unexplained(document, known):
        typer.echo(line, err=True)
    typer.echo(f"verdicts: {page}")
