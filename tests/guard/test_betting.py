"""The wealth is a supermartingale under its null and grows under the alternative."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from wildtta.guard.betting import Bettor, log_mean_wealth
from wildtta.guard.evidence import Gains, gained_on_both
from wildtta.guard.judge import CERTAINTY_MARGIN, SPREAD_MARGIN, Compared, Decision, Judge, Look
from wildtta.guard.ladder import Ladder


def test_the_expected_wealth_is_at_most_one_on_every_tree_of_outcomes() -> None:
    """Exact: the mean over all 2^12 sequences of a two-valued variable whose mean is the margin."""
    margin, low, high = 0.1, -0.5, 0.9
    chance = (margin - low) / (high - low)
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=12):
        bettor = Bettor(margin, mean=0.3)
        bettor.observe([high if hit else low for hit in outcome])
        total += math.exp(bettor.log_wealth) * chance ** sum(outcome) * (1 - chance) ** (12 - sum(outcome))
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("spread", [0.05, 0.4, 1.0])
def test_false_alarms_stay_below_the_bound(spread: float) -> None:
    """400 runs of 2,000 observations at the very edge of the null: at most α of them ever reach 1/α (Ville)."""
    rng = np.random.default_rng(0)
    alpha, margin, alarms, runs = 0.05, 0.08, 0, 400
    for _ in range(runs):
        bettor, values = Bettor(margin), margin + spread * (1 - margin) * rng.choice([-1.0, 1.0], size=2000)
        highest = 0.0
        for value in values:
            bettor.observe([float(value)])
            highest = max(highest, bettor.log_wealth)
        alarms += highest >= -math.log(alpha)
    # Three standard deviations above α are allowed for the simulation's own chance.
    assert alarms / runs <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)


def test_nothing_is_bet_while_all_is_well_and_a_change_is_seen_at_once() -> None:
    rng = np.random.default_rng(1)
    bettor = Bettor(0.08)
    bettor.observe(rng.normal(-0.1, 0.1, size=5000).clip(-1, 1).tolist())
    assert bettor.log_wealth == pytest.approx(0.0, abs=1.0)
    bettor.observe(rng.normal(0.4, 0.2, size=128).clip(-1, 1).tolist())
    assert bettor.log_wealth > math.log(1e4)


def test_a_long_time_near_the_margin_costs_little() -> None:
    """Chance lifts the average above the margin again and again; without new stakes the wealth would be gone for good."""
    rng = np.random.default_rng(3)
    bettor = Bettor(0.08)
    bettor.observe(rng.normal(0.06, 0.3, size=100_000).clip(-1, 1).tolist())
    assert bettor.stakes > 5
    assert bettor.log_wealth > -2 * math.log(bettor.stakes + 1) - 2
    needed = 0
    while bettor.log_wealth < math.log(100):
        bettor.observe([float(np.clip(rng.normal(0.4, 0.2), -1, 1))])
        needed += 1
    fresh = Bettor(0.08)
    fresh.observe([0.06] * 64)
    at_first = 0
    while fresh.log_wealth < math.log(100):
        fresh.observe([float(np.clip(rng.normal(0.4, 0.2), -1, 1))])
        at_first += 1
    assert needed < 2 * at_first + 16


def test_what_is_staked_and_what_is_not_make_up_the_wealth() -> None:
    """Σ 1/(j(j+1)) over k stakes leaves 1/(k+1): with nothing won or lost, the wealth is 1 whatever was staked."""
    for stakes in (1, 2, 5, 40):
        staked = sum(1 / (k * (k + 1)) for k in range(1, stakes + 1))
        bettor = Bettor(0.0, stakes=stakes, log_staked=math.log(staked))
        assert bettor.log_wealth == pytest.approx(0.0, abs=1e-12)


def test_drawing_without_replacement_keeps_the_bound() -> None:
    """The guard draws half of a batch or all of it, not one image after the other from an endless stream.

    Batches of 32 values whose own mean is the margin: what is left of a batch is lower where what was drawn was high, so
    betting on it wins less. At most α of 400 runs may ever reach 1/α.
    """
    rng = np.random.default_rng(4)
    alpha, margin, runs, alarms = 0.05, 0.08, 400, 0
    for _ in range(runs):
        bettor, highest = Bettor(margin), 0.0
        for _ in range(40):
            values = rng.choice([-0.4, 0.56], size=32)
            values = (values - values.mean() + margin).clip(-1, 1)
            bettor.observe(rng.permutation(values)[: rng.choice([16, 32])].tolist())
            highest = max(highest, bettor.log_wealth)
        alarms += highest >= -math.log(alpha)
    assert alarms / runs <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / runs)


def test_an_observation_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in \[-1, 1\], got 1.5"):
        Bettor(0.0).observe([1.5])


def test_the_mean_of_wealths() -> None:
    bettors = [Bettor(0.0, log_staked=math.log(wealth), stakes=10**9) for wealth in (1.0, 2.0, 9.0)]
    assert math.exp(log_mean_wealth(bettors)) == pytest.approx(4.0)


def test_suspects_are_the_classes_that_gained_most_on_both_sides() -> None:
    """Compared with counting with fading weights in the plain way."""
    rng = np.random.default_rng(2)
    sides, plain = [], []
    for risen in ((7, 4), (7, 5)):
        source, adapted = rng.integers(0, 12, 3000), rng.integers(0, 12, 3000)
        for c in risen:
            adapted[2000:][rng.random(1000) < 0.3] = c
        gains = Gains()
        for s, a in zip(source.tolist(), adapted.tolist(), strict=True):
            gains.follow(s, a)
        fading = np.exp(-np.arange(3000)[::-1] / 256)
        plain.append([(fading[adapted == c].sum() - fading[source == c].sum()) / fading.sum() for c in range(12)])
        assert gains.shares() == pytest.approx({c: gain for c, gain in enumerate(plain[-1]) if gain > 0})
        sides.append(gains)
    smaller = np.minimum(*plain)
    assert gained_on_both(*sides, 1) == (int(np.argmax(smaller)),) == (7,)


def test_a_class_that_the_source_gives_to_half_of_the_images_is_no_suspect() -> None:
    gains = Gains()
    for place in range(300):
        gains.follow(3 if place % 3 else 1, 3)
    assert gained_on_both(gains, gains, 3) == ()


def _compared(
    rng: np.random.Generator, *, lost: float = -0.1, one_class: float = 0.0, certainty: float = -0.1
) -> Compared:
    source = rng.integers(0, 20, 32)
    adapted = np.where(rng.random(32) < one_class, 3, source)
    pairs = rng.normal(lost, 0.3, size=16).clip(-1, 1).tolist()
    sure = rng.normal(certainty, 0.2, size=32).clip(-1, 1).tolist()
    return Compared(pairs, sure, source.tolist(), adapted.tolist())


def test_under_the_null_the_judge_keeps_its_bound_over_ten_thousand_looks() -> None:
    """Every test at the edge of its null, on both sides. With α = 1 % in each of 40 runs of 250 looks, 0.4 alarms are
    expected at most."""
    alarms = 0
    for seed in range(40):
        rng, judge = np.random.default_rng(seed), Judge(Ladder(0.01), 20)
        decisions = []
        for _ in range(250):
            sides = [_compared(rng, lost=SPREAD_MARGIN, certainty=CERTAINTY_MARGIN, one_class=0.1) for _ in range(2)]
            decisions.append(judge.see(Look(*sides, mixed=True), can_return=True))
        alarms += any(decision is not None for decision in decisions)
    assert alarms <= 2


HARM = [{"lost": 0.4}, {"one_class": 0.4}, {"certainty": 0.2}]
IDS = ["spread", "takeover", "certainty"]


def _decisions(fresh: dict[str, float], remembered: dict[str, float], *, looks: int, mixed: bool) -> list[Decision]:
    """What a judge decides who has seen a long time without harm before."""
    rng, judge = np.random.default_rng(0), Judge(Ladder(0.01), 20)
    found = []
    for look in range(100 + looks):
        judge.images += 320
        sides = (fresh, remembered) if look >= 100 else ({}, {})
        known = _compared(rng, **sides[1]) if judge.asks_memory else Compared()
        decision = judge.see(Look(_compared(rng, **sides[0]), known, mixed=mixed), can_return=True)
        assert decision is None or look >= 100
        found += [] if decision is None else [decision]
    return found


@pytest.mark.parametrize("harm", HARM, ids=IDS)
def test_harm_on_both_sides_is_seen_within_a_few_looks(harm: dict[str, float]) -> None:
    assert _decisions(harm, harm, looks=8, mixed=False)


@pytest.mark.parametrize("harm", HARM, ids=IDS)
def test_what_shows_on_one_side_alone_is_no_harm(harm: dict[str, float]) -> None:
    """A flood shows on the latest images, a shift that was followed on the remembered ones."""
    assert not _decisions(harm, {}, looks=100, mixed=False)
    assert not _decisions({}, harm, looks=100, mixed=True)


def test_classes_that_get_back_what_the_source_had_taken_from_them_are_no_takeover() -> None:
    """A source that answers 0 to 60 % of the images, and a network that gives most of these to eight other classes."""
    rng, judge = np.random.default_rng(0), Judge(Ladder(0.01), 200)

    def side() -> Compared:
        source = np.where(rng.random(32) < 0.6, 0, rng.integers(1, 200, 32))
        adapted = np.where((source == 0) & (rng.random(32) < 0.9), rng.integers(1, 9, 32), source)
        return Compared(source=source.tolist(), adapted=adapted.tolist())

    assert not any(judge.see(Look(side(), side()), can_return=True) for _ in range(200))
    assert judge.suspects


def test_the_memory_is_asked_only_where_the_latest_images_give_reason() -> None:
    rng, judge = np.random.default_rng(0), Judge(Ladder(0.01), 20)
    asked = []
    for look in range(200):
        judge.see(Look(_compared(rng, lost=0.3 if look >= 100 else 0.0), Compared()), can_return=True)
        asked.append(judge.asks_memory)
    assert sum(asked[:100]) < 20
    assert all(asked[110:])


def test_where_a_batch_makes_the_answers_the_latest_images_count_alone() -> None:
    found = _decisions({"certainty": 0.2}, {}, looks=8, mixed=True)
    assert found[0].because == "statistics"


def test_with_few_classes_one_may_gain_its_even_share() -> None:
    """Ten classes, one of which the source never gave: a network that mends this is no worse."""
    rng = np.random.default_rng(0)
    few, many = Judge(Ladder(0.01), 10), Judge(Ladder(0.01), 200)
    found = {}
    for judge in (few, many):
        decisions = []
        for _ in range(60):
            sides = [_compared(rng, one_class=0.12) for _ in range(2)]
            decisions.append(judge.see(Look(*sides), can_return=True))
        found[judge] = any(decision is not None for decision in decisions)
    assert not found[few]
    assert found[many]


def test_labels_decide_where_they_come_in() -> None:
    rng, judge = np.random.default_rng(0), Judge(Ladder(0.01))
    labels = rng.integers(0, 10, 400).tolist()
    wrong = [(label + 1) % 10 for label in labels]
    half = [w if k % 2 else y for k, (w, y) in enumerate(zip(wrong, labels, strict=True))]
    decision = judge.see_labels(labels, half, labels, can_return=False)
    assert decision is not None
    assert decision.because == "labels"
    better = Judge(Ladder(0.01))
    assert better.see_labels(half, labels, labels, can_return=False) is None
