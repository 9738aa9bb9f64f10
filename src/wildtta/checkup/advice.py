"""From what was measured to a recommendation, with its reasons.

The verdict is about the default method on shifted images, from two numbers: its gain on shuffled streams and its gain in
class order. A gain or loss counts where its 95 % interval leaves out 0. Everything else is a reason, never a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wildtta.checkup.answers import Inputs
from wildtta.checkup.facts import NetworkFacts
from wildtta.checkup.gain import Gain
from wildtta.checkup.trials import TrialResult

Verdict = Literal["use it", "use it with care", "leave it off", "no difference", "cannot tell"]

DEFAULT = "steady"
HARM = 0.5
"""Points of loss from which on a loss is harm; below it is a matter of a few images."""
WIDE = 1.0
"""Half width of an interval, in points, above which "no gain was seen" is no finding."""
FEWEST_IMAGES = 100
"""Below, neither intervals nor streams tell anything."""
SHORT_STREAM = 400
"""Images: on fewer the default method has hardly begun. Its evidence takes 64 to appear and 256 more to be trusted."""
WEAK = 0.2
"""Score on shifted images below which there is little right to learn from."""
CLUELESS = 0.9
"""Entropy of clean images, in units of ln C, from which on a network knows nothing about them."""
ONE_SIDED = 0.5
"""Share of one class among the answers on clean images that a sample of many classes does not explain."""
UNHURT = 0.02
"""Loss of score by the shifts below which there is nothing to repair."""


@dataclass(frozen=True)
class Advice:
    """A verdict, and why."""

    verdict: Verdict
    headline: str
    reasons: list[str]


def advice(network: NetworkFacts, inputs: Sequence[Inputs], trials: Sequence[TrialResult], *, labelled: bool) -> Advice:
    """The recommendation for this network: ``inputs`` are clean first, ``trials`` hold the default's own."""
    if not network.adaptable:
        return Advice(
            "leave it off",
            "Leave it off: there is no norm layer.",
            [
                f"{network.name} has no norm layer with affine parameters, and only those learn. You may choose others with "
                "adapt(…, parameters=…), at your own risk."
            ],
        )
    if inputs[0].entropy > CLUELESS:
        return Advice(
            "cannot tell",
            "Cannot tell: the network does not know these images.",
            [
                f"Its entropy on clean images is {inputs[0].entropy:.2f} ln C, where 1 is guessing. Are its weights loaded, are "
                "these images of its classes, and is the preprocessing its own (--protocol)? Until then no number here counts."
            ],
        )
    own = [result for result in trials if result.trial.method == DEFAULT]
    deciding = [result for result in own if result.trial.batch_size > 1] or own
    verdict, headline, why = _verdict(network, deciding)
    reasons = [
        *why,
        *_batch_norm_reason(network),
        *_clean_reasons(own),
        *_single_reason(own),
        *_input_reasons(network, inputs, labelled),
        *_rival_reasons(trials, deciding),
    ]
    if not labelled:
        reasons.append(
            "There were no labels: the network's own answer on the clean image stood in for them. Its errors on clean images "
            "cannot be seen so, and a gain is a gain in agreement with itself."
        )
    return Advice(verdict, headline, reasons)


def signed(gain: Gain) -> str:
    """``+3.2 ± 1.1``."""
    return f"{gain.points:+.1f} ± {gain.half_width:.1f}".replace("-", "−")


def helps(gain: Gain) -> bool:
    return gain.low > 0


def harms(gain: Gain) -> bool:
    return gain.high < 0 and gain.points < -HARM


def _verdict(network: NetworkFacts, deciding: Sequence[TrialResult]) -> tuple[Verdict, str, list[str]]:
    if not deciding:
        return "cannot tell", "Cannot tell: the default method was not tried.", []
    images = deciding[0].shifted.images
    good = [result for result in deciding if helps(result.shifted)]
    bad = [result for result in deciding if harms(result.shifted)]
    told = [f"{result.trial}: {signed(result.shifted)} points on shifted images." for result in deciding]
    if network.classes == 2 and not network.batch_norm and not any(result.changed for result in deciding):
        return (
            "leave it off",
            "Leave it off: two classes.",
            [
                f"With two classes a shift and a change of their shares look the same, so {DEFAULT} rests: it changed no answer. "
                "It does no harm, and costs memory and a little time."
            ],
        )
    if images < FEWEST_IMAGES:
        return (
            "cannot tell",
            f"Cannot tell: {images} images are too few.",
            [*told, f"Give at least {FEWEST_IMAGES}, better {SHORT_STREAM} or more."],
        )
    if good and bad:
        streams = " and ".join(result.trial.stream for result in bad)
        return "use it with care", f"Use it with care: it gains, but it harms here: {streams}.", told
    if bad:
        return "leave it off", "Leave it off: it harms here.", told
    if good:
        return "use it", "Use it: it gains on shifted images.", told
    short = (
        [f"Streams of {images} images are short: what {DEFAULT} learns from takes about {SHORT_STREAM} to build up."]
        if images < SHORT_STREAM and not network.batch_norm
        else []
    )
    if not any(result.changed for result in deciding):
        rested = (
            f"It saw no clear sign of a shift in the outputs and changed no answer on {images} images of each shift."
        )
        if short:
            return "cannot tell", "Cannot tell: it never began.", [rested, *short]
        return (
            "no difference",
            f"No difference: {DEFAULT} rested.",
            [rested, "Left on, it does no harm and costs little."],
        )
    widest = max((result.shifted for result in deciding), key=lambda gain: gain.half_width)
    if widest.half_width > WIDE or short:
        needed = widest.images_for(WIDE)
        more = [f"For ± {WIDE:.0f} point it would take about {needed:,} images."] if needed > images else []
        return "cannot tell", "Cannot tell: any gain is within chance.", [*told, *short, *more]
    return "no difference", "No difference worth the cost: what it gains is within chance.", told


def _batch_norm_reason(network: NetworkFacts) -> list[str]:
    if not network.batch_norm:
        return []
    return [
        f"BatchNorm: {DEFAULT} follows the stream's statistics and learns nothing by gradients. Most other methods normalise "
        "by each batch, which must then look like the stream."
    ]


def _clean_reasons(own: Sequence[TrialResult]) -> list[str]:
    bad = [result for result in own if harms(result.clean)]
    if bad:
        return [f"On clean images it loses: {result.trial.stream}, {signed(result.clean)} points." for result in bad]
    if not own:
        return []
    worst = min((result.clean for result in own), key=lambda gain: gain.points)
    return [f"On clean images it does no harm that could be seen: {signed(worst)} points at worst."]


def _single_reason(own: Sequence[TrialResult]) -> list[str]:
    single = next((result for result in own if result.trial.batch_size == 1), None)
    if single is None:
        return []
    words = "it gains" if helps(single.shifted) else "it harms" if harms(single.shifted) else "no clear gain"
    return [f"If your images come one by one: {words}, {signed(single.shifted)} points."]


def _input_reasons(network: NetworkFacts, inputs: Sequence[Inputs], labelled: bool) -> list[str]:
    clean, *shifted = inputs
    reasons = []
    if labelled and clean.score < min(0.5, 2 / network.classes) and clean.confidence > 2 * clean.score:
        reasons.append(
            f"Accuracy on clean images is {100 * clean.score:.0f} %, about chance, though the network is sure: are the class "
            "folders, sorted by name, in the order of its outputs, and is the preprocessing its own? If not, nothing here counts."
        )
    if network.classes > 2 and clean.top_class > ONE_SIDED:
        reasons.append(
            f"One class takes {100 * clean.top_class:.0f} % of the answers on clean images. Unless your images are of one class, "
            "look at the preprocessing; and draw from all classes to see what class order does."
        )
    weak = [each for each in shifted if each.score < max(WEAK, 1.5 / network.classes)]
    if weak:
        listed = ", ".join(f"{each.name} {100 * each.score:.0f} %" for each in weak)
        reasons.append(f"There is little right to learn from where nearly all answers are wrong: {listed}.")
    unhurt = [each for each in shifted if clean.score - each.score < UNHURT]
    if unhurt:
        listed = ", ".join(each.name for each in unhurt)
        reasons.append(f"There is nothing to repair where a shift hardly hurts: {listed}.")
    return reasons


def _rival_reasons(trials: Sequence[TrialResult], deciding: Sequence[TrialResult]) -> list[str]:
    reasons = []
    for result in trials:
        own = next((o for o in deciding if o.trial.stream == result.trial.stream), None)
        if own is not None and result.trial.method != DEFAULT and result.shifted.low > own.shifted.high:
            reasons.append(f"{result.trial} gains more: {signed(result.shifted)} points.")
    for method in dict.fromkeys(result.trial.method for result in trials if result.trial.method != DEFAULT):
        bad = [result for result in trials if result.trial.method == method and harms(result.shifted)]
        if bad:
            worst = min(bad, key=lambda result: result.shifted.points)
            reasons.append(f"{method} harms, at worst {signed(worst.shifted)} points ({worst.trial.stream}).")
    return reasons
