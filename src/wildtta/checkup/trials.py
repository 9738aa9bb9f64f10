"""Trials: a method on a stream of the images' copies under one shift; every image comes exactly once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import wildtta
from wildtta.checkup.answers import answered
from wildtta.checkup.gain import Gain, paired_gain
from wildtta.network.output import logits_of
from wildtta.streams import Domain, dirichlet, mild
from wildtta.streams.labels import IntArray

CLEAN = Domain("clean")
SHIFTS = (
    Domain("gaussian_noise", 3),
    Domain("defocus_blur", 5),
    Domain("contrast", 3),
    Domain("jpeg_compression", 5),
)
"""A noise, a blur and two others, at the severities where most networks are hurt and not yet lost."""

Order = Literal["shuffled", "class order"]
BATCH = 64


@dataclass(frozen=True)
class Trial:
    """A method, and how its stream is ordered and cut."""

    method: str
    order: Order = "shuffled"
    batch_size: int = BATCH

    def __str__(self) -> str:
        return f"{self.method}, {self.stream}"

    @property
    def stream(self) -> str:
        return "one by one" if self.batch_size == 1 else f"{self.order}, batches of {self.batch_size}"


TRIALS = (
    Trial("steady"),
    Trial("steady", "class order"),
    Trial("tent", "class order"),
    Trial("tent"),
    Trial("steady", batch_size=1),
    Trial("tent", batch_size=1),
    Trial("sar", "class order"),
    Trial("sar"),
    Trial("sar", batch_size=1),
)
"""What is tried, the most telling first."""


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial."""

    trial: Trial
    clean: Gain
    shifted: Gain
    """Over all shifts."""
    by_shift: dict[str, Gain]
    changed: float
    """Share of the answers on shifted images that differ from the unadapted network's."""
    warnings: list[str] = field(default_factory=list)
    """What the library warned of on the way."""


def positions(order: Order, classes: npt.ArrayLike, seed: int) -> IntArray:
    """Every image once: in random order, or class after class (by label or stand-in), the classes in random order."""
    return mild(classes, seed=seed) if order == "shuffled" else dirichlet(classes, slots=1, seed=seed)


def unadapted_logits(
    network: nn.Module, batch_of: Callable[[IntArray], Tensor], number: int, told: Callable[[int], None]
) -> Tensor:
    """The network's logits [N, C] for all images, on the CPU; it is put into evaluation mode meanwhile."""
    trains = {module: module.training for module in network.modules()}
    network.eval()
    parts = []
    try:
        with torch.inference_mode():
            for part in np.array_split(np.arange(number), -(-number // BATCH)):
                parts.append(logits_of(network(batch_of(part))).float().cpu())
                told(len(part))
    finally:
        for module, training in trains.items():
            module.training = training
    return torch.cat(parts)


def adapted_answers(
    network: nn.Module,
    trial: Trial,
    batch_of: Callable[[IntArray], Tensor],
    order: IntArray,
    told: Callable[[int], None],
) -> tuple[IntArray, list[str]]:
    """The answers [N] in the images' own order while the network adapts, and what was warned of.

    The network gets its own weights back afterwards.
    """
    answers = np.empty(len(order), dtype=np.int64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = wildtta.adapt(network, trial.method, batch_size=trial.batch_size, example=batch_of(order[:2]))
        try:
            for start in range(0, len(order), trial.batch_size):
                part = order[start : start + trial.batch_size]
                answers[part] = answered(logits_of(model(batch_of(part))))
                told(len(part))
        finally:
            model.unload()
    return answers, list(dict.fromkeys(str(warning.message) for warning in caught))


def trial_result(
    trial: Trial,
    answers: dict[Domain, IntArray],
    unadapted: dict[Domain, IntArray],
    targets: npt.NDArray[np.int64],
    warned: list[str],
) -> TrialResult:
    """Gains of the answers over the unadapted ones, on the clean images and under every shift."""
    before = {domain: found == targets for domain, found in unadapted.items()}
    after = {domain: found == targets for domain, found in answers.items()}
    shifts = [domain for domain in answers if domain != CLEAN]
    return TrialResult(
        trial=trial,
        clean=paired_gain(before[CLEAN], after[CLEAN]),
        shifted=paired_gain([before[domain] for domain in shifts], [after[domain] for domain in shifts]),
        by_shift={str(domain): paired_gain(before[domain], after[domain]) for domain in shifts},
        changed=float(np.mean([answers[domain] != unadapted[domain] for domain in shifts])),
        warnings=warned,
    )
