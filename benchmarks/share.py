"""Which share of a SAR² step goes to its bank, R and I: called by ``scaling.py --share``.

The step is timed through the adapter with a timm network and a full bank of 1000 rows. What the bank, R and I
cost is found twice: ``bank_ms`` is that work alone (see ``pieces.py``), ``without_ms`` a step with the same
two whole-batch passes and no bank (SAR with every sample selected). The first is a share of pure work; the
difference also holds what leaving it out saves around it, and the noise of two long timings.
"""

from __future__ import annotations

import copy
import gc
import math
import statistics
from typing import Any

import torch
from torch import nn

import speed
import wildtta
from pieces import BankPieces, repeatable
from wildtta.step.precision import step_precision

REPLAYS = 20
"""The piece alone is short: so many in a row are timed together."""
TARGETS = {64: 0.10, 1: 0.20}
"""The largest share that is aimed at, by batch size, on a GPU."""
KEYS = (
    "model",
    "batch",
    "classes",
    "width",
    "precision",
    "chosen",
    "step_ms",
    "bank_ms",
    "share",
    "without_ms",
    "share_by_difference",
    "target",
)


def measure(model: str, batch: int, precision: str, device: str, repetitions: int) -> dict[str, Any]:
    """One row: the whole step, the same without bank, R and I, and these alone, timed in turn."""
    base = speed.build(model, device)
    images = torch.randn(batch, 3, speed.SIDE, speed.SIDE, device=device)
    if batch > 1:
        speed.make_a_quarter_reliable(base, images)
    head: nn.Linear = base.get_classifier()  # type: ignore[operator]
    threshold = 0.4 * math.log(head.out_features) if batch > 1 else speed.ALWAYS
    rows = torch.randn(head.out_features, head.in_features, device=device) * 0.5 + 1.0
    adapter = speed.ours(copy.deepcopy(base), "sar2", threshold, precision, rows, False)
    adapter(images)
    chosen: Any = adapter.engine.precision
    both_passes = wildtta.SAR(lr=speed.TINY, reliable=None, recovery=1e-30)
    bare = wildtta.adapt(copy.deepcopy(base), both_passes, precision=chosen)
    bare.engine.fastest = adapter.engine.fastest  # the same kernels to choose from
    for _ in range(3):
        adapter(images)
        bare(images)
    with step_precision(chosen, images.device):
        seen = adapter.engine.forward(images, grad=False)
        pieces = BankPieces(adapter, seen.features, seen.labels)
        bank_work = repeatable(pieces.everything, device)
    in_a_row = REPLAYS if device == "cuda" else 1

    def bank_alone() -> None:
        with step_precision(chosen, images.device):
            for _ in range(in_a_row):
                bank_work()

    works = {"step": lambda: adapter(images), "without": lambda: bare(images), "bank": bank_alone}
    clock = speed.Clock(device)
    times: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(repetitions + 1):
        for name, work in works.items():
            took = clock(work) / (in_a_row if name == "bank" else 1)
            if repetition:
                times[name].append(took)
    ms = {name: statistics.median(values) for name, values in times.items()}
    values = (
        model,
        batch,
        head.out_features,
        head.in_features,
        precision,
        chosen,
        round(ms["step"], 4),
        round(ms["bank"], 4),
        round(ms["bank"] / ms["step"], 4),
        round(ms["without"], 4),
        round(1 - ms["without"] / ms["step"], 4),
        TARGETS.get(batch),
    )
    return dict(zip(KEYS, values, strict=True))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as lines of text."""
    lines = [
        f"{'model':22}{'batch':>6}{'C':>6}{'D':>6}  {'precision':12}{'step ms':>9}{'bank ms':>9}{'share':>8}"
        f"{'without ms':>12}{'by difference':>15}{'target':>9}"
    ]
    for row in rows:
        named = row["precision"] if row["precision"] == row["chosen"] else f"{row['precision']} ({row['chosen']})"
        target = "" if row["target"] is None else f"≤ {row['target']:.0%}"
        lines.append(
            f"{row['model']:22}{row['batch']:>6}{row['classes']:>6}{row['width']:>6}  {named:12}{row['step_ms']:>9.3f}"
            f"{row['bank_ms']:>9.3f}{row['share']:>8.1%}{row['without_ms']:>12.3f}{row['share_by_difference']:>15.1%}"
            f"{target:>9}"
        )
    return "\n".join(lines)


def run(models: list[str], batches: list[int], precisions: list[str], device: str, repetitions: int) -> list[dict[str, Any]]:
    """All combinations, with a line each as they come."""
    rows = []
    for model in models:
        for batch in batches:
            for precision in precisions:
                gc.collect()
                rows.append(measure(model, batch, precision, device, repetitions))
                found = rows[-1]
                print(f"# {model}, batch {batch}, {precision}: {found['share']:.1%} of {found['step_ms']:.2f} ms", flush=True)
    return rows
