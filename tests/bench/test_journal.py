"""The journal: what a kill, a full disk, a second writer and a broken file do to it."""

from __future__ import annotations

import gzip
import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wildtta.bench import Journal, JournalError, merge, read


def _row(key: str, accuracy: float = 1.0, status: str = "ok") -> dict[str, object]:
    return {"key": key, "cell": {"model": "a:b"}, "status": status, "metrics": {"accuracy": accuracy}}


def test_rows_come_back_and_failures_are_to_be_run_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j.jsonl"
    with Journal(path) as journal:
        journal.append(_row("a", math.nan))
        journal.append(_row("b", status="failed"))
        assert journal.finished() == {"a"}
    with Journal(path) as journal:
        assert journal.finished() == {"a"}
        journal.append(_row("b", 2.0))
        journal.append(_row("b", status="failed"))
        assert journal.finished() == {"a", "b"}
    rows = read(path)
    assert [row["key"] for row in rows] == ["a", "b"]
    assert rows[0]["metrics"]["accuracy"] is None
    assert rows[1]["metrics"]["accuracy"] == 2.0


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_repaired_with_a_message(tmp_path: Path, cut: int) -> None:
    path, said = tmp_path / "j.jsonl", []
    with Journal(path) as journal:
        journal.append(_row("a"))
        journal.append(_row("b"))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: len(whole) - cut])
    with Journal(path, say=said.append) as journal:
        if cut == 1:  # only the line's end is missing: nothing is lost
            assert journal.finished() == {"a", "b"}
            assert path.read_bytes() == whole
        else:
            assert journal.finished() == {"a"}
            assert path.read_bytes() == whole[:first]
            assert f"torn ({len(whole) - cut - first} bytes)" in said[0]
        journal.append(_row("c"))
    assert "c" in {row["key"] for row in read(path)}


def test_reading_leaves_a_torn_journal_alone(tmp_path: Path) -> None:
    path, said = tmp_path / "j.jsonl", []
    path.write_bytes(json.dumps(_row("a")).encode() + b'\n{"key": "b", "ce')
    before = path.read_bytes()
    assert [row["key"] for row in read(path, say=said.append)] == ["a"]
    assert "torn" in said[0]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json\n" + json.dumps(_row("a")).encode() + b"\n", "line 1 is not a row"),
        (json.dumps(_row("a")).encode() + b'\n{"x": 1}\n' + json.dumps(_row("b")).encode() + b"\n", "line 2"),
        (b"\x00\xff\xfe\n\x00\n", "line 1 is not a row"),
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_untouched(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(content)
    with pytest.raises(JournalError, match=message):
        Journal(path)
    assert path.read_bytes() == content
    with pytest.raises(JournalError, match=message):
        read(path)


def test_unreadable_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot open the journal"):
        Journal(tmp_path)
    with pytest.raises(JournalError, match=r"cannot read the journal .*No such file"):
        read(tmp_path / "absent.jsonl")
    (tmp_path / "bad.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(JournalError, match="cannot read the journal"):
        read(tmp_path / "bad.jsonl.gz")


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    code = f"""
        import sys, time
        from wildtta.bench import Journal
        journal = Journal({str(path)!r})
        print("open", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "open"
        with pytest.raises(JournalError, match="being written by another process"):
            Journal(path)
        other.send_signal(signal.SIGKILL)
        other.wait()
    with Journal(path) as journal:  # the lock ended with its holder
        journal.append(_row("a"))


def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the kernel writes what fits, then refuses."""
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append(_row("a"))
    size = path.stat().st_size
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
            with Journal(path) as journal:
                try:
                    journal.append(_row("b" * 100))
                except JournalError as error:
                    lines = str(error).splitlines()
                    code = 0 if len(lines) == 1 and "1 finished cells are safe" in lines[0] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.stat().st_size == size
    with Journal(path) as journal:
        assert journal.finished() == {"a"}
        journal.append(_row("b"))
    assert [row["key"] for row in read(path)] == ["a", "b"]


def test_merging_prefers_what_finished_and_compresses(tmp_path: Path) -> None:
    first, second, merged = tmp_path / "1.jsonl", tmp_path / "2.jsonl.gz", tmp_path / "m.jsonl.gz"
    with Journal(first) as journal:
        journal.append(_row("a", 1))
        journal.append(_row("b", status="failed"))
    lines = [json.dumps(_row("b", 2)), json.dumps(_row("a", status="failed")), json.dumps(_row("c", 3))]
    second.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    assert merge([first, second], merged) == 3
    rows = {row["key"]: row for row in read(merged)}
    assert {key: row["status"] for key, row in rows.items()} == {"a": "ok", "b": "ok", "c": "ok"}
    assert rows["b"]["metrics"]["accuracy"] == 2
    content = merged.read_bytes()
    merge([first, second], merged)
    assert merged.read_bytes() == content
    with pytest.raises(JournalError, match="compressed and can only be read"):
        Journal(merged)


TABLE_1, TABLE_2 = {"experiment": "table-1", "seeds": [0, 1]}, {"experiment": "table-2"}


def test_who_asked_for_a_row_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append({**_row("a", status="failed"), "asked_by": [TABLE_2]})
        journal.append({**_row("a"), "asked_by": [TABLE_1]})
        journal.append(_row("b"))
        size = path.stat().st_size
        journal.add_askers("a", [{"experiment": "table-1", "seeds": (0, 1)}])
        journal.add_askers("b", [])
        assert path.stat().st_size == size, "nobody new, nothing written"
        journal.add_askers("b", [TABLE_1])
        expected = journal.rows
    assert [row["asked_by"] for row in expected] == [[TABLE_2, TABLE_1], [TABLE_1]]
    assert read(path) == expected
    with Journal(path) as journal:
        assert journal.rows == expected
        assert journal.finished() == {"a", "b"}
        journal.add_askers("b", [TABLE_2])
    merge([path], tmp_path / "m.jsonl.gz")
    assert [row["asked_by"] for row in read(tmp_path / "m.jsonl.gz")] == [[TABLE_2, TABLE_1], [TABLE_1, TABLE_2]]
    other = tmp_path / "other.jsonl"
    with Journal(other) as journal:
        journal.append(_row("b", 7))
    assert read([path, other])[1] == {**_row("b", 7), "asked_by": [TABLE_1, TABLE_2]}, "a newer row keeps who asked"


def test_a_torn_addition_loses_the_addition_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append(_row("a"))
        journal.add_askers("a", [TABLE_1])
    path.write_bytes(path.read_bytes()[:-5])
    with Journal(path) as journal:
        assert journal.rows == [_row("a")]
        journal.add_askers("a", [TABLE_2])
    assert read(path)[0]["asked_by"] == [TABLE_2]
