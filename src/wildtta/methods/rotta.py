"""RoTTA: robust BatchNorm, a balanced memory, a teacher."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from wildtta.methods.base import BatchStatistics, Method, answer_with
from wildtta.methods.losses import cross_entropy
from wildtta.methods.options import AT_LEAST_ONE, FINITE, NOT_NEGATIVE, POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.views import MEAN_HELP, STD_HELP, Augment, Level, random_view
from wildtta.network.statistics import Moments
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.optimizers import FlatOptimizer
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_OPTIMIZER = FlatOptimizer("adam")
_EMPTY = -1


@register
@dataclass(frozen=True, kw_only=True)
class RoTTA(Method):
    """Robust test-time adaptation in dynamic scenarios (Yuan, Xie and Li, CVPR 2023).

        every N samples:  min over norm parameters of  mean_k  s(age_k) · H(p_teacher(x_k), p_student(aug(x_k)))
        teacher ← (1 − ν)·teacher + ν·student,   s(a) = exp(−a/N) / (1 + exp(−a/N))

    over a memory of N samples that is balanced over predicted classes and prefers recent and certain samples
    (:class:`BalancedMemory`). BatchNorm of student and teacher normalises by slow averages
    of its own, μ ← (1 − α)·μ + α·μ_batch, which move while learning and stand still while predicting. The teacher
    answers. On GroupNorm and LayerNorm networks there are no averages to keep; the rest is the same.
    Paper: https://arxiv.org/abs/2303.13899. Code of its authors: https://github.com/BIT-DA/RoTTA.

    ``augment`` is called as ``augment(images, generator)`` with network inputs and gives as many; None:
    :func:`wildtta.methods.views.jitter` on pixels.
    """

    name: ClassVar[str] = "rotta"
    title: ClassVar[str] = "RoTTA"
    needs_images: ClassVar[bool] = True
    order: ClassVar[int] = 150
    paper: ClassVar[str] = "Yuan et al., CVPR 2023, https://arxiv.org/abs/2303.13899"
    updates: ClassVar[str] = "affine parameters of all norms, BatchNorm statistics; a teacher of both"
    passes: ClassVar[str] = "3 / 1"
    prediction: ClassVar = "teacher"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    lr: float = option("Adam's learning rate", 1e-3, within=POSITIVE)
    capacity: int = option("N: samples in the memory", 64, within=AT_LEAST_ONE)
    every: int = option("samples between updates", 64, within=AT_LEAST_ONE)
    teacher_rate: float = option("ν: weight of the student in the teacher", 1e-3, within=SHARE)
    norm_rate: float = option("α: weight of a batch in BatchNorm's averages", 0.05, within=SHARE)
    timeliness: float = option("λ_t: weight of a kept sample's age in its score", 1.0, within=NOT_NEGATIVE)
    uncertainty: float = option("λ_u: weight of a kept sample's entropy in its score", 1.0, within=NOT_NEGATIVE)
    augment: Augment | None = option("the student's view; None: jitter", None)
    mean: Level = option(MEAN_HELP, None, within=FINITE)
    std: Level = option(STD_HELP, None, within=POSITIVE)
    seed: int = option("seed of the views", 0)

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {"capacity": 8, "every": 4}
        return options if images.dim() == 4 else {**options, "augment": lambda inputs, generator: inputs}

    def _kept(self, engine: Engine) -> BalancedMemory:
        return BalancedMemory(self.capacity, engine.network.classes, self.timeliness, self.uncertainty)

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        assert engine.source is not None
        shape = (0,) if engine.image_shape is None else (self.capacity, *engine.image_shape)
        state = {
            "teacher": engine.source.clone(),
            **_OPTIMIZER.first_state(engine.source),
            **self._kept(engine).empty(),
            "kept_images": torch.zeros(shape, dtype=engine.network.reference.dtype, device=engine.device),
            **no_draws_yet(),
        }
        if engine.norms:
            for role in ("student", "teacher"):
                state[f"{role}_mean"], state[f"{role}_var"] = engine.norms.source()
        return state

    # -- answering -----------------------------------------------------------------------------------------------------

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if images.shape[1:] != engine.memory["kept_images"].shape[1:]:
            raise ValueError(
                f"rotta keeps images of shape {tuple(engine.memory['kept_images'].shape[1:])} (the first batch's), "
                f"got {tuple(images.shape[1:])}; resize the images, or adapt the network anew"
            )
        output = self.predicted(engine, images)
        probabilities = output.logits.softmax(-1)
        uncertainties = -(probabilities * (probabilities + 1e-6).log()).sum(-1)
        sound = (torch.isfinite(images).flatten(1).all(1) & torch.isfinite(uncertainties)).all()
        facts = torch.stack([output.labels.double(), uncertainties.double(), sound.expand(len(images)).double()], 1)
        updates, passed, gradient_norm = 0, 0, torch.full((), math.nan)
        for image, (label, uncertainty, usable) in zip(images, facts.tolist(), strict=True):  # the one read
            if not usable:
                break
            row = self._kept(engine).offer(engine.memory, int(label), uncertainty)
            if row is not None:
                engine.memory["kept_images"][row].copy_(image)
            if int(engine.memory["offered"]) % self.every == 0:
                rows, gradient_norm = self._update(engine)
                updates, passed = updates + 1, passed + rows
        return answer_with(
            engine,
            output,
            forwards=len(images) + 2 * passed,
            backwards=passed,
            learned=updates > 0,
            skipped=~sound,
            gradient_norm=gradient_norm,
        )

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        with engine.at(engine.memory["teacher"], back_to=engine.learnables.vector()):
            return self._forward(engine, images, "teacher", grad=False, moving=None)

    def _forward(self, engine: Engine, images: Tensor, role: str, *, grad: bool, moving: Moments | None) -> Output:
        """A pass with ``role``'s averages; where ``moving`` is given they move, and the gradient flows through them."""
        if not engine.norms:
            return engine.forward(images, grad=grad)
        averages = moving or (engine.memory[f"{role}_mean"], engine.memory[f"{role}_var"])

        def rule(place: slice, batch: Moments, count: int) -> Moments:
            if moving is None:
                return averages[0][place], averages[1][place]
            mean = (1 - self.norm_rate) * averages[0][place] + self.norm_rate * batch[0]
            variance = (1 - self.norm_rate) * averages[1][place] + self.norm_rate * batch[1]
            averages[0][place], averages[1][place] = mean.detach(), variance.detach()
            return mean, variance

        with engine.normalised_by(rule):
            return engine.forward(images, grad=grad)

    # -- learning --------------------------------------------------------------------------------------------------------

    def _update(self, engine: Engine) -> tuple[int, Tensor]:
        """One step on the memory: how many samples, and the gradient's norm."""
        memory, learnables = engine.memory, engine.learnables
        rows = self._kept(engine).rows(memory)
        places = torch.tensor(rows, device=engine.device)
        images = memory["kept_images"][places]
        weights = timeliness_weights(memory["kept_age"][torch.tensor(rows)], self.capacity).to(engine.device)
        theta = learnables.vector()
        averages = {
            role: (memory[f"{role}_mean"].clone(), memory[f"{role}_var"].clone())
            for role in ("student", "teacher")
            if f"{role}_mean" in memory
        }
        with engine.at(memory["teacher"], back_to=theta):
            target = self._forward(engine, images, "teacher", grad=False, moving=averages.get("teacher")).logits
        generator = next_generator(memory, self.seed, images.device)
        views = random_view(engine.network.module, images, generator, self.augment, self.mean, self.std)
        student = self._forward(engine, views, "student", grad=True, moving=averages.get("student"))
        with losses_in_full_precision(engine.device):
            gradient = learnables.gradient((cross_entropy(target, student.logits) * weights).mean())
        updated, state = _OPTIMIZER.update(theta, gradient, memory, self.lr)
        sound = torch.isfinite(updated).all() & torch.isfinite(gradient).all()
        teacher = (1 - self.teacher_rate) * memory["teacher"] + self.teacher_rate * updated
        state["teacher"] = teacher
        for role, (mean, variance) in averages.items():
            state[f"{role}_mean"], state[f"{role}_var"] = mean, variance
        engine.keep(sound, state)
        learnables.assign(torch.where(sound, updated, theta))
        return len(rows), gradient.norm()


@dataclass(frozen=True)
class BalancedMemory:
    """Category-balanced sampling with timeliness and uncertainty (CSTU; Yuan et al., CVPR 2023).

    A sample's score is λ_t / (1 + exp(−age/N)) + λ_u · uncertainty / ln C. A new sample is let in where there is room for
    its class; else the sample with the highest score gives way, among its own class where that has its share N/C
    already, among the fullest classes otherwise, and only if its score is higher than the new one's. Which row that is
    is decided on the host from a few numbers; the images stay on the device.
    """

    capacity: int
    classes: int
    timeliness: float = 1.0
    uncertainty: float = 1.0

    def empty(self) -> dict[str, Tensor]:
        """The bookkeeping of a memory that holds nothing; on the host."""
        return {
            "kept_class": torch.full((self.capacity,), _EMPTY, dtype=torch.int64),
            "kept_uncertainty": torch.zeros(self.capacity, dtype=torch.float64),
            "kept_age": torch.zeros(self.capacity, dtype=torch.int64),
            "kept_since": torch.zeros(self.capacity, dtype=torch.int64),
            "offered": torch.zeros((), dtype=torch.int64),
        }

    def score(self, age: int, uncertainty: float) -> float:
        timely = self.timeliness / (1 + math.exp(-age / self.capacity))
        return timely + self.uncertainty * uncertainty / math.log(self.classes)

    def offer(self, memory: dict[str, Tensor], label: int, uncertainty: float) -> int | None:
        """Let a sample in if it deserves a row: the row, or None. Everything kept grows older by one."""
        row = self._row_for(memory, label, self.score(0, uncertainty))
        if row is not None:
            memory["kept_class"][row] = label
            memory["kept_uncertainty"][row] = uncertainty
            memory["kept_age"][row] = 0
            memory["kept_since"][row] = memory["offered"]
        memory["kept_age"].add_(memory["kept_class"] != _EMPTY)
        memory["offered"].add_(1)
        return row

    def rows(self, memory: dict[str, Tensor]) -> list[int]:
        """Occupied rows, by class and then by arrival."""
        labels, since = memory["kept_class"].tolist(), memory["kept_since"].tolist()
        occupied = [row for row, label in enumerate(labels) if label != _EMPTY]
        return sorted(occupied, key=lambda row: (labels[row], since[row]))

    def _row_for(self, memory: dict[str, Tensor], label: int, score: float) -> int | None:
        labels = memory["kept_class"].tolist()
        of_class = labels.count(label)
        if of_class < self.capacity / self.classes:
            if _EMPTY in labels:
                return int(labels.index(_EMPTY))
            counts = torch.bincount(memory["kept_class"], minlength=self.classes)
            giving = set((counts == counts.max()).nonzero().flatten().tolist())
        else:
            giving = {label}
        ages, uncertainties = memory["kept_age"].tolist(), memory["kept_uncertainty"].tolist()
        worst, highest = None, -math.inf
        for row in self.rows(memory):
            if labels[row] in giving:
                candidate = self.score(ages[row], uncertainties[row])
                if candidate >= highest:
                    worst, highest = row, candidate
        return worst if highest > score else None


def timeliness_weights(ages: Tensor, capacity: int) -> Tensor:
    """exp(−a)/(1 + exp(−a)) with a = age/N: the weight of a kept sample in the loss (in float32, as its authors have it)."""
    return torch.sigmoid(-(ages.double() / capacity).float())
