"""What a cell measures beyond accuracy, calibration and cost, because its ``measure`` asks for it.

===================  =====================================================================================
``representation``   R (over columns, over rows) and I of every batch's features before its update: into ``series``
``health``           after the stream: R over columns and over rows, I and the class of the mean feature
``sparsity``         after the stream: percent of the feature dimensions that are near zero (table M)
``predictions``      predicted class and label along the stream, thinned (figure 2)
``scatter``          before the stream: entropy and gradient norm of single images (figure 3c)
``tsne``             after the stream: features of some classes in the plane (figure 8)
``surface``          after the stream: entropy around the weights (figures 9, C)
===================  =====================================================================================

Beside R stands ``normalisation``: the one of the two that SAR² minimises on this network.

Options (``measure_options = { surface = { steps = 21 } }``): ``images`` for all that look at images;
``classes`` and ``per_class`` of tsne; ``steps`` and ``span`` of surface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wildtta.bench.cell import MEASURES, Cell
from wildtta.bench.datasets import Images
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.methods.sar2.method import SAR2
from wildtta.metrics import (
    FeatureStatistics,
    StreamRecord,
    batch_redundancy_and_inequity,
    entropy_gradient_scatter,
    entropy_surface,
    features,
    tsne,
)
from wildtta.network import inspect_network
from wildtta.streams import Stream


def diagnostic_options(cell: Cell) -> dict[str, dict[str, Any]]:
    """Per measure that the cell asks for its options with defaults filled in; unknown ones are an error."""
    refuse_unknown(cell.measure_options, cell.measure, "measure_options has {}, which is not in measure")
    for name, given in cell.measure_options.items():
        if not isinstance(given, Mapping):
            raise BenchError(f"measure_options.{name} must be a table of its options, got {given!r}")
        refuse_unknown(given, MEASURES[name], f"the measure {name!r} has no option {{}}")
        for option, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise BenchError(f"{option} of the measure {name!r} must be a finite number above 0, got {value!r}")
    return {name: {**MEASURES[name], **cell.measure_options.get(name, {})} for name in cell.measure}


class Diagnostics:
    """The diagnostics of one cell; made before its stream, when nothing is adapted yet."""

    def __init__(self, cell: Cell, network: nn.Module, images: Images, stream: Stream) -> None:
        self._cell, self._network, self._images, self._stream = cell, network, images, stream
        self._options = diagnostic_options(cell)
        self._found: dict[str, Any] = {}
        if self._options:
            self._facts = inspect_network(network, cell.options.get("head", "auto"))
        if "scatter" in self._options:
            modules = dict(network.named_modules())
            norms = [p for name in self._facts.norm_names for p in modules[name].parameters(recurse=False)]
            inputs = torch.cat(list(self._inputs(self._options["scatter"]["images"])))
            self._found["scatter"] = entropy_gradient_scatter(network, inputs, norms)

    def on_batch(self, inputs: Tensor) -> dict[str, Tensor]:
        """What concerns a batch before it is learned from."""
        if "representation" not in self._options:
            return {}
        return batch_redundancy_and_inequity(self._features(inputs), self._facts.head)

    def after(self, record: StreamRecord) -> dict[str, Any]:
        """What concerns the stream as a whole and the network at its end; then everything that was found."""
        later: dict[str, Callable[..., Any]] = {
            "health": lambda images: self._statistics(images, moments=True).health(self._facts.head),
            "sparsity": lambda images: self._statistics(images, moments=False).sparsity(),
            "tsne": self._tsne,
            "surface": lambda images, **grid: entropy_surface(
                self._network, list(self._inputs(images)), **grid, seed=self._cell.seed
            ),
            "predictions": lambda points: _predictions(record, points),
        }
        for name, options in self._options.items():
            if name in later:
                self._found[name] = later[name](**options)
        if not {"representation", "health"}.isdisjoint(self._options):
            self._found["normalisation"] = SAR2().normalisation_of(self._facts)
        return self._found

    def _features(self, inputs: Tensor) -> Tensor:
        return features(self._network, self._facts.head, inputs)

    def _inputs(self, count: int) -> Iterator[Tensor]:
        """The stream's first inputs, batch by batch."""
        return self._images.batches(self._stream.first(min(count, len(self._stream))))

    def _statistics(self, count: int, *, moments: bool) -> FeatureStatistics:
        statistics = FeatureStatistics(moments=moments)
        for inputs in self._inputs(count):
            statistics.update(self._features(inputs))
        return statistics

    def _tsne(self, classes: int, per_class: int) -> dict[str, Any]:
        stream = self._stream
        chosen = _some_of_each_class(self._images.labels[stream.index], classes, per_class)
        part = replace(stream, domain=stream.domain[chosen], index=stream.index[chosen], breaks=(0,), resets=(0,))
        plane = tsne(torch.cat(list(map(self._features, self._images.batches(part)))), seed=self._cell.seed)
        return {
            "points": [[round(float(x), 3), round(float(y), 3)] for x, y in plane],
            "labels": self._images.labels[part.index].tolist(),
        }


def _predictions(record: StreamRecord, points: int) -> dict[str, list[int]]:
    """Evenly spaced samples of the stream: position, predicted class, label."""
    positions = np.unique(np.linspace(0, len(record.predicted) - 1, min(points, len(record.predicted))).astype(int))
    return {
        "position": positions.tolist(),
        "predicted": record.predicted[positions].tolist(),
        "label": record.labels[positions].tolist(),
    }


def _some_of_each_class(labels: np.ndarray[Any, Any], classes: int, per_class: int) -> np.ndarray[Any, Any]:
    """Positions of up to ``per_class`` samples of each of the most frequent classes, in stream order."""
    present, counts = np.unique(labels, return_counts=True)
    chosen = present[np.argsort(-counts, kind="stable")][:classes]
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:per_class] for label in chosen]))
