"""Reports from journals: Markdown, LaTeX, CSV, SVG figures and one self-contained HTML page.

``wildtta.report.write(rows, "out", title="...")`` is all there is to know; ``write_page`` makes a page of a documentation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wildtta.bench import Row
    from wildtta.report.writing import Written

__all__ = ["write", "write_page"]

TITLE = "wildtta report"


def write(
    rows: Sequence[Row],
    out_dir: str | os.PathLike[str],
    *,
    title: str = TITLE,
    intro: str = "",
    figures: int = 12,
    command: str = "",
) -> Written:
    """Write every form of a report on journal rows (:func:`wildtta.bench.read`) into a folder; gives the paths.

    Rows of the paper's experiments become its tables, figures and claims; all others become tables of methods against
    scenarios. What has not been run is said to be missing.

    Args:
        rows: of journals.
        out_dir: made where it isn't there.
        title: the heading.
        intro: Markdown before the numbers.
        figures: how many curves along streams are drawn at most; 0: no figure at all.
        command: the command line that makes the report again, to be shown.
    """
    from wildtta.report.document import gather
    from wildtta.report.writing import write_document

    return write_document(gather(rows, title=title, intro=intro, figures=figures, command=command), out_dir)


def write_page(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str = TITLE,
    intro: str = "",
    figures: int = 12,
    command: str = "",
) -> Path:
    """The same report as one Markdown file, its drawings beside it in a folder of its name; the rest as in :func:`write`."""
    from wildtta.report.document import gather
    from wildtta.report.writing import write_page

    return write_page(gather(rows, title=title, intro=intro, figures=figures, command=command), path)
