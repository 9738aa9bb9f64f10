"""ZeroSiam: entropy minimisation behind a linear predictor, aligned with the network's own prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import Rates
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.losses import entropy, masked_mean
from wildtta.methods.options import NOT_NEGATIVE, option
from wildtta.methods.registry import register
from wildtta.step.loop import Selection
from wildtta.step.optimizers import momentum_update
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

# The predictor's learning rate as a multiple of the norms', by family: the authors' for ResNet-50-GN and ViT-Base.
_PREDICTOR_RATES = {"convolutional": 10.0, "transformer": 1.0}


def symmetric_divergence(online: Tensor, target: Tensor) -> Tensor:
    """KL(p_t ‖ p_o) + KL(p_o ‖ p_t) of two predictions given as logits, per sample."""
    log_online, log_target = F.log_softmax(online, -1), F.log_softmax(target, -1)
    return ((log_online.exp() - log_target.exp()) * (log_online - log_target)).sum(-1)


@register
@dataclass(frozen=True, kw_only=True)
class ZeroSiam(GradientMethod):
    """Asymmetric Siamese entropy minimisation (Chen et al., ICLR 2026).

        min over norm parameters and P of  mean_b [ H(p_o) + α D(p_o, sg[p_t]) ],
        p_o = softmax(h(P z)),   p_t = softmax(h(z)),   D: symmetric KL divergence

    z is the feature, h the head, P a linear predictor (D × D, no bias) that starts as the identity; sg stops the gradient.
    A constant one-hot answer is no optimum any more: the online branch can only sharpen what the target follows. One
    pass through the network serves both branches; the target branch, the network itself, answers. α = 1; the predictor
    learns at its own rate. P and its momentum (2 D² numbers) belong to the saved state.
    Paper: https://arxiv.org/abs/2509.23183. Code of its authors: https://github.com/Cascol-Chen/ZeroSiam.
    """

    name: ClassVar[str] = "zerosiam"
    title: ClassVar[str] = "ZeroSiam"
    order: ClassVar[int] = 190
    paper: ClassVar[str] = "Chen et al., ICLR 2026, https://arxiv.org/abs/2509.23183"
    updates: ClassVar[str] = "affine parameters of all norms; a linear predictor of its own"
    learning_rates: ClassVar[Rates] = {
        "convolutional": (2.5e-3 / 16, 2.5e-3),
        "transformer": (5e-3 / 32, 5e-3),
    }

    alignment: float = option("α, weight of the divergence between the branches", 1.0, within=NOT_NEGATIVE)
    predictor_rate: float | None = option(
        "the predictor's learning rate as a multiple of lr; None: 10 (convolutional), 1 (transformer)",
        None,
        within=NOT_NEGATIVE,
    )

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        identity = torch.eye(engine.network.feature_width, dtype=engine.dtype, device=engine.device)
        return {
            **super().declare(engine),
            "predictor": identity,
            "predictor_momentum": torch.zeros_like(identity),
        }

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        return self._siamese(engine, output.features, output.logits, engine.memory["predictor"])

    def _siamese(self, engine: Engine, features: Tensor, logits: Tensor, predictor: Tensor) -> Tensor:
        """H(p_o) + α D(p_o, sg[p_t]) of each sample."""
        online = engine.head_logits(F.linear(features, predictor))
        return entropy(online) + self.alignment * symmetric_divergence(online, logits.detach())

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        """The predictor's own step. Its gradient needs the features alone, so the network is not passed again."""
        memory = engine.memory
        with torch.enable_grad():
            predictor = memory["predictor"].clone().requires_grad_()
            losses = self._siamese(engine, first.features.detach(), first.logits.detach(), predictor)
            (gradient,) = torch.autograd.grad(masked_mean(losses, selection.mask), predictor)
        direction, momentum = momentum_update(
            gradient, memory["predictor_momentum"], momentum=self.momentum, nesterov=self.nesterov
        )
        multiple = _PREDICTOR_RATES[engine.network.family] if self.predictor_rate is None else self.predictor_rate
        updated = memory["predictor"] - engine.lr * multiple * direction
        allowed = allowed & torch.isfinite(updated).all()
        engine.keep(allowed, {"predictor": updated, "predictor_momentum": momentum})

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        predictor, momentum = engine.memory["predictor"], engine.memory["predictor_momentum"]
        identity = torch.eye(len(predictor), dtype=predictor.dtype, device=predictor.device)
        predictor.copy_(torch.where(trigger, identity, predictor))
        momentum.mul_(~trigger)
