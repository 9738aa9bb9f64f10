"""Up by evidence, down by patience."""

from __future__ import annotations

from wildtta.guard.ladder import Ladder, Rung


def climb(ladder: Ladder, evidence: float, *, suspicious: bool = True, can_return: bool = True) -> Rung | None:
    return ladder.judge(evidence, suspicious=suspicious, can_return=can_return)


def test_more_evidence_climbs_higher() -> None:
    ladder = Ladder(0.01)
    assert climb(ladder, 99) is None
    assert climb(ladder, 100) == Rung.SLOW
    assert climb(ladder, 120) is None
    assert climb(ladder, 300) == Rung.PAUSE
    assert climb(ladder, 1000) == Rung.SNAPSHOT
    assert ladder.rung == Rung.SLOW


def test_it_comes_down_one_rung_after_enough_healthy_looks_in_a_row() -> None:
    ladder = Ladder(0.01, patience=3)
    climb(ladder, 300)
    assert ladder.rung == Rung.PAUSE
    assert [climb(ladder, 1, suspicious=False) for _ in range(3)] == [None, None, Rung.SLOW]
    assert climb(ladder, 1, suspicious=True) is None
    assert [climb(ladder, 1, suspicious=False) for _ in range(3)] == [None, None, Rung.LEARN]
    assert climb(ladder, 1, suspicious=False) is None


def test_a_second_return_soon_after_leads_to_the_source_and_each_rest_is_longer() -> None:
    ladder = Ladder(0.01, patience=2, probation=10)
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
    assert climb(ladder, 1e4) == Rung.SOURCE
    assert ladder.rung == Rung.PAUSE
    rests = [ladder.rest]
    assert climb(ladder, 1e4) == Rung.SOURCE
    rests.append(ladder.rest)
    assert rests == [2, 4]
    assert climb(ladder, 1, suspicious=False) is None


def test_without_a_healthy_snapshot_the_way_back_is_the_source() -> None:
    assert climb(Ladder(0.01), 1e4, can_return=False) == Rung.SOURCE


def test_long_after_a_return_a_snapshot_is_trusted_again() -> None:
    ladder = Ladder(0.01, probation=3)
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
    for _ in range(3):
        climb(ladder, 1, suspicious=True)
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
