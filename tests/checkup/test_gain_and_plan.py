"""The pure parts: paired gains, what answers tell, and what fits into some minutes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Categorical

from wildtta.checkup.answers import summarised
from wildtta.checkup.gain import Gain, paired_gain
from wildtta.checkup.plan import Pace, plan_within, seconds_for
from wildtta.checkup.trials import SHIFTS, TRIALS, Trial, positions


def test_the_interval_of_one_shift_is_the_normal_one_of_paired_proportions() -> None:
    """McNemar's setting: b images got better, c worse; the variance of (b - c)/N is known in closed form."""
    better, worse, same = 30, 12, 158
    before = np.array([0] * better + [1] * worse + [1] * same)
    after = np.array([1] * better + [0] * worse + [1] * same)
    number = better + worse + same
    gain = paired_gain(before, after)
    variance = (better + worse - (better - worse) ** 2 / number) / (number * (number - 1))
    assert gain.points == pytest.approx(100 * (better - worse) / number)
    assert gain.half_width == pytest.approx(100 * stats.norm.ppf(0.975) * math.sqrt(variance), rel=1e-6)
    assert (gain.low, gain.high) == (gain.points - gain.half_width, gain.points + gain.half_width)


def test_the_interval_agrees_with_a_bootstrap_over_images_and_covers_the_truth() -> None:
    generator = np.random.default_rng(0)
    hard = generator.random(400)  # an image is hard under every shift, so its copies are not independent
    before = (generator.random((4, 400)) > hard).astype(int)
    after = np.where(generator.random((4, 400)) < 0.25, 1, before)
    gain = paired_gain(before, after)
    each = 100 * (after - before).mean(0)
    drawn = each[generator.integers(0, 400, (4000, 400))].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert gain.low == pytest.approx(low, abs=0.2)
    assert gain.high == pytest.approx(high, abs=0.2)


def test_copies_of_one_image_add_no_certainty() -> None:
    before, after = np.array([1, 0, 0, 1, 0, 1]), np.array([1, 1, 0, 0, 1, 1])
    once, often = paired_gain(before, after), paired_gain([before] * 5, [after] * 5)
    assert often.points == pytest.approx(once.points)
    assert often.half_width == pytest.approx(once.half_width)


def test_no_difference_is_not_certainty() -> None:
    """Rule of three: an event of this rate is missed by 200 draws with a probability of 5 %."""
    gain = paired_gain(np.ones(200), np.ones(200))
    assert gain.points == 0
    assert (1 - gain.half_width / 100) ** 200 == pytest.approx(0.05, abs=0.002)
    with pytest.raises(ValueError, match="at least 2 images"):
        paired_gain([1], [0])


def test_images_needed_for_an_interval_shrink_it_so() -> None:
    assert Gain(1.0, 4.0, 100).images_for(1.0) == 1600
    assert Gain(1.0, 0.5, 100).images_for(1.0) == 25


def test_what_answers_tell() -> None:
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * 3
    answers = logits.argmax(1).numpy()
    targets = np.where(np.arange(50) < 20, answers, (answers + 1) % 7)
    clean = np.where(np.arange(50) < 35, answers, (answers + 2) % 7)
    told = summarised("fog-3", logits, clean, targets)
    spread = Categorical(logits=logits.double())
    assert (told.score, told.agreement) == (0.4, 0.7)
    assert told.confidence == pytest.approx(float(spread.probs.max(1).values.mean()))
    assert told.entropy == pytest.approx(float(spread.entropy().mean()) / math.log(7))
    assert told.top_class == max(answers.tolist().count(label) for label in range(7)) / 50
    with pytest.raises(ValueError, match="not finite for 1 of 50 images"):
        summarised("clean", logits.index_fill(0, torch.tensor([3]), math.nan), clean, targets)


def test_orders_have_every_image_once_and_class_order_has_each_class_once() -> None:
    labels = np.random.default_rng(0).integers(0, 9, 120)
    for order in ("shuffled", "class order"):
        assert sorted(positions(order, labels, 3)) == list(range(120))  # type: ignore[arg-type]
    changes = sum(a != b for a, b in pairwise(labels[positions("class order", labels, 3)]))
    assert changes == len(set(labels)) - 1
    assert list(positions("shuffled", labels, 3)) != list(positions("shuffled", labels, 4))


# -- what fits -------------------------------------------------------------------------------------------------------------


def test_a_fast_network_gets_everything() -> None:
    plan = plan_within(5, Pace(1e-5, 1e-4), 50_000)
    assert (plan.images, plan.shifts, plan.trials, plan.left_out) == (1000, SHIFTS, TRIALS, ())
    assert plan_within(5, Pace(1e-5, 1e-4), 321).images == 321


@pytest.mark.parametrize("forward", [0.001, 0.004, 0.01, 0.03, 0.06])
def test_a_plan_keeps_to_its_minutes_and_keeps_what_decides(forward: float) -> None:
    plan = plan_within(5, Pace(forward, 1.3 * forward), 5000)
    assert plan.seconds <= 300
    assert plan.seconds == pytest.approx(
        seconds_for(Pace(forward, 1.3 * forward), plan.images, plan.shifts, plan.trials)
    )
    assert plan.trials[:3] == (Trial("steady"), Trial("steady", "class order"), Trial("tent", "class order"))
    assert set(plan.trials) | set(plan.left_out) == set(TRIALS)
    assert plan.images == 1000 or len(plan.trials) < len(TRIALS)
    assert plan.images >= 500 or len(plan.shifts) == 2


def test_more_minutes_never_buy_less() -> None:
    plans = [plan_within(minutes, Pace(0.05, 0.06), 5000) for minutes in (2, 5, 10, 30, 120)]
    for less, more in pairwise(plans):
        assert more.images * (1 + len(more.shifts)) >= less.images * (1 + len(less.shifts))
        assert more.seconds >= less.seconds


def test_a_very_slow_network_still_gets_a_sample_that_tells_something() -> None:
    plan = plan_within(1, Pace(2.0, 2.0), 5000)
    assert plan.images == 100
    assert plan.seconds > 60
    with pytest.raises(ValueError, match="minutes must be above 0"):
        plan_within(0, Pace(1.0, 1.0), 100)
