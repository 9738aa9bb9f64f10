"""The online step of all gradient methods: predict, select, take the gradient, update, recover, remember, report.

Where only some samples are selected and the network treats samples one by one, the passes that learn run on the selected
samples alone (same numbers, a fraction of the work). That takes one small read from the device: how many there are.
Everywhere else masks do the selecting and nothing is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.network.output import logits_of, with_logits
from wildtta.step.comparison import compare, due
from wildtta.step.engine import Engine
from wildtta.step.optimizers import momentum_update
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output, StepReport

if TYPE_CHECKING:
    from wildtta.methods.gradient import GradientMethod

# Above this share of selected samples one graph over the whole batch is cheaper than a second forward over the selected
# ones: with norm parameters alone a backward pass costs about as much as a forward one.
KEEP_GRAPH_ABOVE = 0.5


@dataclass
class Selection:
    """Which samples of a batch are learned from. All tensors have the batch's length."""

    mask: Tensor | None
    """The selected samples; None: all."""
    labels: Tensor
    """Pseudo labels of the first pass."""
    weights: Tensor | None = None
    """Per-sample weights of the loss, where a method has them."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    """What a method keeps of each sample."""
    candidates: Tensor | None = None
    """Positions that ``mask`` is limited to, where the method had to ask the device how many there are. The passes that
    learn then run on them, under the mask, and nothing more is asked."""
    further_forwards: Tensor | int = 0
    """Samples that the method passes beside the two halves of the step (DeYO's destroyed objects, ROID's views)."""
    further_backwards: Tensor | int = 0

    def take(self, positions: Tensor, *, all_selected: bool = True) -> Selection:
        """The part at ``positions``; all of them are selected, or each as it was."""
        return replace(
            self,
            mask=None if all_selected or self.mask is None else self.mask[positions],
            labels=self.labels[positions],
            weights=None if self.weights is None else self.weights[positions],
            extra={name: value[positions] for name, value in self.extra.items()},
        )


@dataclass
class Loss:
    """A loss at one point of the weights."""

    entropy: Tensor
    """What recovery watches: the mean entropy of the selected samples, or what a method has in its place."""
    selected: Tensor
    """How many samples it averages over."""
    parts: list[Tensor]
    """Everything that is minimised, each with its weight: their sum is the loss."""
    redundancy: Tensor | None = None
    inequity: Tensor | None = None

    @property
    def total(self) -> Tensor:
        return torch.stack([part.reshape(()) for part in self.parts]).sum() if len(self.parts) > 1 else self.parts[0]


@dataclass
class Gradient:
    """What the passes that learn found."""

    value: Tensor
    first: Loss | None = None
    """The loss at the weights, None where there was nothing to learn from."""
    last: Loss | None = None
    """The loss that ``value`` is the gradient of: at the perturbed weights with sharpness, else ``first``."""
    first_norm: Tensor | float = math.nan
    second_norm: Tensor | float = math.nan
    forwards: int = 0
    """Forward passes of each sample beyond the first."""
    backwards: int = 0
    idle: Tensor | None = None
    """Whether nothing was to be learned (a boolean on the device), where a recorded step passes the samples all the same:
    ``value`` is 0 then, and nothing is counted as selected."""

    @classmethod
    def none(cls, engine: Engine) -> Gradient:
        """No sample was selected: a gradient of 0, so that momentum alone may carry the weights on."""
        return cls(torch.zeros_like(engine.memory["momentum"]))


@dataclass
class Prediction:
    """The first half of a step."""

    output: Output
    selection: Selection
    usable: Tensor
    """Which samples may be learned from, [B]: those that are finite, with a finite answer."""
    gate: Tensor | None
    """Whether the method may learn yet (a boolean on the device); None: always."""
    number: Tensor | int
    """Samples answered."""


def online_step(method: GradientMethod, engine: Engine, images: Tensor) -> Answer:
    """Answer a batch, then learn from it; with ``steps`` above 1 the last prediction is the answer, as in Tent's code."""
    if method.episodic:
        engine.restart()
    answer = _one_update(method, engine, images)
    for _ in range(method.steps - 1):
        earlier, answer = answer.report, _one_update(method, engine, images)
        for name in ("forwards", "backwards", "computed_forwards", "computed_backwards"):
            setattr(answer.report, name, getattr(earlier, name) + getattr(answer.report, name))
    return answer


def _one_update(method: GradientMethod, engine: Engine, images: Tensor) -> Answer:
    if method.resting(engine):
        seen = predict(method, engine, images, grad=False)
        with losses_in_full_precision(images.device):
            return _finish(method, engine, seen, Gradient.none(engine), len(images), 0)
    selective = learns_on_selected(method, engine)
    keep_graph = not selective or (engine.share or 0.0) > KEEP_GRAPH_ABOVE
    seen = predict(method, engine, images, grad=keep_graph and method.differentiates_first_pass)
    with losses_in_full_precision(images.device):
        if seen.gate is not None and not engine.gate_open:
            # Read until the gate opens; should it close again (a recovery), it is masked on the device.
            engine.gate_open = bool(seen.gate)
            if not engine.gate_open:
                return _finish(method, engine, seen, Gradient.none(engine), len(images), 0)
        if not selective:
            return learn_from_batch(method, engine, seen)
        assert seen.selection.mask is not None
        exact = seen.selection.candidates is None
        positions = seen.selection.candidates
        if positions is None:
            positions = engine.positions(seen.selection.mask)  # the one read: how many are selected
        number = len(positions)
        engine.share = number / len(images)
        if not keep_graph or number == 0:
            return learn_from(method, engine, seen, positions, exact=exact)
        found = method.gradient(engine, seen.output.take(positions), seen.selection.take(positions, all_selected=exact))
        computed = len(images) + number * found.forwards
        return _finish(method, engine, seen, found, computed, number * found.backwards + len(images) - number)


def learns_on_selected(method: GradientMethod, engine: Engine) -> bool:
    """Whether the passes that learn may leave out samples that are not selected."""
    if getattr(engine.network.module, "rows_per_sample", 1) > 1:  # pixels: the image behind one is behind others too
        return False
    return method.selects and not method.wants_whole_batch and not engine.batch_statistics


def predict(method: GradientMethod, engine: Engine, images: Tensor, *, grad: bool) -> Prediction:
    """The first half: predict and select.

    An image that is not finite is passed with zeros in it, is not selected, and has NaN for an answer: its gradient is
    then 0 and not NaN, and the others are learned from. Nothing is read for that.
    """
    finite = torch.isfinite(engine.levels(images))
    output = engine.forward(engine.finite_images(images, finite), grad=grad)
    logits = logits_of(output.raw).detach()
    if len(logits) > len(images):  # pixels are samples (:mod:`wildtta.segmentation`)
        finite = finite.repeat_interleave(len(logits) // len(images))
    output.raw = with_logits(output.raw, logits.masked_fill(~finite[:, None], math.nan))
    output.usable = finite & torch.isfinite(logits).all(1)
    with losses_in_full_precision(images.device):
        selection = method.select(engine, output)
        selection.mask = output.usable if selection.mask is None else selection.mask & output.usable
        gate = method.gate(engine, output, selection)
        return Prediction(output, selection, output.usable, gate, len(logits))


def learn_from_batch(method: GradientMethod, engine: Engine, seen: Prediction) -> Answer:
    """The second half over the whole batch; masks do the selecting and nothing is read from the device."""
    number = len(seen.output.logits)
    with losses_in_full_precision(engine.device):
        found = method.gradient(engine, seen.output, seen.selection)
        return _finish(method, engine, seen, found, number * (1 + found.forwards), number * found.backwards)


def learn_from(
    method: GradientMethod, engine: Engine, seen: Prediction, positions: Tensor, *, exact: bool = True
) -> Answer:
    """The second half over ``positions``: the selected samples (``exact``), or these and a few that fill up a shape."""
    number, passed = len(positions), len(seen.output.logits)
    with losses_in_full_precision(engine.device):
        if number == 0:
            return _finish(method, engine, seen, Gradient.none(engine), passed, 0)
        again = engine.forward(seen.output.images[positions], grad=True)
        found = method.gradient(engine, again, seen.selection.take(positions, all_selected=exact))
        passed += number * (1 + found.forwards)
        return _finish(method, engine, seen, found, passed, number * found.backwards)


@dataclass
class Outcome:
    """What became of a batch, on the device."""

    sound: Tensor
    """Whether everything about it was finite."""
    learns: Tensor
    """Whether the weights were allowed to move."""
    passes: dict[str, Tensor]
    """Samples passed, by the names of the counters."""


def _finish(
    method: GradientMethod, engine: Engine, seen: Prediction, found: Gradient, forwards: int, backwards: int
) -> Answer:
    """Update, recover, remember, report; ``forwards`` and ``backwards`` count the samples passed. All on the device."""
    output = method.answered(engine, seen.output)
    outcome = update(method, engine, seen, found, forwards, backwards)
    report = _report(engine, seen, found, outcome)
    engine.host_steps += 1
    if not engine.fixed_shapes:  # a recorded step does this beside it
        upkeep(method, engine)
        rows = due(method, engine, engine.host_steps, output.images, len(output.images))
        if rows is not None:
            report = report.with_more_forwards(compare(method, engine, output, rows))
    return Answer(output, report)


def upkeep(method: GradientMethod, engine: Engine) -> None:
    """What a method does on the host every so many steps."""
    if method.upkeep_every and engine.host_steps % method.upkeep_every == 0:
        method.maintain(engine)


def update(
    method: GradientMethod,
    engine: Engine,
    seen: Prediction,
    found: Gradient,
    forwards: Tensor | int,
    backwards: Tensor | int,
) -> Outcome:
    """Weights and state after a batch: update, recover, remember, count. Nothing is read from the device."""
    memory, learnables, last = engine.memory, engine.learnables, found.last
    theta = learnables.vector()
    reset = method.selective_reset
    gradient = found.value if last is None else method.adjusted(engine, found.value, theta)
    if reset is not None and last is not None:
        gradient = reset.penalised(engine, gradient, theta)
    direction, momentum = momentum_update(
        gradient, memory["momentum"], momentum=method.momentum, nesterov=method.nesterov
    )
    updated = method.updated(engine, theta - engine.lr * direction)

    usable = seen.usable.any() if method.leaves_out else seen.usable.all()
    sound = usable & torch.isfinite(updated).all() & torch.isfinite(gradient).all()
    selected = torch.zeros((), dtype=torch.int64, device=engine.device) if last is None else last.selected
    if last is not None:
        sound = sound & torch.isfinite(last.total.detach())
    if method.needs_samples:
        # While the gate is closed nothing is selected, and the batch is still remembered.
        sound = sound & (selected > 0) if seen.gate is None else sound & ((selected > 0) | ~seen.gate)
    learns = sound if seen.gate is None else sound & seen.gate

    engine.keep(learns, {"momentum": momentum})
    values = torch.where(learns, updated, theta)
    trigger = None
    if method.watches_entropy:
        values, trigger = _recover(method, engine, last, values, learns & (selected > 0))
    elif reset is not None:
        values, trigger = reset.watch(engine, seen.output, found.value, theta, values, usable)
        seen.selection.further_forwards += len(seen.output.logits)
    learnables.assign(values)
    method.remember(engine, seen.output, seen.selection, sound)
    if trigger is not None:
        method.recovered(engine, trigger)
    return Outcome(sound, learns, _count(method, engine, seen, found, sound, learns, forwards, backwards))


def _recover(
    method: GradientMethod, engine: Engine, last: Loss | None, values: Tensor, happened: Tensor
) -> tuple[Tensor, Tensor]:
    """Model recovery (SAR): e_m ← 0.9·e_m + 0.1·entropy; where e_m < e₀, weights, momentum and e_m start again.

    The first value starts the average (NaN: none yet), and it stands still where nothing ``happened``. (The authors'
    code puts back the weights alone: its average stays below the threshold, so that resets repeat.)
    """
    assert engine.source is not None
    memory, keep = engine.memory, method.recovery_keep
    average = memory["e_m"]
    if last is not None:
        entropy = last.entropy.detach().to(average.dtype)
        if "e_first" in memory:  # what recovery="relative" compares with: the entropy at the start or after a reset
            engine.keep(happened & average.isnan(), {"e_first": entropy})
        fresh = torch.where(average.isnan(), entropy, keep * average + (1 - keep) * entropy)
        average = torch.where(happened, fresh, average)
    trigger = average < method.least_entropy(engine)
    memory["e_m"].copy_(torch.where(trigger, torch.full_like(average, math.nan), average))
    memory["momentum"].mul_(~trigger)
    engine.count(resets=trigger)
    return torch.where(trigger, engine.source, values), trigger


def _count(
    method: GradientMethod,
    engine: Engine,
    seen: Prediction,
    found: Gradient,
    sound: Tensor,
    learns: Tensor,
    forwards: Tensor | int,
    backwards: Tensor | int,
) -> dict[str, Tensor]:
    """The counters. The paper counts a selected sample once more in each pass that learns."""
    number, selection, norm = seen.number, seen.selection, found.first_norm
    assert selection.mask is not None
    selected = selection.mask.sum()
    counted = torch.zeros_like(selected) + number if method.wants_whole_batch else selected
    if found.first is None:
        counted = torch.zeros_like(counted)
    elif seen.gate is not None:
        counted = counted * seen.gate
    if found.idle is not None:
        counted = counted * ~found.idle
    passes = {
        "forwards": number + found.forwards * counted + selection.further_forwards,
        "backwards": found.backwards * counted + selection.further_backwards,
        "computed_forwards": torch.as_tensor(forwards + selection.further_forwards),
        "computed_backwards": torch.as_tensor(backwards + selection.further_backwards),
    }
    engine.count(
        skipped=~sound,
        learned=learns & (norm > 0) if isinstance(norm, Tensor) else 0,
        left_out=number - seen.usable.sum(),
        **passes,
    )
    return passes


def _report(engine: Engine, seen: Prediction, found: Gradient, outcome: Outcome) -> StepReport:
    first, mask = found.first, seen.selection.mask
    assert mask is not None
    report = StepReport.of_prediction(seen.output, engine)
    for name, value in outcome.passes.items():
        setattr(report, name, value)
    report.entropies = report.entropies.masked_fill(~seen.usable, math.nan)
    report.selected, report.mask, report.learned = mask.sum(), mask, outcome.learns
    report.gradient_norm = torch.as_tensor(found.first_norm)
    report.gradient_norm_second = torch.as_tensor(found.second_norm)
    if first is not None and found.last is not None:
        report.selected_second = found.last.selected
        report.loss = first.total.detach()
        report.used_redundancy = None if first.redundancy is None else first.redundancy.detach()
        report.used_inequity = None if first.inequity is None else first.inequity.detach()
    return report
