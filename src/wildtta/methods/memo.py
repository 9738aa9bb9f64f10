"""MEMO: for each image, the entropy of the mean prediction over many views is minimised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from wildtta.methods.augmix import augmix
from wildtta.methods.base import BatchStatistics, Method, Rates, answer_with
from wildtta.methods.options import AT_LEAST_ONE, FINITE, NOT_NEGATIVE, POSITIVE, Range, option
from wildtta.methods.registry import register
from wildtta.methods.views import MEAN_HELP, STD_HELP, Level, pixel_scale, told
from wildtta.network.output import with_logits
from wildtta.network.parameters import Scope
from wildtta.network.statistics import Moments, unbiased
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.optimizers import FlatOptimizer
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction over views, H(mean_i softmax(logits_i)): [views, C] to a scalar."""
    log_mean = logits.log_softmax(-1).logsumexp(0) - math.log(len(logits))
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)
    return -(log_mean * log_mean.exp()).sum()


@register
@dataclass(frozen=True, kw_only=True)
class MEMO(Method):
    """Marginal entropy minimisation with one test point (Zhang, Levine and Finn, NeurIPS 2022).

        for each image, from the source weights:
        Θ ← Θ − η ∇ H( mean over views of p(view; Θ) ),  then predict the image

    64 AugMix views in one batch; SGD on convolutional networks, AdamW on transformers; afterwards the weights go back.
    The optimizer starts anew for each image too (its authors' code keeps AdamW's moments: ``carry=True``). BatchNorm
    normalises by N/(N+1)·source + 1/(N+1)·views, N = ``prior``, and lets no gradient through.
    Paper: https://arxiv.org/abs/2110.09506. Code of its authors: https://github.com/zhangmarvin/memo.

    ``augment`` is called as ``augment(image, number, generator)`` with one network input [C, H, W] and a generator on the
    host, and gives [number, C, H, W]; None: :func:`wildtta.methods.augmix.augmix` on pixels.
    """

    name: ClassVar[str] = "memo"
    title: ClassVar[str] = "MEMO"
    needs_images: ClassVar[bool] = True
    order: ClassVar[int] = 90
    paper: ClassVar[str] = "Zhang et al., NeurIPS 2022, https://arxiv.org/abs/2110.09506"
    updates: ClassVar[str] = "all parameters, anew for each image"
    passes: ClassVar[str] = "65 / 64"
    prediction: ClassVar = "after the update"
    scope: ClassVar[Scope] = "everything"
    batch_statistics: ClassVar[BatchStatistics] = "source"
    learning_rates: ClassVar[Rates] = {
        "convolutional": (2.5e-4, 2.5e-4),
        "transformer": (1e-5, 1e-5),
    }

    lr: float | None = option("learning rate; None: the paper's for the network's family", None, within=POSITIVE)
    optimizer: Literal["auto", "sgd", "adamw"] = option("auto: sgd, on transformers adamw", "auto")
    weight_decay: float | None = option("None: 0.01 with adamw, 0 with sgd", None, within=NOT_NEGATIVE)
    views: int = option("augmented views of an image", 64, within=AT_LEAST_ONE)
    steps: int = option("updates per image", 1, within=AT_LEAST_ONE)
    prior: float | None = option(
        "N: weight of the source's BatchNorm statistics; None: they alone", 16.0, within=NOT_NEGATIVE
    )
    severity: float = option("severity of AugMix's operations, up to 10", 1.0, within=Range(0.1, 10))
    carry: bool = option("keep the optimizer's moments from image to image", False)
    augment: Callable[[Tensor, int, torch.Generator], Tensor] | None = option("makes views; None: AugMix", None)
    mean: Level = option(MEAN_HELP, None, within=FINITE)
    std: Level = option(STD_HELP, None, within=POSITIVE)
    seed: int = option("seed of the views", 0)

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        if images.dim() == 4:
            return {"views": 4}

        def noisy(image: Tensor, number: int, generator: torch.Generator) -> Tensor:
            return image + 0.1 * torch.randn((number, *image.shape), generator=generator).to(image)

        return {"views": 4, "augment": noisy}

    def _optimizer(self, engine: Engine) -> FlatOptimizer:
        by_family: Literal["sgd", "adamw"] = "adamw" if engine.network.family == "transformer" else "sgd"
        kind = by_family if self.optimizer == "auto" else self.optimizer
        default = 0.01 if kind == "adamw" else 0.0
        return FlatOptimizer(kind, weight_decay=default if self.weight_decay is None else self.weight_decay)

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        assert engine.source is not None
        return {**(self._optimizer(engine).first_state(engine.source) if self.carry else {}), **no_draws_yet()}

    # -- answering -----------------------------------------------------------------------------------------------------

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        if engine.norms and self.prior is not None:
            return _joined(images, [self._forward(engine, image[None], grad=False) for image in images])
        return engine.forward(images, grad=False)

    def step(self, engine: Engine, images: Tensor) -> Answer:
        outputs: list[Output] = []
        losses: list[Tensor] = []
        norms: list[Tensor] = []
        sound = torch.ones((), dtype=torch.bool, device=engine.device)
        for image in images:
            output, loss, norm, fine = self._episode(engine, image)
            losses.append(loss)
            norms.append(norm)
            sound = sound & fine
            outputs.append(output)
        passed = self.views * self.steps * len(images)
        return answer_with(
            engine,
            _joined(images, outputs),
            forwards=len(images) + passed,
            backwards=passed,
            learned=True,
            skipped=~sound,
            loss=torch.stack(losses).mean(),
            gradient_norm=torch.stack(norms).mean(),
        )

    def _episode(self, engine: Engine, image: Tensor) -> tuple[Output, Tensor, Tensor, Tensor]:
        """Learn from one image, answer it, forget: output, loss, gradient norm, and whether all was finite."""
        assert engine.source is not None
        optimizer, learnables = self._optimizer(engine), engine.learnables
        theta, state = engine.source, optimizer.first_state(engine.source)
        if self.carry:
            state = {name: engine.memory[name] for name in state}
        sound = torch.ones((), dtype=torch.bool, device=engine.device)
        try:
            for _ in range(self.steps):
                logits = self._forward(engine, self._views(engine, image), grad=True).logits
                with losses_in_full_precision(engine.device):
                    loss = marginal_entropy(logits)
                    gradient = learnables.gradient(loss)
                theta, state = optimizer.update(theta, gradient, state, engine.lr)
                sound = sound & torch.isfinite(theta).all() & torch.isfinite(gradient).all()
                learnables.assign(torch.where(sound, theta, engine.source))
            output = self._forward(engine, image[None], grad=False)
        finally:
            learnables.assign(engine.source)
        if self.carry:
            engine.keep(sound, state)
        return output, loss.detach(), gradient.norm(), sound

    def _views(self, engine: Engine, image: Tensor) -> Tensor:
        generator = next_generator(engine.memory, self.seed, torch.device("cpu"))
        if self.augment is not None:
            views = self.augment(image, self.views, generator)
            if not isinstance(views, Tensor) or views.dim() != image.dim() + 1:
                raise ValueError(f"augment= must give {self.views} views of {tuple(image.shape)}, gave {told(views)}")
            return views
        scale = pixel_scale(engine.network.module, image[None], self.mean, self.std)
        pixels = scale.pixels(image[None])[0].clamp(0, 1)
        return scale.inputs(augmix(pixels, self.views, generator, self.severity))

    def _forward(self, engine: Engine, images: Tensor, *, grad: bool) -> Output:
        if not engine.norms or self.prior is None:
            return engine.forward(images, grad=grad)
        source_mean, source_variance = engine.norms.source()
        share = self.prior / (self.prior + 1)

        def rule(place: slice, batch: Moments, count: int) -> Moments:
            mean = share * source_mean[place] + (1 - share) * batch[0].detach()
            variance = share * source_variance[place] + (1 - share) * unbiased(batch[1].detach(), count)
            return mean, variance

        with engine.normalised_by(rule):
            return engine.forward(images, grad=grad)


def _joined(images: Tensor, outputs: list[Output]) -> Output:
    """One output of single-image ones. Of an object that is no tensor, fields beside the logits are the last image's."""
    logits = torch.cat([output.logits.detach() for output in outputs])
    features = torch.cat([output.features.detach() for output in outputs])
    return Output(images, logits, features, with_logits(outputs[-1].raw, logits))
