"""A replica that is killed, and a disk that is full: states that outlive both, answers that go on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from service_parts import ask, glyphs, replica_of, settings_for, told

from wildtta.step.state_file import read_state

# -- a kill --------------------------------------------------------------------------------------------------------------

_LEARNS = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from service_parts import glyphs, settings_for
from wildtta.serve.replica import Replica

replica = Replica(settings_for(Path({folder!r}), save_steps=4))
for number in range(10_000):
    replica.submit("a", str(number), glyphs(2, first=number % 50)).result()
    print(number, flush=True)
"""


def test_a_kill_costs_at_most_the_stated_steps_and_nothing_is_learned_twice(tmp_path: Path) -> None:
    code = _LEARNS.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    answered = 0
    for line in process.stdout:
        answered = int(line) + 1
        if answered == 15:
            os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    (state,) = tmp_path.rglob("*.stream")
    _, facts = read_state(state)  # whole: its checksum is right
    steps = facts["host_steps"]
    assert answered - 4 <= steps + 1
    with replica_of(settings_for(tmp_path, save_steps=4)) as replica:
        for number in range(answered):
            ask(replica, "a", str(number), glyphs(2, first=number % 50))
        # Those that the state holds are not learned again, those that were lost are.
        assert told(replica, "a")["learned"] == answered - steps


# -- a full disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a small file system can be mounted by root alone")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=False)


def test_on_a_full_disk_answers_go_on_and_learning_pauses_with_an_alarm(small_disk: Path) -> None:
    settings = settings_for(small_disk / "states", save_steps=2, log=small_disk.parent / "log.jsonl")
    with replica_of(settings) as replica:
        ask(replica, "a", "first", glyphs(2))
        assert told(replica, "a")["learned"] == 1
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        for number in range(8):
            assert ask(replica, "a", f"full{number}", glyphs(2, first=number)).shape == (2, 200)
        assert replica.facts()["alarm"] is not None
        before = told(replica, "a")
        assert any(event["kind"] == "disk" for event in before["events"])
        ask(replica, "a", "still full", glyphs(2))
        assert told(replica, "a")["learned"] == before["learned"]
        assert ask(replica, "new", "1", glyphs(2)).shape == (2, 200), "a tenant that comes meanwhile is answered too"
        filler.unlink()
        until = time.monotonic() + 20
        while replica.facts()["alarm"] is not None and time.monotonic() < until:
            time.sleep(0.1)
        assert replica.facts()["alarm"] is None
        ask(replica, "a", "room again", glyphs(2))
        assert told(replica, "a")["learned"] == before["learned"] + 1
    assert all(read_state(file) for file in (small_disk / "states").rglob("*.stream"))


def test_tenants_that_have_to_leave_the_memory_of_a_full_disk_stay_there(small_disk: Path) -> None:
    settings = settings_for(small_disk / "states", active=1, resident=1, log=small_disk.parent / "log.jsonl")
    with replica_of(settings) as replica:
        for tenant in "abc":
            ask(replica, tenant, "0", glyphs(2))
        assert told(replica, "c")["learned"] == 1  # learning comes after the answer
        with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(512)):
                pass
        learned = {}
        for number in (1, 2):
            for tenant in "abcd":
                learned[tenant, number] = ask(replica, tenant, str(number), glyphs(2), learn=False)
        for tenant in "abcd":
            assert np.array_equal(learned[tenant, 1], learned[tenant, 2]), "a state was lost between the two"
        (small_disk / "filler").unlink()
    assert {file.stem for file in (small_disk / "states").rglob("*.stream")} >= set("abc")
