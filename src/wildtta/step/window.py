"""The latest answers of an adapter, kept as they are until somebody asks."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from wildtta.step.report import Answer

IMAGES = 1000
"""In the window, rounded up to whole batches."""


class AnswerWindow:
    """Logits of the last 1,000 images. Keeping a reference costs a step nothing; shares are counted when they are read."""

    def __init__(self) -> None:
        self._kept: deque[Tensor] = deque()
        self._images = 0

    def add(self, answer: Answer) -> None:
        """The next batch; its report can tell shares of the window as it stands now."""
        logits = answer.output.logits.detach()
        self._kept.append(logits)
        self._images += len(logits)
        while self._images - len(self._kept[0]) >= IMAGES:
            self._images -= len(self._kept.popleft())
        window = tuple(self._kept)
        answer.report._top_share = lambda: top_share(window)

    def clear(self) -> None:
        self._kept.clear()
        self._images = 0


def top_share(window: tuple[Tensor, ...]) -> Tensor:
    """Share of the most frequent answer among batches of logits."""
    answers = torch.cat([logits.argmax(1).to(window[-1].device) for logits in window])
    most_frequent = answers.mode().values
    return (answers == most_frequent).float().mean()
