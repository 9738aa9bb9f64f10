"""The one online loop of all gradient methods: predict, select, learn (once, or twice with sharpness), recover, record.

Where only some samples teach and the network treats samples one by one, the passes that learn run on the teachers alone
(same numbers, a fraction of the work); that takes one small read from the device, how many teach. Everywhere else masks
do the selecting and nothing is read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wildtta.methods.gradient import SAR2_LEARNING_RATES, GradientMethod, Lesson, Terms
from wildtta.methods.sar2 import bank
from wildtta.parts.recovery import moving_entropy, needs_recovery
from wildtta.parts.sharpness import worst_step
from wildtta.step.clipping import clip_gradient
from wildtta.step.engine import Engine
from wildtta.step.optimizers import momentum_update
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output, StepReport

# Above this share of teachers one graph over the whole batch is cheaper than a second forward over the teachers:
# with norm parameters alone a backward pass costs about as much as a forward one.
KEEP_GRAPH_ABOVE = 0.5


@dataclass
class Learned:
    """What the learning half of a step brought."""

    gradient: Tensor
    first: Terms | None
    last: Terms | None
    first_norm: Tensor
    second_norm: Tensor
    computed_forwards: int
    computed_backwards: int
    warm: Tensor | None = None
    """Whether the bank is warm enough to learn; None: learning does not wait for it."""


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


@dataclass
class Look:
    """The first half of a step: the prediction, and who may teach."""

    first: Output
    lesson: Lesson
    finite: Tensor


def learns_on_teachers_alone(method: GradientMethod, engine: Engine) -> bool:
    """Whether the passes that learn may leave out samples that do not teach."""
    return method.selects and not method.wants_whole_batch and not engine.batch_statistics


def look(method: GradientMethod, engine: Engine, images: Tensor, *, grad: bool) -> Look:
    """Predict and select."""
    first = engine.forward(images, grad=grad)
    with losses_in_full_precision(images.device):
        lesson = method.select(engine, first)
        finite = torch.isfinite(images).all() & torch.isfinite(first.logits.detach()).all()
    return Look(first, lesson, finite)


def learn_from_all(method: GradientMethod, engine: Engine, seen: Look) -> Answer:
    """The second half over the whole batch; masks do the selecting and nothing is read from the device."""
    with losses_in_full_precision(engine.device):
        learned = _learn(method, engine, seen.first, seen.lesson)
        return _finish(method, engine, seen.first, seen.lesson, learned, seen.finite)


def learn_from(method: GradientMethod, engine: Engine, seen: Look, positions: Tensor, *, exact: bool = True) -> Answer:
    """The second half over the samples at ``positions``: the teachers (``exact``), or these and a few to fill up a shape."""
    number = len(positions)
    with losses_in_full_precision(engine.device):
        if number:
            lesson = seen.lesson.take(positions, all_teach=exact)
            learned = _learn(method, engine, engine.forward(seen.first.images[positions], grad=True), lesson)
            learned.computed_forwards += number
        else:
            learned = _no_teacher(method, engine)
        return _finish(method, engine, seen.first, seen.lesson, learned, seen.finite)


def _one_update(method: GradientMethod, engine: Engine, images: Tensor) -> Answer:
    stage = _stage(method, engine)
    on_teachers = learns_on_teachers_alone(stage, engine)
    keep_graph = not on_teachers or (engine.share or 0.0) > KEEP_GRAPH_ABOVE
    surely_cold = stage.waits(engine) or _surely_cold(stage, engine, len(images))
    seen = look(stage, engine, images, grad=keep_graph and not surely_cold)
    with losses_in_full_precision(images.device):
        if surely_cold or not _warm_now(stage, engine, seen.first, seen.lesson):
            learned = _nothing(engine)
            learned.warm = torch.zeros_like(seen.finite)
            return _finish(stage, engine, seen.first, seen.lesson, learned, seen.finite)
        with _refreshed_before(stage, engine, seen):
            if not on_teachers:
                return learn_from_all(stage, engine, seen)
            assert seen.lesson.mask is not None
            exact = seen.lesson.candidates is None
            positions = seen.lesson.candidates
            if positions is None:
                positions = seen.lesson.mask.nonzero().squeeze(1)  # the one read: how many teach
            engine.share = len(positions) / len(images)
            if not keep_graph or len(positions) == 0:
                return learn_from(stage, engine, seen, positions, exact=exact)
            lesson = seen.lesson.take(positions, all_teach=exact)
            learned = _learn(stage, engine, seen.first.take(positions), lesson)
            learned.computed_backwards += len(images) - len(positions)
            return _finish(stage, engine, seen.first, seen.lesson, learned, seen.finite)


def _stage(method: GradientMethod, engine: Engine) -> GradientMethod:
    """The method itself, or, for its first ``warm_start`` batches, regularisers of the live batch alone (table 9)."""
    if method.warm_start == 0 or engine.fixed_shapes:
        return method
    done = engine.host_steps
    if done >= method.warm_start:
        if done == method.warm_start:
            engine.memory["momentum"].zero_()
        return method
    at_one, at_sixty_four = SAR2_LEARNING_RATES[engine.network.family]
    share = min(1.0, ((engine.batch_size or 64) - 1) / 63)
    return WarmStart(
        lr=at_one + (at_sixty_four - at_one) * share,
        lr_scale=method.lr_scale,
        redundancy=method.redundancy or 1e3,
        inequity=method.inequity or 50.0,
        reading=method.reading,
        variance_floor=method.variance_floor,
        momentum=method.momentum,
        clip_norm=method.clip_norm,
        clip_ratio=method.clip_ratio,
        entropy=0.0,
    )


class WarmStart(GradientMethod):
    """R and I of the live batch, no entropy, no sharpness: what table 9 does before a method begins."""


def _waits_for_bank(method: GradientMethod, engine: Engine) -> bool:
    """Whether learning waits for the bank as far as the host knows (and the host may look)."""
    if not method.bank or method.warmup_scope != "all" or engine.fixed_shapes:
        return False
    return not bool(method.is_warm(engine.known_bank_rows, engine.network.classes))


def _surely_cold(method: GradientMethod, engine: Engine, samples: int) -> bool:
    """Whether this batch cannot fill the bank to ζ rows, whatever its labels: then no graph is needed."""
    at_most = engine.known_bank_rows + samples
    return _waits_for_bank(method, engine) and not method.is_warm(at_most, engine.network.classes)


def _warm_now(method: GradientMethod, engine: Engine, first: Output, lesson: Lesson) -> bool:
    """Whether C^t has ζ rows. Once it has, the host does not look again (a recovery is then masked on the device)."""
    if not _waits_for_bank(method, engine):
        return True
    live = method.live_centroids(engine, first, lesson)
    rows = int(bank.rows_with(engine.memory, live))
    warm = bool(method.is_warm(rows, engine.network.classes))
    if warm:
        engine.known_bank_rows = rows
    return warm


@contextlib.contextmanager
def _refreshed_before(method: GradientMethod, engine: Engine, seen: Look) -> Iterator[None]:
    """With ``bank_refresh="before"`` the passes that learn see the bank as it will be after the batch.

    The real refresh comes in :func:`_finish` with everything else that is kept, once it is known that the batch may
    be learned from; so the bank is put back before.
    """
    if not method.bank or method.bank_refresh == "after":
        yield
        return
    engine.bank_before = {name: value.clone() for name, value in engine.memory.items() if name.startswith("bank_")}
    method.refresh_bank(engine, seen.first, seen.lesson, seen.finite)
    try:
        yield
    finally:
        _put_bank_back(engine)


def _put_bank_back(engine: Engine) -> None:
    for name, value in engine.bank_before.items():
        engine.memory[name].copy_(value)
    engine.bank_before = {}


def _nothing(engine: Engine) -> Learned:
    missing = torch.full((), float("nan"), device=engine.device)
    return Learned(torch.zeros_like(engine.memory["momentum"]), None, None, missing, missing, 0, 0)


def _no_teacher(method: GradientMethod, engine: Engine) -> Learned:
    """Nobody teaches: a gradient of 0, so that momentum alone may carry the weights on."""
    learned = _nothing(engine)
    if method.bank and method.warmup_scope == "all":
        learned.warm = method.is_warm(engine.memory["bank_count"], engine.network.classes)
    return learned


def _learn(method: GradientMethod, engine: Engine, first: Output, lesson: Lesson) -> Learned:
    learnables, samples = engine.learnables, len(first.logits)
    terms = method.terms(engine, first, lesson, lesson)
    if method.sharpness is None:
        gradient = learnables.gradient(terms.total)
        missing = torch.full((), float("nan"), device=gradient.device)
        return Learned(gradient, terms, terms, gradient.norm(), missing, 0, samples)
    if method.perturbation == "per_term":
        return _learn_per_term(method, engine, first, lesson, terms)
    gradient = learnables.gradient(terms.total)
    theta = learnables.vector()
    last, second = _gradient_at(method, engine, first, lesson, theta, worst_step(gradient, method.sharpness), None)
    return Learned(second, terms, last, gradient.norm(), second.norm(), samples, 2 * samples)


def _learn_per_term(method: GradientMethod, engine: Engine, first: Output, lesson: Lesson, terms: Terms) -> Learned:
    """The paper's equations to the letter: each term has its own ε (three second passes)."""
    assert method.sharpness is not None
    learnables, samples = engine.learnables, len(first.logits)
    firsts = [
        learnables.gradient(part, retain_graph=index + 1 < len(terms.parts)) for index, part in enumerate(terms.parts)
    ]
    theta = learnables.vector()
    total = torch.zeros_like(theta)
    last = terms
    for index, gradient in enumerate(firsts):
        at, second = _gradient_at(method, engine, first, lesson, theta, worst_step(gradient, method.sharpness), index)
        last = at if index == 0 else last
        total = total + second
    number = len(terms.parts)
    first_norm = torch.stack(firsts).sum(0).norm()
    return Learned(total, terms, last, first_norm, total.norm(), number * samples, 2 * number * samples)


def _gradient_at(
    method: GradientMethod,
    engine: Engine,
    first: Output,
    lesson: Lesson,
    theta: Tensor,
    epsilon: Tensor,
    part: int | None,
) -> tuple[Terms, Tensor]:
    """Terms and gradient at θ + ε: of the whole loss, or of one of its parts."""
    with engine.at(theta + epsilon, back_to=theta):
        second = engine.forward(first.images, grad=True)
        with losses_in_full_precision(second.logits.device):
            again = method.reselect(engine, second, lesson)
            forming = replace(lesson, labels=again.labels)
            terms = method.terms(engine, second, again, forming)
            loss = terms.total if part is None else terms.parts[part]
            return terms, engine.learnables.gradient(loss)


def _finish(
    method: GradientMethod, engine: Engine, first: Output, lesson: Lesson, learned: Learned, finite: Tensor
) -> Answer:
    """Clip, guard, update, recover, remember, count. Everything stays on the device."""
    _put_bank_back(engine)
    memory, learnables, last = engine.memory, engine.learnables, learned.last
    theta = learnables.vector()
    gradient = clip_gradient(learned.gradient, value=method.clip_value, norm=method.gradient_bound(engine))
    penalty = method.penalty_gradient(engine, theta)
    if penalty is not None and last is not None:
        gradient = gradient + penalty
    direction, momentum = momentum_update(
        gradient, memory["momentum"], momentum=method.momentum, nesterov=method.nesterov
    )
    rate = method.learning_rate(engine.network.family, engine.batch_size or 64)
    updated = method.settle(engine, theta - rate * direction)

    sound = finite & torch.isfinite(updated).all() & torch.isfinite(gradient).all()
    teachers = torch.zeros((), dtype=torch.int64, device=engine.device) if last is None else last.teachers
    if last is not None:
        sound = sound & torch.isfinite(last.total.detach())
    if not method.coast and method.entropy > 0 and not method.wants_whole_batch:
        sound = sound & (teachers > 0)
    warm = learned.warm
    if learned.first is not None and method.warmup_scope == "all":
        warm = learned.first.warm
    learns = sound if warm is None else sound & warm

    memory["momentum"].copy_(torch.where(learns, momentum, memory["momentum"]))
    values = torch.where(learns, updated, theta)
    trigger = None
    if method.recovery is not None:
        values, trigger = _recover(method, engine, last, values, learns & (teachers > 0))
    learnables.assign(values)
    _remember(method, engine, first, lesson, sound)
    if trigger is not None:
        method.recovered(engine, trigger)
    return _record(method, engine, first, lesson, learned, sound, learns)


def _recover(
    method: GradientMethod, engine: Engine, last: Terms | None, values: Tensor, happened: Tensor
) -> tuple[Tensor, Tensor]:
    """Follow the entropy; where it is suspiciously small, everything as on the first day: weights, momentum, average.

    (The authors' code puts back the weights alone, so that its average stays below the threshold and resets repeat.)
    """
    assert method.recovery is not None
    assert engine.source is not None
    memory = engine.memory
    average = memory["e_m"]
    if last is not None:
        average = moving_entropy(average, last.entropy.detach(), happened, method.recovery_keep)
    trigger = needs_recovery(average, method.recovery)
    memory["e_m"].copy_(torch.where(trigger, torch.full_like(average, math.nan), average))
    memory["momentum"].mul_(~trigger)
    engine.count(resets=trigger)
    return torch.where(trigger, engine.source, values), trigger


def _remember(method: GradientMethod, engine: Engine, first: Output, lesson: Lesson, allowed: Tensor) -> None:
    source, kept = first, lesson
    if method.bank and method.bank_features == "post":
        source = engine.forward(first.images, grad=False)
        kept = replace(lesson, labels=source.labels)
    method.remember(engine, source, kept, allowed)
    if not method.bank:
        return
    if engine.host_steps % bank.RESUM_EVERY == bank.RESUM_EVERY - 1 and not engine.fixed_shapes:
        bank.resum(engine.memory, method.reading)
    if _waits_for_bank(method, engine):
        engine.known_bank_rows = int(engine.memory["bank_count"])


def _record(
    method: GradientMethod,
    engine: Engine,
    first: Output,
    lesson: Lesson,
    learned: Learned,
    sound: Tensor,
    learns: Tensor,
) -> Answer:
    """Counters and the report. Samples are counted as the paper does: who teaches is passed once more, both ways."""
    number, device = len(first.logits), engine.device
    report = StepReport.of_prediction(first, engine)
    selected = torch.full((), number, device=device) if lesson.mask is None else lesson.mask.sum()
    taught = torch.full((), number, device=device) if method.wants_whole_batch or lesson.mask is None else selected
    if learned.first is None:
        taught = torch.zeros_like(taught)
    elif learned.first.warm is not None and method.warmup_scope == "all":
        taught = taught * learned.first.warm
    terms = len(learned.first.parts) if learned.first is not None and method.perturbation == "per_term" else 1
    again = 0 if method.sharpness is None else terms
    report.forwards = number + again * taught + lesson.further_forwards
    report.backwards = taught * (1 if method.sharpness is None else 2 * terms) + lesson.further_backwards
    report.computed_forwards = torch.as_tensor(number + learned.computed_forwards + lesson.further_forwards)
    report.computed_backwards = torch.as_tensor(learned.computed_backwards + lesson.further_backwards)
    engine.count(
        skipped=~sound,
        forwards=report.forwards,
        backwards=report.backwards,
        computed_forwards=report.computed_forwards,
        computed_backwards=report.computed_backwards,
    )
    engine.host_steps += 1
    report.selected = selected
    report.mask = torch.ones_like(report.mask) if lesson.mask is None else lesson.mask
    report.gradient_norm, report.gradient_norm_second = learned.first_norm, learned.second_norm
    report.learned = learns
    if learned.first is not None and learned.last is not None:
        report.selected_second = learned.last.teachers
        report.loss = learned.first.total.detach()
        report.used_redundancy = None if learned.first.redundancy is None else learned.first.redundancy.detach()
        report.used_inequity = None if learned.first.inequity is None else learned.first.inequity.detach()
    for name in ("e_m", "resets", "skipped", "bank_count"):
        if name in engine.memory:
            setattr(report, "bank_rows" if name == "bank_count" else name, engine.memory[name].clone())
    return Answer(first, report)
