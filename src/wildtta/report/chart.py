"""What a chart shows, without a word on how it is drawn (:mod:`wildtta.report.drawing` draws it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve; ``std`` draws a band, ``dashed`` marks a reference such as "no adaptation"."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    std: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Common to all: a title and the axes' labels."""

    title: str
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True, kw_only=True)
class LineChart(Chart):
    """Curves over a common x; ``log_x`` for batch sizes and ratios; ``marks`` draws the points too."""

    lines: Sequence[Line]
    log_x: bool = False
    marks: bool = False


@dataclass(frozen=True, kw_only=True)
class BarChart(Chart):
    """Groups of bars: ``values[series][group]``; None leaves a gap."""

    groups: Sequence[str]
    series: Sequence[str]
    values: Sequence[Sequence[float | None]]
    stds: Sequence[Sequence[float | None]] | None = None


@dataclass(frozen=True, kw_only=True)
class ScatterChart(Chart):
    """Points, coloured by ``group``; vertical and horizontal guides with labels."""

    x: Sequence[float]
    y: Sequence[float]
    group: Sequence[int] | None = None
    vertical: Sequence[tuple[float, str]] = ()
    horizontal: Sequence[tuple[float, str]] = ()
    axes: bool = True


@dataclass(frozen=True, kw_only=True)
class SurfaceChart(Chart):
    """A loss surface over two directions: shaded cells and contour lines; ``level`` is drawn strongest."""

    x: Sequence[float]
    y: Sequence[float]
    z: Sequence[Sequence[float]]
    level: float | None = None
    z_label: str = ""


@dataclass(frozen=True, kw_only=True)
class PictureChart(Chart):
    """Small images (uint8, height × width × 3) with captions."""

    pictures: Sequence[npt.NDArray[np.uint8]]
    captions: Sequence[str]
