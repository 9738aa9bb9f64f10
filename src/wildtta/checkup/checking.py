"""``check``: the whole checkup of a network on some images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.checkup.answers import answered, summarised
from wildtta.checkup.facts import network_facts
from wildtta.checkup.plan import Pace, measured_pace
from wildtta.checkup.result import Checkup
from wildtta.checkup.trials import (
    CLEAN,
    SHIFTS,
    TRIALS,
    Trial,
    adapted_answers,
    positions,
    trial_result,
    unadapted_logits,
)
from wildtta.data import InputProtocol, corrupt, input_protocol
from wildtta.streams import Domain
from wildtta.streams.labels import IntArray

Report = Callable[[float, str], None]
"""Receives the share of the work that is done, and what is being done."""


def check(
    network: nn.Module,
    images: Tensor,
    labels: npt.ArrayLike | Tensor | None = None,
    *,
    protocol: str | InputProtocol = "native",
    shifts: Sequence[Domain] = SHIFTS,
    trials: Sequence[Trial] = TRIALS,
    seed: int = 0,
    report: Report | None = None,
) -> Checkup:
    """Try adaptation on clean and corrupted copies of ``images``, and say whether it is likely to help.

    Without ``labels`` the network's answers on the clean images stand in for them: a gain is then one in agreement. The
    network is as it was afterwards, bit for bit. ``shifts`` come one at a time, each with a fresh start; the bare network
    answers all of them, ``trials`` are methods on streams of them.

    Args:
        network: a classifier, on the device where it is to run.
        images: uint8 [N, 3, H, W]; they are corrupted before they are normalised. A few hundred at least.
        labels: the class of each image, [N], by the network's outputs.
        protocol: how pixels become the network's input (:func:`wildtta.data.input_protocol`).
        seed: of the orders and of the corruptions.
        report: is told the share that is done.
    """
    given = (
        None if labels is None else np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels, dtype=np.int64)
    )
    chosen = input_protocol(protocol, network)
    pixels = chosen.fit(_checked(images))
    facts = network_facts(network, example=as_input(pixels, np.arange(2), chosen, network))
    _check_labels(given, len(images), facts.classes)
    tried = list(trials) if facts.adaptable else []
    work = _Work(report, len(images), 1 + len(shifts), tried)
    if report is not None:
        work.pace = measured_pace(network, partial(as_input, pixels, protocol=chosen, network=network), len(images))

    inputs = []
    unadapted: dict[Domain, IntArray] = {}
    answers: dict[Trial, dict[Domain, IntArray]] = {trial: {} for trial in tried}
    warned: dict[Trial, list[str]] = {trial: [] for trial in tried}
    targets = given
    for domain in (CLEAN, *shifts):
        shown = pixels if domain == CLEAN else corrupt(pixels, domain.name, domain.severity or 3, seed=seed)
        batch_of = partial(as_input, shown, protocol=chosen, network=network)
        work.at(f"{domain}: none")
        logits = unadapted_logits(network, batch_of, len(images), work.none)
        unadapted[domain] = answered(logits)
        if targets is None:
            targets = unadapted[CLEAN]
        inputs.append(summarised(str(domain), logits, unadapted[CLEAN], targets))
        for trial in tried:
            work.at(f"{domain}: {trial}")
            order = positions(trial.order, targets, seed)
            found, told = adapted_answers(network, trial, batch_of, order, partial(work.step, trial))
            answers[trial][domain] = found
            warned[trial] = list(dict.fromkeys([*warned[trial], *told]))
    assert targets is not None
    results = [trial_result(trial, answers[trial], unadapted, targets, warned[trial]) for trial in tried]
    return Checkup(network=facts, images=len(images), labelled=given is not None, inputs=inputs, trials=results)


class _Work:
    """How much is done, weighed by the time that each part takes."""

    def __init__(self, report: Report | None, images: int, domains: int, trials: Sequence[Trial]) -> None:
        self._report, self._images, self._domains, self._trials = report, images, domains, trials
        self.pace = Pace(1.0, 1.0)
        self._done, self._doing = 0.0, ""

    def at(self, doing: str) -> None:
        self._doing = doing

    def none(self, images: int) -> None:
        self._add(images * self.pace.in_batches)

    def step(self, trial: Trial, images: int) -> None:
        self._add(images * self.pace.of(trial))

    def _add(self, seconds: float) -> None:
        self._done += seconds
        if self._report is not None:
            each = self.pace.in_batches + sum(map(self.pace.of, self._trials))
            self._report(min(1.0, self._done / (self._images * self._domains * each)), self._doing)


def as_input(pixels: Tensor, part: IntArray, protocol: InputProtocol, network: nn.Module) -> Tensor:
    """The images at ``part`` as the network's input, on its device and in its type."""
    reference = next((value for value in network.parameters() if value.is_floating_point()), torch.empty(0))
    return protocol.normalise(pixels[torch.from_numpy(part)].to(reference.device), dtype=reference.dtype)


def _checked(images: Tensor) -> Tensor:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images: expected uint8 [N, 3, H, W], got {images.dtype} {list(images.shape)}; corruptions apply to 8-bit RGB "
            "images, before normalisation"
        )
    if len(images) < 2:
        raise ValueError(f"images: a checkup takes at least 2 images, better some hundreds; got {len(images)}")
    return images.cpu()


def _check_labels(labels: npt.NDArray[np.int64] | None, images: int, classes: int) -> None:
    if labels is None:
        return
    if labels.shape != (images,):
        raise ValueError(f"labels: expected {images}, one for each image, got shape {list(labels.shape)}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"labels: expected 0 to {classes - 1}, since the network has {classes} outputs; got {labels.min()} to {labels.max()}"
        )
