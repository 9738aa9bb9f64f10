"""The guard at work on one adapter: draws images, compares the networks, acts on the judge's decisions.

Nothing waits for the device: what a look computes is read during a later batch, when it has long been there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from wildtta.guard.audit import Audit
from wildtta.guard.evidence import lost_spread, probabilities
from wildtta.guard.judge import Decision, Judge, Look
from wildtta.guard.ladder import Ladder, Rung
from wildtta.guard.memory import Compared, Memory, Queue
from wildtta.guard.scaling import scaled_step
from wildtta.guard.shadow import Shadow
from wildtta.guard.snapshots import Snapshot, Snapshots
from wildtta.step.engine import Engine
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.guard.guard import Guard

_SLOW = 0.25
_LAG = 1280
"""Images by which suspicion may follow what caused it."""
_SNAPSHOTS, _APART = 4, 640
_LOOKS_REMEMBERED = 32
"""Looks until the memory has been replaced once: 10,000 images with the default."""
_CLOSER = 8.0
"""The shadow's share is so many times as large while something is suspected."""


class Watch:
    """A guard bound to one adapter."""

    def __init__(
        self, guard: Guard, network: nn.Module, learning: Sequence[str], shadow: Shadow | None = None
    ) -> None:
        self.guard = guard
        self.judge = Judge(Ladder(guard.false_alarms))
        self.last_look: Look | None = None
        self.decisions: list[Decision] = []
        """What the guard did so far."""
        draw = random.Random(guard.seed)
        self._shadow = Shadow(network, learning) if shadow is None else shadow
        self._queue = Queue(guard.shadow, draw)
        self._memory = Memory(guard.memory, draw)
        self._snapshots = Snapshots(_SNAPSHOTS, _APART)
        self._pending: list[Tensor] = []
        self._suspected_since: int | None = None
        self._audit = None if guard.audit is None else Audit(guard.audit)
        self._metrics = guard.metrics()
        if self._audit is not None:
            self._audit.write("start", guard=guard.facts())

    # -- around a batch --------------------------------------------------------------------------------------------------

    def answer(
        self, engine: Engine, images: Tensor, learn: Callable[[Tensor], Answer], predict: Callable[[Tensor], Answer]
    ) -> Answer:
        """Answer a batch by ``learn``, as far as the present rung lets it, and look at the answer."""
        scale = self.step_scale
        if scale == 0:
            answer = predict(images)
        else:
            with scaled_step(engine, scale):
                answer = learn(images)
        self.observe(engine, images, answer.output.logits)
        answer.report.disagreement = self.disagreement
        return answer

    @property
    def disagreement(self) -> float:
        """Share of the images of the last look that the two networks answer differently, NaN before the first."""
        return math.nan if self.last_look is None else self.last_look.disagreement

    @property
    def step_scale(self) -> float:
        """1: learn, ¼: slowed down, 0: predict only."""
        if not self.guard.act:
            return 1.0
        return {Rung.LEARN: 1.0, Rung.SLOW: _SLOW}.get(self.judge.ladder.rung, 0.0)

    def observe(self, engine: Engine, images: Tensor, logits: Tensor) -> None:
        """Look at what was answered, and act on what an earlier look showed."""
        self._finish_look(engine)
        self.judge.images += len(images)
        closer = _CLOSER if self.judge.suspicious else 1.0
        self._queue.share = min(1.0, closer * self.guard.shadow)
        self._queue.add(images, probabilities(logits))
        if len(self._queue) >= self.guard.sample:
            self._look(engine)

    # -- what else happens to an adapter ---------------------------------------------------------------------------------

    def moved(self, fn: Callable[[Tensor], Tensor]) -> None:
        """The network went to another device or type: what was drawn before is dropped."""
        self._shadow.apply(fn)
        self.forget_images()

    def forget_images(self) -> None:
        """Drop the images and snapshots that were kept; what was decided so far stands."""
        self._pending.clear()
        self._queue.clear()
        self._memory.clear()
        self._snapshots.clear()

    def roll_back(self, engine: Engine) -> None:
        """Back to the last healthy snapshot, because somebody asked for it."""
        snapshot = self._snapshots.before(self.judge.images)
        if snapshot is None:
            raise RuntimeError(
                "there is no healthy snapshot yet: the guard takes one every 640 images while nothing is suspected; "
                "reset() goes back to the source"
            )
        snapshot.restore(engine)
        self._snapshots.drop_after(snapshot.images)

    def restart(self) -> None:
        """The adapter was reset or got another state: nothing of what was seen speaks about it."""
        self.forget_images()
        self._suspected_since = None
        self.judge = Judge(Ladder(self.guard.false_alarms))

    def labelled(self, engine: Engine, images: Tensor, labels: Tensor) -> None:
        """Images whose labels came in: both networks are scored on them, nothing is learned."""
        source = self._shadow.logits(images, engine.precision).argmax(1)
        adapted = engine.method.predicted(engine, images).logits.argmax(1)
        rows = torch.stack([source, adapted, labels.to(source.device)]).tolist()
        decision = self.judge.see_labels(*rows, can_return=self._refuge() is not None)
        self._act(engine, decision)

    # -- a look ----------------------------------------------------------------------------------------------------------

    def _look(self, engine: Engine) -> None:
        """Compare on the queue's images and on a part of the memory; everything stays on the device."""
        fresh = self._queue.take(self.guard.sample)
        source, answered = probabilities(self._shadow.logits(fresh.images, engine.precision)), fresh.answered
        self._pending = [lost_spread(source, answered), torch.stack([source.argmax(1), answered.argmax(1)])]
        if len(self._memory) >= 2 * self.guard.sample:
            known = self._memory.draw(self.guard.sample)
            present = probabilities(engine.method.predicted(engine, known.images).logits)
            answers = torch.stack([known.source.argmax(1), present.argmax(1)])
            self._pending += [lost_spread(known.source, present), answers]
        self._pending.append(engine.distance())
        if not self.judge.suspicious:
            # What is suspected must not push out what it is judged by.
            part = slice(max(1, self.guard.memory // _LOOKS_REMEMBERED))
            self._memory.remember(Compared(fresh.images[part], source[part]))

    def _finish_look(self, engine: Engine) -> None:
        """Read the numbers of the last look, judge them, act."""
        if not self._pending:
            return
        sizes = [part.numel() for part in self._pending]
        numbers = torch.cat([part.reshape(-1).double() for part in self._pending]).tolist()
        self._pending = []
        parts = _split(numbers, sizes)
        fresh, new, distance = parts[0], parts[1], parts[-1]
        remembered, old = (parts[2], parts[3]) if len(parts) > 3 else ([], [])
        source, adapted = _halves(new)
        further = _halves(old)
        look = Look(
            fresh=fresh,
            remembered=remembered,
            source=source + further[0],
            adapted=adapted + further[1],
            disagreement=sum(s != a for s, a in zip(source, adapted, strict=True)) / len(source),
            distance=distance[0],
            top_share=max(map(adapted.count, adapted)) / len(adapted),
            source_top_share=max(map(source.count, source)) / len(source),
        )
        self.last_look = look
        decision = self.judge.see(look, can_return=self._refuge() is not None)
        self._follow_suspicion(engine)
        if self._metrics is not None:
            self._metrics.show(look, self.judge)
        if self._audit is not None:
            self._audit.write("look", **self._state(look))
        self._act(engine, decision)

    def _follow_suspicion(self, engine: Engine) -> None:
        judge = self.judge
        if judge.suspicious:
            self._suspected_since = self._suspected_since or judge.images
            return
        self._suspected_since = None
        if judge.ladder.rung == Rung.LEARN:
            self._snapshots.keep(engine, judge.images)

    def _refuge(self) -> Snapshot | None:
        """The snapshot to go back to: the newest that is older than what is suspected."""
        return self._snapshots.before((self._suspected_since or self.judge.images) - _LAG)

    # -- acting ----------------------------------------------------------------------------------------------------------

    def _act(self, engine: Engine, decision: Decision | None) -> None:
        if decision is None:
            return
        self.decisions.append(decision)
        if self._metrics is not None:
            self._metrics.count(decision)
        if self._audit is not None:
            facts = {name: getattr(decision, name) for name in ("evidence", "because", "wealths", "means", "suspect")}
            action = decision.action.name.lower()
            self._audit.write(
                "decision", action=action, look=decision.look, images=decision.images, acted=self.guard.act, **facts
            )
        if not self.guard.act:
            return
        if decision.action == Rung.SNAPSHOT:
            snapshot = self._refuge()
            assert snapshot is not None
            snapshot.restore(engine)
            self._snapshots.drop_after(snapshot.images)
        elif decision.action == Rung.SOURCE:
            engine.restart()
            self._snapshots.clear()

    def _state(self, look: Look) -> dict[str, object]:
        judge = self.judge
        return {
            "look": judge.looks,
            "images": judge.images,
            "rung": judge.ladder.rung.name.lower(),
            "evidence": judge.evidence,
            "disagreement": look.disagreement,
            "top_share": look.top_share,
            "source_top_share": look.source_top_share,
            "distance": look.distance,
            "lost_spread": _mean(look.fresh),
            "lost_spread_memory": _mean(look.remembered),
        }


def _split(numbers: list[float], sizes: list[int]) -> list[list[float]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(numbers[start : start + size])
        start += size
    return parts


def _halves(answers: list[float]) -> tuple[list[int], list[int]]:
    half = len(answers) // 2
    whole = [int(answer) for answer in answers]
    return whole[:half], whole[half:]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
