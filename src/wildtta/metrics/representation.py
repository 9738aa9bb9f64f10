"""Health of a representation: redundancy R, inequity I and the share of dimensions near zero.

R is measured in two normalisations: of columns (the paper's equation) and of rows (what the paper uses for
GroupNorm networks). Values of a batch have a floor of about D / (B − 1), so they can only be compared at one
batch size and width; :class:`FeatureStatistics` gives the values over a whole stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.methods.sar2.redundancy import (
    inequity,
    inequity_of_logits,
    normalise_rows,
    redundancy,
    redundancy_from_moments,
)
from wildtta.network.features import FeatureTap, features_of
from wildtta.network.head import head_weights
from wildtta.network.output import logits_of

SPARSITY_LEVELS: tuple[float, ...] = (0.1, 0.01, 0.001)
"""Below which mean magnitude a feature dimension counts as near zero (the paper's table M)."""


def batch_redundancy_and_inequity(rows: Tensor, head: nn.Module) -> dict[str, Tensor]:
    """R in both normalisations and I of one batch of features ``[B, D]``, as 0-dim tensors."""
    with torch.no_grad():
        wide = rows if rows.dtype == torch.float64 else rows.float()
        return {
            "feature_redundancy": redundancy(wide, normalisation="columns"),
            "feature_redundancy_rows": redundancy(wide, normalisation="rows"),
            "feature_inequity": inequity(wide, *_weights(head, wide)),
        }


def features(forward: Callable[[Tensor], Any], head: nn.Module, images: Tensor) -> Tensor:
    """``[batch, D]`` features of ``images``: what enters ``head`` in a pass without gradient."""
    tap = FeatureTap()
    with torch.no_grad(), head.register_forward_hook(tap.keep):
        logits = logits_of(forward(images))
    passes = tap.take()
    if not passes:
        raise RuntimeError("the head was not called in a forward pass, so the features could not be read")
    return features_of(head, passes, logits)


def tsne(points: Tensor, *, seed: int = 0, perplexity: float = 30.0) -> npt.NDArray[Any]:
    """t-SNE coordinates ``[n, 2]`` of features ``[n, D]`` (scikit-learn, PCA start: the seed decides it)."""
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError("t-SNE needs scikit-learn: pip install 'wildtta[report]'") from error
    if len(points) < 4:
        raise ValueError(f"t-SNE needs at least 4 points, got {len(points)}")
    # scikit-learn wants a perplexity below the number of points.
    transform = TSNE(2, perplexity=min(perplexity, (len(points) - 1) / 3), init="pca", random_state=seed)
    return np.asarray(transform.fit_transform(points.float().cpu().numpy()))


class FeatureStatistics:
    """R, I and sparsity over any number of batches, from sums kept on the features' device in float64.

    Second moments are summed about the first batch's mean: features whose mean is far above their deviation
    would lose their digits otherwise. (Apple's GPUs have no float64; the sums are float32 there.)

    Args:
        moments: also keep the two D × D matrices that R needs; without them there is no R.
    """

    def __init__(self, *, moments: bool = True) -> None:
        self._moments = moments
        self._count = 0
        self._sums: dict[str, Tensor] = {}

    def update(self, rows: Tensor) -> None:
        """One batch of features ``[B, D]``."""
        with torch.no_grad():
            wide = rows.to(torch.float32 if rows.device.type == "mps" else torch.float64)
            if not self._sums:
                self._sums["shift"] = wide.mean(0)
            self._add("absolute", wide.abs().sum(0))
            self._add("total", wide.sum(0))
            if self._moments:
                about = wide - self._sums["shift"]
                self._add("first", about.sum(0))
                self._add("second", about.T @ about)
                standard = normalise_rows(wide, "rows")
                self._add("first_rows", standard.sum(0))
                self._add("second_rows", standard.T @ standard)
        self._count += len(rows)

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name].add_(value) if name in self._sums else value

    def sparsity(self) -> dict[str, float]:
        """Percent of the D dimensions whose mean magnitude over all samples is below each level (table M)."""
        magnitude = self._sum("absolute") / self._count
        return {str(level): 100 * float((magnitude < level).double().mean()) for level in SPARSITY_LEVELS}

    def health(self, head: nn.Module) -> dict[str, Any]:
        """R in both normalisations, I, and the class of the mean feature (table L, figure D)."""
        mean = (self._sum("total") / self._count)[None]
        logits = nn.functional.linear(mean, *_weights(head, mean))
        values: dict[str, Any] = {
            "samples": self._count,
            "inequity": float(inequity_of_logits(logits)),
            "inequity_class": int(logits.argmax()),
        }
        if self._moments:
            of_columns = redundancy_from_moments(self._count, self._sums["first"], self._sums["second"])
            of_rows = redundancy_from_moments(
                self._count, self._sums["first_rows"], self._sums["second_rows"], normalisation="rows"
            )
            values |= {"redundancy": float(of_columns), "redundancy_rows": float(of_rows)}
        return values

    def _sum(self, name: str) -> Tensor:
        if not self._count:
            raise ValueError("no features were recorded")
        return self._sums[name]


def _weights(head: nn.Module, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the head in the precision and on the device of ``like``."""
    weight, bias = head_weights(head)
    return weight.detach().to(like), None if bias is None else bias.detach().to(like)
