"""Is this a grid that can run? Asked before the first cell, so that a misspelt name costs seconds and not a night."""

from __future__ import annotations

from collections.abc import Iterable

from wildtta.bench.cell import Cell
from wildtta.bench.datasets import check_data
from wildtta.bench.diagnostics import diagnostic_options
from wildtta.bench.errors import BenchError
from wildtta.bench.models import check_model
from wildtta.bench.streaming import SPLITS, stream_options

_OF_ADAPT = frozenset({"parameters", "head", "batch_size", "precision", "compile"})
"""Options that :func:`wildtta.adapt` takes itself, whatever the method."""


def check_cells(cells: Iterable[Cell], root: str | None) -> None:
    """Raise :class:`BenchError` for the first cell that cannot run as it stands; builds and reads nothing large."""
    models: set[tuple[str, str | None]] = set()
    for cell in cells:
        check_method(cell)
        stream_options(cell)
        diagnostic_options(cell)
        check_data(cell, root)
        if cell.data_options.get("split", "all") not in SPLITS:
            raise BenchError(f"unknown split {cell.data_options['split']!r}; there are {', '.join(SPLITS)}")
        if cell.scenario == "single" and cell.batch_size != 1:
            raise BenchError(f"scenario 'single' means batches of one image, got batch_size {cell.batch_size}")
        if (cell.model, cell.weights) not in models:
            check_model(cell)
            models.add((cell.model, cell.weights))


def check_method(cell: Cell) -> None:
    """The method and its options exist and fit together."""
    from wildtta.methods.registry import get_method

    options = {name: value for name, value in cell.options.items() if name not in _OF_ADAPT}
    try:
        get_method(cell.method, **options)
    except (TypeError, ValueError) as error:
        raise BenchError(str(error)) from error
