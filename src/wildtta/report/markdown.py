"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from wildtta.report.document import Document
from wildtta.report.figure import Figure
from wildtta.report.inert import without_tags
from wildtta.report.outcome import MARKS, Outcome, counted
from wildtta.report.table import Number, Table, own_text, printed_text, sentence, signed


def markdown(document: Document, *, figures: str = "figures") -> str:
    """The whole report; ``figures`` is the folder of the drawings, seen from where the text will lie."""
    parts = [without_tags(f"# {document.title}"), without_tags(document.summary)]
    if document.command:
        parts.append(f"```bash\n{document.command}\n```")
    if document.intro:
        parts.append(document.intro)
    if document.outcomes:
        tally = ", ".join(f"{count} {MARKS[status]}" for status, count in counted(document.outcomes).items() if count)
        parts.append(f"Claims: {tally}; each stands with its table or figure.")
    if document.tables:
        parts.append("## Tables")
    parts += [table_markdown(table) for table in document.tables]
    if document.figures:
        parts.append("## Figures")
    parts += [figure_markdown(figure, figures) for figure in document.figures]
    if document.undecided:
        parts.append(
            "## Claims about what was not run\n\n"
            + without_tags(_listed(f"{o.name}: {o.text}" for o in document.undecided))
        )
    if document.failed:
        parts.append("## Failed runs\n\n" + without_tags(_listed(f"{which}: {why}" for which, why in document.failed)))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that stays text inside a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def pipe_table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int = 1) -> str:
    """A pipe table whose first ``labels`` columns are text and the others numbers."""
    rule = [":--"] * labels + ["--:"] * (len(heading) - labels)
    lines = [heading, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number_markdown(number: Number, digits: int) -> str:
    """``**51.7 ± 0.1** (51.5, +0.2)``: ours, the paper's, the difference; ``[51.5]``: not comparable."""
    if number.mean is None:
        told = escape(number.words) or "–"
        return f"{told} [{escape(number.printed_words)}]" if number.printed_words else told
    bold = "**" if number.best else ""
    text = f"{bold}{own_text(number, digits)}{bold}{' †' * number.collapsed}"
    if number.partial:
        text += f" ({number.partial})"
    if number.difference is not None:
        text += f" ({printed_text(number, digits)}, {signed(number.difference, digits)})"
    elif number.printed is not None:
        text += f" [{printed_text(number, digits)}]"
    return text


def table_markdown(table: Table) -> str:
    """Heading, data, table, notes, claims."""
    rows = []
    for row in table.shown:
        numbers = [number_markdown(n, column.digits) for n, column in zip(row.numbers, table.columns, strict=True)]
        rows.append([*map(escape, row.labels), *numbers])
    heading = [*table.row_names, *(escape(column.label) for column in table.columns)]
    parts = [f"### {table.title}", f"{table.unit + ' · ' if table.unit else ''}{table.subtitle}"]
    if rows:
        parts.append(pipe_table(heading, rows, labels=len(table.row_names)))
    notes = [f"Not available: {', '.join(labels)} ({reason})." for reason, labels in table.absent.items()]
    if table.comparable:
        notes.append("In brackets: the paper's number, and ours less the paper's.")
    elif table.has_printed:
        where = f" on {table.printed_on}" if table.printed_on else ""
        notes.append(f"[…]: the paper's numbers{where}; these are other data and are not compared.")
    notes += table.notes
    if table.command:
        notes.append(f"`{table.command}`")
    return without_tags("\n\n".join([*parts, *([_listed(notes)] if notes else []), *_claims(table.claims)]))


def figure_markdown(figure: Figure, folder: str = "figures") -> str:
    """The drawings as linked files, and claims about them."""
    where = quote(folder)
    parts = [f"### {figure.title}", figure.subtitle]
    parts += [f"![{chart.title}]({where}/{figure.name}-{place}.svg)" for place, chart in enumerate(figure.charts, 1)]
    if figure.note:
        parts.append(sentence(figure.note))
    return without_tags("\n\n".join(part for part in (*parts, *_claims(figure.claims)) if part))


def _claims(outcomes: Sequence[Outcome]) -> list[str]:
    """A table of verdicts with the numbers that decide them, where there are any."""
    rows = [[o.name, o.mark, escape(o.text), escape(o.numbers)] for o in outcomes]
    return [pipe_table(["claim", "", "says", "numbers"], rows, labels=4)] if rows else []


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
