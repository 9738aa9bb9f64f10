"""A document into files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from wildtta.report.document import Document
from wildtta.report.drawing import draw, standalone
from wildtta.report.html import html
from wildtta.report.latex import latex
from wildtta.report.markdown import markdown
from wildtta.report.spreadsheet import claims_csv, numbers_csv


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where everything is."""

    html: Path
    markdown: Path
    latex: Path
    numbers: Path
    claims: Path | None
    figures: tuple[Path, ...]


def require_packages() -> None:
    """Raise an error where a package is missing that a report needs: asked before a long run that ends with one."""
    needed = {"matplotlib": "matplotlib", "jinja2": "jinja2", "markdown_it": "markdown-it-py"}
    if missing := [package for module, package in needed.items() if find_spec(module) is None]:
        raise ImportError(f"reports need {', '.join(missing)}: pip install 'wildtta[report]'")


def write_document(document: Document, out_dir: str | os.PathLike[str]) -> Written:
    """``index.html``, ``report.md``, ``report.tex``, ``numbers.csv``, ``claims.csv``, ``figures/*.svg``."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = drawings(document)
    outcomes = document.outcomes
    return Written(
        html=_put(folder / "index.html", html(document, drawn)),
        markdown=_put(folder / "report.md", markdown(document)),
        latex=_put(folder / "report.tex", latex(document)),
        numbers=_put(folder / "numbers.csv", numbers_csv(document)),
        claims=_put(folder / "claims.csv", claims_csv(outcomes)) if outcomes else None,
        figures=_put_drawings(drawn, folder / "figures"),
    )


def write_page(document: Document, path: str | os.PathLike[str]) -> Path:
    """One Markdown file, and its drawings in a folder of its name: ``docs/study.md``, ``docs/study/*.svg``."""
    page = Path(path)
    if not page.suffix:
        raise ValueError(
            f"{page}: a page's name needs an ending (.md): its figures go into a folder of its name without it"
        )
    page.parent.mkdir(parents=True, exist_ok=True)
    _put_drawings(drawings(document), page.with_suffix(""))
    return _put(page, markdown(document, figures=page.stem))


def drawings(document: Document) -> dict[str, str]:
    """Every chart by its name: that of its figure and its place in it."""
    return {
        f"{figure.name}-{place}": draw(chart)
        for figure in document.figures
        for place, chart in enumerate(figure.charts, 1)
    }


def _put_drawings(drawn: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """Each as a file of its own; without any, there is no folder."""
    if drawn:
        folder.mkdir(parents=True, exist_ok=True)
    return tuple(_put(folder / f"{name}.svg", standalone(svg)) for name, svg in drawn.items())


def _put(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
