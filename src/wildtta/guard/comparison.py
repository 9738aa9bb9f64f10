"""One look on the device: both networks on the same samples. Read on the host later, when it has long been there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wildtta.guard.evidence import lost_certainty, lost_spread, probabilities
from wildtta.guard.judge import Look
from wildtta.guard.memory import Answered
from wildtta.guard.samples import Call, answers
from wildtta.guard.shadow import Shadow
from wildtta.methods.gradient import GradientMethod
from wildtta.network.levels import levels
from wildtta.step.engine import Engine
from wildtta.step.left_out import left_out
from wildtta.step.recording import RecordedPass


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

            return self._recorded(engine, images, run, engine.learnables.parameters[0], engine.network.reference)

    def forget(self) -> None:
        """The network moved."""
        if self._recorded is not None:
            self._recorded.forget()


@dataclass(frozen=True)
class Comparison:
    """What a look computed, still on the device."""

    fresh: Tensor
    """Lost spread of the latest samples, as they were answered."""
    certainty: Tensor
    """Lost certainty of each of them."""
    answers: Tensor
    """The answers to them, [2, n]: of the source, of the adapter."""
    remembered: Tensor
    """Lost spread of samples from memory, by the present weights; empty where nothing was drawn."""
    answers_to_remembered: Tensor
    distance: Tensor
    """‖θ − θ₀‖ / ‖θ₀‖."""
    newcomers: Sequence[Answered]
    """Samples that the memory may take in, with the source's probabilities."""
    levels: Tensor
    """How large each of them is."""

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
        answered = torch.stack([one.probabilities for one in latest])
        nothing = source.new_zeros(0)
        lost_again, answers_again = nothing, nothing.view(2, 0)
        if known:
            before = torch.stack([one.probabilities for one in known])
            now = answers(lambda call: present.probabilities(engine, call), [one.sample for one in known])
            lost_again, answers_again = lost_spread(before, now), _answers(before, now)
        new = [Answered(one.sample, own.clone()) for one, own in zip(latest[:newcomers], source, strict=False)]
        sizes = [
            levels(one.sample.call) if isinstance(one.sample.call, Tensor) else nothing.new_zeros(1) for one in new
        ]
        return cls(
            lost_spread(source, answered),
            lost_certainty(source, answered),
            _answers(source, answered),
            lost_again,
            answers_again,
            engine.distance(),
            new,
            torch.cat(sizes),
        )

    def read(self, engine: Engine) -> tuple[Look, list[Answered]]:
        """The numbers, in one transfer, and the samples to remember: an odd one would spoil the others' BatchNorm."""
        latest, known = (self.fresh, self.certainty, self.answers), (self.remembered, self.answers_to_remembered)
        parts = (*latest, *known, self.distance, self.levels)
        numbers = torch.cat([part.reshape(-1).float() for part in parts]).tolist()
        fresh, certainty, new, remembered, old, (distance,), sizes = _split(numbers, [part.numel() for part in parts])
        source, adapted = _halves(new)
        source_again, adapted_again = _halves(old)
        look = Look(
            fresh=fresh,
            remembered=remembered,
            source=source + source_again,
            adapted=adapted + adapted_again,
            certainty=certainty,
            disagreement=sum(s != a for s, a in zip(source, adapted, strict=True)) / len(source),
            distance=distance,
            top_share=max(map(adapted.count, adapted)) / len(adapted),
            source_top_share=max(map(source.count, source)) / len(source),
        )
        odd = left_out(engine, sizes)
        return look, [one for one, out in zip(self.newcomers, odd, strict=True) if not out]


def _answers(source: Tensor, adapted: Tensor) -> Tensor:
    return torch.stack([source.argmax(1), adapted.argmax(1)])


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
