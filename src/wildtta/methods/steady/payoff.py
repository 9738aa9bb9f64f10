"""Whether learning pays off: what the adapted network's answers tell, beside its source's on the same samples.

The evidence says that a stream has shifted. It cannot say that learning from it helps: weak networks with many classes lost up
to three points in shuffled streams, accurate ones one on clean images. But harm shows afterwards. The information that answers
p(x) carry about the inputs,

    information = [ H(mean p) − mean H(p) ] / ln C,

falls where answers are pulled to the wrong classes or grow undecided, and rises where a repaired network tells classes apart.
Neither half says it alone: a collapse makes every answer certain, noise makes the mean even. Both networks' logits are compared
at one size: a source that is too certain of wrong answers would seem to tell much. The source answers every eighth sample too
(:mod:`wildtta.step.comparison`), and what counts is the information gained per answer that was changed:

    payoff = rising( (n·gain + 4·0.1) / (changed + 4), (0, 0.03) )

over the last n samples that both answered. Four changed answers worth 0.1 each are the benefit of the doubt at the start. The
payoff falls at once, and comes back over 2,000 samples: then learning is tried again. Streams that gained showed 0.1 to 0.3
from the first hundred changed answers on, those that were harmed −0.3 to 0.1 (``studies/no-harm/payoff.py``).

In class order this says little: the mean of p over a few classes at a time cannot become more even. There the last samples are
of fewer classes than those before, and the payoff counts 1. Nor does it see that shares of the classes are made even which were
not (long tails): such answers tell more, and are wrong more often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.methods.steady.evidence import PRESENT_MEMORY, classes_seen, rising

NAMES = ("payoff", "payoff_own", "payoff_source", "payoff_entropy", "payoff_changed", "payoff_number")
EVIDENCE = ("present", "row_dominance")
"""What is read of the evidence: the classes among the last samples, and those of the stream."""
_MEMORY = 2000
"""Samples of the stream after which a comparison counts 1/e, and over which a low payoff is forgotten."""
_DOUBT, _CREDIT = 4.0, 0.1
"""Changed answers that come before the first, and the information that each is taken to have gained."""
_PAYS = (0.0, 0.03)
"""Information gained per changed answer up to which learning does not pay, and from which on it does."""
_MIXED = (0.55, 0.75)
"""Classes among the last samples, in units of what chance shows of those of the stream, up to which the stream is in class order,
and from which on it is not. (Shuffled, long tails, a few classes: 0.65 to 1.1; runs of 100 of 200 classes: 0.3 to 0.65.)"""
_BACK = 0.25
"""Share of the way back to the source per 64 samples where it does not pay at all."""


def no_comparison(classes: int, *, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The state before the first comparison: learning is taken to pay."""
    number, answers = torch.zeros((), dtype=dtype, device=device), torch.zeros(classes, dtype=dtype, device=device)
    sums = {"payoff_own": answers, "payoff_source": answers.clone()}
    counts = {name: number.clone() for name in ("payoff_entropy", "payoff_changed", "payoff_number")}
    return {"payoff": torch.ones_like(number), **sums, **counts}


def forgotten(state: Mapping[str, Tensor], samples: Tensor) -> dict[str, Tensor]:
    """The state after so many more samples of the stream: sums fade, and a low payoff is forgotten."""
    kept = (-samples.to(state["payoff"].dtype) / _MEMORY).exp()
    sums = {name: kept * state[name] for name in NAMES[1:]}
    return {"payoff": 1 - kept * (1 - state["payoff"]), **sums}


def compared(state: Mapping[str, Tensor], own: Tensor, source: Tensor, usable: Tensor) -> dict[str, Tensor]:
    """The state after some samples that both answered, by logits [k, C]; those that are not ``usable`` [k] do not count.

    ``state`` also holds the evidence's ``EVIDENCE``.
    """
    own, source = (logits.masked_fill(~usable[:, None], 0.0) for logits in (own, source))
    own = sized_as(source, own)
    risen, changed = entropy(own) - entropy(source), own.argmax(1) != source.argmax(1)
    counted = usable.to(own.dtype)
    fresh = {
        "payoff_own": counted @ own.softmax(1),
        "payoff_source": counted @ source.softmax(1),
        "payoff_entropy": counted @ risen,
        "payoff_changed": counted @ changed.to(own.dtype),
        "payoff_number": counted.sum(),
    }
    sums = {name: state[name] + value for name, value in fresh.items()}
    found = 1 - mixed(state) * (1 - payoff_of(sums))
    payoff = torch.where(usable.any(), torch.minimum(state["payoff"], found), state["payoff"])
    return {"payoff": payoff, **sums}


def sized_as(source: Tensor, own: Tensor) -> Tensor:
    """``own`` logits [k, C] about their mean over the classes, as large in the mean as those of the ``source``."""
    own, source = (logits - logits.mean(1, keepdim=True) for logits in (own, source))
    size: Tensor = source.norm() / own.norm().clamp(min=1e-9)
    return own * size


def mixed(evidence: Mapping[str, Tensor]) -> Tensor:
    """How far the stream is not in class order, in [0, 1].

    Counts of n samples drawn from m classes are worth 1/(1/m + 1/n) classes; counts that fade over k samples are worth 2k.
    """
    present, seen = (classes_seen(evidence[name]) for name in EVIDENCE)
    shown = 1 / (1 / seen.clamp(min=1) + 1 / (2 * PRESENT_MEMORY))
    return rising(present / shown, _MIXED)


def payoff_of(sums: Mapping[str, Tensor]) -> Tensor:
    """The payoff in [0, 1] of what was compared."""
    number, classes = sums["payoff_number"], len(sums["payoff_own"])
    means = (sums[name] / number.clamp(min=1e-9) for name in ("payoff_own", "payoff_source"))
    own, source = (torch.special.entr(mean).sum() for mean in means)
    gained = (number * (own - source) - sums["payoff_entropy"]) / math.log(classes)
    return rising((gained + _DOUBT * _CREDIT) / (sums["payoff_changed"] + _DOUBT), _PAYS)


def way_back(payoff: Tensor, batches: Tensor | float) -> Tensor:
    """Share of the way back to the source that weights go where learning does not pay, per ``batches`` of 64 samples."""
    return 1 - (1 - _BACK * (1 - payoff)) ** batches
