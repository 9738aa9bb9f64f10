"""The guard at work on one adapter: draws images, compares the networks, acts on the judge's decisions.

What a look computes is read during a later batch, when it has long been there: nothing waits for the device. At the start
and while something is suspected it is read at once: what is found in a batch decides who answers it.
"""

from __future__ import annotations

import contextlib
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.guard.appearance import alike, familiar, is_image, novelty
from wildtta.guard.audit import Audit, look_facts
from wildtta.guard.comparison import Comparison, Present
from wildtta.guard.evidence import probabilities
from wildtta.guard.judge import Decision, Judge, Look
from wildtta.guard.ladder import Ladder, Rung
from wildtta.guard.memory import Memory, Queue
from wildtta.guard.pace import START, share_of
from wildtta.guard.places import Places
from wildtta.guard.scaling import scaled_step
from wildtta.guard.shadow import Shadow
from wildtta.guard.snapshots import Snapshot, Snapshots
from wildtta.methods.base import Review
from wildtta.network import Network
from wildtta.step.engine import Engine
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.guard.guard import Guard

_SLOW = 0.25
_LAG = 5120
"""Images by which suspicion may follow what caused it: a drift is small for long before it can be told from chance."""
_SNAPSHOTS, _APART = 4, 2560
_DECISIONS = 1000
_ERROR = 200
"""Characters of an error that are told."""


class Watch:
    """A guard bound to one adapter."""

    def __init__(self, guard: Guard, network: Network, learning: Sequence[str], shadow: Shadow | None = None) -> None:
        if getattr(network.module, "rows_per_sample", 1) > 1:
            raise ValueError("a guard compares one answer per image; segmentation is not watched yet: leave guard= out")
        self.guard = guard
        self._classes = network.classes
        self.judge = Judge(Ladder(guard.false_alarms), network.classes)
        self.last_look: Look | None = None
        self.decisions: list[Decision] = []
        """What the guard did so far; the latest thousand."""
        self.decided = 0
        """How often it did something."""
        draw = random.Random(guard.seed)
        self._shadow = Shadow(network, learning) if shadow is None else shadow
        # Those that share a shadow are many, and recordings cost memory.
        self._present = Present(recorded=shadow is None)
        # Who only watches changes nothing, and a fleet keeps the methods' states elsewhere.
        self._lends = guard.act and shadow is None
        self._queue = Queue(guard.shadow, draw)
        self._memory = Memory(guard.memory, draw)
        self.places = Places(guard.seed)
        """What the method keeps for each kind of images, where it asks for that."""
        self._snapshots = Snapshots(_SNAPSHOTS, _APART)
        self._pending: Comparison | None = None
        self._suspected_since: int | None = None
        self._began = 0
        self._looked = 0
        self._failed = False
        self._audit = None if guard.audit is None else Audit(guard.audit)
        self._metrics = guard.metrics()
        if self._audit is not None:
            self._audit.write("start", guard=guard.facts())

    # -- around a batch --------------------------------------------------------------------------------------------------

    def answer(
        self, engine: Engine, images: Tensor, learn: Callable[[Tensor], Answer], predict: Callable[[Tensor], Answer]
    ) -> Answer:
        """Answer a batch by ``learn``, as far as the present rung lets it, and look at the answer."""
        self.prepare(engine)
        follows = self._follows_kinds(engine, images)
        if follows:
            self._follow_kind(engine)
        scale, by_source = self.step_scale, self.source_answers
        # What an answer needs comes before the step: whoever gets none and calls again must not learn twice.
        source = self._source_logits(engine, images) if by_source else None
        if scale == 0:
            answer = predict(images)
        else:
            with scaled_step(engine, scale):
                answer = learn(images)
        own = answer.output.logits
        if source is not None:
            answer = _answering(answer, source)
        with self._sparing(engine):
            if follows:
                self.places.measure(images)
            # In a trial the adapter's own answers are looked at, which nobody else gets.
            self.observe(engine, images, own if scale else answer.output.logits)
            if self.close and not by_source:
                # Where every image is looked at anyway, an alarm comes before its batch is answered.
                self._finish_look(engine)
                if self.source_answers:
                    answer = _answering(answer, self._source_logits(engine, images))
        answer.report.disagreement = self.disagreement
        return answer

    def prepare(self, engine: Engine) -> None:
        """Before a batch, where looking closely pays: act on the last look now, at the price of waiting for the device."""
        if self.close:
            with self._sparing(engine):
                self._finish_look(engine)

    @contextlib.contextmanager
    def _sparing(self, engine: Engine) -> Iterator[None]:
        """Where the guard itself fails within, answers go on: it is told once, until a look works again."""
        try:
            yield
        except Exception as error:
            engine.settle()
            if self._audit is not None:
                self._audit.write("failure", images=self.judge.images, error=repr(error)[:_ERROR])
            if not self._failed:
                self._failed = True
                warnings.warn(
                    f"the guard could not look at a batch ({error!r:.{_ERROR}}): it is answered and learned from, but not "
                    "watched. The guard goes on trying; where the memory of the device is short, give Guard() a smaller "
                    "sample= and memory=",
                    stacklevel=2,
                )

    def predict(self, engine: Engine, images: Tensor, predict: Callable[[Tensor], Answer]) -> Answer:
        """Answer a caller who paused the adapter: by the network that answers at present."""
        if self.source_answers:
            return _answering(predict(images), self._source_logits(engine, images))
        with self.places.visited(engine, images if engine.inputs is None else engine.inputs):
            return predict(images)

    def _follows_kinds(self, engine: Engine, images: Tensor) -> bool:
        """Whether each kind of images has a state of its own; while something is amiss nothing is exchanged."""
        healthy = self._lends and self.step_scale == 1 and not self.source_answers
        return healthy and engine.inputs is None and is_image(images) and engine.method.keeps_kinds(engine)

    def _follow_kind(self, engine: Engine) -> None:
        """Let the method have the state that belongs to the images' kind."""
        done = self.places.follow(engine, self.judge.images)
        if done is not None and self._audit is not None:
            self._audit.write("kind", images=self.judge.images, place=done, places=len(self.places))

    def _source_logits(self, engine: Engine, images: Tensor) -> Tensor:
        return self._shadow.logits(engine, images if engine.inputs is None else engine.inputs)

    @property
    def disagreement(self) -> float:
        """Share of the images of the last look that the two networks answer differently, NaN before the first."""
        return math.nan if self.last_look is None else self.last_look.disagreement

    @property
    def step_scale(self) -> float:
        """1: learn, ¼: slowed down, 0: predict only."""
        if not self.guard.act:
            return 1.0
        return {Rung.LEARN: 1.0, Rung.TRIAL: 1.0, Rung.SLOW: _SLOW}.get(self.judge.ladder.rung, 0.0)

    @property
    def source_answers(self) -> bool:
        """Whether the source network answers: after a return to it, until what is learned anew has passed its trial."""
        return self.guard.act and self.judge.ladder.rung >= Rung.TRIAL

    @property
    def _resting(self) -> bool:
        """Whether the source answers alone, so that there is nothing to compare."""
        return self.guard.act and self.judge.ladder.rung == Rung.SOURCE

    @property
    def close(self) -> bool:
        """Whether to look closely: at the start there is nothing to go back to but the source."""
        return self.judge.suspicious or self._age <= START

    @property
    def _age(self) -> int:
        """Images since learning began, or began anew."""
        return self.judge.images - self._began

    def observe(self, engine: Engine, images: Tensor, logits: Tensor) -> None:
        """Look at what was answered, and act on what an earlier look showed."""
        with self._sparing(engine):
            self._finish_look(engine)
        self.judge.images += len(logits)
        usual = self.guard.shadow
        with self._sparing(engine):
            self._queue.share = usual if self._resting else share_of(usual, self._age, alert=self.judge.alert)
            self._queue.add(images if engine.inputs is None else engine.inputs, probabilities(logits))
            if len(self._queue) >= self.guard.sample:
                self._look(engine)

    # -- what else happens to an adapter ---------------------------------------------------------------------------------

    def moved(self, fn: Callable[[Tensor], Tensor]) -> None:
        """The network went to another device or type: what was drawn before is dropped."""
        self._shadow.apply(fn)
        self._present.forget()
        self.forget_samples()

    def forget_samples(self) -> None:
        """Drop the samples and snapshots that were kept; what was decided so far stands."""
        self._pending = None
        self._queue.clear()
        self._memory.clear()
        self.places.forget()
        self._snapshots.clear()

    def roll_back(self, engine: Engine) -> None:
        """Back to the last healthy snapshot, because somebody asked for it."""
        snapshot = self._snapshots.before(self.judge.images)
        if snapshot is None:
            raise RuntimeError(
                f"there is no healthy snapshot yet: the guard takes one every {_APART:,} images while nothing is suspected; "
                "reset() goes back to the source"
            )
        snapshot.restore(engine)
        self.places.forget()
        self._snapshots.drop_after(snapshot.images)

    def restart(self) -> None:
        """The adapter was reset or got another state: nothing of what was seen speaks about it."""
        self.forget_samples()
        self.last_look = self._suspected_since = None
        self._began = self._looked = 0
        self.judge = Judge(Ladder(self.guard.false_alarms), self._classes)

    def labelled(self, engine: Engine, images: Tensor, labels: Sequence[int] | Tensor | npt.NDArray[Any]) -> None:
        """Images whose labels came in: both networks are scored on them, nothing is learned."""
        right = _class_numbers(labels, len(images), self._classes)
        source = self._shadow.logits(engine, images).argmax(1)
        adapted = engine.method.predicted(engine, images).logits.argmax(1)
        answered, changed = torch.stack([source, adapted]).tolist()
        decision = self.judge.see_labels(answered, changed, right, can_return=self._refuge() is not None)
        self._act(engine, decision)

    # -- a look ----------------------------------------------------------------------------------------------------------

    def _look(self, engine: Engine) -> None:
        """Compare on the queue's samples and on a part of the memory; everything stays on the device."""
        # Whole samples: few shapes suit the kernels.
        latest = self._queue.take(len(self._queue) // self.guard.sample * self.guard.sample)
        enough = len(self._memory) >= 2 * self.guard.sample
        ask = enough and self.judge.asks_memory and not self._resting
        known = self._memory.draw(min(len(latest), len(self._memory))) if ask else []
        since, self._looked = self.judge.images - self._looked, self.judge.images
        newcomers = self._memory.newcomers(since, len(latest))
        self._pending = Comparison.of(engine, self._shadow, self._present, latest, known, newcomers)
        if self.places.moved:
            self.places.moved = False  # some of these images may be of the kind before
        elif enough and self._lends:
            self._lend_memory(engine, self._pending, since)

    def _lend_memory(self, engine: Engine, latest: Comparison, samples: int) -> None:
        """Tell the method what is remembered of the stream, of which so many ``samples`` came since the last look."""
        shape = latest.kinds.shape[1:]
        recent = [kinds for kinds in self.places.present.recent if kinds.shape[1:] == shape]
        self.places.present.recent.append(latest.kinds)
        old, all_kept = (
            [(one.probabilities, *one.looks) for one in some if one.looks and one.looks[0].shape == shape]
            for some in (self._memory.elders(), self._memory)
        )
        if len(old) > 1:
            source, kinds, _ = (torch.stack(column) for column in zip(*old, strict=True))
            thumbnails = torch.stack([thumbnail for _, _, thumbnail in all_kept])
            review = Review(
                probabilities=source,
                alike=alike(kinds, latest.kinds),
                novelty=novelty(thumbnails, latest.thumbnails),
                familiar=familiar(torch.cat([kinds[:0], *recent]), latest.kinds),
                samples=samples,
            )
            engine.method.reviewed(engine, review)

    def _finish_look(self, engine: Engine) -> None:
        """Read the numbers of the last look, judge them, act."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        look, newcomers = pending.read(engine)
        self.last_look, self._failed = look, False
        decision = self.judge.see(look, can_return=self._refuge() is not None)
        if not self.judge.suspicious:
            # What is suspected must not push out what it is judged by.
            self._memory.remember(newcomers)
        self._follow_suspicion(engine)
        if self._metrics is not None:
            self._metrics.show(look, self.judge)
        if self._audit is not None:
            self._audit.write("look", **look_facts(self.judge, look))
        self._act(engine, decision)

    def _follow_suspicion(self, engine: Engine) -> None:
        judge = self.judge
        if judge.suspicious:
            self._suspected_since = self._suspected_since or judge.images
            return
        self._suspected_since = None
        if judge.ladder.rung in (Rung.LEARN, Rung.TRIAL):
            self._snapshots.keep(engine, judge.images)

    def _refuge(self) -> Snapshot | None:
        """The snapshot to go back to: the newest that is older than what is suspected."""
        return self._snapshots.before((self._suspected_since or self.judge.images) - _LAG)

    # -- acting ----------------------------------------------------------------------------------------------------------

    def _act(self, engine: Engine, decision: Decision | None) -> None:
        if decision is None:
            return
        self.decided += 1
        self.decisions.append(decision)
        del self.decisions[:-_DECISIONS]
        if decision.action == Rung.TRIAL:
            self._began = decision.images
        if self._metrics is not None:
            self._metrics.count(decision)
        if self._audit is not None:
            facts = {name: getattr(decision, name) for name in ("evidence", "because", "wealths", "means", "suspects")}
            action = decision.action.name.lower()
            self._audit.write(
                "decision", action=action, look=decision.look, images=decision.images, acted=self.guard.act, **facts
            )
        if not self.guard.act or decision.action not in (Rung.SNAPSHOT, Rung.SOURCE):
            return
        if decision.action == Rung.SNAPSHOT:
            snapshot = self._refuge()
            assert snapshot is not None
            snapshot.restore(engine)
            self._snapshots.drop_after(snapshot.images)
        else:
            engine.restart()
            self._snapshots.clear()
        # What the old weights answered says nothing about these.
        self._pending, self._suspected_since = None, None
        self._queue.clear()
        self.places.forget()


def _answering(answer: Answer, logits: Tensor) -> Answer:
    """The same step with the source network's ``logits`` for an answer."""
    output = answer.output.answering(logits.to(answer.output.logits.dtype))
    answer.report.entropies = output.entropies
    return Answer(output, answer.report)


def _class_numbers(labels: Any, images: int, classes: int) -> list[int]:
    """One label for each image, of a list, an array or a tensor."""
    try:
        found = np.asarray(labels.tolist() if isinstance(labels, Tensor) else labels)
    except ValueError:  # rows of different lengths
        found = np.asarray(None)
    whole = found.shape == (images,) and found.dtype.kind in "iu"
    if not whole or found.min() < 0 or found.max() >= classes:
        got = f"{found.min()} to {found.max()}" if whole else f"{found.dtype} of shape {found.shape}"
        raise ValueError(
            f"expected one integer label for each of the {images} images, a class from 0 to {classes - 1}, got {got}; leave "
            "images without a label out"
        )
    numbers: list[int] = found.tolist()
    return numbers
