"""RoTTA: robust BatchNorm, a balanced memory, a teacher."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from wildtta.methods.answering import answer_with
from wildtta.methods.base import BatchStatistics, Method
from wildtta.methods.gradient import help_text
from wildtta.methods.registry import register
from wildtta.network.statistics import Moments, norm_statistics
from wildtta.parts.balanced_memory import BalancedMemory, timeliness_weights
from wildtta.parts.jitter import jitter
from wildtta.parts.pixels import Level, pixel_scale
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.optimizers import FlatOptimizer
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output, StepReport

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_OPTIMIZER = FlatOptimizer("adam")


@register
@dataclass(frozen=True, kw_only=True)
class RoTTA(Method):
    """Robust test-time adaptation in dynamic scenarios (Yuan, Xie and Li, CVPR 2023).

        every N samples:  min over norm parameters of  mean_k  s(age_k) · H(p_teacher(x_k), p_student(aug(x_k)))
        teacher ← (1 − ν)·teacher + ν·student,   s(a) = exp(−a/N) / (1 + exp(−a/N))

    over a memory of N samples that is balanced over predicted classes and prefers recent and certain samples
    (:class:`wildtta.parts.balanced_memory.BalancedMemory`). BatchNorm of student and teacher normalises by slow averages
    of its own, μ ← (1 − α)·μ + α·μ_batch, which move while learning and stand still while predicting. The teacher
    answers. On GroupNorm and LayerNorm networks there are no averages to keep; the rest is the same.
    Paper: https://arxiv.org/abs/2303.13899. Code of its authors: https://github.com/BIT-DA/RoTTA.

    ``augment`` is called as ``augment(images, generator)`` with network inputs and gives as many; None:
    :func:`wildtta.parts.jitter.jitter` on pixels.
    """

    name: ClassVar[str] = "rotta"
    title: ClassVar[str] = "RoTTA"
    paper: ClassVar[str] = "Yuan et al., CVPR 2023, https://arxiv.org/abs/2303.13899"
    updates: ClassVar[str] = "affine parameters of all norms, BatchNorm statistics; a teacher of both"
    passes: ClassVar[str] = "3 / 1"
    prediction: ClassVar = "teacher"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    lr: float = help_text("Adam's learning rate", 1e-3)
    capacity: int = help_text("N: samples in the memory", 64)
    every: int = help_text("samples between updates", 64)
    teacher_rate: float = help_text("ν: weight of the student in the teacher", 1e-3)
    norm_rate: float = help_text("α: weight of a batch in BatchNorm's averages", 0.05)
    timeliness: float = help_text("λ_t: weight of a kept sample's age in its score", 1.0)
    uncertainty: float = help_text("λ_u: weight of a kept sample's entropy in its score", 1.0)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = help_text("the student's view; None: jitter", None)
    mean: Level = help_text("pixel mean of the preprocessing (for the jitter); None: the network's, or the range", None)
    std: Level = help_text("pixel std of the preprocessing", None)
    seed: int = help_text("seed of the views", 0)

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.every < 1:
            raise ValueError(f"capacity and every must be at least 1, got {self.capacity} and {self.every}")
        for name in ("teacher_rate", "norm_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be a positive number, got {self.lr!r}")

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {"capacity": 8, "every": 4}
        return options if images.dim() == 4 else {**options, "augment": lambda inputs, generator: inputs}

    def _kept(self, engine: Engine) -> BalancedMemory:
        return BalancedMemory(self.capacity, engine.network.classes, self.timeliness, self.uncertainty)

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        assert engine.source is not None
        shape = (0,) if engine.image_shape is None else (self.capacity, *engine.image_shape)
        state = {
            "teacher": engine.source.clone(),
            **_OPTIMIZER.first_state(engine.source),
            **self._kept(engine).empty(),
            "kept_images": torch.zeros(shape, dtype=engine.network.head.weight.dtype, device=engine.device),
            **no_draws_yet(),
        }
        statistics = norm_statistics(engine)
        if statistics:
            for role in ("student", "teacher"):
                state[f"{role}_mean"], state[f"{role}_var"] = statistics.source()
        return state

    # -- answering -----------------------------------------------------------------------------------------------------

    def predict(self, engine: Engine, images: Tensor) -> Answer:
        output = self._teacher_output(engine, images)
        return Answer(output, StepReport.of_prediction(output, engine))

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if images.shape[1:] != engine.memory["kept_images"].shape[1:]:
            raise ValueError(
                f"rotta keeps images of shape {tuple(engine.memory['kept_images'].shape[1:])} (the first batch's), "
                f"got {tuple(images.shape[1:])}; resize the images, or adapt the network anew"
            )
        output = self._teacher_output(engine, images)
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

    def _teacher_output(self, engine: Engine, images: Tensor) -> Output:
        with engine.at(engine.memory["teacher"], back_to=engine.learnables.vector()):
            return self._forward(engine, images, "teacher", grad=False, moving=None)

    def _forward(self, engine: Engine, images: Tensor, role: str, *, grad: bool, moving: Moments | None) -> Output:
        """A pass with ``role``'s averages; where ``moving`` is given they move, and the gradient flows through them."""
        statistics = norm_statistics(engine)
        if not statistics:
            return engine.forward(images, grad=grad)
        averages = moving or (engine.memory[f"{role}_mean"], engine.memory[f"{role}_var"])

        def rule(place: slice, batch: Moments, count: int) -> Moments:
            if moving is None:
                return averages[0][place], averages[1][place]
            mean = (1 - self.norm_rate) * averages[0][place] + self.norm_rate * batch[0]
            variance = (1 - self.norm_rate) * averages[1][place] + self.norm_rate * batch[1]
            averages[0][place], averages[1][place] = mean.detach(), variance.detach()
            return mean, variance

        with statistics.chosen(engine, rule):
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
        views = self._augmented(engine, images)
        student = self._forward(engine, views, "student", grad=True, moving=averages.get("student"))
        with losses_in_full_precision(engine.device):
            losses = -(target.softmax(-1) * student.logits.log_softmax(-1)).sum(-1)
            gradient = learnables.gradient((losses * weights).mean())
        updated, state = _OPTIMIZER.update(theta, gradient, memory, self.lr)
        sound = torch.isfinite(updated).all() & torch.isfinite(gradient).all()
        teacher = (1 - self.teacher_rate) * memory["teacher"] + self.teacher_rate * updated
        state["teacher"] = teacher
        for role, (mean, variance) in averages.items():
            state[f"{role}_mean"], state[f"{role}_var"] = mean, variance
        for name, value in state.items():
            memory[name].copy_(torch.where(sound, value, memory[name]))
        learnables.assign(torch.where(sound, updated, theta))
        return len(rows), gradient.norm()

    def _augmented(self, engine: Engine, images: Tensor) -> Tensor:
        generator = next_generator(engine.memory, self.seed, images.device)
        if self.augment is not None:
            return self.augment(images, generator)
        scale = pixel_scale(engine.network.module, images, self.mean, self.std)
        return scale.inputs(jitter(scale.pixels(images), generator))
