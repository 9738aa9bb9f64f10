"""Reports from journals: Markdown, LaTeX, CSV, SVG figures and one self-contained HTML page.

``wildtta.report.write(rows, "out", title="...")`` is all there is to know.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wildtta.bench import Row
    from wildtta.report.writing import Written

__all__ = ["write"]


def write(rows: Sequence[Row], out_dir: str | os.PathLike[str], *, title: str = "wildtta report") -> Written:
    """Write every form of a report on journal rows (:func:`wildtta.bench.read`) into a folder; gives the paths.

    Rows of the paper's experiments become its tables, figures and claims; all others become tables of methods against
    scenarios. What has not been run is said to be missing.
    """
    from wildtta.report.document import gather
    from wildtta.report.writing import write_document

    return write_document(gather(rows, title=title), out_dir)
