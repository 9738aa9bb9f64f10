"""A replica with a real fleet: the fleet's answers, each request learned once, states that outlive a kill and a full disk."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType

import numpy as np
import pytest
import torch
from service_parts import Array, ask, glyphs, replica_of, settings_for, told

import wildtta
from wildtta.glyphs import network
from wildtta.glyphs.networks import normalise
from wildtta.serve.record import read_record
from wildtta.serve.refusal import Refusal
from wildtta.step.state_file import read_state


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
    assert "Traceback" not in (tmp_path / "log.jsonl").read_text(), "whoever is refused must not fill the disk"
    with replica_of(replace(settings, limits=replace(settings.limits, tenants=2))) as replica:
        with pytest.raises(Refusal):
            ask(replica, "c", "1", glyphs(1))
        ask(replica, "b", "2", glyphs(1))


@pytest.mark.parametrize(("active", "resident"), [(1, 2), (8, 1)])
def test_tenants_that_left_the_memory_before_they_were_saved_are_saved(
    tmp_path: Path, active: int, resident: int
) -> None:
    settings = settings_for(tmp_path, active=active, resident=resident, wait=0.2, save_seconds=0.3, save_steps=1000)
    with replica_of(settings) as replica:
        for answer in [replica.submit(tenant, "1", glyphs(1)) for tenant in "abcdef"]:
            assert answer.result(60).shape == (1, 200)
        until = time.monotonic() + 20
        while len(list(tmp_path.rglob("*.stream"))) < 6 and time.monotonic() < until:
            time.sleep(0.1)
        assert replica.facts()["alive"]
        for tenant in "abcdef":
            ask(replica, tenant, "2", glyphs(1))
    assert [read_state(file)[1]["host_steps"] for file in tmp_path.rglob("*.stream")] == [2] * 6


def test_what_a_replica_holds_does_not_grow_with_the_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that can be reached from it, counted: what is kept of every request shows as one or more each."""
    monkeypatch.setattr("wildtta.serve.history._MOST_POINTS", 4)
    guard = wildtta.Guard(shadow=1.0, sample=8, memory=16)
    settings = settings_for(tmp_path, guarded=True, guard=guard, remembered=16, kept_answers=2**19)
    images = glyphs(8)
    with replica_of(settings) as replica:

        def held_after(requests: range) -> int:
            for number in requests:
                ask(replica, "a", str(number), images)
            told(replica, "a")
            return reachable(replica)

        before = held_after(range(130))  # windows of the last 1,000 images are full
        after = held_after(range(130, 230))
        assert after - before < 50, f"{after - before} objects more after 100 requests"
        assert replica.facts()["kept_answers"] <= 2**19 / 16


def reachable(root: object) -> int:
    """Objects that are reached from one through attributes and containers; what is shared by everybody is left out."""
    shared = (type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType, threading.Thread)
    seen, waiting = {id(root)}, [root]
    while waiting:
        for found in gc.get_referents(waiting.pop()):
            if id(found) not in seen and not isinstance(found, shared):
                seen.add(id(found))
                waiting.append(found)
    return len(seen)


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


def test_under_overload_everybody_is_answered_and_learning_is_left_out(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, batch=4, busy=4, wait=0.0)
    with replica_of(settings) as replica:
        flood = [replica.submit("flood", str(number), glyphs(2, first=number)) for number in range(40)]
        quiet = [replica.submit("quiet", str(number), glyphs(1, first=number)) for number in range(2)]
        assert all(future.result(60).shape == (2, 200) for future in flood)
        assert all(future.result(60).shape == (1, 200) for future in quiet)
        assert told(replica, "flood")["dropped"] > 20
        assert told(replica, "flood")["requests"] == 40
        assert told(replica, "quiet")["dropped"] == 0, "who sends little goes on learning"
        assert told(replica, "quiet")["learned"] >= 1
