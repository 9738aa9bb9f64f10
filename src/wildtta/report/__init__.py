"""Reports from journals: Markdown, LaTeX, CSV, SVG figures and one self-contained HTML page.

``wildtta.report.write(rows, "out", title="...")`` writes all of them, ``write_page`` one page for a documentation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from wildtta.bench import Row
    from wildtta.report.document import Section
    from wildtta.report.writing import Written

__all__ = ["write", "write_page"]

TITLE, MOST_CURVES = "wildtta report", 12
"""The heading and the number of drawn curves unless said otherwise."""


class Choices(TypedDict, total=False):
    """What can be chosen about a report.

    Attributes:
        title: the heading.
        intro: Markdown before the numbers.
        figures: how many curves along streams are drawn at most (12 unless said); 0: no figure at all.
        command: the command line that makes the report again, to be shown.
        sections: what is known of rows beyond their journal, as :func:`wildtta.paper.sections` gives it.
    """

    title: str
    intro: str
    figures: int
    command: str
    sections: Sequence[Section]


def write(rows: Sequence[Row], out_dir: str | os.PathLike[str], **choices: Unpack[Choices]) -> Written:
    """Write every form of a report on journal rows (:func:`wildtta.bench.read`) into a folder.

    Rows become tables of methods against scenarios. With ``sections=wildtta.paper.sections(rows)``, rows of the
    paper's experiments become its tables, figures and claims. What has not been run is said to be missing.
    """
    from wildtta.report.document import gather
    from wildtta.report.writing import write_document

    return write_document(gather(rows, **choices), out_dir)


def write_page(rows: Sequence[Row], path: str | os.PathLike[str], **choices: Unpack[Choices]) -> Path:
    """The same report as one Markdown file, its drawings beside it in a folder of its name."""
    from wildtta.report.document import gather
    from wildtta.report.writing import write_page

    return write_page(gather(rows, **choices), path)
