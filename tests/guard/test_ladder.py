"""Up by evidence, down by patience; longer rests and trials after every return."""

from __future__ import annotations

from wildtta.guard.ladder import Ladder, Rung


def climb(ladder: Ladder, evidence: float, *, suspicious: bool = True, can_return: bool = True) -> Rung | None:
    return ladder.judge(evidence, suspicious=suspicious, can_return=can_return, images=32)


def healthy(ladder: Ladder, looks: int) -> list[Rung | None]:
    return [climb(ladder, 1, suspicious=False) for _ in range(looks)]


def test_time_is_counted_in_images_not_in_looks() -> None:
    """While something is suspected looks are ten times as frequent; a rest must not be shorter for that."""
    ladder = Ladder(0.01, patience=1000)
    climb(ladder, 1e4, can_return=False)
    steps = [ladder.judge(1, suspicious=True, can_return=False, images=400) for _ in range(3)]
    assert steps == [None, None, Rung.TRIAL]
    steps = [ladder.judge(1, suspicious=False, can_return=False, images=50) for _ in range(20)]
    assert steps == [*[None] * 19, Rung.LEARN]


def test_more_evidence_climbs_higher() -> None:
    ladder = Ladder(0.01)
    assert climb(ladder, 99) is None
    assert climb(ladder, 100) == Rung.SLOW
    assert climb(ladder, 120) is None
    assert climb(ladder, 300) == Rung.PAUSE
    assert climb(ladder, 1000) == Rung.SNAPSHOT
    assert ladder.rung == Rung.PAUSE


def test_it_comes_down_one_rung_after_enough_healthy_looks_in_a_row() -> None:
    ladder = Ladder(0.01, patience=96)
    climb(ladder, 300)
    assert ladder.rung == Rung.PAUSE
    assert healthy(ladder, 3) == [None, None, Rung.SLOW]
    assert climb(ladder, 1, suspicious=True) is None
    assert healthy(ladder, 3) == [None, None, Rung.LEARN]
    assert healthy(ladder, 1) == [None]


def test_after_a_snapshot_the_pause_lasts_however_healthy_it_looks() -> None:
    ladder = Ladder(0.01, patience=96)
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
    assert healthy(ladder, 3) == [None, None, Rung.SLOW]
    assert healthy(ladder, 3) == [None, None, Rung.LEARN]


def test_on_probation_the_first_alarm_leads_to_the_source() -> None:
    ladder = Ladder(0.01, patience=64, probation=320)
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
    assert healthy(ladder, 4) == [None, Rung.SLOW, None, Rung.LEARN]
    assert climb(ladder, 99) is None
    assert climb(ladder, 100) == Rung.SOURCE


def test_after_the_source_comes_a_rest_then_a_trial_and_both_double() -> None:
    ladder = Ladder(0.01, patience=64)
    assert climb(ladder, 1e4, can_return=False) == Rung.SOURCE
    # The rest: nothing that is seen ends it or prolongs it.
    assert climb(ladder, 1e9, suspicious=True) is None
    assert climb(ladder, 1, suspicious=True) == Rung.TRIAL
    # A trial needs healthy looks in a row, and ends with the first alarm.
    assert healthy(ladder, 1) == [None]
    assert climb(ladder, 99, suspicious=True) is None
    assert climb(ladder, 100) == Rung.SOURCE
    assert healthy(ladder, 4) == [None, None, None, Rung.TRIAL]
    assert healthy(ladder, 4) == [None, None, None, Rung.LEARN]
    assert climb(ladder, 100) == Rung.SOURCE
    assert healthy(ladder, 8)[-2:] == [None, Rung.TRIAL]


def test_without_a_healthy_snapshot_the_way_back_is_the_source() -> None:
    assert climb(Ladder(0.01), 1e4, can_return=False) == Rung.SOURCE


def test_long_after_a_return_a_snapshot_is_trusted_again() -> None:
    ladder = Ladder(0.01, patience=32, probation=96)
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
    assert healthy(ladder, 2) == [Rung.SLOW, Rung.LEARN]
    for _ in range(3):
        climb(ladder, 1, suspicious=True)
    assert climb(ladder, 100) == Rung.SLOW
    assert climb(ladder, 1e4) == Rung.SNAPSHOT
