"""One look on the device: both networks on the same samples. Read on the host later, when it has long been there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wildtta.guard.appearance import kind, thumbnail
from wildtta.guard.evidence import lost_certainty, lost_spread, probabilities
from wildtta.guard.judge import Compared, Look
from wildtta.guard.memory import Answered
from wildtta.guard.samples import Call, answers
from wildtta.guard.shadow import Shadow
from wildtta.methods.gradient import GradientMethod
from wildtta.network.levels import levels
from wildtta.step.engine import Engine
from wildtta.step.left_out import left_out
from wildtta.step.recorded_pass import RecordedPass


class Present:
    """Passes of samples from memory through the adapted network, as it is now."""

    def __init__(self, *, recorded: bool) -> None:
        self._recorded = RecordedPass() if recorded else None

    def probabilities(self, engine: Engine, call: Call) -> Tensor:
        """[n, C]. Nothing of the state changes."""
        with engine.calling(call) as images:
            method = engine.method
            recordable = engine.inputs is None and isinstance(method, GradientMethod) and method.recordable(engine)
            if self._recorded is None or not recordable:
                return probabilities(method.predicted(engine, images).logits)

            def run(images: Tensor, recording: bool) -> Tensor:
                outer, engine.fixed_shapes = engine.fixed_shapes, recording
                try:
                    return probabilities(method.predicted(engine, images).logits)
                finally:
                    engine.fixed_shapes = outer

            return self._recorded(engine, images, run)

    def forget(self) -> None:
        """The network moved."""
        if self._recorded is not None:
            self._recorded.forget()


@dataclass(frozen=True)
class Side:
    """Both networks on some samples, on the device."""

    spread: Tensor
    certainty: Tensor
    answers: Tensor
    """[2, n]: of the source, of the adapter."""

    @classmethod
    def of(cls, source: Tensor, adapted: Tensor) -> Side:
        """From probabilities, [n, C] each."""
        answered = torch.stack([source.argmax(1), adapted.argmax(1)])
        return cls(lost_spread(source, adapted), lost_certainty(source, adapted), answered)

    @classmethod
    def nothing(cls, device: torch.device) -> Side:
        empty = torch.zeros(0, device=device)
        return cls(empty, empty, empty.view(2, 0))

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return self.spread, self.certainty, self.answers


@dataclass(frozen=True)
class Comparison:
    """What a look computed, still on the device."""

    fresh: Side
    """On the latest samples, as they were answered."""
    remembered: Side
    """On samples from memory, by the present weights."""
    distance: Tensor
    """‖θ − θ₀‖ / ‖θ₀‖."""
    newcomers: Sequence[Answered]
    """Samples that the memory may take in, with the source's probabilities."""
    levels: Tensor
    """How large each of them is."""
    kinds: Tensor
    """Of the latest samples, [n, F]."""
    thumbnails: Tensor
    """The same."""

    @classmethod
    def of(
        cls,
        engine: Engine,
        shadow: Shadow,
        present: Present,
        latest: Sequence[Answered],
        known: Sequence[Answered],
        newcomers: int,
    ) -> Comparison:
        """Compare on the ``latest`` samples and on ``known`` ones; the first few of the latest may be remembered."""
        source = answers(lambda call: probabilities(shadow.logits(engine, call)), [one.sample for one in latest])
        fresh = Side.of(source, torch.stack([one.probabilities for one in latest]))
        remembered = Side.nothing(source.device)
        if known:
            now = answers(lambda call: present.probabilities(engine, call), [one.sample for one in known])
            remembered = Side.of(torch.stack([one.probabilities for one in known]), now)
        kinds, thumbnails = (answers(look, [one.sample for one in latest]) for look in (kind, thumbnail))
        new = [
            Answered(one.sample, own.clone(), (kinds[place].clone(), thumbnails[place].clone()))
            for place, (one, own) in enumerate(zip(latest[:newcomers], source, strict=False))
        ]
        sizes = [levels(one.sample.call) if isinstance(one.sample.call, Tensor) else source.new_zeros(1) for one in new]
        found = torch.cat([source.new_zeros(0), *sizes])
        return cls(fresh, remembered, engine.distance(), new, found, kinds, thumbnails)

    def read(self, engine: Engine) -> tuple[Look, list[Answered]]:
        """The numbers, in one transfer, and the samples to remember: an odd one would spoil the others' BatchNorm."""
        parts = (*self.fresh.parts, *self.remembered.parts, self.distance, self.levels)
        numbers = torch.cat([part.reshape(-1).float() for part in parts]).tolist()
        *sides, (distance,), sizes = _split(numbers, [part.numel() for part in parts])
        fresh, remembered = _compared(*sides[:3]), _compared(*sides[3:])
        pairs = list(zip(fresh.source, fresh.adapted, strict=True))
        look = Look(
            fresh=fresh,
            remembered=remembered,
            mixed=engine.watches_levels,
            disagreement=sum(source != adapted for source, adapted in pairs) / len(pairs),
            distance=distance,
            top_share=_top_share(fresh.adapted),
            source_top_share=_top_share(fresh.source),
        )
        odd = left_out(engine, sizes)
        return look, [one for one, out in zip(self.newcomers, odd, strict=True) if not out]


def _compared(spread: list[float], certainty: list[float], answered: list[float]) -> Compared:
    half = len(answered) // 2
    whole = [int(answer) for answer in answered]
    return Compared(spread, certainty, whole[:half], whole[half:])


def _top_share(answered: Sequence[int]) -> float:
    """Of the most frequent answer."""
    return max(Counter(answered).values()) / len(answered)


def _split(numbers: list[float], sizes: list[int]) -> list[list[float]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(numbers[start : start + size])
        start += size
    return parts
