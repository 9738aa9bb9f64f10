"""The shadow looks closely at a young network and at a suspected one."""

from __future__ import annotations

import pytest

from wildtta.guard.pace import START, share_of


def test_the_share_falls_from_everything_to_the_usual_one() -> None:
    assert share_of(0.1, 0, suspicious=False) == 1.0
    assert share_of(0.1, START, suspicious=False) == 1.0
    assert share_of(0.1, 2 * START, suspicious=False) == pytest.approx(0.5)
    assert share_of(0.1, 10 * START, suspicious=False) == pytest.approx(0.1)
    assert share_of(0.1, 10**7, suspicious=False) == pytest.approx(0.1)
    assert share_of(0.1, 10**7, suspicious=True) == 1.0
    assert share_of(0.01, 10**7, suspicious=True) == pytest.approx(0.1)


def test_the_start_of_a_life_costs_few_thousand_looks_more() -> None:
    """1280 (1 + ln 10) images while the share falls, against a tenth of as many images."""
    looked_at = sum(share_of(0.1, age, suspicious=False) for age in range(10 * START))
    assert looked_at == pytest.approx(START * (1 + 2.3026), rel=1e-3)
