"""Evidence that a stream has shifted: what its outputs share is a shift, and not merely the classes that are present.

A shift of the inputs moves all logits alike, and so does a run of images of one class. Taking away what the logits share
repairs the one and ruins the other. Three signs tell them apart, without labels, source data or another pass. All are free
of scale, so that the same numbers serve 10 classes and 1,000.

**The cost of recentring.** Take the mean off the logits of the last samples. If it was a shift, they stay as certain as
before; if they were of one class, what made them certain is gone:

    cost = [ mean H(z_i − z̄) − mean H(z_i) ] / ln C

**The classes really seen.** The mean of the class centroids is free of the classes' shares once enough classes have been
seen. A class counts by its dominance: how often it was predicted beside the most predicted class, at its best moment.
(Errors on the images of one class also fill other classes' rows; but then they are few beside it.) Of m classes out of C,
drawn at random, the mean is off by

    r = √( (1 − m/C) / m )    times the centroids' spread    (sampling without replacement),

so that a mean is a shift as far as it is longer than 2.5 r. Two more things must hold. A step pushes the classes that are
present: in a long run of one class it would push that class away. So steps by this sign ask for several classes among the
last samples. And the mean of the samples stands for the mean of the classes only where a good part of them has been seen.

**Clusters about the mean.** A shift can be so strong that nearly all answers are one class, and then the two signs above see
a stream of one class. But what is left when the mean is taken off differs. The images of one class scatter about their mean
like noise. Images of many classes form clusters, one class standing out in each. With r_i = z_i − z̄ scaled to a fixed size:

    κ = 1 − mean H(r_i) / H_C ,    H_C: the same entropy of C independent normal logits of that size.

The shift is clear where κ is large, where the largest entries of r_i are spread over most classes (by the chance that two
samples share theirs), and where the mean is as long as the spread about it. Images of a few classes also form clusters, but
over few classes; and unequal shares of many classes do not make a mean that long.

**A habit.** Networks have such a mean on clean images too, weak and overconfident ones a long one. But no answer hangs on it:
taking it away costs next to nothing. So the less that costs, the longer a mean must be before it is taken for a shift. What is
taken away here is the mean of the centroids: unlike that of the last samples it holds none of the classes that happen to be
there, so that the cost is the same in every order: −0.02 to 0.014 on clean images, 0.01 to 0.3 where Steady gains.

**What the stream holds.** With few classes all of these are guesses about one question: many classes, or one? For images there
is a better answer, by their features beside those of scrambled images (:mod:`wildtta.methods.steady.contents`). Where it is
known, it takes the place of the clusters, and the cost needs a part of it. Where it speaks alone it must be the clearer the
more taking off the mean costs. And the mean must be longer than uneven shares of the classes make it, by the same 2.5 r. From
40 classes on the rows tell by themselves, and nobody is asked.

The fewer the classes, the less a shift differs from a change of their shares; with two they are the same thing. Up to five
classes all signs are taken for nothing: there was less to gain than to lose.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from wildtta.methods.losses import entropy, masked_mean, mean_row

WINDOW = 64
"""Samples that the cost of recentring and the dominance of a class are measured on."""
MOST_ROWS = 1000
"""Classes whose centroids are followed; of more classes every n-th."""
_COST = (0.02, 0.08)
"""Up to the first cost the mean is trusted fully, from the second on not at all."""
_CLUSTERED = (0.25, 0.4)
"""κ up to which the samples about their mean are like noise, and from which on they are clusters."""
_EVEN = (0.6, 0.8)
"""Share of all classes about the mean, up to which clusters are those of a few classes, and from which on of all."""
_LONG = (0.7, 1.2)
"""Squared mean over squared spread, up to which unequal shares of the classes explain it, and from which on a shift does."""
_EXCESS, _PER_COST, _HIGHEST_COST = (0.035, 0.055), 0.1, 0.3
"""Excess over scrambled images, less a tenth of what taking off the mean costs (of 0.3 at most), up to which a stream may be of
one class, and from which on it holds many."""
_SOME = (0.01, 0.03)
"""The same without that cost, where another sign says so too."""
_ANSWERED = (0.5, 0.7)
"""Share of all classes among the latest answers, up to which those are of a run of few classes, and from which on of all."""
_TRUST_TAKES = 256
"""Samples over which trust may rise from 0 to 1. It falls at once."""
_ERROR = (0.1, 0.2)
"""Up to the first sampling error r the rows are trusted fully, from the second on not at all …"""
_MANY = (8.0, 16.0)
"""… unless so many classes have been seen: from the first number on they are trusted more and more. (Streams of one of
200 classes show up to 6.5, by errors.)"""
_ERROR_WEIGHT = 2.5
"""Lengths of r that a mean of the rows must exceed."""
_PRESENT, _PRESENT_MORE, PRESENT_MEMORY = (5.0, 9.0), 2.0, 256
"""Steps by the rows ask for so many classes among the last 256 samples (1/e): none up to the first number. Where the rows
count alone, for two more: one of 200 classes shows up to 6.5, and steps in a run of it would make it show ever more."""
_SPREAD_OUT = (0.3, 0.6)
"""Share of all classes seen, up to which the mean of the samples tells nothing, and from which on it counts fully."""
_ENOUGH = (5, 10)
"""Networks with up to so many classes are left alone; up to the second number the evidence counts in part."""
_ROWS_ALONE = (10, 40)
"""Up to so many classes the rows count only as far as one of the other signs agrees; from the second number on alone."""
_HABIT, _CHANCE = 0.02, 0.4
"""A squared mean below 0.02 + 0.4/C times the squared spread is no shift: networks have such a mean on their own training
data (habit), and so have C random centroids (chance)."""
_IDLE, _IDLE_LENGTH = (0.0, 0.012), 0.1
"""Where taking off the centroids' mean costs no more than the first, a squared mean of 0.1 more is habit too; from the second on
none. (Weak networks have one of up to 0.15 on clean images.)"""
_COST_MEMORY, _COST_HELD = 512, 20_000
"""Samples that this cost is a mean of (1/e): over 64 it is a matter of chance. And samples for which the highest is held (1/e):
what is learned makes the mean shorter, and with it the cost."""
_MEAN_MEMORY = 1000
"""Samples after which what was seen counts 1/e."""
_ROW_MEMORY, _LONGEST_ROW_MEMORY = 2000, 20_000
"""The same for the rows: at least the first, and as long as half of the classes take to be seen, at most the second."""
_ROW_INERTIA = 4.0
"""Images that a row is worth against the images of a batch."""
_MEAN_PRIOR = 128
"""Samples that "no shift" is worth in the mean that is taken away."""
_FULL_STEP = 0.5
"""Evidence from which on steps have their full length."""


class Contents(NamedTuple):
    """What a stream holds, by images compared with scrambled ones (:mod:`wildtta.methods.steady.contents`)."""

    known: Tensor
    """1 where enough of them have been compared, else 0."""
    excess: Tensor
    """How much more the directions of their features tell than those of scrambled ones, in units of ln C."""
    share: Tensor
    """Share of all classes among the latest answers about the mean."""


def no_evidence(classes: int, *, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The state before the first batch."""
    # Its random numbers are drawn now: within torch.vmap, where a fleet weighs the evidence, none may be.
    noise_entropy(classes)
    rows = len(watched_classes(classes, device))

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return {
        "recent_logits": zeros(WINDOW, classes),
        "recent_number": zeros(),
        "recent_trust": zeros(),
        "cost_sum": zeros(),
        "cost_weight": zeros(),
        "highest_cost": zeros(),
        "mean_sum": zeros(classes),
        "mean_spread": zeros(),
        "mean_weight": zeros(),
        "row_logits": zeros(rows, rows),
        "row_dominance": zeros(rows),
        "present": zeros(classes),
        "strength": zeros(),
        "shift": zeros(classes),
    }


def watched_classes(classes: int, device: torch.device) -> Tensor:
    """The classes whose centroids are followed: all, or every n-th where there are more than 1,000."""
    return torch.arange(0, classes, -(-classes // MOST_ROWS), device=device)


def recentring_cost(logits: Tensor, used: Tensor, mean: Tensor) -> Tensor:
    """What taking off a ``mean`` [C] costs ``logits`` [N, C] in entropy, in units of ln C, over the samples ``used`` [N].

    The larger of two: as they are, and scaled to √(2 ln C) per entry. An overconfident network is certain with and
    without its mean; the scale is where the entropy of C random logits begins to depend on them.
    """
    classes = logits.shape[1]
    size = (masked_mean(logits.square().sum(1), used) / classes).sqrt().clamp(min=1e-9)

    def cost(scale: Tensor | float) -> Tensor:
        return masked_mean(entropy(scale * (logits - mean)) - entropy(scale * logits), used)

    return torch.maximum(cost(1.0), cost(math.sqrt(2 * math.log(classes)) / size)) / math.log(classes)


def fixed_size(classes: int) -> float:
    """2 √ln C: the root mean square that logits about their mean are scaled to."""
    return 2 * math.sqrt(math.log(classes))


@functools.cache
def noise_entropy(classes: int) -> float:
    """H_C: mean entropy of ``classes`` independent normal logits of the fixed size, by 1,000 samples."""
    noise = torch.randn(1000, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = noise - noise.mean(1, keepdim=True)
    return float(entropy(noise * (fixed_size(classes) / noise.square().mean().sqrt())).mean())


def clusters(logits: Tensor, used: Tensor, trust: Tensor) -> Tensor:
    """Trust in [0, 1] that ``logits`` [N, C] are clusters of all classes about a shift, over the samples ``used`` [N].

    What is learned makes the mean shorter. So with a ``trust`` of 1 so far, a mean half as long is enough.
    """
    classes = logits.shape[1]
    mean = mean_row(logits, used)
    about = logits - mean
    spread = masked_mean(about.square().sum(1), used).clamp(min=1e-9)
    scaled = about * (fixed_size(classes) * (classes / spread).sqrt())
    clustering = 1 - masked_mean(entropy(scaled), used) / noise_entropy(classes)
    members = (about.argmax(1)[:, None] == torch.arange(classes, device=logits.device)) & used[:, None]
    counts, number = members.sum(0).to(logits.dtype), used.sum().to(logits.dtype)
    sharing = (counts * (counts - 1)).sum() / (number * (number - 1)).clamp(min=1)
    even = 1 / (classes * sharing).clamp(min=1e-9)
    length = mean.square().sum() / spread
    return rising(clustering, _CLUSTERED) * rising(even, _EVEN) * rising(length * (1 + trust), _LONG)


def many_classes(contents: Contents, cost: Tensor) -> Tensor:
    """Trust in [0, 1] that the stream holds most classes, now as well, where taking off their mean has this ``cost``.

    The more it costs, the more certain the answers are, and the more is lost if they were right.
    """
    clear = contents.excess - _PER_COST * cost.clamp(0, _HIGHEST_COST)
    return rising(clear, _EXCESS) * rising(contents.share, _ANSWERED)


def classes_seen(dominance: Tensor) -> Tensor:
    """m = (Σ w)² / Σ w²: how many classes of equal weight the rows' weights w [C] are worth."""
    return dominance.sum().square() / dominance.square().sum().clamp(min=1e-9)


def sampling_error(seen: Tensor, classes: int) -> Tensor:
    """r = √((1 − m/C)/m): error of the mean of m of C values, in units of their spread."""
    return ((1 - seen / classes).clamp(min=0) / seen.clamp(min=1e-9)).sqrt()


def classes_trusted(counts: Tensor) -> Tensor:
    """Trust in [0, 1] that the classes with these ``counts`` [C] are as good as all: by their sampling error."""
    return falling(sampling_error(classes_seen(counts), len(counts)), _ERROR)


def falling(value: Tensor, limits: tuple[float, float]) -> Tensor:
    """1 up to the first limit, 0 from the second on, a straight line between."""
    first, second = limits
    return ((second - value) / (second - first)).clamp(0, 1)


def identifiable(classes: int) -> float:
    """How far a shift can be told from the classes' shares: 0 up to five classes, (C − 2)/(C − 1) from ten on."""
    fewest, enough = _ENOUGH
    return min(max((classes - fewest) / (enough - fewest), 0.0), 1.0) * (classes - 2) / max(1, classes - 1)


def rising(value: Tensor, limits: tuple[float, float]) -> Tensor:
    """0 up to the first limit, 1 from the second on, a straight line between."""
    return 1 - falling(value, limits)


def few_to_many(classes: int) -> float:
    """How far the rows count without the other signs: 0 up to ten classes, 1 from 40 on.

    A weak network scatters the images of one class over half of ten classes, but not over half of forty.
    """
    few, many = _ROWS_ALONE
    return min(max((classes - few) / (many - few), 0.0), 1.0)


def rows_trusted(seen: Tensor, present: Tensor, classes: int) -> Tensor:
    """Trust in [0, 1] in a step by the rows, from the classes ``seen`` so far and those ``present`` among the last samples."""
    enough = torch.maximum(falling(sampling_error(seen, classes), _ERROR), rising(seen, _MANY))
    return enough * rising(present - _PRESENT_MORE * few_to_many(classes), _PRESENT)


def smallest_shift(classes: int) -> float:
    """Squared length of a mean, in units of the squared spread about it, up to which it is no shift: 0.02 + 0.4/C."""
    return _HABIT + _CHANCE / classes


def longest_by_shares(seen: Tensor, classes: int) -> Tensor:
    """Squared length, in the same units, up to which a mean may come from ``seen`` of the classes being there, or from habit."""
    return (_ERROR_WEIGHT * sampling_error(seen, classes)).square() + smallest_shift(classes)


def idle_mean(classes: int, cost: Tensor) -> Tensor:
    """By how much longer it must be where no answer hangs on it, by the ``cost`` of taking it away: at most 0.1.

    (With up to ten classes the cost decides already whether the mean is trusted.)
    """
    return _IDLE_LENGTH * few_to_many(classes) * falling(cost, _IDLE)


def clearness(length: Tensor, spread: Tensor, doubt: Tensor | float) -> Tensor:
    """1 − doubt·spread/length, at least 0: the share of a mean (squared ``length``) that is not chance or habit."""
    return (1 - doubt * spread / length.clamp(min=1e-9)).clamp(min=0)


def weighed(
    state: dict[str, Tensor], logits: Tensor, usable: Tensor | None = None, contents: Contents | None = None
) -> dict[str, Tensor]:
    """The state after the outputs ``logits`` [B, C], its strength and shift included. ``state`` is left as it is.

    Samples that are not ``usable`` [B] (not finite) count for nothing. ``contents``: what the stream holds, by
    more than these outputs.
    """
    classes = logits.shape[1]
    if usable is None:
        usable = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    flat = (logits - logits.mean(1, keepdim=True)).masked_fill(~usable[:, None], 0.0)
    number = usable.sum().to(flat.dtype)
    recent, used = _last_samples(state, flat, usable)
    known = used.sum()
    identified = identifiable(classes) * (known >= WINDOW)
    cost = recentring_cost(recent, used, mean_row(recent, used))
    several = clusters(recent, used, state["recent_trust"])
    at_once = torch.maximum(falling(cost, _COST), several)
    alone = few_to_many(classes)
    if contents is not None:
        decides = contents.known * (1 - alone)
        many = many_classes(contents, cost)
        either = torch.maximum(many, rising(contents.excess, _SOME) * at_once)
        several, at_once = torch.lerp(several, many, decides), torch.lerp(at_once, either, decides)

    rows, dominance = _followed_rows(state, flat, usable, recent, used)
    present = _followed_classes(state, flat, usable)
    weight = dominance.sum().clamp(min=1e-9)
    centre = (dominance[:, None] * rows).sum(0) / weight
    spread = (dominance * (rows - centre).square().sum(1)).sum() / weight
    seen = classes_seen(dominance)
    error = sampling_error(seen, len(rows))
    watched = recent[:, watched_classes(classes, flat.device)]
    idle_cost = recentring_cost(watched - watched.mean(1, keepdim=True), used, centre)
    costs = _followed_cost(state, idle_cost, number, falling(error, _ERROR) * (known >= WINDOW))
    measured = (costs["cost_weight"] / WINDOW).clamp(max=1)
    idle = measured * idle_mean(classes, costs["highest_cost"])
    doubt = longest_by_shares(seen, len(rows)) + idle
    clear = clearness(centre.square().sum(), spread, doubt)
    by_rows = (
        identified * rows_trusted(seen, classes_seen(present), len(rows)) * clear * (alone + (1 - alone) * at_once)
    )

    trust = torch.minimum(identified * at_once, state["recent_trust"] + number / _TRUST_TAKES)
    keep = (-number / _MEAN_MEMORY).exp()
    about = masked_mean((recent - mean_row(recent, used)).square().sum(1), used)
    mean_sum = keep * state["mean_sum"] + trust * flat.sum(0)
    mean_spread = keep * state["mean_spread"] + trust * number * about
    mean_weight = keep * state["mean_weight"] + trust * number
    mean = mean_sum / mean_weight.clamp(min=1e-6)
    habit = smallest_shift(classes) + idle
    if contents is not None:
        habit = torch.lerp(habit, longest_by_shares(contents.share * classes, classes) + idle, decides)
    clear = clearness(mean.square().sum(), mean_spread / mean_weight.clamp(min=1e-6), habit)
    spread_out = torch.maximum(rising(seen / len(rows), _SPREAD_OUT), several)
    by_mean = trust * clear * spread_out * mean_weight / (mean_weight + _MEAN_PRIOR)

    return {
        "recent_logits": recent[-WINDOW:],
        "recent_number": known.clamp(max=WINDOW).to(flat.dtype),
        "recent_trust": trust,
        **costs,
        "mean_sum": mean_sum,
        "mean_spread": mean_spread,
        "mean_weight": mean_weight,
        "row_logits": rows,
        "row_dominance": dominance,
        "present": present,
        "strength": (torch.maximum(by_rows, by_mean) / _FULL_STEP).clamp(max=1),
        "shift": torch.where(by_mean >= by_rows, by_mean, torch.zeros_like(by_mean)) * mean,
    }


def _last_samples(state: dict[str, Tensor], flat: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """The last 64 samples, or the batch where it is larger, with those that count last, and which of them count."""
    known = torch.arange(WINDOW, 0, -1, device=flat.device) <= state["recent_number"]
    values, counts = torch.cat((state["recent_logits"], flat)), torch.cat((known, usable))
    order = counts.to(torch.uint8).argsort(stable=True)[-max(WINDOW, len(flat)) :]
    from_the_end = torch.arange(len(order), 0, -1, device=flat.device)
    return values[order], counts[order] & (from_the_end <= usable.sum().clamp(min=WINDOW))


def _followed_cost(state: dict[str, Tensor], cost: Tensor, number: Tensor, trusted: Tensor) -> dict[str, Tensor]:
    """What taking off the rows' mean usually costs, after ``number`` samples by which it is ``cost``; the highest is held.

    It counts as far as the rows are ``trusted``: the mean of a few classes costs much, whatever the stream.
    """
    fading, counted = (-number / _COST_MEMORY).exp(), number * trusted
    cost_sum, cost_weight = fading * state["cost_sum"] + counted * cost, fading * state["cost_weight"] + counted
    usual = cost_sum / (cost_weight + WINDOW)  # one window that costs nothing comes before the first
    highest = torch.maximum(usual, state["highest_cost"] * (-number / _COST_HELD).exp())
    return {"cost_sum": cost_sum, "cost_weight": cost_weight, "highest_cost": highest}


def _followed_classes(state: dict[str, Tensor], flat: Tensor, usable: Tensor) -> Tensor:
    """How often each class was predicted among the last samples, [C], after this batch."""
    fading = (-usable.sum() / PRESENT_MEMORY).exp()
    counts = torch.zeros_like(state["present"]).index_add(0, flat.argmax(1), usable.to(flat.dtype))
    return fading * state["present"] + counts


def _followed_rows(
    state: dict[str, Tensor], flat: Tensor, usable: Tensor, recent: Tensor, used: Tensor
) -> tuple[Tensor, Tensor]:
    """Centroids of the watched classes in logits [R, R] and their dominance [R], after this batch.

    A row follows the images predicted as its class, the less the more it has already seen and the less dominant the
    class now is. Its dominance is the largest so far, and fades with the samples, or with the classes that come to
    dominate, whichever is slower: in long runs of one class after another, 2,000 samples are few classes.
    """
    watched = watched_classes(flat.shape[1], flat.device)

    def members(logits: Tensor, counted: Tensor) -> Tensor:
        return ((logits.argmax(1)[:, None] == watched) & counted[:, None]).to(logits.dtype)

    frequent = members(recent, used).sum(0)
    dominant = (frequent / frequent.amax().clamp(min=1)) ** 1.5
    own = members(flat, usable)
    counts = own.sum(0)
    part = flat[:, watched]
    part = part - part.mean(1, keepdim=True)
    centroids = own.T @ part / counts.clamp(min=1)[:, None]
    before, number = state["row_dominance"], usable.sum()
    risen = (torch.where(counts > 0, dominant, before) - before).clamp(min=0).sum()
    by_classes = torch.minimum((-2 * risen / len(watched)).exp(), (-number / _LONGEST_ROW_MEMORY).exp())
    old = before * torch.maximum((-number / _ROW_MEMORY).exp(), by_classes)
    fresh = counts * dominant
    share = fresh / (fresh + _ROW_INERTIA * old).clamp(min=1e-9)
    rows = state["row_logits"] + share[:, None] * (centroids - state["row_logits"])
    return rows, torch.where(counts > 0, torch.maximum(old, dominant), old)
