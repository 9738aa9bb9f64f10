"""BatchNorm by the stream's own statistics: most in the first layers, none in the last, and only where it helps.

A BatchNorm network is hurt by a shift because its layers normalise by the moments of the source. A batch's own moments
repair that, and ruin a network whose batch holds one class or one image: the last layers' moments are made of the
classes. The first layers' are not. So the moments of the stream replace the source's by a share that falls with depth,

    μ_l = μ_l⁰ + s_l (μ̂_l − μ_l⁰),    s_l = (1 − l/L) · n / (n + 16),    l = 0 … L−1

(variances alike), with μ̂ the stream's moments over about 1,000 samples and n the samples behind them.

Whether the network is better so, its own certainty tells: nothing was trained to raise it. It answers with the stream's
moments while they have made it more certain over the last samples, and with the source's otherwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.network.statistics import Moments, NormStatistics
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_SOURCE_WORTH = 16
"""Samples that the source's moments are worth against the stream's."""
_MEMORY = 1000
"""Samples after which what was seen of the stream counts 1/e."""
_CHOICE_MEMORY = 64
"""The same for the comparison of the two answers."""
_SMALLEST_ADVANTAGE = 0.01
"""Entropy in units of ln C by which the stream's moments must be more certain."""


def no_statistics(norms: NormStatistics) -> dict[str, Tensor]:
    """The state before the first batch: sums of means and squares, the samples behind them, the advantage."""
    mean, variance = norms.source()
    return {
        "stream_mean": torch.zeros_like(mean),
        "stream_square": torch.zeros_like(variance),
        "stream_samples": mean.new_zeros(()),
        "stream_advantage": mean.new_zeros(()),
    }


def stream_moments(sums: Moments, samples: Tensor, source: Moments, depth: Tensor) -> Moments:
    """The moments to normalise by, from sums of means and of squares over ``samples``, and ``depth`` l/L per channel."""
    seen = samples.clamp(min=1e-9)
    share = (1 - depth) * samples / (samples + _SOURCE_WORTH)
    mean, square = sums[0] / seen, sums[1] / seen
    variance = (square - mean.square()).clamp(min=0)
    return source[0] + share * (mean - source[0]), source[1] + share * (variance - source[1])


def answer_of(engine: Engine, images: Tensor, *, learning: bool) -> tuple[Output, dict[str, Tensor]]:
    """The answer to ``images``, and the state after them where ``learning`` (else as it was): two passes, no gradient."""
    memory = engine.memory
    source, depth = engine.norms.source(), engine.norms.depths()
    keep = math.exp(-len(images) / _MEMORY) if learning else 1.0
    samples = keep * memory["stream_samples"] + (len(images) if learning else 0)
    means, squares = keep * memory["stream_mean"], keep * memory["stream_square"]

    def rule(place: slice, batch: Moments, count: int) -> Moments:
        if learning:
            mean, variance = (value.to(means.dtype) for value in batch)
            means[place] += len(images) * mean
            squares[place] += len(images) * (variance + mean.square())
        own = (source[0][place], source[1][place])
        return stream_moments((means[place], squares[place]), samples, own, depth[place])

    plain = engine.forward(images, grad=False)
    with engine.normalised_by(rule):
        adapted = engine.forward(images, grad=False)
    advantage = memory["stream_advantage"]
    if learning:
        gain = (entropy(plain.logits) - entropy(adapted.logits)).mean() / math.log(engine.network.classes)
        advantage = advantage.lerp(gain.to(advantage.dtype), 1 - math.exp(-len(images) / _CHOICE_MEMORY))
    logits = torch.where(advantage > _SMALLEST_ADVANTAGE, adapted.logits, plain.logits)
    state = {
        "stream_mean": means,
        "stream_square": squares,
        "stream_samples": samples,
        "stream_advantage": advantage,
    }
    return plain.answering(logits), state
