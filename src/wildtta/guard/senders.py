"""Quotas: who sent each input, and how much of the learning one sender may be."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence

from torch import Tensor

from wildtta.network.output import logits_of, with_logits
from wildtta.step.report import Answer

WINDOW = 1024
"""Images over which a sender's share is counted."""


class Quotas:
    """Lets at most ``most`` of the last 1,024 images be learned from for the same sender."""

    def __init__(self, most: float) -> None:
        if not 0 < most <= 1:
            raise ValueError(f"most must be a share in (0, 1], got {most!r}")
        self.most = most
        self._window: deque[Hashable] = deque()
        self._learned: Counter[Hashable] = Counter()

    def admit(self, senders: Sequence[Hashable]) -> list[int]:
        """Positions of the inputs that may be learned from; the window moves on by all of them."""
        admitted = []
        for position, sender in enumerate(senders):
            if len(self._window) >= WINDOW:
                left = self._window.popleft()
                if left is not None:
                    self._learned[left] -= 1
            within = self._learned[sender] < self.most * WINDOW
            self._window.append(sender if within else None)
            if within:
                self._learned[sender] += 1
                admitted.append(position)
        return admitted


def merged(learned: Answer, rest: Answer, admitted: Tensor, others: Tensor) -> Answer:
    """One answer for a batch of which the images at ``admitted`` were learned from and those at ``others`` were not."""
    output, further = learned.output, rest.output
    number = len(admitted) + len(others)

    def together(first: Tensor, second: Tensor) -> Tensor:
        whole = first.new_empty((number, *first.shape[1:]))
        whole[admitted], whole[others] = first.detach(), second.detach().to(first.dtype)
        return whole

    logits = together(output.logits, further.logits)
    raw = with_logits(output.raw, together(logits_of(output.raw), logits_of(further.raw)))
    output.images = together(output.images, further.images)
    output.features = together(output.features, further.features)
    output.logits, output.raw = logits, raw
    report = learned.report
    report.seen = report.seen + rest.report.seen.to(report.seen.device)
    report.entropies = together(report.entropies, rest.report.entropies)
    report.mask = together(report.mask, rest.report.mask)
    report.forwards = report.forwards + len(others)
    report.computed_forwards = report.computed_forwards + len(others)
    return learned
