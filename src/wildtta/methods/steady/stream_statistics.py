"""BatchNorm by the stream's own statistics: most in the first layers, and only where it helps.

A BatchNorm network is hurt by a shift because its layers normalise by the moments of the source. A batch's own moments
repair that, and ruin a network whose batch holds one class or one image. So the moments of the stream replace the source's
by a share,

    μ_l = μ_l⁰ + s_l (μ̂_l − μ_l⁰),    s_l = (t + (1 − t)(1 − l/L)²) · n / (n + 16),    l = 0 … L−1

(variances alike), with μ̂ the stream's moments and n the samples behind them. Three things decide how far they are trusted.

**The classes seen.** The last layers' moments are made of the classes, the first layers' are not. So the share falls with
depth, to nothing in a stream of few classes (t = 0), not at all where most classes have been answered (t = 1). The measure
is that of ``evidence.py``: the sampling error of m of C classes. Answers by the stream's moments count for it also where they
were not given: a shift that leaves the source one answer would else never show its classes.

**A change.** The moments are those of about the last 1,000 samples, or since the inputs last changed. Whether they did, the
first layer tells, before anything adapts: each sample has a mean and a log variance per channel, and the mean of the last
samples is compared with that of the stream, in units of the spread between samples. A change of the classes moves it by
less than one such unit, most corruptions by several:

    e² = mean_c (x̄_c − m_c)² / s_c²,    n ← n / (1 + e⁴)    for every 64 samples

**Certainty.** Whether the network is better so, its own entropy tells: nothing was trained to lower it. It answers with the
stream's moments while they make it more certain, and with the source's otherwise. Samples that the source is uncertain of
gain by nearly any other moments (regression to the mean), so that a run of them would decide for all: somebody who sends
again what was answered wrongly sends just these. So the gain g is measured apart for samples of like certainty, over the
last ones of each stratum h, and weighed by how often they come in the long run, f:

    advantage = Σ_h f_h g_h / Σ_h f_h

The fewer classes there are, the more a stream of one of them can gain certainty by moments that are wrong for it. So the
advantage must be larger, as far as the classes have not all been seen:

    advantage > 0.01 + 0.1 (1 − t) / (C − 1)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.methods.steady.evidence import classes_trusted
from wildtta.network.statistics import Moments, NormStatistics
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_SOURCE_WORTH = 16
"""Samples that the source's moments are worth against the stream's."""
_MEMORY = 1000
"""Samples after which what was seen of the stream counts 1/e."""
_LAST_MEMORY = 32
"""The same for the last samples, which a change is seen by; so many must have come before one is looked for."""
_FEWEST_ANSWERED = 64
"""Samples that must have come before the classes count as seen."""
_STRATA = 8
"""Of the source's entropy, from 0 to ln C."""
_STRATUM_MEMORY = 16
"""Samples of a stratum after which a gain counts 1/e."""
_NO_GAIN_WORTH = 1
"""Samples of a stratum that "no gain" is worth."""
_FIRST_MIX, _MIX_MEMORY = 1024, 8192
"""The strata's frequencies are those of the first samples, and follow the later ones slowly: these count 1/e after so many."""
_SMALLEST_ADVANTAGE = 0.01
"""Entropy in units of ln C by which the stream's moments must be more certain."""
_FEW_CLASSES_DOUBT = 0.1
"""C − 1 times what must be added to it where few of the classes have been seen."""
_LATELY = 64
"""Samples after which an answer by the stream's moments counts 1/e, whether it was given or not."""

STATE = {
    "stream_mean": "channel",
    "stream_square": "channel",
    "stream_samples": "one",
    "gain_sum": "stratum",
    "gain_samples": "stratum",
    "strata_mix": "stratum",
    "mix_samples": "one",
    "first_sum": "first",
    "first_square": "first",
    "last_sum": "first",
    "last_samples": "one",
    "answered": "class",
    "adapted_lately": "class",
}
"""What is kept, and per what: all layers' channels, the first layer's (mean and log variance), classes, strata, or once."""
State = dict[str, Tensor]


def no_statistics(norms: NormStatistics, classes: int) -> State:
    """The state before the first batch."""
    mean, _ = norms.source()
    sizes = {"channel": mean.shape, "first": (2 * norms.first_channels,), "class": (classes,), "stratum": (_STRATA,)}
    return {name: mean.new_zeros(sizes.get(size, ())) for name, size in STATE.items()}


def change(last: Tensor, stream: Moments, samples: tuple[Tensor, Tensor]) -> Tensor:
    """e²: squared distance of the mean of the ``last`` samples from the stream's, in units of its variance, less chance.

    ``samples``: how many are behind the two means, which gives what chance alone would make of it.
    """
    mean, variance = stream
    distance = ((last - mean).square() / variance.clamp(min=1e-9)).mean()
    return (distance - 1 / samples[0] - 1 / samples[1]).clamp(min=0)


def share_of_stream(samples: Tensor, depth: Tensor, trust: Tensor) -> Tensor:
    """s = (t + (1 − t)(1 − l/L)²) · n / (n + 16) per channel, from ``depth`` l/L and the trust t in the classes seen."""
    return (trust + (1 - trust) * (1 - depth).square()) * samples / (samples + _SOURCE_WORTH)


def blended(sums: Moments, samples: Tensor, source: Moments, share: Tensor) -> Moments:
    """The moments to normalise by, from sums of means and of squares over ``samples``."""
    mean, square = (value / samples.clamp(min=1e-9) for value in sums)
    variance = (square - mean.square()).clamp(min=0)
    return source[0] + share * (mean - source[0]), source[1] + share * (variance - source[1])


def followed_gains(state: State, before: Tensor, after: Tensor, images: int) -> State:
    """``state`` with the gains of a batch of so many ``images``, from its answers' entropies ``before`` and ``after`` [N].

    Entropies are in units of ln C; several answers of an image share its one.
    """
    strata = (before * _STRATA).long().clamp(0, _STRATA - 1)
    kinds = torch.nn.functional.one_hot(strata, _STRATA).to(before.dtype) * (images / len(before))
    counts = kinds.sum(0)
    fading = (-counts / _STRATUM_MEMORY).exp()
    samples = state["mix_samples"] + images
    pace = torch.minimum(1 / samples, _FIRST_MIX / samples.square()).clamp(min=1 / _MIX_MEMORY)
    return state | {
        "gain_sum": fading * state["gain_sum"] + kinds.T @ (before - after),
        "gain_samples": fading * state["gain_samples"] + counts,
        "strata_mix": state["strata_mix"].lerp(counts / images, (images * pace).clamp(max=1)),
        "mix_samples": samples,
    }


def advantage(state: State) -> Tensor:
    """Σ f g / Σ f: what the stream's moments gain in certainty over the long-run mix of samples, in units of ln C."""
    gains = state["gain_sum"] / (state["gain_samples"] + _NO_GAIN_WORTH)
    return (state["strata_mix"] * gains).sum() / state["strata_mix"].sum().clamp(min=1e-9)


def needed_advantage(trust: Tensor, classes: int) -> Tensor:
    """0.01 + 0.1 (1 − t)/(C − 1): by how much the stream's moments must be more certain, in units of ln C."""
    return _SMALLEST_ADVANTAGE + _FEW_CLASSES_DOUBT * (1 - trust) / max(1, classes - 1)


def answer_of(engine: Engine, images: Tensor, *, learning: bool) -> tuple[Output, State]:
    """The answer to ``images``, and the state after them where ``learning`` (else as it was): two passes, no gradient."""
    state = {name: engine.memory[name] for name in STATE}
    source, depth = engine.norms.source(), engine.norms.depths()
    with engine.norms.first_inputs() as first:
        plain = engine.forward(images, grad=False)
    if learning:
        state = _followed(state, first[0].to(source[0].dtype))
    samples = state["stream_samples"]
    share = share_of_stream(samples, depth, _trust(state))
    means, squares = state["stream_mean"].clone(), state["stream_square"].clone()

    def rule(place: slice, batch: Moments, count: int) -> Moments:
        if learning:
            mean, variance = (value.to(means.dtype) for value in batch)
            means[place] += len(images) * mean
            squares[place] += len(images) * (variance + mean.square())
        own = (source[0][place], source[1][place])
        return blended((means[place], squares[place]), samples, own, share[place])

    with engine.normalised_by(rule):
        adapted = engine.forward(images, grad=False)
    if learning:
        before, after = (
            entropy(output.logits).to(means.dtype) / math.log(engine.network.classes) for output in (plain, adapted)
        )
        state = followed_gains(state | {"stream_mean": means, "stream_square": squares}, before, after, len(images))
        state["adapted_lately"] = _counted(state["adapted_lately"], adapted.logits, len(images), _LATELY)
    needed = needed_advantage(_trust(state), engine.network.classes)
    logits = torch.where(advantage(state) > needed, adapted.logits, plain.logits)
    if learning:
        state["answered"] = _counted(state["answered"], logits, len(images), _MEMORY)
    return plain.answering(logits), state


def _trust(state: State) -> Tensor:
    """t: trust in the classes answered so far, 0 before 64 samples; the less, the fewer classes there are.

    With two classes the errors on one alone are answers of the other, and both look as if they had been there.
    """
    answered, lately = state["answered"], state["adapted_lately"]
    given = classes_trusted(answered) * (answered.sum() >= _FEWEST_ANSWERED - 1e-3)
    found = classes_trusted(lately) * (lately.sum() >= _LATELY / 2)
    return (len(answered) - 2) / max(1, len(answered) - 1) * torch.maximum(given, found)


def _followed(state: State, first: Tensor) -> State:
    """``state`` before this batch's moments: what is kept of the stream's, after a look at the first layer's inputs."""
    number = len(first)
    fading = math.exp(-number / _LAST_MEMORY)
    last_sum = fading * state["last_sum"] + first.sum(0)
    last_samples = fading * state["last_samples"] + number
    samples = state["stream_samples"].clamp(min=1e-9)
    mean = state["first_sum"] / samples
    variance = state["first_square"] / samples - mean.square()
    moved = change(last_sum / last_samples, (mean, variance), (last_samples, samples))
    moved = moved * (samples >= _LAST_MEMORY)
    unchanged = (1 + moved.square()).pow(-min(1.0, number / 64))
    keep = math.exp(-number / _MEMORY) * unchanged
    return state | {
        **{name: unchanged * state[name] for name in ("gain_sum", "gain_samples", "mix_samples")},
        "stream_mean": keep * state["stream_mean"],
        "stream_square": keep * state["stream_square"],
        "stream_samples": keep * state["stream_samples"] + number,
        "first_sum": keep * state["first_sum"] + first.sum(0),
        "first_square": keep * state["first_square"] + first.square().sum(0),
        "last_sum": last_sum,
        "last_samples": last_samples,
    }


def _counted(answered: Tensor, logits: Tensor, images: int, memory: int) -> Tensor:
    """How often each class was answered, [C], over about ``memory`` images; several answers of an image share its one."""
    counts = torch.zeros_like(answered).index_add_(0, logits.argmax(1), answered.new_ones(len(logits)))
    return math.exp(-images / memory) * answered + counts * (images / len(logits))
