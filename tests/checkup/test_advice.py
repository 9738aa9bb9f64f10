"""The recommendation, from made-up measurements: every verdict, and the reasons beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wildtta.checkup.advice import Verdict, advice
from wildtta.checkup.answers import Inputs
from wildtta.checkup.facts import NetworkFacts
from wildtta.checkup.gain import Gain
from wildtta.checkup.trials import Trial, TrialResult

NETWORK = NetworkFacts("Net", "convolutional", 100, "fc", 512, {"GroupNorm": 17}, 14, 3000, 10**6, batch_norm=False)
CLEAN = Inputs("clean", 0.9, 1.0, 0.85, 0.1, 0.02)
INPUTS = [CLEAN, replace(CLEAN, name="gaussian_noise-3", score=0.5, agreement=0.52)]


def _result(trial: Trial, points: float, half: float, *, images: int = 1000, changed: float = 0.1, clean: float = 0.0):
    gain = Gain(points, half, images)
    return TrialResult(trial, Gain(clean, 0.2, images), gain, {"gaussian_noise-3": gain}, changed)


def _steady(shuffled: tuple[float, float], ordered: tuple[float, float], **more: object) -> list[TrialResult]:
    trials = (Trial("steady"), Trial("steady", "class order"))
    return [_result(trial, *given, **more) for trial, given in zip(trials, (shuffled, ordered), strict=True)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shuffled", "ordered", "more", "verdict"),
    [
        ((5.0, 1.5), (3.0, 1.5), {}, "use it"),
        ((5.0, 1.5), (0.0, 1.5), {}, "use it"),
        ((5.0, 1.5), (-4.0, 1.5), {}, "use it with care"),
        ((0.2, 0.8), (-4.0, 1.5), {}, "leave it off"),
        ((-0.3, 0.2), (-0.2, 0.1), {}, "no difference"),  # a loss of a few images is no harm
        ((0.3, 0.8), (0.1, 0.9), {}, "no difference"),
        ((1.5, 2.5), (0.1, 0.9), {}, "cannot tell"),
        ((0.0, 0.3), (0.0, 0.3), {"changed": 0.0}, "no difference"),
        ((0.0, 1.5), (0.0, 1.5), {"changed": 0.0, "images": 200}, "cannot tell"),
        ((9.0, 1.5), (9.0, 1.5), {"images": 60}, "cannot tell"),
    ],
)
def test_verdicts(
    shuffled: tuple[float, float], ordered: tuple[float, float], more: dict[str, object], verdict: Verdict
) -> None:
    assert advice(NETWORK, INPUTS, _steady(shuffled, ordered, **more), labelled=True).verdict == verdict


def test_a_wide_interval_says_how_many_images_would_do() -> None:
    told = advice(NETWORK, INPUTS, _steady((1.5, 3.0), (1.0, 2.0)), labelled=True)
    assert any("9,000 images" in reason for reason in told.reasons)  # three times as narrow: nine times as many


def test_two_classes_are_a_reason_unless_statistics_follow_the_stream() -> None:
    two = replace(NETWORK, classes=2)
    resting = _steady((0.0, 0.3), (0.0, 0.3), changed=0.0)
    assert "two classes" in advice(two, INPUTS, resting, labelled=True).headline
    with_batch_norm = replace(two, batch_norm=True, norms={"BatchNorm2d": 20})
    assert advice(with_batch_norm, INPUTS, _steady((8.0, 1.0), (7.0, 1.0)), labelled=True).verdict == "use it"


def test_reasons_name_harm_on_clean_images_single_images_rivals_and_weak_answers() -> None:
    trials = [
        *_steady((2.0, 1.0), (2.0, 1.0), clean=-3.0),
        _result(Trial("steady", batch_size=1), -2.0, 1.0),
        _result(Trial("tent"), 6.0, 1.0),
        _result(Trial("tent", "class order"), -20.0, 2.0),
    ]
    weak = [CLEAN, replace(CLEAN, name="fog-5", score=0.05), replace(CLEAN, name="jpeg_compression-5", score=0.895)]
    text = " ".join(advice(NETWORK, weak, trials, labelled=True).reasons)
    for words in (
        "On clean images it loses",
        "one by one: it harms, −2.0 ± 1.0",
        "tent, shuffled, batches of 64 gains more: +6.0 ± 1.0",
        "tent harms, at worst −20.0 ± 2.0",
        "nearly all answers are wrong: fog-5 5 %",
        "hardly hurts: jpeg_compression-5",
    ):
        assert words in text
    assert "stood in" not in text
    assert "stood in" in " ".join(advice(NETWORK, weak, trials, labelled=False).reasons)


def test_a_network_that_guesses_or_always_says_the_same_is_noticed() -> None:
    trials = _steady((5.0, 1.0), (5.0, 1.0))
    guessing = [replace(CLEAN, entropy=0.97), INPUTS[1]]
    assert advice(NETWORK, guessing, trials, labelled=False).verdict == "cannot tell"
    same = advice(NETWORK, [replace(CLEAN, top_class=0.8), INPUTS[1]], trials, labelled=False)
    assert same.verdict == "use it"
    assert any("One class takes 80 %" in reason for reason in same.reasons)
