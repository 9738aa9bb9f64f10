"""Online accuracy and calibration: a sample is scored by the prediction made before its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.metrics.calibration import adaptive_calibration_error, expected_calibration_error
from wildtta.metrics.collapse import collapsed

Array: TypeAlias = npt.NDArray[Any]

_ROWS_PER_FLUSH = 4096
_RUNNING_POINTS = 100


class StreamMeter:
    """Collects what the summary needs of each batch's logits, on their device and without waiting for it.

    Logits are kept (copied: a captured graph reuses its output) until a few thousand rows are there, then
    reduced to four numbers a sample. Nothing is read back before :meth:`record`.

    Args:
        labels: the whole stream's labels in stream order, int64, on the device of the logits.
    """

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels
        self._pending: list[Tensor] = []
        self._pending_rows = 0
        self._done = 0
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def update(self, logits: Tensor) -> None:
        """The next samples' logits ``[batch, classes]``."""
        self._pending.append(logits.detach().clone())
        self._pending_rows += logits.shape[0]
        if self._pending_rows >= _ROWS_PER_FLUSH:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        logits = torch.cat(self._pending)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        labels = self._labels[self._done : self._done + len(logits)]
        logarithms = logits.log_softmax(dim=1)
        confidence, predicted = logarithms.max(dim=1)
        of_label = logarithms.gather(1, labels[:, None])[:, 0]
        # Strictly better classes: 0 is a top-1 hit up to ties, below 5 a top-5 hit.
        rank = (logits > logits.gather(1, labels[:, None])).sum(dim=1)
        self._parts.append((predicted, confidence.exp(), -of_label, rank))
        self._done += len(logits)
        self._pending.clear()
        self._pending_rows = 0

    def record(self) -> StreamRecord:
        """All samples so far, on the host."""
        self._flush()
        if not self._parts:
            raise ValueError("no batch was recorded")
        columns = (torch.cat(column).cpu().numpy() for column in zip(*self._parts, strict=True))
        return StreamRecord(self._labels[: self._done].cpu().numpy(), *columns)


@dataclass(frozen=True)
class StreamRecord:
    """Per sample: label, predicted class, its probability, −ln p(label), classes above the label."""

    labels: Array
    predicted: Array
    confidence: Array
    nll: Array
    rank: Array

    @property
    def first_non_finite(self) -> int | None:
        """Position of the first sample whose logits were not finite, None where all were."""
        broken = np.flatnonzero(~(np.isfinite(self.confidence) & np.isfinite(self.nll)))
        return int(broken[0]) if len(broken) else None

    def summary(self, classes: int, domains: Array, names: Sequence[str], *, adapts: bool = True) -> dict[str, Any]:
        """The metrics of a row; accuracies, calibration errors and shares in percent.

        ``histogram`` and the top class are those of the predictions over the last fifth of the stream.

        Args:
            classes: number of classes.
            domains: per sample, the position of its corruption in ``names``.
            names: the stream's corruptions (``["clean"]`` for none).
            adapts: whether the network was adapted; else it is never called collapsed.
        """
        correct = self.predicted == self.labels
        confidence, hits = torch.from_numpy(self.confidence), torch.from_numpy(correct)
        last_fifth = slice(-max(1, len(correct) // 5), None)
        histogram = np.bincount(self.predicted[last_fifth], minlength=classes)
        top_share = float(histogram.max() / histogram.sum())
        true_share = float((self.labels[last_fifth] == histogram.argmax()).mean())
        return {
            "accuracy": _percent(correct.mean()),
            "top5": _percent((self.rank < 5).mean()),
            "ece": _percent(expected_calibration_error(confidence, hits)),
            "ece_adaptive": _percent(adaptive_calibration_error(confidence, hits)),
            "nll": float(self.nll.astype(np.float64).mean()),
            "samples": len(correct),
            "per_corruption": {
                name: _percent(correct[domains == i].mean()) for i, name in enumerate(names) if (domains == i).any()
            },
            "per_class": _per_class(correct, self.labels, classes),
            "running": _running(correct),
            "histogram": histogram.tolist(),
            "top_class_share": _percent(top_share),
            "top_class_true_share": _percent(true_share),
            "collapsed": collapsed(top_share, true_share, adapts=adapts, answers=int(histogram.sum())),
        }


def _per_class(correct: Array, labels: Array, classes: int) -> list[float | None]:
    seen = np.bincount(labels, minlength=classes)
    hits = np.bincount(labels, weights=correct, minlength=classes)
    return [round(100 * float(hit / count), 2) if count else None for hit, count in zip(hits, seen, strict=True)]


def _running(correct: Array) -> list[list[float]]:
    """Accuracy so far at up to 100 evenly spaced positions, the last sample among them."""
    so_far = np.cumsum(correct)
    ends = np.unique(np.linspace(0, len(correct), _RUNNING_POINTS + 1).astype(int)[1:])
    return [[int(end), round(100 * float(so_far[end - 1] / end), 3)] for end in ends if end > 0]


def _percent(fraction: float) -> float:
    return 100 * float(fraction)
