"""SPA: predictions on deteriorated images are drawn to those on the images themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import Rates
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.losses import masked_mean
from wildtta.methods.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Range, option
from wildtta.methods.registry import register
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.loop import Gradient, Loss, Selection
from wildtta.step.optimizers import momentum_update
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Draws = Callable[[torch.Size, torch.Generator], Tensor]
"""Random numbers of a shape, from a generator."""

# The authors' for ResNet-50-GN and ViT-Base.
_PREDICTOR_RATES = {"convolutional": 10.0, "transformer": 5.0}
_MASKED = {"convolutional": 0.1, "transformer": 0.2}
_NOISE = {"convolutional": 0.1, "transformer": 0.4}
_LOW_FREQUENCIES = 0.2
"""Side of the square of low frequencies, as a share of the image's."""


@register
@dataclass(frozen=True, kw_only=True)
class SPA(GradientMethod):
    """Self-bootstrapping by active deterioration (Niu et al., ICML 2025).

        min over norm parameters and P of  Σ over two deteriorations x̃ of x of
        mean over S of  KL(sg[p(x)] ‖ p_P(x̃)),   S = { x : max p(x) > max p_P(x̃) },   p_P = softmax(h(P z))

    One deterioration sets a share of the low-frequency amplitudes to 0. The other blends each patch k with Gaussian
    noise, (1 − α_k²) x + α_k² n, and cuts the result to ± ``limit``; α moves against the loss (lr 1, momentum 0.9) while
    the mean of α² is held at ``noise``. P is a linear predictor (D × D) that starts as the identity and learns at its
    own rate. The network's own prediction answers. Shares and rates are the authors' for ResNet50-GN and ViT-B. Their rates are
    for batches of 64; below, they fall as Tent's do.
    Paper: https://arxiv.org/abs/2504.08010. Code of its authors: https://github.com/mr-eggplant/SPA.

    ``kept_frequencies`` and ``noise_draws`` are called as ``f(shape, generator)``: 1 where an amplitude is kept, before
    the mask is made symmetric, for the shape of the batch with frequency 0 in the middle; normal draws for the shape of
    one image.
    """

    name: ClassVar[str] = "spa"
    title: ClassVar[str] = "SPA"
    order: ClassVar[int] = 188
    paper: ClassVar[str] = "Niu et al., ICML 2025, https://arxiv.org/abs/2504.08010"
    updates: ClassVar[str] = "affine parameters of all norms; a linear predictor and the noise of its own"
    passes: ClassVar[str] = "3 / 2"
    learning_rates: ClassVar[Rates] = {
        "convolutional": (2.5e-3 / 32, 2.5e-3),
        "transformer": (1e-2 / 64, 1e-2),
    }

    predictor_rate: float | None = option(
        "the predictor's learning rate as a multiple of lr; None: 10 (convolutional), 5 (transformer)",
        None,
        within=NOT_NEGATIVE,
    )
    masked: float | None = option(
        "share of low frequencies set to 0; None: 0.1 (convolutional), 0.2 (transformer)", None, within=Range(0, 1)
    )
    noise: float | None = option(
        "mean of α², the share of noise; None: 0.1 (convolutional), 0.4 (transformer)",
        None,
        within=Range(0, 1, open=True),
    )
    patch: int = option("side of a patch that shares one α, in pixels", 16, within=AT_LEAST_ONE)
    limit: float | None = option("noisy inputs are cut to ± this; None: not", 1.0, within=POSITIVE)
    kept_frequencies: Draws | None = option("which amplitudes are kept; None: draws", None)
    noise_draws: Draws | None = option("the noise; None: draws", None)
    seed: int = option("seed of masks and noise", 0)

    @property
    def differentiates_first_pass(self) -> bool:
        return False

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        identity = torch.eye(engine.network.feature_width, dtype=engine.dtype, device=engine.device)
        shape = engine.image_shape or ()
        patches = math.prod(-(-side // self.patch) for side in shape[-2:]) if len(shape) == 3 else 0
        amounts = torch.full((patches,), math.sqrt(self._noise(engine)), dtype=engine.dtype, device=engine.device)
        return {
            **super().declare(engine),
            "predictor": identity,
            "predictor_momentum": torch.zeros_like(identity),
            "noise_amounts": amounts,
            "noise_momentum": torch.zeros_like(amounts),
            **no_draws_yet(),
        }

    def _noise(self, engine: Engine) -> float:
        return self.noise or _NOISE[engine.network.family]

    def select(self, engine: Engine, first: Output) -> Selection:
        if first.images.dim() != 4:
            raise ValueError(
                f"SPA deteriorates images [batch, channels, height, width], got inputs of shape "
                f"{tuple(first.images.shape)}; use another method for them"
            )
        number = len(first.logits)
        return Bootstrap(None, first.labels, further_forwards=2 * number, further_backwards=2 * number)

    def gradient(self, engine: Engine, first: Output, selection: Selection) -> Gradient:
        """Of the loss, for norms, predictor and amounts of noise at once."""
        assert isinstance(selection, Bootstrap)
        memory = engine.memory
        predictor = memory["predictor"].clone().requires_grad_()
        amounts = memory["noise_amounts"].clone().requires_grad_()
        generator = next_generator(memory, self.seed, first.images.device)
        parts = []
        for images in (self._masked(engine, first.images, generator), self._noisy(first.images, amounts, generator)):
            features = engine.forward(images, grad=True).features
            answers = engine.head_logits(F.linear(features, predictor))
            parts.append(bootstrap_loss(answers, first.logits.detach(), first.usable))
        everything = torch.full((), len(first.logits), device=engine.device)
        loss = Loss(first.entropies.detach().mean(), everything, parts)
        gradient, (of_predictor, of_amounts) = engine.learnables.gradient_with(loss.total, (predictor, amounts))
        selection.predictor_gradient, selection.noise_gradient = of_predictor, of_amounts
        return Gradient(gradient, loss, loss, gradient.norm())

    def _masked(self, engine: Engine, images: Tensor, generator: torch.Generator) -> Tensor:
        share = _MASKED[engine.network.family] if self.masked is None else self.masked
        if self.kept_frequencies is None:
            kept = torch.rand(images.shape, generator=generator, device=images.device) >= share
        else:
            kept = self.kept_frequencies(images.shape, generator).to(images.device)
        return without_frequencies(images, kept.to(images.dtype))

    def _noisy(self, images: Tensor, amounts: Tensor, generator: torch.Generator) -> Tensor:
        shape = images.shape[1:]
        draw = self.noise_draws or (
            lambda shape, generator: torch.randn(shape, generator=generator, device=images.device)
        )
        noise = draw(shape, generator).to(images.device, images.dtype)
        rows, columns = (-(-side // self.patch) for side in shape[-2:])
        shares = amounts.to(images.dtype).square().view(rows, columns)
        shares = shares.repeat_interleave(self.patch, 0).repeat_interleave(self.patch, 1)[: shape[1], : shape[2]]
        blended = (1 - shares) * images + shares * noise
        return blended if self.limit is None else blended.clamp(-self.limit, self.limit)

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        """The steps of the predictor (down) and of the amounts of noise (up)."""
        assert isinstance(selection, Bootstrap)
        assert selection.predictor_gradient is not None
        assert selection.noise_gradient is not None
        memory = engine.memory
        direction, predictor_momentum = momentum_update(
            selection.predictor_gradient, memory["predictor_momentum"], momentum=self.momentum
        )
        multiple = _PREDICTOR_RATES[engine.network.family] if self.predictor_rate is None else self.predictor_rate
        predictor = memory["predictor"] - engine.lr * multiple * direction
        upwards, noise_momentum = momentum_update(-selection.noise_gradient, memory["noise_momentum"], momentum=0.9)
        amounts = held_amounts(memory["noise_amounts"] - upwards, self._noise(engine))
        engine.keep(
            allowed & torch.isfinite(predictor).all() & torch.isfinite(amounts).all(),
            {
                "predictor": predictor,
                "predictor_momentum": predictor_momentum,
                "noise_amounts": amounts,
                "noise_momentum": noise_momentum,
            },
        )

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        fresh = self.declare(engine)
        names = ("predictor", "predictor_momentum", "noise_amounts", "noise_momentum")
        engine.keep(trigger, {name: fresh[name] for name in names})


@dataclass
class Bootstrap(Selection):
    """The whole batch, and what the backward pass found beside the norms' gradient."""

    predictor_gradient: Tensor | None = None
    noise_gradient: Tensor | None = None


def bootstrap_loss(deteriorated: Tensor, target: Tensor, usable: Tensor | None = None) -> Tensor:
    """Mean of KL(p_target ‖ p_deteriorated) over the samples whose target is more confident; 0 without any."""
    log_student, log_teacher = F.log_softmax(deteriorated, -1), F.log_softmax(target, -1)
    surer = log_teacher.amax(-1) > log_student.detach().amax(-1)
    surer = surer if usable is None else surer & usable
    return masked_mean((log_teacher.exp() * (log_teacher - log_student)).sum(-1), surer)


def without_frequencies(images: Tensor, kept: Tensor) -> Tensor:
    """Images [B, C, H, W] without the amplitudes of low frequency at which ``kept`` is 0, and those of their mirrors.

    Low are the frequencies in the middle of ``kept`` (where 0 is): a square of a fifth of each side. A real image has
    equal amplitudes at f and −f: the upper half of the square decides for both.
    """
    height, width = images.shape[-2:]
    low = torch.zeros(height, width, dtype=torch.bool, device=images.device)
    top, left = _middle(height), _middle(width)
    low[top, left] = True
    mask = torch.where(low, kept, 1.0)
    # With an even side, row 0 is the frequency without a mirror.
    rows, columns = 1 - height % 2, 1 - width % 2
    paired = mask[..., rows:, columns:].clone()
    middle_row, middle_column = paired.shape[-2] // 2, paired.shape[-1] // 2
    paired[..., middle_row + 1 :, :] = 1.0
    paired[..., middle_row, :middle_column] = 1.0
    paired = paired * paired.flip(-1, -2)
    mask = mask.clone()
    mask[..., rows:, columns:] = paired
    spectrum = torch.fft.fft2(images) * torch.fft.ifftshift(mask, dim=(-2, -1))
    image: Tensor = torch.fft.ifft2(spectrum).real
    return image


def _middle(side: int) -> slice:
    """Where the square of low frequencies lies along a side."""
    length = max(1, int(side * _LOW_FREQUENCIES))
    start = side - (side - length) // 2 - length
    return slice(start, start + length)


def held_amounts(amounts: Tensor, mean_square: float) -> Tensor:
    """``amounts`` scaled to this mean of squares, then cut to ± 1."""
    return (amounts / (amounts.square().mean() / mean_square).sqrt()).clamp(-1, 1)
