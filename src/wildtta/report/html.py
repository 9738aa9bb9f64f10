"""A report as one HTML file with styles, script, drawings and the runs' configurations inside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Any

from wildtta.bench import Cell, Row
from wildtta.report.command import command_for, configuration
from wildtta.report.document import Document
from wildtta.report.drawing import DARK, LIGHT, STYLE
from wildtta.report.outcome import MARKS, counted
from wildtta.report.prose import prose_html
from wildtta.report.table import printed_text, sentence, signed, written

_PAGE = "wildtta.report.page"


def html(document: Document, drawings: Mapping[str, str]) -> str:
    """The whole page; ``drawings`` by the name of their figure and their place in it."""
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError("the HTML page needs jinja2: pip install 'wildtta[report]'") from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    style = _asset("style.css").replace("@LIGHT@", LIGHT).replace("@DARK@", DARK).replace("@CHART@", STYLE)
    return environment.from_string(_asset("page.html.j2")).render(
        document=document,
        outcomes=document.outcomes,
        counts=counted(document.outcomes),
        marks=MARKS,
        any_printed=any(table.has_printed for table in document.tables),
        intro=Markup(prose_html(document.intro)) if document.intro else "",
        written=written,
        printed_text=printed_text,
        signed=signed,
        sentence=sentence,
        drawings={name: Markup(drawing) for name, drawing in drawings.items()},
        style=Markup(style),
        script=Markup(_asset("page.js")),
        runs=Markup(_embedded(runs_shown(document))),
        versions=versions_told(document.rows),
    )


def runs_shown(document: Document) -> dict[str, dict[str, Any]]:
    """For every run behind a number: what it was, what it took, its command and its configuration."""
    wanted = {
        key for table in document.all_tables for row in table.rows for number in row.numbers for key in number.keys
    }
    return {row["key"]: _run(row) for row in document.rows if row["key"] in wanted}


def _run(row: Row) -> dict[str, Any]:
    cell = Cell.from_json(row["cell"])
    metrics, cost = row.get("metrics") or {}, row.get("cost") or {}
    told = [f"accuracy {metrics['accuracy']:.2f} %"] if metrics.get("accuracy") is not None else []
    if cost.get("forwards") is not None:
        told.append(f"{cost['forwards']:,} forward and {cost.get('backwards', 0):,} backward samples")
    if cost.get("ms_per_batch") is not None:
        told.append(f"{cost['ms_per_batch']:.1f} ms per batch")
    told += [str(row[name]) for name in ("device", "data_note") if row.get(name)]
    return {
        "what": cell.describe(),
        "told": " · ".join(told),
        "command": command_for(cell),
        "cell": configuration(cell),
    }


def versions_told(rows: Any) -> list[str]:
    """What the numbers were made with: each combination once, with how many runs used it."""
    told = Counter(
        ", ".join(f"{name} {value}" for name, value in (row.get("versions") or {}).items() if name != "weights")
        for row in rows
        if row["status"] == "ok"
    )
    return [f"{text} ({count} runs)" for text, count in told.most_common() if text]


def _asset(name: str) -> str:
    return resources.files(_PAGE).joinpath(name).read_text(encoding="utf-8")


def _embedded(value: object) -> str:
    """JSON that cannot end the script element around it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
