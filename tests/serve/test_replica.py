"""A replica with a real fleet: the fleet's answers, each request learned once, states that outlive a kill and a full disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from service_parts import glyphs, replica_of, settings_for

import wildtta
from wildtta.glyphs import network
from wildtta.glyphs.networks import normalise
from wildtta.serve.record import read_record
from wildtta.serve.refusal import Refusal
from wildtta.step.state_file import read_state

Array = np.ndarray[Any, Any]


def ask(replica: Any, tenant: str, request_id: str, images: Array, **more: Any) -> Array:
    found: Array = replica.submit(tenant, request_id, images, **more).result(60)
    return found


def told(replica: Any, tenant: str) -> dict[str, Any]:
    found: dict[str, Any] = replica.status([tenant], 0.0).result(60)["tenants"][tenant]
    return found


def test_answers_are_the_fleets_on_the_recorded_groups(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "states", record=tmp_path / "record", wait=0.02)
    images = {f"{tenant}{i}": glyphs(2, first=7 * i) for tenant in "abc" for i in range(6)}
    answers: dict[str, Array] = {}
    with replica_of(settings) as replica:

        def stream(tenant: str) -> None:
            for i in range(6):
                answers[f"{tenant}{i}"] = ask(replica, tenant, f"{tenant}{i}", images[f"{tenant}{i}"])

        threads = [threading.Thread(target=stream, args=(tenant,)) for tenant in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    fleet = wildtta.Fleet(network("resnet_gn"), "tent")
    turns = list(read_record(tmp_path / "record" / "replica-0.jsonl"))
    assert any(len(set(turn.tenants)) > 1 for turn in turns), "nobody was answered together"
    for turn in turns:
        batch = normalise(torch.from_numpy(np.concatenate([images[i] for i in turn.ids])))
        logits = fleet(batch, [tenant for tenant in turn.tenants for _ in range(2)]).numpy()
        for place, request_id in enumerate(turn.ids):
            assert np.array_equal(logits[2 * place : 2 * place + 2], answers[request_id])
    assert sorted(answers) == sorted(images)


def test_a_request_is_learned_once_however_often_it_comes(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    images = glyphs(4)
    with replica_of(settings) as replica:
        first = ask(replica, "a", "one", images)
        again = [replica.submit("a", "one", images) for _ in range(5)]
        assert all(np.array_equal(first, future.result(60)) for future in again)
        assert told(replica, "a")["learned"] == 1
        with pytest.raises(Refusal) as refused:
            replica.submit("a", "one", glyphs(4, first=50))
        assert refused.value.status == 409
        # The same id of another tenant is another request.
        ask(replica, "b", "one", images)
        assert told(replica, "b")["learned"] == 1
    with replica_of(settings) as replica:
        # After a restart the answer is gone and the knowledge is not: answered anew, by what was learned, not learned again.
        later = ask(replica, "a", "one", images)
        assert not np.array_equal(first, later)
        assert told(replica, "a")["learned"] == 0
        ask(replica, "a", "two", images)
        assert told(replica, "a")["learned"] == 1


def test_a_request_may_ask_not_to_be_learned_from_beside_one_that_is(tmp_path: Path) -> None:
    with replica_of(settings_for(tmp_path, wait=0.2)) as replica:
        futures = [replica.submit("a", str(i), glyphs(1, first=i), learn=i % 2 == 0) for i in range(4)]
        for future in futures:
            future.result(60)
        status = told(replica, "a")
        assert status["requests"] == 4
        assert status["learned"] == 1, "one step for the two that may be learned from"


def test_pause_outlives_a_restart_and_reset_is_exact(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    images = glyphs(8)
    with torch.no_grad():
        source = network("resnet_gn")(normalise(torch.from_numpy(images)))
    with replica_of(settings) as replica:
        with pytest.raises(Refusal) as refused:
            replica.act("a", "pause").result(60)
        assert refused.value.status == 404
        for i in range(3):
            ask(replica, "a", str(i), images)
        moved = ask(replica, "a", "moved", images, learn=False)
        assert not np.allclose(moved, source.numpy(), atol=1e-6)
        replica.act("a", "pause").result(60)
    with replica_of(settings) as replica:
        assert np.array_equal(moved, ask(replica, "a", "x", images))
        status = told(replica, "a")
        assert status["paused"]
        assert status["learned"] == 0
        replica.act("a", "resume").result(60)
        ask(replica, "a", "y", images)
        assert told(replica, "a")["learned"] == 1
        with pytest.raises(Refusal) as refused:
            replica.act("a", "rollback").result(60)
        assert refused.value.status == 409, "there is no guard"
        replica.act("a", "reset").result(60)
        np.testing.assert_allclose(ask(replica, "a", "z", images), source.numpy(), atol=1e-5)


def test_a_state_that_another_process_holds_is_refused_and_the_others_are_answered(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, wait=0.1)
    with wildtta.Fleet(network("resnet_gn"), "tent", folder=tmp_path) as other, replica_of(settings) as replica:
        other["held"]
        held, free = replica.submit("held", "1", glyphs(1)), replica.submit("free", "1", glyphs(1))
        assert free.result(60).shape == (1, 200)
        with pytest.raises(Refusal) as refused:
            held.result(60)
        assert refused.value.status == 503


def test_tenants_are_limited(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with replica_of(replace(settings, limits=replace(settings.limits, tenants=2))) as replica:
        for tenant in ("a", "b", "a"):
            ask(replica, tenant, "1", glyphs(1))
        with pytest.raises(Refusal) as refused:
            ask(replica, "c", "1", glyphs(1))
        assert refused.value.status == 403


def test_a_failure_to_learn_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wildtta.fleet.fleet import Turn

    def broken(self: Turn) -> None:
        raise RuntimeError("no gradient today")

    with replica_of(settings_for(tmp_path)) as replica:
        monkeypatch.setattr(Turn, "learn", broken)
        assert ask(replica, "a", "1", glyphs(1)).shape == (1, 200)
        monkeypatch.undo()
        assert ask(replica, "a", "2", glyphs(1)).shape == (1, 200)
        assert told(replica, "a")["requests"] >= 1


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
