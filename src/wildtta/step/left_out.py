"""Samples that would spoil others are left out of their batch and answered on their own.

That is for networks and methods where samples see each other. Gradient methods on networks that treat samples one by one
mask such a sample instead (:func:`wildtta.step.loop.predict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.network.levels import absurd, with_levels
from wildtta.network.output import logits_of, with_logits
from wildtta.step.engine import Engine
from wildtta.step.report import Answer


def sample_levels(engine: Engine, images: Tensor) -> list[float]:
    """How large each sample is, where some may have to be left out; else nothing. It is the step's one read."""
    return engine.read(engine.levels(images)) if engine.method.mixes_samples(engine) else []


def left_out(engine: Engine, found: list[float]) -> list[bool]:
    """Which samples would spoil others: those that are not finite and, with BatchNorm, those that are absurd."""
    odd = absurd(found, engine.memory["input_levels"]) if engine.watches_levels else [False] * len(found)
    return [out or not math.isfinite(level) for out, level in zip(odd, found, strict=True)]


def remember_levels(engine: Engine, found: list[float]) -> None:
    """These samples are part of the stream now."""
    if engine.watches_levels:
        window = engine.memory["input_levels"]
        window.copy_(with_levels(window, found))


def answer_apart(
    engine: Engine, images: Tensor, found: list[float], answered: Callable[[Engine, Tensor], Answer], *, learning: bool
) -> Answer:
    """What ``answered`` says of ``images`` without those that are left out; these are counted and not learned from.

    One that is not finite has NaN for an answer. One that is absurd gets the answer of the source's BatchNorm statistics.
    """
    left = left_out(engine, found)
    if not any(left):
        return answered(engine, images)
    kept = _places([not out for out in left], images.device)
    alone = _places([out and math.isfinite(level) for out, level in zip(left, found, strict=True)], images.device)
    if len(kept):
        answer = answered(engine, images[kept])
    else:  # one image of zeros says what an answer looks like
        answer = engine.method.predict(engine, torch.zeros_like(images[:1]))
        answer.report.forwards = answer.report.computed_forwards = torch.tensor(0)
        answer.report.used_redundancy = answer.report.used_inequity = torch.full((), torch.nan)
    output, report = answer.output, answer.report
    logits = output.logits.detach()
    rows = logits.new_full((len(images), logits.shape[1]), torch.nan)
    selected = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    if len(kept):
        rows[kept], selected[kept] = logits, report.mask
    if len(alone):
        with engine.source_statistics():
            rows[alone] = engine.method.predicted(engine, images[alone]).logits.detach()
    output.logits, output.raw = rows, with_logits(output.raw, rows.to(logits_of(output.raw).dtype))
    report.seen, report.entropies, report.mask = torch.tensor(len(images)), entropy(rows), selected
    report.forwards = report.forwards + len(alone)
    report.computed_forwards = report.computed_forwards + len(alone)
    if learning:
        engine.count(left_out=sum(left), skipped=int(not len(kept)), forwards=len(alone), computed_forwards=len(alone))
        report.left_out, report.skipped = engine.memory["left_out"].clone(), engine.memory["skipped"].clone()
    return answer


def _places(chosen: list[bool], device: torch.device) -> Tensor:
    return torch.tensor([place for place, wanted in enumerate(chosen) if wanted], dtype=torch.int64, device=device)
