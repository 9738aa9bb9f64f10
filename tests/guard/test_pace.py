"""The shadow looks closely at a young network and at one that gives reason."""

from __future__ import annotations

import pytest

from wildtta.guard.pace import START, share_of


def test_the_share_falls_from_everything_to_the_usual_one() -> None:
    assert share_of(0.1, 0, alert=False) == 1.0
    assert share_of(0.1, START, alert=False) == 1.0
    assert share_of(0.1, 2 * START, alert=False) == pytest.approx(0.5)
    assert share_of(0.1, 10 * START, alert=False) == pytest.approx(0.1)
    assert share_of(0.1, 10**7, alert=False) == pytest.approx(0.1)
    assert share_of(0.1, 10**7, alert=True) == 1.0
    assert share_of(0.01, 10**7, alert=True) == pytest.approx(0.1)


def test_the_start_of_a_life_costs_few_thousand_looks_more() -> None:
    """START (1 + ln 10) images while the share falls, against a tenth of as many images."""
    looked_at = sum(share_of(0.1, age, alert=False) for age in range(10 * START))
    assert looked_at == pytest.approx(START * (1 + 2.3026), rel=1e-3)
