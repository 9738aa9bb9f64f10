"""Spread against its definition, and what a probe of both networks can tell."""

from __future__ import annotations

import pytest
import torch

from wildtta.guard.evidence import (
    Gains,
    correctness_lost,
    lost_certainty,
    lost_spread,
    probabilities,
    spread,
    taken_over,
)


def test_the_mean_spread_of_all_pairs_is_certainty_minus_chance() -> None:
    """½ E‖p − p'‖² = E Σ p² − Σ p̄², counted over all ordered pairs with a sample as its own partner."""
    p = torch.randn(40, 7, dtype=torch.float64).mul(3).softmax(1)
    first, second = p.repeat_interleave(40, 0), p.repeat(40, 1)
    certainty, chance = p.square().sum(1).mean(), p.mean(0).square().sum()
    torch.testing.assert_close(spread(first, second).mean(), certainty - chance)


def test_one_answer_to_everything_loses_all_spread() -> None:
    reference = torch.eye(8)
    collapsed = torch.zeros(8, 8)
    collapsed[:, 3] = 1
    assert lost_spread(reference, collapsed).tolist() == [1.0] * 4
    assert lost_spread(reference, reference).tolist() == [0.0] * 4
    assert lost_spread(collapsed, reference).tolist() == [-1.0] * 4


def test_a_network_that_is_only_less_certain_has_lost_nothing() -> None:
    """The accuracy that was lost is at most the share of answers that changed."""
    reference = torch.randn(400, 9, generator=torch.Generator().manual_seed(0)).mul(4).softmax(1)
    flatter = reference.pow(0.3) / reference.pow(0.3).sum(1, keepdim=True)
    assert float(spread(reference[:200], reference[200:]).mean()) > 2 * float(
        spread(flatter[:200], flatter[200:]).mean()
    )
    assert float(lost_spread(reference, flatter).abs().max()) == 0
    changed = flatter.clone()
    changed[0] = flatter[0].roll(1)
    assert int((lost_spread(reference, changed) != 0).sum()) == 1


def test_logits_that_are_not_finite_have_no_spread() -> None:
    logits = torch.tensor([[float("nan"), 0.0], [float("inf"), 1.0], [2.0, 0.0]])
    found = probabilities(logits)
    assert found[:2].abs().sum() == 0
    assert found[2].sum() == pytest.approx(1.0)


def test_certainty_is_lost_where_the_answers_differ_and_the_source_was_surer() -> None:
    source = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6]])
    adapted = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.0, 1.0, 0.0], [0.5, 0.1, 0.4]])
    torch.testing.assert_close(lost_certainty(source, adapted), torch.tensor([0.0, 0.5, -0.6, 0.1]))


def test_lost_certainty_is_lost_accuracy_where_certainty_is_the_chance_of_being_right() -> None:
    """Where the answers differ, each network is right as often as it says: the means agree within the sampling error."""
    draws = torch.Generator().manual_seed(0)
    number, classes = 20_000, 6
    source = torch.randn(number, classes, generator=draws).mul(1.5).softmax(1)
    adapted = source.roll(1, 1) * 0.6 + 0.4 / classes
    at = torch.rand(number, generator=draws)
    (sure, first), (now, second) = source.max(1), adapted.max(1)
    assert bool((first != second).all())
    labels = torch.where(at < sure, first, torch.where(at < sure + now, second, -1))
    assert bool((sure + now <= 1.001).float().mean() > 0.5)
    possible = sure + now <= 1
    lost = ((first == labels).float() - (second == labels).float())[possible]
    error = float(lost.std() / len(lost) ** 0.5)
    assert float(lost_certainty(source, adapted)[possible].mean() - lost.mean()) == pytest.approx(0, abs=4 * error)


def test_takeover_and_correctness() -> None:
    assert [taken_over(s, a, (5, 6)) for s, a in ((1, 5), (5, 6), (6, 2), (1, 2))] == [1.0, 0.0, -1.0, 0.0]
    assert correctness_lost([1, 1, 2, 2], [1, 3, 3, 2], [1, 1, 3, 0]) == [0.0, 1.0, -1.0, 0.0]


def test_answers_are_bunched_less_where_two_images_get_the_same_one_less_than_half_as_often() -> None:
    """Half of the source's answers are class 0, the others even over 50: Σ s² = 0.25 + 50/100² = 0.255."""
    for kept, expected in ((0.4, False), (0.3, True)):  # of class 0; the rest goes to classes 51 to 99
        gains = Gains()
        for turn in range(2000):
            source = 0 if turn % 2 else 1 + (turn // 2) % 50
            moved = source == 0 and (turn // 2) % 50 >= 100 * kept
            gains.follow(source, 51 + (turn // 2) % 49 if moved else source)
        assert gains.bunched_less is expected
    assert not Gains().bunched_less
