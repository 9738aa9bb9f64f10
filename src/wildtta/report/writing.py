"""A document into files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from wildtta.report.document import Document
from wildtta.report.html import html
from wildtta.report.latex import latex
from wildtta.report.markdown import markdown
from wildtta.report.plots import draw
from wildtta.report.spreadsheet import claims_csv, numbers_csv
from wildtta.report.svg import standalone


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where everything is."""

    html: Path
    markdown: Path
    latex: Path
    numbers: Path
    claims: Path | None
    figures: tuple[Path, ...]


def write_document(document: Document, out_dir: str | os.PathLike[str]) -> Written:
    """``index.html``, ``report.md``, ``report.tex``, ``numbers.csv``, ``claims.csv`` and ``figures/*.svg``."""
    folder = Path(out_dir)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawings = _drawings(document, folder / "figures")
    outcomes = document.outcomes
    return Written(
        html=_put(folder / "index.html", html(document)),
        markdown=_put(folder / "report.md", markdown(document)),
        latex=_put(folder / "report.tex", latex(document)),
        numbers=_put(folder / "numbers.csv", numbers_csv(document)),
        claims=_put(folder / "claims.csv", claims_csv(outcomes)) if outcomes else None,
        figures=drawings,
    )


def write_page(document: Document, path: str | os.PathLike[str]) -> Path:
    """One Markdown file; its drawings lie beside it in a folder of its name: ``docs/study.md``, ``docs/study/*.svg``."""
    page = Path(path)
    if not page.suffix:
        raise ValueError(f"{page}: a page's name needs an ending (.md): its figures go into a folder of its name without it")
    folder = page.with_suffix("")
    page.parent.mkdir(parents=True, exist_ok=True)
    _drawings(document, folder)
    return _put(page, markdown(document, figures=folder.name))


def _drawings(document: Document, folder: Path) -> tuple[Path, ...]:
    """Every chart as a file of its own; without any, there is no folder."""
    if any(figure.charts for figure in document.figures):
        folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        _put(folder / f"{figure.name}-{place}.svg", standalone(draw(chart)))
        for figure in document.figures
        for place, chart in enumerate(figure.charts, 1)
    )


def _put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
