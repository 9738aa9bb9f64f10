"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from wildtta.paper import Outcome
from wildtta.report.chart import Figure
from wildtta.report.document import Document
from wildtta.report.table import Number, Table, own_text, printed_text, signed


def markdown(document: Document, *, figures: str = "figures") -> str:
    """The whole report; ``figures`` is the folder of the drawings, seen from where the text will lie."""
    parts = [f"# {document.title}", document.summary]
    if document.command:
        parts.append(f"```bash\n{document.command}\n```")
    if document.intro:
        parts.append(document.intro)
    if document.outcomes:
        parts.append(claims_markdown(document.outcomes))
    if document.tables:
        parts.append("## Tables")
    parts += [table_markdown(table) for table in document.tables]
    if document.figures:
        parts.append("## Figures")
    parts += [figure_markdown(figure, figures) for figure in document.figures]
    if document.failed:
        parts.append("## Failed runs\n\n" + "\n".join(f"- {which}: {why}" for which, why in document.failed))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that stays text inside a Markdown table."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def pipe_table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int = 1) -> str:
    """A pipe table whose first ``labels`` columns are text and the others numbers."""
    rule = [":--"] * labels + ["--:"] * (len(heading) - labels)
    lines = [heading, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number_markdown(number: Number, digits: int, *, comparable: bool) -> str:
    """``**51.7 ± 0.1** (51.5, +0.2)``: ours, then the paper's and the difference where they can be compared."""
    if number.mean is None:
        return "–"
    text = own_text(number, digits)
    if number.best:
        text = f"**{text}**"
    if number.collapsed:
        text += " †"
    if number.partial:
        text += f" ({number.partial})"
    if comparable and number.difference is not None:
        text += f" ({printed_text(number, digits)}, {signed(number.difference, digits)})"
    return text


def table_markdown(table: Table) -> str:
    """Heading, data, table, notes."""
    rows = []
    for row in table.shown:
        numbers = [
            number_markdown(number, column.digits, comparable=table.comparable)
            for number, column in zip(row.numbers, table.columns, strict=True)
        ]
        rows.append([*map(escape, row.labels), *numbers])
    heading = [*table.row_names, *(escape(column.label) for column in table.columns)]
    parts = [f"### {table.title}", f"{table.unit + ' · ' if table.unit else ''}{table.subtitle}"]
    if rows:
        parts.append(pipe_table(heading, rows, labels=len(table.row_names)))
    notes = [f"Not available: {', '.join(labels)} ({reason})." for reason, labels in table.absent.items()]
    if table.has_printed and not table.comparable:
        notes.append("The paper's numbers are for other data and are not compared here.")
    elif table.comparable:
        notes.append("In brackets: the paper's number, and ours less the paper's.")
    notes += [f"{mark}." for mark in table.marks]
    if table.note:
        notes.append(table.note[0].upper() + table.note[1:] + ".")
    if table.command:
        notes.append(f"`{table.command}`")
    return "\n\n".join([*parts, *(["\n".join(f"- {note}" for note in notes)] if notes else [])])


def figure_markdown(figure: Figure, folder: str = "figures") -> str:
    """The drawings as linked files, and what they lack."""
    where = quote(folder)
    parts = [f"### {figure.title}", figure.subtitle]
    parts += [f"![{chart.title}]({where}/{figure.name}-{place}.svg)" for place, chart in enumerate(figure.charts, 1)]
    if figure.note:
        parts.append(figure.note[0].upper() + figure.note[1:] + ".")
    return "\n\n".join(part for part in parts if part)


def claims_markdown(outcomes: Sequence[Outcome]) -> str:
    """Every claim with its verdict, the numbers that decide it and on which data."""
    counts = {mark: sum(outcome.mark == mark for outcome in outcomes) for mark in ("✓", "✗", "not run")}
    heading = ["claim", "", "says", "numbers", "data"]
    rows = [
        [outcome.claim.name, outcome.mark, *map(escape, (outcome.claim.text, outcome.numbers, outcome.data))]
        for outcome in outcomes
    ]
    tally = ", ".join(f"{count} {mark}" for mark, count in counts.items())
    return f"## Claims\n\n{tally}\n\n{pipe_table(heading, rows, labels=5)}"
