"""What fits into some minutes: how many images, how many shifts, which trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

import wildtta
from wildtta.checkup.trials import SHIFTS, TRIALS, Trial
from wildtta.network import inspect_network
from wildtta.network.output import logits_of
from wildtta.streams import Domain
from wildtta.streams.labels import IntArray

STEPS = {"tent": 1.0, "steady": 1.3, "sar": 2.1}
"""Time of a method's step in steps of Tent, which are one forward and one backward pass; one that isn't here: as SAR's."""
MOST_IMAGES, FEWEST_IMAGES = 1000, 100
ENOUGH_IMAGES = 500
"""Rather fewer shifts than fewer images of each: a method needs a stream to show what it does."""
CORE = 3
"""So many of the first trials decide; they get their images before others get their time."""
_TIMED, _TIMED_SINGLY = 32, 4


@dataclass(frozen=True)
class Pace:
    """Seconds that the bare network takes for an image, and a step of Tent in units of that."""

    in_batches: float
    alone: float
    step: float = 3.0

    def of(self, trial: Trial) -> float:
        """About how long a trial takes for an image."""
        passes = self.step * STEPS.get(trial.method, STEPS["sar"])
        return passes * (self.alone if trial.batch_size == 1 else self.in_batches)


@dataclass(frozen=True)
class Plan:
    """What is tried; ``left_out`` is what there is no time for."""

    images: int
    shifts: tuple[Domain, ...]
    trials: tuple[Trial, ...]
    left_out: tuple[Trial, ...]
    seconds: float


def seconds_for(pace: Pace, images: int, shifts: Sequence[Domain], trials: Sequence[Trial]) -> float:
    """Time of the bare network and all trials on the clean images and under every shift."""
    return images * (1 + len(shifts)) * (pace.in_batches + sum(map(pace.of, trials)))


def plan_within(
    minutes: float,
    pace: Pace,
    available: int,
    shifts: Sequence[Domain] = SHIFTS,
    trials: Sequence[Trial] = TRIALS,
) -> Plan:
    """The most that fits: images for the deciding trials first, on half of the shifts if need be, then other trials.

    It never goes below 100 images (or what there is): fewer tell nothing, so that a slow network takes longer.
    """
    if minutes <= 0:
        raise ValueError(f"minutes must be above 0, got {minutes:g}")
    core, others = tuple(trials[:CORE]), trials[CORE:]
    most = min(MOST_IMAGES, available)

    def fitting(chosen: Sequence[Domain]) -> int:
        return int(60 * minutes / seconds_for(pace, 1, chosen, core))

    chosen = tuple(shifts)
    if fitting(chosen) < min(ENOUGH_IMAGES, most) and len(chosen) > 1:
        chosen = chosen[: len(chosen) // 2]
    images = min(most, max(FEWEST_IMAGES, fitting(chosen)))
    kept, left_out = list(core), list[Trial]()
    for trial in others:
        fits = seconds_for(pace, images, chosen, [*kept, trial]) <= 60 * minutes
        (kept if fits else left_out).append(trial)
    return Plan(images, chosen, tuple(kept), tuple(left_out), seconds_for(pace, images, chosen, kept))


def measured_pace(network: nn.Module, batch_of: Callable[[IntArray], Tensor], available: int) -> Pace:
    """The pace on the first images, after a warm-up. The network is as before afterwards."""
    together, alone = np.arange(min(_TIMED, available)), np.arange(1)
    adaptable = bool(inspect_network(network, example=batch_of(together[:2])).norm_names)
    bare = wildtta.adapt(network, "none", example=batch_of(together[:2]))
    in_batches, singly = _seconds(bare, batch_of(together), 1), _seconds(bare, batch_of(alone), _TIMED_SINGLY)
    bare.unload()
    if not adaptable:
        return Pace(in_batches, singly)
    adapted = wildtta.adapt(network, "tent", example=batch_of(together[:2]))
    step = _seconds(adapted, batch_of(together), 1)
    adapted.unload()
    return Pace(in_batches, singly, step / in_batches)


def _seconds(model: nn.Module, images: Tensor, repeats: int) -> float:
    """Time for an image, after one call that warms up."""
    began = 0.0
    for repeat in range(repeats + 1):
        if repeat == 1:
            began = time.perf_counter()
        # Reading a number back waits for the device.
        float(logits_of(model(images)).float().sum())
    return (time.perf_counter() - began) / (repeats * len(images))
