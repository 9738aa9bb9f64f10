"""The log of learned requests: consistent with whichever state is found, whole after any end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wildtta.serve.answers import Answers, digest
from wildtta.serve.learned_ids import LearnedIds


def filled(path: Path, calls: int, most: int = 100) -> LearnedIds:
    ids = LearnedIds(path, most=most, calls=0)
    for call in range(1, calls + 1):
        ids.add(call, [f"a{call}", f"b{call}"])
    return ids


@pytest.mark.parametrize("calls", [0, 3, 7, 10, 99])
def test_a_state_knows_exactly_the_requests_up_to_its_call(tmp_path: Path, calls: int) -> None:
    path = tmp_path / "requests" / "t.ids"
    filled(path, 10)
    again = LearnedIds(path, most=100, calls=calls)
    held = min(calls, 10)
    assert [f"a{call}" in again for call in range(1, 11)] == [call <= held for call in range(1, 11)]
    assert again.lost == 10 - held
    # The lost calls are made again with other requests; what was dropped must not come back.
    again.add(held + 1, ["new"])
    third = LearnedIds(path, most=100, calls=held + 1)
    assert "new" in third
    assert third.lost == 0
    assert f"a{held + 1}" not in third


def test_a_line_that_a_kill_cut_off_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t.ids"
    filled(path, 5)
    whole = path.read_bytes()
    for cut in range(len(whole) - 20, len(whole)):
        path.write_bytes(whole[:cut])
        again = LearnedIds(path, most=100, calls=5)
        assert "a4" in again
        assert "a5" not in again
        again.add(5, ["c5"])
        assert "c5" in LearnedIds(path, most=100, calls=5)


def test_the_log_stays_small_and_keeps_the_latest(tmp_path: Path) -> None:
    path = tmp_path / "t.ids"
    ids = filled(path, 500, most=20)
    assert len(ids) == 20
    assert "b500" in ids
    assert "a1" not in ids
    assert len(path.read_bytes().splitlines()) <= 2 * 20 + 1
    again = LearnedIds(path, most=20, calls=500)
    assert all(f"a{call}" in again for call in range(491, 501))


def test_a_line_that_a_power_cut_damaged_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "t.ids"
    filled(path, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    for damage in (bytes(20) + b"\n", b"7\n", b"{}\n", b'{"call": null, "ids": []}\n'):
        path.write_bytes(b"".join([*lines[:3], damage, lines[4]]))
        again = LearnedIds(path, most=100, calls=5)
        assert [f"a{call}" in again for call in range(1, 6)] == [True, True, True, False, True]
        again.add(6, ["c6"])
        assert damage not in path.read_bytes()
        assert "c6" in LearnedIds(path, most=100, calls=6)


def test_answers_are_kept_within_their_bytes() -> None:
    answers = Answers(most_bytes=16 * 10 * (1024 + 800))
    for number in range(50):
        answers.put("t", str(number), b"f", np.full((1, 200), number, np.float32))
    assert len(answers) == 10, "a sixteenth for one tenant"
    assert answers.get("t", "39") is None
    found = answers.get("t", "49")
    assert found is not None
    assert found[1][0, 0] == 49


def test_small_answers_count_with_what_holds_them() -> None:
    answers = Answers(most_bytes=2**20)
    for number in range(5000):
        answers.put(f"t{number % 100}", str(number), b"f", np.zeros((1, 2), np.float32))
    assert len(answers) <= 1024
    assert answers.held <= 2**20


def test_a_tenant_that_asks_much_takes_no_answer_of_others() -> None:
    answers = Answers(most_bytes=2**20)
    answers.put("quiet", "1", b"f", np.zeros((1, 2), np.float32))
    for number in range(5000):
        answers.put("loud", str(number), b"f", np.zeros((8, 200), np.float32))
    assert answers.get("quiet", "1") is not None


def test_an_answer_that_is_given_again_counts_once() -> None:
    answers = Answers(most_bytes=2**20)
    for _ in range(3):
        answers.put("t", "1", b"f", np.zeros((1, 200), np.float32))
    assert len(answers) == 1
    assert answers.held == 1024 + 800


def test_a_digest_tells_images_apart() -> None:
    images = np.zeros((1, 3, 4, 4), np.uint8)
    other = images.copy()
    other[0, 0, 0, 0] = 1
    assert digest(images) == digest(images.copy())
    assert digest(images) != digest(other)
    four = np.zeros((4, 3, 4, 4), np.uint8)
    assert digest(four) != digest(images.astype(np.float32)), "the same bytes, other images"
