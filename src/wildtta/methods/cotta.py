"""CoTTA: a teacher's averaged predictions, and weights that are now and then put back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from wildtta.methods.base import Method, answer_with
from wildtta.methods.losses import cross_entropy, symmetric_cross_entropy
from wildtta.methods.options import AT_LEAST_ONE, FINITE, POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.views import MEAN_HELP, STD_HELP, Augment, Level, random_view, told
from wildtta.network.parameters import Scope
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.optimizers import FlatOptimizer, OptimizerKind
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class CoTTA(Method):
    """Continual test-time adaptation (Wang et al., CVPR 2022).

        min over all parameters of  mean_b H(p_teacher(x_b), p_student(x_b)),
        teacher ← m·teacher + (1 − m)·student

    The teacher's logits are averaged over random views where the source network's mean confidence in the batch is below
    ``confidence``. After each step every weight goes back to its source value with probability ``restore``. The teacher
    answers. Defaults are its authors' for ImageNet; for CIFAR theirs are optimizer="adam", lr=1e-3, teacher_keep=0.99 (or
    0.999), restore=0.01, confidence=0.9 (or 0.72), symmetric=False.
    Paper: https://arxiv.org/abs/2203.13591. Code of its authors: https://github.com/qinenergy/cotta.

    ``augment`` is called as ``augment(images, generator)`` with network inputs and gives as many; None:
    :func:`wildtta.methods.views.jitter` on pixels. ``restore_mask`` is called as ``restore_mask(size, generator)`` and gives
    which of the ``size`` learned values (in the network's order) go back, as booleans; None: independent draws.
    """

    name: ClassVar[str] = "cotta"
    title: ClassVar[str] = "CoTTA"
    needs_images: ClassVar[bool] = True
    order: ClassVar[int] = 140
    paper: ClassVar[str] = "Wang et al., CVPR 2022, https://arxiv.org/abs/2203.13591"
    updates: ClassVar[str] = "all parameters; a teacher of them"
    passes: ClassVar[str] = "3 (35 where the source network is unsure) / 1"
    prediction: ClassVar = "teacher"
    scope: ClassVar[Scope] = "everything"

    lr: float = option("learning rate", 0.01, within=POSITIVE)
    optimizer: OptimizerKind = option("sgd (with momentum), adam or adamw", "sgd")
    momentum: float = option("SGD momentum", 0.9, within=SHARE)
    nesterov: bool = option("Nesterov momentum", True, needs="momentum")
    teacher_keep: float = option("m: weight of the old teacher", 0.999, within=SHARE)
    restore: float = option("probability that a weight goes back to the source", 0.001, within=SHARE)
    confidence: float = option("views are averaged where the source's mean confidence is below this", 0.1, within=SHARE)
    views: int = option("random views to average", 32, within=AT_LEAST_ONE)
    symmetric: bool = option("cross-entropy in both directions", True)
    augment: Augment | None = option("makes a view; None: jitter", None)
    restore_mask: Callable[[int, torch.Generator], Tensor] | None = option("which weights go back; None: draws", None)
    mean: Level = option(MEAN_HELP, None, within=FINITE)
    std: Level = option(STD_HELP, None, within=POSITIVE)
    seed: int = option("seed of views and restores", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd" and (self.momentum, self.nesterov) != (0.9, True):
            raise ValueError(
                f"momentum and nesterov belong to sgd and have no effect with {self.optimizer}; leave them out"
            )

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        return {"views": 2} if images.dim() == 4 else {"views": 2, "augment": lambda inputs, generator: inputs}

    def _optimizer(self) -> FlatOptimizer:
        return FlatOptimizer(self.optimizer, momentum=self.momentum, nesterov=self.nesterov)

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        assert engine.source is not None
        return {"teacher": engine.source.clone(), **self._optimizer().first_state(engine.source), **no_draws_yet()}

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        with engine.at(engine.memory["teacher"], back_to=engine.learnables.vector()):
            return engine.forward(images, grad=False)

    def step(self, engine: Engine, images: Tensor) -> Answer:
        memory, learnables = engine.memory, engine.learnables
        theta = learnables.vector()
        target, passed, finite = self._target(engine, images, theta)
        if not finite:
            return answer_with(engine, target, forwards=passed, skipped=True)
        student = engine.forward(images, grad=True)
        with losses_in_full_precision(images.device):
            distance = symmetric_cross_entropy if self.symmetric else cross_entropy
            loss = distance(target.logits, student.logits).mean()
            gradient = learnables.gradient(loss)
        updated, state = self._optimizer().update(theta, gradient, memory, self.lr)
        state["teacher"] = self.teacher_keep * memory["teacher"] + (1 - self.teacher_keep) * updated
        assert engine.source is not None
        restored = torch.where(self._going_back(engine), engine.source, updated)
        sound = torch.isfinite(updated).all() & torch.isfinite(gradient).all()
        engine.keep(sound, state)
        learnables.assign(torch.where(sound, restored, theta))
        return answer_with(
            engine,
            target,
            forwards=passed + len(images),
            backwards=len(images),
            learned=sound,
            skipped=~sound,
            loss=loss.detach(),
            gradient_norm=gradient.norm(),
        )

    def _target(self, engine: Engine, images: Tensor, theta: Tensor) -> tuple[Output, int, bool]:
        """The teacher's answer, the samples passed for it, and whether it is finite."""
        assert engine.source is not None
        with engine.at(engine.source, back_to=theta):
            anchor = engine.forward(images, grad=False).logits
        with engine.at(engine.memory["teacher"], back_to=theta):
            plain = engine.forward(images, grad=False)
            finite = torch.isfinite(plain.logits).all()
            unsure = anchor.softmax(-1).amax(-1).mean() < self.confidence
            is_finite, is_unsure = map(bool, engine.read(finite, unsure))
            if not (is_finite and is_unsure):
                return plain, 2 * len(images), is_finite
            generator = next_generator(engine.memory, self.seed, images.device)
            total = torch.zeros_like(plain.logits)
            for _ in range(self.views):
                view = random_view(engine.network.module, images, generator, self.augment, self.mean, self.std)
                total += engine.forward(view, grad=False).logits
        return plain.answering(total / self.views), (2 + self.views) * len(images), True

    def _going_back(self, engine: Engine) -> Tensor:
        size, device = engine.learnables.size, engine.device
        generator = next_generator(engine.memory, self.seed, device)
        if self.restore_mask is None:
            return torch.rand(size, generator=generator, device=device) < self.restore
        mask = self.restore_mask(size, generator)
        if not isinstance(mask, Tensor) or mask.shape != (size,) or mask.dtype != torch.bool:
            raise ValueError(f"restore_mask must give {size} booleans, one per learned value, got {told(mask)}")
        return mask.to(device)
