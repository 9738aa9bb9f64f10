"""A handle on one stream of a fleet."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.guard.watch import Watch
from wildtta.step.online_state import facts_of, resume, state_of
from wildtta.step.report import StepReport
from wildtta.step.save_order import Save
from wildtta.step.state_file import read_state, write_state

if TYPE_CHECKING:
    from wildtta.fleet.fleet import Fleet


class Stream:
    """One stream: ``fleet["camera-7"]``. It can be watched, paused, reset, saved, loaded and dropped on its own."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet = fleet
        self.name = name

    def __repr__(self) -> str:
        record = self._fleet.record(self.name)
        state = "paused" if record.paused else "learning"
        return f"Stream({self.name!r}, {state}, calls={record.calls})"

    @property
    def calls(self) -> int:
        """Batches answered that held images of it."""
        return self._fleet.record(self.name).calls

    @property
    def last(self) -> StepReport | None:
        """What happened to it in the last batch that held images of it; None before there was one."""
        return self._fleet.report(self.name)

    @property
    def top_share(self) -> float:
        """Share of the most frequent answer among its last 1,000 images, NaN before there is one."""
        answers = self._fleet.record(self.name).answers
        return max(map(answers.count, set(answers))) / len(answers) if answers else float("nan")

    @property
    def distance(self) -> float:
        """‖θ − θ₀‖ / ‖θ₀‖ of its weights."""
        with self._fleet.working_on(self.name) as engine:
            return float(engine.distance())

    @property
    def guard(self) -> Watch | None:
        """Its guard at work, where the fleet has one."""
        return self._fleet.record(self.name).watch

    @property
    def paused(self) -> bool:
        """Whether it only predicts."""
        return self._fleet.record(self.name).paused

    def pause(self) -> None:
        """Predict only, until :meth:`resume`."""
        with self._fleet.working_on(self.name):
            self._fleet.record(self.name).paused = True

    def resume(self) -> None:
        """Learn again."""
        with self._fleet.working_on(self.name):
            self._fleet.record(self.name).paused = False

    def reset(self) -> None:
        """Back to the initial state: the source's weights, an empty memory."""
        with self._fleet.working_on(self.name) as engine:
            engine.reset()
            engine.batch_size, engine.host_steps = self._fleet.batch_size, 0
            self._fleet.forget_course(self.name)

    def rollback(self) -> None:
        """Back to the last healthy snapshot that its guard took."""
        watch = self.guard
        if watch is None:
            raise RuntimeError("this fleet has no guard, so that there is no snapshot; make it with guard=wildtta.Guard()")
        with self._fleet.working_on(self.name) as engine:
            watch.roll_back(engine)

    def online_state(self) -> dict[str, Tensor]:
        """All that learning changed, by the names of an adapter's state."""
        with self._fleet.working_on(self.name) as engine:
            return state_of(engine)

    def save(self, path: str | Path) -> None:
        """Write its state as :meth:`wildtta.Adapter.save` would: an adapter of the same network can load it."""
        with self._fleet.working_on(self.name) as engine:
            tensors, facts = state_of(engine), facts_of(engine, self._fleet.fingerprint)
            order = Save(path)
        write_state(path, tensors, facts, order)

    def load(self, path: str | Path) -> None:
        """Go on from a state that this, or an adapter's ``save``, has written; one that does not fit changes nothing."""
        tensors, facts = read_state(path)
        with self._fleet.working_on(self.name) as engine:
            messages = resume(engine, path, tensors, facts, self._fleet.fingerprint)
            self._fleet.forget_course(self.name)
        for message in messages:
            warnings.warn(message, stacklevel=2)

    def drop(self) -> None:
        """Forget it, and its state in the folder; its next image begins it anew."""
        self._fleet.drop(self.name)

    def answer(self, images: Tensor) -> Tensor:
        """Its logits for ``images``; nothing is learned."""
        with self._fleet.working_on(self.name) as engine, torch.no_grad():
            return engine.method.predicted(engine, images).logits
