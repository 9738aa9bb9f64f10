"""Quotas: who sent each input, and how much of the learning one sender may be."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wildtta.guard.scaling import scaled_step
from wildtta.network.output import logits_of, with_logits
from wildtta.step.callers import said_to
from wildtta.step.engine import Engine
from wildtta.step.report import Answer, Output

WINDOW = 1024
"""Images over which a sender's share is counted."""
_NOT_LEARNED = object()


class Quotas:
    """Of the last 1,024 images, at most ``most`` are learned from for the same sender; the others are answered alone.

    A step on a part of a batch is cut down to that part's share of the batch, so that few images cannot move the model as
    far as many.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._window: deque[Hashable] = deque()
        self._learned: Counter[Hashable] = Counter()

    def __reduce__(self) -> tuple[type[Quotas], tuple[float]]:
        """A copied or pickled adapter starts with nothing learned from anybody."""
        return Quotas, (self.most,)

    def answer(
        self, engine: Engine, images: Tensor, learn: Callable[[Tensor], Answer], predict: Callable[[Tensor], Answer]
    ) -> Answer:
        """Learn from what the quotas admit of the senders that the caller names, answer everything."""
        told = said_to(self)
        if told is None:
            return learn(images)
        senders: Sequence[Hashable] = told.value
        if len(senders) != len(images):
            raise ValueError(f"expected one sender for each of the {len(images)} images, got {len(senders)}")
        before = self._window.copy(), self._learned.copy()
        try:
            return self._within(engine, images, self.admit(senders), learn, predict)
        except BaseException:
            # Nothing was learned from them: whoever sends them again must not have used up a share.
            self._window, self._learned = before
            raise

    def _within(
        self,
        engine: Engine,
        images: Tensor,
        admitted: list[int],
        learn: Callable[[Tensor], Answer],
        predict: Callable[[Tensor], Answer],
    ) -> Answer:
        """The answer to a batch of which the images at ``admitted`` may be learned from."""
        if len(admitted) == len(images):
            return learn(images)
        others = sorted(set(range(len(images))).difference(admitted))
        if not admitted:
            return predict(images)
        first, second = (torch.tensor(places).to(images.device) for places in (admitted, others))
        # Where samples see each other (batch statistics), a part of a batch would be answered otherwise than the whole.
        whole = engine.method.mixes_samples(engine)
        rest = predict(images if whole else images[second])
        with scaled_step(engine, len(admitted) / len(images)):
            learned = learn(images[first])
        return learned_from_part(rest, learned, first) if whole else merged(learned, rest, first, second)

    def admit(self, senders: Sequence[Hashable]) -> list[int]:
        """Positions of the inputs that may be learned from; the window moves on by all of them."""
        admitted = []
        for position, sender in enumerate(senders):
            if len(self._window) >= WINDOW:
                self._forget(self._window.popleft())
            within = self._learned[sender] < self.most * WINDOW
            self._window.append(sender if within else _NOT_LEARNED)
            self._learned[self._window[-1]] += 1
            if within:
                admitted.append(position)
        return admitted

    def _forget(self, sender: Hashable) -> None:
        """One image of a sender leaves the window; a sender without any is not kept in mind."""
        self._learned[sender] -= 1
        if not self._learned[sender]:
            del self._learned[sender]


def ids_of(senders: Any) -> list[Hashable]:
    """One plain value for each image, from a list, a tuple, an array or a tensor.

    An element of a tensor hashes by object: no two of them would be the same sender.
    """
    listed = _untensored(senders)
    one_text = isinstance(listed, (str, bytes))
    ids = [_untensored(one) for one in listed] if isinstance(listed, Iterable) and not one_text else [[]]
    try:
        for one in ids:
            hash(one)
    except TypeError:
        raise TypeError(
            f"expected one sender for each image, such as ['alice', 'bob'] or a tensor of numbers, got {listed!r:.60}; for "
            "a single sender repeat its name: [name] * len(images)"
        ) from None
    if any(isinstance(one, float) and math.isnan(one) for one in ids):
        raise ValueError(
            "NaN is among the senders: it is never the same sender twice, so that no share would bound it; give images of "
            "unknown senders a name, such as 'unknown'"
        )
    return ids


def _untensored(value: Any) -> Any:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray)) else value


def merged(learned: Answer, rest: Answer, admitted: Tensor, others: Tensor) -> Answer:
    """One answer for a batch of which the images at ``admitted`` were learned from and those at ``others`` were not."""
    number = len(admitted) + len(others)

    def together(first: Tensor, second: Tensor) -> Tensor:
        whole = first.new_empty((number, *first.shape[1:]))
        whole[admitted], whole[others] = first.detach(), second.detach().to(first.dtype)
        return whole

    one, two = learned.output, rest.output
    output = Output(
        together(one.images, two.images),
        together(one.logits, two.logits),
        together(one.features, two.features),
        with_logits(one.raw, together(logits_of(one.raw), logits_of(two.raw))),
    )
    report = learned.report
    report.seen = report.seen + len(others)
    report.entropies = together(report.entropies, rest.report.entropies)
    report.mask = together(report.mask, rest.report.mask)
    report.forwards = report.forwards + len(others)
    report.computed_forwards = report.computed_forwards + len(others)
    return Answer(output, report)


def learned_from_part(whole: Answer, learned: Answer, admitted: Tensor) -> Answer:
    """The answer to a ``whole`` batch, with the report of a step on the images at ``admitted``."""
    report, before = learned.report, whole.report
    mask = torch.zeros_like(before.mask)
    mask[admitted] = report.mask
    report.seen, report.entropies, report.mask = before.seen, before.entropies, mask
    report.forwards = report.forwards + len(mask)
    report.computed_forwards = report.computed_forwards + len(mask)
    return Answer(whole.output, report)
