"""BatchNorm by the stream's own statistics: most in the first layers, and only where it helps.

A BatchNorm network is hurt by a shift because its layers normalise by the moments of the source. A batch's own moments
repair that, and ruin a network whose batch holds one class or one image. So the moments of the stream replace the source's
by a share,

    μ_l = μ_l⁰ + s_l (μ̂_l − μ_l⁰),    s_l = (t + (1 − t)(1 − l/L)²) · n / (n + 16),    l = 0 … L−1

(variances alike), with μ̂ the stream's moments and n the samples behind them. Three things decide how far they are trusted.

**The classes present.** The last layers' moments are made of the classes, the first layers' are not. So the share falls with
depth, to nothing in a stream of few classes (t = 0), not at all where most classes are there (t = 1). Which are there, the
answers tell that the *first* layers' moments alone would give (t = 0). The source's answers do not: a shift leaves it one.
Nor do those by all layers' moments: normalised by itself, one class is scattered over all. The measure is that of
``evidence.py``, the sampling error r of m of C classes, over about the last 256 samples. A shift can be too strong for the first
layers to repair. So another pass goes by all layers' moments (their own, since what enters a layer depends on how those before
it are normalised), and t is also as large as its *features* say: where they point to the classes more than noise does, and most
classes are answered, they are there (:mod:`wildtta.methods.steady.alignment`).

**A change.** The moments are those of about the last 1,000 samples, of fewer where most classes are among the last 256 (250
at t = 1), or since the inputs last changed. Whether they did, the first layer tells, before anything adapts: each sample has
a mean and a log variance per channel, and the mean of the last samples is compared with that of the stream, in units of the
spread between samples. A change of the classes moves it by less than one such unit, most corruptions by several:

    e² = mean_c (x̄_c − m_c)² / s_c²,    n ← n / (1 + e⁴)    for every 64 samples

**Information.** Whether the network is better so, its own outputs tell: nothing was trained to change them. It answers with
the stream's moments while they give it an advantage, and with the source's otherwise:

    advantage = certainty gained + t · diversity gained − 2 · few · scatter  >  0.01 + 0.1 (1 − t)/(C − 1)

- *Certainty*: the mean entropy of its answers falls. Samples that the source is uncertain of gain by nearly any other
  moments (regression to the mean), so that a run of them would decide for all: somebody who sends again what was answered
  wrongly sends just these. So the gain g is measured apart for samples of like certainty, over the last ones of each stratum
  h, and weighed by how often they come in the long run, f: Σ_h f_h g_h / Σ_h f_h.
- *Diversity*: the entropy of the mean answer rises. In noise a network can be certain of one wrong answer for all. Where the
  classes are there, certainty and diversity together are the information that the answers hold about the inputs.
- *Scatter*: where few classes are there (``few``, by r), fewer answers for the source's favourite class are no gain
  while it stays a favourite. They are its own images, taken for others.

The fewer classes there are, the more a stream of one of them can gain certainty by moments that are wrong for it. So the
advantage must be larger, as far as the classes are not all there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.methods.steady.alignment import cosines, noise_like
from wildtta.methods.steady.evidence import classes_seen, classes_trusted, rising, sampling_error
from wildtta.network.head import head_rows
from wildtta.network.statistics import Moments, NormStatistics
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_SOURCE_WORTH = 16
"""Samples that the source's moments are worth against the stream's."""
_MEMORY, _SHORT_MEMORY = 1000, 250
"""Samples after which what was seen of the stream counts 1/e: where classes are missing, and where they are all there."""
_LAST_MEMORY = 32
"""The same for the last samples, which a change is seen by; so many must have come before one is looked for."""
_ANSWER_MEMORY, _FEWEST_ANSWERS = 256, 32
"""Samples after which an answer counts 1/e, and answers that must have come before the classes count as seen."""
_MARGINAL_MEMORY = 128
"""The same for the mean answer: it must follow when the inputs have changed unnoticed."""
_EVERY = 2
"""Of so many samples one is passed by the first layers' moments, to see which classes are there, and one by all layers'."""
_ALIGNED, _ERROR_WEIGHT, _FEWEST_ALIGNED = (0.012, 0.025), 0.3, 128
"""Alignment above that of noise, less 0.3 r of the classes answered, up to which a stream may be of one class (97 % of such
streams lie below), and from which on it is not (99.5 %); and samples that must have come before it counts."""
_NOISE, _NOISE_BATCH = 256, 64
"""Samples of noise that are asked before the first batch, and how many at a time."""
_FEW_CLASSES = (0.2, 0.3)
"""Sampling error r up to which scattered answers are no matter, and from which on they count fully."""
_SCATTER_WEIGHT = 2.0
"""Entropy in units of ln C that the loss of all the favourite's answers is worth."""
_STRATA = 8
"""Of the source's entropy, from 0 to ln C."""
_STRATUM_MEMORY = 16
"""Samples of a stratum after which a gain counts 1/e."""
_NO_GAIN_WORTH = 1
"""Samples of a stratum that "no gain" is worth."""
_FIRST_MIX, _MIX_MEMORY = 1024, 8192
"""The strata's frequencies are those of the first samples, and follow the later ones slowly: these count 1/e after so many."""
_SMALLEST_ADVANTAGE = 0.02
"""Entropy in units of ln C by which the stream's moments must be more certain."""
_FEW_CLASSES_DOUBT = 0.1
"""C − 1 times what must be added to it where few of the classes have been seen."""
STATE = {
    "stream_mean": "channel",
    "stream_square": "channel",
    "whole_mean": "channel",
    "whole_square": "channel",
    "stream_samples": "one",
    "gain_sum": "stratum",
    "gain_samples": "stratum",
    "strata_mix": "stratum",
    "mix_samples": "one",
    "first_sum": "first",
    "first_square": "first",
    "last_sum": "first",
    "last_samples": "one",
    "early_answers": "class",
    "source_answers": "class",
    "source_marginal": "class",
    "stream_marginal": "class",
    "stream_answers": "class",
    "feature_sum": "feature",
    "aligned_sum": "one",
    "aligned_samples": "one",
    "noise_alignment": "one",
}
"""What is kept, and per what: all layers' channels, the first layer's (mean and log variance), classes, strata, features, or
once."""
_OF_THE_INPUTS = (
    *("gain_sum", "gain_samples", "mix_samples", "source_marginal", "stream_marginal"),
    *("feature_sum", "aligned_sum", "aligned_samples"),
)
"""What is forgotten when the inputs change, beside the moments. Which classes are there is not."""
State = dict[str, Tensor]


def no_statistics(norms: NormStatistics, classes: int, features: int) -> State:
    """The state before the first batch, of a network with so many ``classes`` and ``features``."""
    mean, _ = norms.source()
    sizes = {
        "channel": mean.shape,
        "first": (2 * norms.first_channels,),
        "class": (classes,),
        "stratum": (_STRATA,),
        "feature": (features,),
    }
    return {name: mean.new_zeros(sizes.get(size, ())) for name, size in STATE.items()}


def change(last: Tensor, stream: Moments, samples: tuple[Tensor, Tensor]) -> Tensor:
    """e²: squared distance of the mean of the ``last`` samples from the stream's, in units of its variance, less chance.

    ``samples``: how many are behind the two means, which gives what chance alone would make of it.
    """
    mean, variance = stream
    distance = ((last - mean).square() / variance.clamp(min=1e-9)).mean()
    return (distance - 1 / samples[0] - 1 / samples[1]).clamp(min=0)


def share_of_stream(samples: Tensor, depth: Tensor, trusted: Tensor) -> Tensor:
    """s = (t + (1 − t)(1 − l/L)²) · n / (n + 16) per channel, from ``depth`` l/L and the trust t in the classes seen."""
    return (trusted + (1 - trusted) * (1 - depth).square()) * samples / (samples + _SOURCE_WORTH)


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


def certainty_gained(state: State) -> Tensor:
    """Σ f g / Σ f: what the stream's moments gain in certainty over the long-run mix of samples, in units of ln C."""
    gains = state["gain_sum"] / (state["gain_samples"] + _NO_GAIN_WORTH)
    return (state["strata_mix"] * gains).sum() / state["strata_mix"].sum().clamp(min=1e-9)


def diversity_gained(source: Tensor, stream: Tensor) -> Tensor:
    """H(p̄ by the stream's moments) − H(p̄ by the source's), in units of ln C, from sums of probabilities [C] of each."""

    def spread(sums: Tensor) -> Tensor:
        shares = sums / sums.sum().clamp(min=1e-9)
        total: Tensor = torch.special.entr(shares).sum()
        return total / math.log(len(sums))

    return spread(stream) - spread(source)


def scatter(source: Tensor, early: Tensor) -> Tensor:
    """max(0, a_x − b_x) · b_x / max b: what the source's favourite class x loses, as far as it stays a favourite.

    a and b are the shares of the classes among the answers by the ``source``'s moments and by the ``early`` layers' [C].
    """
    before, after = (counts / counts.sum().clamp(min=1e-9) for counts in (source, early))
    favourite = before.argmax()
    return (before[favourite] - after[favourite]).clamp(min=0) * after[favourite] / after.amax().clamp(min=1e-9)


def advantage(state: State) -> Tensor:
    """Certainty and, as far as the classes are there, diversity gained, less what is scattered where few are."""
    missing = sampling_error(classes_seen(state["early_answers"]), len(state["early_answers"]))
    few = rising(missing, _FEW_CLASSES) * (1 - several(state))
    gained = certainty_gained(state) + trust(state) * diversity_gained(
        state["source_marginal"], state["stream_marginal"]
    )
    return gained - _SCATTER_WEIGHT * few * scatter(state["source_answers"], state["early_answers"])


def needed_advantage(trusted: Tensor, classes: int) -> Tensor:
    """0.02 + 0.1 (1 − t)/(C − 1): the least advantage that the stream's moments must have, in units of ln C."""
    return _SMALLEST_ADVANTAGE + _FEW_CLASSES_DOUBT * (1 - trusted) / max(1, classes - 1)


def trust(state: State) -> Tensor:
    """t: trust that most classes are there, by the early layers' answers or by all layers' features."""
    answers = state["early_answers"]
    trusted = classes_trusted(answers) * (answers.sum() >= _FEWEST_ANSWERS - 1e-3)
    return torch.maximum(_told_apart(len(answers)) * trusted, several(state))


def several(state: State) -> Tensor:
    """The same by all layers alone: most classes are answered, and the features point to classes more than noise does."""
    samples, answers = state["aligned_samples"], state["stream_answers"]
    excess = state["aligned_sum"] / samples.clamp(min=1e-9) - state["noise_alignment"]
    error = sampling_error(classes_seen(answers), len(answers))
    trusted = classes_trusted(answers) * (samples >= _FEWEST_ALIGNED - 1e-3)
    return _told_apart(len(answers)) * rising(excess - _ERROR_WEIGHT * error, _ALIGNED) * trusted


def _told_apart(classes: int) -> float:
    """(C − 2)/(C − 1): with two classes the errors on one alone are answers of the other, and both look as if they were there."""
    return (classes - 2) / max(1, classes - 1)


def answer_of(engine: Engine, images: Tensor, *, learning: bool) -> tuple[Output, State, int]:
    """The answer to ``images``, the state after them where ``learning`` (else as it was), and how many forwards it took.

    Two passes, and where ``learning`` two more over every second image; no gradient.
    """
    state = {name: engine.memory[name] for name in STATE}
    forwards = 2 * len(images)
    if learning and "noise_alignment" not in engine.companions:
        found = float(state["noise_alignment"]) or None  # a state that was loaded knows it
        if found is None and (found := _alignment_of_noise(engine, images)) is not None:
            forwards += _NOISE
        engine.companions["noise_alignment"] = found
    source, depth = engine.norms.source(), engine.norms.depths()
    with engine.norms.first_inputs() as first:
        plain = engine.forward(images, grad=False)
    if learning:
        state = _followed(state, first[0].to(source[0].dtype))
    samples = state["stream_samples"]
    as_given = state["stream_mean"].clone(), state["stream_square"].clone()
    by_all = state["whole_mean"].clone(), state["whole_square"].clone()
    none, certain = torch.zeros_like(samples), several(state)

    def normalised(given: Tensor, sums: Moments, trusted: Tensor, used: Moments, *, early: bool = False) -> Output:
        """A pass by the stream's moments, in depth as far as ``trusted``; the batch's own go into ``sums``.

        The moments are of these sums, and of those ``used`` as far as all layers' features are certain of the classes.
        ``early``: it is to show the classes that are there. It takes in nothing, and a layer without positions keeps the
        source's moments: it sees each sample once, and its moments are those of the classes at any depth.
        """
        share = share_of_stream(samples, depth, trusted)

        def rule(place: slice, batch: Moments, count: int) -> Moments:
            if learning and not early:
                mean, variance = (value.to(samples.dtype) for value in batch)
                for total, value in zip(sums, (mean, variance + mean.square()), strict=True):
                    total[place] += len(images) * value
            own = (source[0][place], source[1][place])
            if early and count == len(given):
                return own
            mean, square = (torch.lerp(a[place], b[place], certain) for a, b in zip(sums, used, strict=True))
            return blended((mean, square), samples, own, share[place])

        with engine.normalised_by(rule):
            return engine.forward(given, grad=False)

    some = images[::_EVERY]
    if learning:  # before the other passes: their moments are to hold this batch too
        whole = normalised(some, by_all, none + 1, by_all)
    adapted = normalised(images, as_given, trust(state), by_all)
    if learning:
        early = normalised(some, as_given, none, as_given, early=True)
        forwards += 2 * len(some)
        names = ("stream_mean", "stream_square", "whole_mean", "whole_square")
        state |= dict(zip(names, (*as_given, *by_all), strict=True))
        state = _followed_alignment(engine, state, whole, len(images))
        before, after = (
            entropy(output.logits).to(samples.dtype) / math.log(engine.network.classes) for output in (plain, adapted)
        )
        state = followed_gains(state, before, after, len(images))
        state = _followed_answers(state, (plain.logits, adapted.logits, early.logits, whole.logits), len(images))
    better = advantage(state) > needed_advantage(trust(state), engine.network.classes)
    return plain.answering(torch.where(better, adapted.logits, plain.logits)), state, forwards


def _followed_answers(state: State, logits: tuple[Tensor, Tensor, Tensor, Tensor], images: int) -> State:
    """``state`` with a batch's answers: by the source's moments, as given, and of a part by the first and by all layers'."""
    source, stream, early, whole = logits
    weight = images / len(source)  # several answers of an image share its one

    def counted(name: str, answers: Tensor) -> Tensor:
        counts = torch.zeros_like(state[name]).index_add_(0, answers.argmax(1), state[name].new_ones(len(answers)))
        return math.exp(-images / _ANSWER_MEMORY) * state[name] + counts * weight

    def summed(name: str, answers: Tensor) -> Tensor:
        probabilities = answers.softmax(1).sum(0).to(state[name].dtype)
        return math.exp(-images / _MARGINAL_MEMORY) * state[name] + probabilities * weight

    return state | {
        "early_answers": counted("early_answers", early),
        "stream_answers": counted("stream_answers", whole),
        "source_answers": counted("source_answers", source),
        "source_marginal": summed("source_marginal", source),
        "stream_marginal": summed("stream_marginal", stream),
    }


def _followed_alignment(engine: Engine, state: State, whole: Output, images: int) -> State:
    """``state`` with the alignment of the features of a pass by all layers' moments over a part of a batch."""
    noise, rows = engine.companions["noise_alignment"], _rows(engine)
    if noise is None or rows is None:
        return state
    kept, weight = math.exp(-images / _ANSWER_MEMORY), images / len(whole.features)
    features = whole.features.to(state["feature_sum"].dtype)
    number = kept * state["aligned_samples"] + images
    total = kept * state["feature_sum"] + weight * features.sum(0)
    aligned = weight * cosines(features, total / number, rows.to(features.dtype)).sum()
    return state | {
        "feature_sum": total,
        "aligned_sum": kept * state["aligned_sum"] + aligned,
        "aligned_samples": number,
        "noise_alignment": torch.full_like(state["noise_alignment"], noise),
    }


def _alignment_of_noise(engine: Engine, images: Tensor) -> float | None:
    """The alignment of white noise that is normalised by itself; None where noise is no input or the head has no rows."""
    rows = _rows(engine)
    if rows is None or engine.inputs is not None or not images.is_floating_point():
        return None
    noise = noise_like(images.shape[1:], _NOISE, dtype=images.dtype, device=images.device)
    found = []
    with engine.normalised_by(lambda place, batch, count: batch):
        for start in range(0, _NOISE, _NOISE_BATCH):
            features = engine.forward(noise[start : start + _NOISE_BATCH], grad=False).features
            found.append(cosines(features, features.mean(0), rows.to(features.dtype)))
    return float(torch.cat(found).mean())


def _rows(engine: Engine) -> Tensor | None:
    """The head's rows, one for each class; None where it has none, or where pixels are classified."""
    pixels = getattr(engine.network.module, "rows_per_sample", 1) > 1
    return None if pixels else head_rows(engine.network.head)


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
    memory = _MEMORY * (_SHORT_MEMORY / _MEMORY) ** trust(state)
    keep = (-number / memory).exp() * unchanged
    return state | {
        **{name: unchanged * state[name] for name in _OF_THE_INPUTS},
        "stream_mean": keep * state["stream_mean"],
        "stream_square": keep * state["stream_square"],
        "whole_mean": keep * state["whole_mean"],
        "whole_square": keep * state["whole_square"],
        "stream_samples": keep * state["stream_samples"] + number,
        "first_sum": keep * state["first_sum"] + first.sum(0),
        "first_square": keep * state["first_square"] + first.square().sum(0),
        "last_sum": last_sum,
        "last_samples": last_samples,
    }
