"""Warnings where a model that should learn does not, each once, with the reason and what to do.

The host knows little of a step, and reading more would cost: two numbers are read in every hundredth step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.network.output import logits_of
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

LOOK_EVERY = 100
"""Batches between two looks."""
FEWEST_SAMPLES = 300
"""Samples without learning below which silence says nothing: the bank of SAR² fills slowly in batches of one."""
RESETS_IN_A_ROW = LOOK_EVERY // 4
SMALLEST_BATCH = 8
"""Images below which the mean and variance of a batch say little of its stream."""
SMALL_WITHIN = 4
"""Two such batches among so many are no short last one of a pass over some data."""


class Silence:
    """What one adapter has been told, and what was seen at the last look."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._pending: list[str] = []
        self._first = True
        self._batches = 0
        self._last_small: int | None = None
        """Number of the last small batch."""
        self._resets = self._learned = 0.0
        self._samples = 0
        """Since something was learned."""

    def take(self) -> list[str]:
        """The warnings to give now."""
        pending, self._pending = self._pending, []
        return pending

    def _tell(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._pending.append(message)

    def after(self, engine: Engine, images: Tensor, answer: Answer) -> None:
        """Look at a step that is over."""
        if self._first:
            self._first = not self._look_for_probabilities(answer)
        if engine.batch_statistics and len(images) < SMALLEST_BATCH:
            if self._last_small is not None and self._batches - self._last_small < SMALL_WITHIN:
                self._tell(
                    "small",
                    f"batches of {len(images)} are too small for BatchNorm's batch statistics, and {engine.method.name} uses "
                    f"them: the answers depend on chance. Give batches of at least {SMALLEST_BATCH} (better 64), a network "
                    "with GroupNorm or LayerNorm, or the method 'none'",
                )
            self._last_small = self._batches
        self._batches += 1
        self._samples += len(images)
        if engine.learns and self._batches % LOOK_EVERY == 0:
            self._look(engine)

    def _look_for_probabilities(self, answer: Answer) -> bool:
        """Once, in the first step with an answer: probabilities lie between 0 and 1 and sum to 1 in every row.

        Whether there was an answer; that of an image which is not finite is none.
        """
        rows = logits_of(answer.output.raw).detach().float()
        answered = torch.isfinite(rows).all(1)
        sums = (rows >= 0).all(1) & ((rows.sum(1) - 1).abs() < 1e-3)
        some, all_sum = torch.stack((answered.any(), (sums | ~answered).all())).tolist()
        if rows.shape[1] > 1 and some and all_sum:
            self._tell(
                "softmax",
                "the network returns probabilities (it ends in a softmax), and logits are expected: a second softmax makes "
                "every prediction look unsure, so that little or nothing is learned. Take the softmax off the network",
            )
        return bool(some)

    def _look(self, engine: Engine) -> None:
        learned, resets = engine.read(engine.memory["learned"], engine.memory["resets"])
        if learned != self._learned:
            self._samples = 0
        elif self._samples >= FEWEST_SAMPLES and (why := engine.method.why_silent(engine)) is not None:
            self._tell("nothing", f"{engine.method.name} has learned nothing from the last {self._samples} samples: {why}")
        threshold = getattr(engine.method, "recovery", None)
        if threshold is not None and resets - self._resets >= RESETS_IN_A_ROW:
            self._tell(
                "resets",
                f"recovery has put the model back {resets - self._resets:.0f} times in the last {LOOK_EVERY} batches, so "
                f"that nothing learned lasts (recovery={threshold!r}). 0.2 nats are made for 1,000 classes: with few, or "
                "with easy images, a healthy network is below it. Give recovery='relative', or recovery=None to switch it off",
            )
        self._learned, self._resets = learned, resets
