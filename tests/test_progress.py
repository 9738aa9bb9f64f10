"""One display for everything that takes a while: lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wildtta import progress
from wildtta.progress import Progress, shown


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; a test sets it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_what_is_over_soon_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    assert list(shown(range(5), "counting", 5)) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""


def test_what_takes_long_says_how_far_it_is(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    def slow() -> Iterator[int]:
        for number in range(10):
            clock[0] += 4.0
            yield number

    assert len(list(shown(slow(), "counting", 10))) == 10
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "counting: 0 of 10"
    assert lines[1] == "counting: 3 of 10, about 28 s left"
    assert len(lines) == 4


def test_what_was_there_before_does_not_count_as_fast(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    display = Progress("corrupting", "files")
    display.begin(1000, 900)
    clock[0] = 60.0
    display.update(950)
    assert capsys.readouterr().err == "corrupting: 950 of 1000, 50.0 files/min, about 60 s left\n"


def test_a_terminal_gets_a_bar_and_lines_that_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    display = Progress("cells", "cells")
    display.begin(2)
    display.update(1, "second", line="[1/2] first [bold]")
    display.end()
    assert "[1/2] first [bold]" in capsys.readouterr().err
