"""SHOT, online: information maximisation and pseudo-labels from class centroids; the head stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import Rates
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.losses import masked_mean, mean_row
from wildtta.methods.options import NOT_NEGATIVE, option
from wildtta.methods.registry import register
from wildtta.methods.tent import smoothed_entropy
from wildtta.network.parameters import ParameterChoice, Scope
from wildtta.step.loop import Loss, Selection
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class SHOT(GradientMethod):
    """Source hypothesis transfer (Liang et al., ICML 2020), one step per batch.

        min over all parameters but the head's of
        mean_b H(p_b) − w · H(mean_b p_b) + λ · mean_b CE(ŷ_b, p_b),   H(p) = −Σ_c p_c ln(p_c + 1e-5)

    ŷ_b is the class whose centroid is nearest to x_b by the cosine of (z, 1). Centroids are means of features weighted
    by p, then, once more, means over the samples that have the label; classes that nobody is predicted to have take no
    part. λ = 0.3, w = 1; SGD with Nesterov momentum and weight decay 10⁻³ at lr = 10⁻³, its authors' for a
    backbone. They pass the target set 15 times, label all of it once a pass and let the rate decay; here the batch is
    the target set, and the rate is constant. A batch of one is not learned from, as in their code.
    Paper: https://arxiv.org/abs/2002.08546. Code of its authors: https://github.com/tim-learn/SHOT.
    """

    name: ClassVar[str] = "shot"
    title: ClassVar[str] = "SHOT"
    order: ClassVar[int] = 25
    paper: ClassVar[str] = "Liang et al., ICML 2020, https://arxiv.org/abs/2002.08546"
    updates: ClassVar[str] = "all parameters but the head's"
    batch_of_one: ClassVar[str] = "no: it is answered and not learned from"
    scope: ClassVar[Scope] = "everything"
    learning_rates: ClassVar[Rates] = {"convolutional": (1e-3, 1e-3), "transformer": (1e-3, 1e-3)}

    nesterov: bool = option("Nesterov momentum", True, needs="momentum")
    weight_decay: float = option("added to the gradient times the weights", 1e-3, within=NOT_NEGATIVE)
    pseudo_labels: float = option("λ: weight of the cross-entropy with pseudo-labels", 0.3, within=NOT_NEGATIVE)
    diversity: float = option("weight w of the diversity term", 1.0, within=NOT_NEGATIVE)

    def parameter_choice(self, network: Network) -> ParameterChoice:
        heads = {id(parameter) for parameter in network.head.parameters()}
        return [name for name, parameter in network.module.named_parameters() if id(parameter) not in heads]

    @property
    def needs_samples(self) -> bool:
        return True

    def select(self, engine: Engine, first: Output) -> Selection:
        logits, features = first.logits.detach(), first.features.detach()
        assert first.usable is not None
        several = first.usable & (first.usable.sum() > 1)
        return Selection(several, nearest_centroids(features, logits.softmax(-1), first.usable))

    def loss(self, engine: Engine, output: Output, selection: Selection) -> Loss:
        probabilities, mask = output.logits.softmax(-1), selection.mask
        assert mask is not None
        parts = [masked_mean(smoothed_entropy(probabilities), mask)]
        parts.append(-self.diversity * smoothed_entropy(mean_row(probabilities, mask)))
        agreement = F.cross_entropy(output.logits, selection.labels, reduction="none")
        parts.append(self.pseudo_labels * masked_mean(agreement, mask))
        return Loss(masked_mean(output.entropies.detach(), mask), mask.sum(), parts)

    def adjusted(self, engine: Engine, gradient: Tensor, theta: Tensor) -> Tensor:
        return super().adjusted(engine, gradient, theta) + self.weight_decay * theta


def nearest_centroids(features: Tensor, probabilities: Tensor, usable: Tensor, rounds: int = 2) -> Tensor:
    """Pseudo-labels, [B]: of the classes that are predicted at all, the one with the nearest centroid (cosine of (z, 1)).

    Centroids are weighted by ``probabilities`` [B, C] in the first round and by the labels found in the later ones.
    Samples that are not ``usable`` [B] have no part in them.
    """
    points = F.normalize(F.pad(features, (0, 1), value=1.0), dim=1)
    weights, labels = probabilities, probabilities.argmax(1)
    classes, counted = probabilities.shape[1], usable.to(points.dtype)
    points = points.masked_fill(~usable[:, None], 0.0)
    for _ in range(rounds):
        weights = weights.masked_fill(~usable[:, None], 0.0)
        centroids = weights.T @ points / (1e-8 + weights.sum(0))[:, None]
        present = torch.bincount(labels, counted, minlength=classes) > 0
        similarities = points @ F.normalize(centroids, dim=1).T
        labels = similarities.masked_fill(~present, -torch.inf).argmax(1)
        weights = F.one_hot(labels, classes).to(points.dtype)
    return labels
