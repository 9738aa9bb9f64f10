"""One stream not adapted, adapted, and adapted with a guard: what ``guard.py`` measures."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import wildtta
from pools import Pool
from wildtta.guard.evidence import probabilities
from wildtta.guard.judge import Decision
from wildtta.metrics.collapse import collapsed
from wildtta.streams import Domain, Stream, build

WINDOW = 1000
PIECE = 400
SCENARIOS = ("mild", "label_shift", "runs", "continual", "continual_label_shift", "mixed", "comes_and_goes")
SEVERAL = ("continual", "continual_label_shift", "mixed", "comes_and_goes")
"""Scenarios in which corruptions follow each other, or come mixed."""
Row = dict[str, Any]
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that a row depends on."""

    network: str
    method: str
    scenario: str
    corruptions: tuple[str, ...]
    severity: int = 5
    seed: int = 0
    images: int = 20_000
    pool: int = 5000
    """Images that the stream draws from."""
    per_domain: int | None = None
    """Images of each corruption where several follow each other."""
    draws: int = 100
    """Images of a class in a row in class order."""
    order: str = "resample"
    """How classes and images are drawn in class order."""
    split: str = "all"
    """The part of the images that the stream draws from."""
    batch_size: int = 64
    lr_scale: float = 1.0
    precision: str | None = None

    @property
    def key(self) -> str:
        facts = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(facts.encode()).hexdigest()[:16]

    def stream(self, labels: Array) -> Stream:
        options: dict[str, Any] = {"draws": self.draws, "order": self.order} if "label_shift" in self.scenario else {}
        stream = build(
            self.scenario,
            labels,
            domains=[Domain(name, self.severity) for name in self.corruptions],
            severity=self.severity,
            batch_size=self.batch_size,
            seed=self.seed,
            limit=self.per_domain if self.scenario in SEVERAL else None,
            **options,
        )
        return stream.first(min(self.images, len(stream)))

    def adapter(self, pool: Pool, guard: wildtta.Guard | None) -> wildtta.Adapter:
        options: dict[str, Any] = {"precision": self.precision} if self.precision else {}
        model = wildtta.adapt(pool.build(), self.method, batch_size=self.batch_size, guard=guard, **options)
        if self.lr_scale == 1:
            return model
        options["lr"] = model.learning_rate * self.lr_scale
        return wildtta.adapt(model.unload(), self.method, batch_size=self.batch_size, guard=guard, **options)


class StreamImages:
    """A stream's batches, from images that were corrupted once."""

    def __init__(self, pool: Pool, stream: Stream) -> None:
        self._pool = pool
        self._stream = stream
        self._layers = torch.stack([pool.corrupted(domain.name, domain.severity or 0) for domain in stream.domains])
        self.labels = pool.labels.cpu().numpy()[stream.index]

    def __iter__(self) -> Iterator[Tensor]:
        size = self._stream.batch_size
        for start in range(0, len(self.labels), size):
            yield self._batch(self._stream.domain[start : start + size], self._stream.index[start : start + size])

    def _batch(self, domain: Array, index: Array) -> Tensor:
        return self._pool.prepare(self._layers[torch.from_numpy(domain), torch.from_numpy(index)])

    def not_adapted(self) -> Tensor:
        """The source network's probabilities along the stream, [n, C]; an image that comes again is answered once."""
        places = self._stream.domain * len(self._pool.labels) + self._stream.index
        kinds, back = np.unique(places, return_inverse=True)
        network = self._pool.build()
        found = []
        for part in np.array_split(kinds, -(-len(kinds) // 256)):
            with torch.no_grad():
                found.append(probabilities(network(self._batch(*np.divmod(part, len(self._pool.labels))))).cpu())
        return torch.cat(found)[torch.from_numpy(back)]


def fall(adapted: Array, none: Array, until: int) -> float:
    """The deepest fall of accuracy over a window below no adaptation, in points, in windows that end by ``until``."""
    gap = np.concatenate([[0], np.cumsum(none.astype(int) - adapted.astype(int))])
    ends = np.arange(min(WINDOW, until), until + 1)
    return float(100 * (gap[ends] - gap[np.maximum(ends - WINDOW, 0)]).max() / WINDOW) if len(ends) else 0.0


def curve(right: Array) -> list[float]:
    """Accuracy of each piece of 400 images, in percent."""
    whole = len(right) // PIECE * PIECE
    return [round(100 * float(piece.mean()), 2) for piece in right[:whole].reshape(-1, PIECE)]


def alarms(decisions: list[Decision], bound: float) -> list[Decision]:
    """Where the guard slowed down, paused or went back; the ways down are no alarms."""
    return [d for d in decisions if d.action > 0 and d.evidence >= 1 / bound]


def _summary(given: Array, truth: Array, none: Array) -> Row:
    """Accuracy, and what the last fifth is like, beside the answers of the network that is not adapted."""
    right = given == truth
    last = slice(-max(1, len(right) // 5), None)
    counts = np.bincount(given[last])
    top = float(counts.max() / counts.sum())
    true = float((truth[last] == counts.argmax()).mean())
    alone = float(np.bincount(none[last]).max() / counts.sum())
    return {
        "accuracy": 100 * float(right.mean()),
        "top_share": 100 * top,
        "collapsed": bool(collapsed(top, true, adapts=True, unadapted_share=alone)),
        "deepest_fall": fall(right, none == truth, len(right)),
    }


def _answers(model: wildtta.Adapter, batches: StreamImages) -> Tensor:
    """Probabilities along the stream, [n, C]."""
    return torch.cat([probabilities(model(batch)).cpu() for batch in batches])


def run_stream(pool: Pool, setting: Setting, guard: wildtta.Guard, *, plain: bool | None) -> Row:
    """One row.

    Args:
        pool: images and network.
        setting: which stream, which method.
        guard: what watches.
        plain: whether to run without the guard too; None: only after an alarm.
    """
    batches = StreamImages(pool, setting.stream(pool.labels.cpu().numpy()))
    source = batches.not_adapted()
    truth, none = batches.labels, source.argmax(1).numpy()
    model = setting.adapter(pool, guard)
    adapted = _answers(model, batches)
    guarded = adapted.argmax(1).numpy()
    raised = alarms(model.guard.decisions, guard.false_alarms)
    first = min((d.images for d in raised), default=None)
    right = guarded == truth
    row: Row = {
        "key": setting.key,
        "status": "ok",
        "cell": dataclasses.asdict(setting),
        "seen": len(truth),
        "batches": -(-len(truth) // setting.batch_size),
        "none": 100 * float((none == truth).mean()),
        "curves": {"not adapted": curve(none == truth), f"{setting.method}, guard": curve(right)},
        "guarded": {
            **_summary(guarded, truth, none),
            "looks": model.guard.judge.looks,
            "alarms": len(raised),
            "true_alarms": sum(fall(right, none == truth, d.images) > 0 for d in raised),
            "first_alarm": first,
            "fall_before_alarm": None if first is None else fall(right, none == truth, first),
            "actions": [[d.images, d.action.name.lower(), d.because] for d in model.guard.decisions],
        },
    }
    if plain or (plain is None and raised):
        given = _answers(setting.adapter(pool, None), batches).argmax(1).numpy()
        row["plain"] = _summary(given, truth, none)
        row["curves"][setting.method] = curve(given == truth)
    return row
