"""The end of a step that a method runs itself: counters and report."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wildtta.step.engine import Engine
from wildtta.step.report import Answer, Output, StepReport


def answer_with(
    engine: Engine,
    output: Output,
    *,
    forwards: int,
    backwards: int = 0,
    learned: Tensor | bool = False,
    skipped: Tensor | bool = False,
    **fields: Any,
) -> Answer:
    """Count a step's passes (in samples) and say what happened; ``fields`` go into the report."""
    report = StepReport.of_prediction(output, engine)
    report.forwards = report.computed_forwards = torch.tensor(forwards)
    report.backwards = report.computed_backwards = torch.tensor(backwards)
    report.learned = torch.as_tensor(learned)
    engine.count(
        forwards=forwards,
        backwards=backwards,
        computed_forwards=forwards,
        computed_backwards=backwards,
        skipped=torch.as_tensor(skipped, device=engine.device),
    )
    engine.host_steps += 1
    report.skipped = engine.memory["skipped"].clone()
    if backwards:
        report.selected = report.seen
        report.mask = torch.ones_like(report.mask)
    for name, value in fields.items():
        setattr(report, name, value)
    return Answer(output, report)
