"""Beside scrambled images: whether a stream holds many classes or one, however few answers a shift has left.

A shift can gather most answers of a network with few classes in one of them. By its answers that is a stream of this class,
and :mod:`wildtta.methods.steady.evidence` takes it for one. The features tell them apart. What images of one class share is in
the mean of their features; about it they point anywhere. Images of many classes point to the rows w_c of the head. As answers

    q_i = softmax_c( 6 cos(f_i − f̄, w_c − w̄) ),    information = [ H(mean q) − mean H(q) ] / ln C.

How much "anywhere" points to the rows by chance depends on the network and on the shift. Images without content show it: the
stream's own, cut into tiles that are laid out anew. They keep colours, contrast and noise, and hold no object. So

    excess = information of the images − information of scrambled ones,

both of the source, each about its own mean (tiles of an eighth, a quarter and half of the side have a mean each: what cutting
adds to all of them is no scatter). Of 1,700 windows of one class on 17 small networks half have an excess below 0.01, 95 % below
0.04, all below 0.08; shifts that gather the answers leave streams of all classes 0.02 to 0.13 (``studies/no-harm/FINDINGS.md``,
23). How the tiles lie must differ from image to image: laid out alike in all of them, they scatter less than images of one class
do.

The images compared are of a longer time than the last samples. So most classes must also be among the latest of them, about
that longer mean: in a run of one class they are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.methods.steady.alignment import cosines_with_rows
from wildtta.methods.steady.evidence import Contents, classes_seen, few_to_many, identifiable
from wildtta.step.scrambling import ARRANGEMENT, NUMBER, SIZES, arrangements, next_arrangements, size_of

_SHARPNESS = 6.0
"""Factor of the cosines. (From 5 to 8 the streams are told apart alike.)"""
_MEMORY, _LATEST = 256, 32
"""Compared samples after which one counts 1/e: in all, and among the latest answers."""
_FEWEST = 16
"""Scrambled images of each size whose mean must be known before anything is measured about it …"""
_ENOUGH = 128
"""… and samples that must have been measured before it counts."""
_START = {
    ARRANGEMENT: "one",
    "compared_sum": "feature",
    "compared_number": "one",
    "scrambled_sum": "feature of each size",
    "scrambled_number": "size",
    "compared_answers": "class",
    "compared_entropy": "one",
    "scrambled_answers": "class",
    "scrambled_entropy": "one",
    "measured_number": "one",
    "latest_answers": "class",
}
"""What is kept, and per what."""
NAMES = tuple(_START)
State = Mapping[str, Tensor]


def asked(classes: int) -> bool:
    """Whether scrambled images are asked: with more than five classes (up to five nothing is learned) and fewer than 40.

    (From there on the class centroids tell by themselves, and above ten in part.)
    """
    return identifiable(classes) > 0 and few_to_many(classes) < 1


def nothing_compared(classes: int, features: int, *, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The state before the first comparison."""
    arrangements(device)  # its random numbers are drawn now: within torch.vmap and a recorded step none may be
    shapes: dict[str, tuple[int, ...]] = {
        "one": (),
        "feature": (features,),
        "feature of each size": (len(SIZES), features),
        "size": (len(SIZES),),
        "class": (classes,),
    }
    return {name: torch.zeros(shapes[per], dtype=dtype, device=device) for name, per in _START.items()}


def followed(
    state: State, features: Tensor, beside: Tensor, usable: Tensor, rows: Tensor, number: Tensor
) -> dict[str, Tensor]:
    """The state after ``number`` samples with these ``features`` [k, D], and ``beside`` [k, D] when scrambled.

    ``rows`` [C, D] are those of the head. Samples that are not ``usable`` [k] do not count.
    """
    counted = (usable & torch.isfinite(features).all(1) & torch.isfinite(beside).all(1)).to(features.dtype)
    features, beside = (
        torch.where(counted[:, None] > 0, found, torch.zeros_like(found)) for found in (features, beside)
    )
    size = size_of(next_arrangements(state[ARRANGEMENT], len(features)))
    sizes = (size[:, None] == torch.arange(len(SIZES), device=size.device)) * counted[:, None]
    kept = (-counted.sum() / _MEMORY).exp()

    def added(values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: kept * state[name] + value for name, value in values.items()}

    sums = added(
        {
            "compared_sum": features.sum(0),
            "compared_number": counted.sum(),
            "scrambled_sum": sizes.T @ beside,
            "scrambled_number": sizes.sum(0),
        }
    )
    mean = sums["compared_sum"] / sums["compared_number"].clamp(min=1e-9)
    means = sums["scrambled_sum"] / sums["scrambled_number"].clamp(min=1e-9)[:, None]
    own, other = (
        _SHARPNESS * cosines_with_rows(seen, about, rows) for seen, about in ((features, mean), (beside, means[size]))
    )
    known = counted * (sums["scrambled_number"].amin() >= _FEWEST)
    answers = torch.zeros_like(state["latest_answers"]).index_add(0, own.argmax(1), known)
    measured = added(
        {
            "compared_answers": known @ own.softmax(1),
            "compared_entropy": known @ entropy(own),
            "scrambled_answers": known @ other.softmax(1),
            "scrambled_entropy": known @ entropy(other),
            "measured_number": known.sum(),
        }
    )
    latest = (-known.sum() / _LATEST).exp() * state["latest_answers"] + answers
    return {**sums, **measured, "latest_answers": latest, ARRANGEMENT: (state[ARRANGEMENT] + number) % NUMBER}


def excess(state: State) -> Tensor:
    """Information that the images' directions hold, less that of scrambled ones, in units of ln C."""
    number = state["measured_number"].clamp(min=1e-9)

    def information(kind: str) -> Tensor:
        mean: Tensor = torch.special.entr(state[f"{kind}_answers"] / number).sum()
        return mean - state[f"{kind}_entropy"] / number

    return (information("compared") - information("scrambled")) / math.log(len(state["compared_answers"]))


def contents(state: State) -> Contents:
    """What is known of the stream."""
    classes = len(state["latest_answers"])
    shown = 1 / (1 / classes + 1 / (2 * _LATEST))  # counts that fade over n samples are worth 2n
    share = (classes_seen(state["latest_answers"]) / shown).clamp(max=1)
    return Contents((state["measured_number"] >= _ENOUGH).to(share.dtype), excess(state), share)
