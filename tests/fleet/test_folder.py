"""States that outlive the process: evicted, stored, taken up again, one writer each, whole after a kill."""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import wildtta
from fleet_streams import pool, trained
from wildtta.fleet import StreamHeld, locks
from wildtta.fleet.packing import size_of
from wildtta.fleet.records import Slots
from wildtta.fleet.state_folder import StateFolder
from wildtta.guard.watch import Watch
from wildtta.step.state_file import read_state, write_state


def fleet_of(folder: Path, **options) -> wildtta.Fleet:
    return wildtta.Fleet(copy.deepcopy(trained("resnet_gn", torch.float32)), "sar2", warmup=2, folder=folder, **options)


def feed(fleet: wildtta.Fleet, streams: range, step: int) -> torch.Tensor:
    names = [f"s{stream}" for stream in streams for _ in range(2)]
    rows = torch.cat([pool(stream % 8, torch.float32)[2 * step : 2 * step + 2] for stream in streams])
    return fleet(rows, names)


def test_streams_go_to_memory_and_to_disk_and_come_back(tmp_path):
    """Twelve streams with room for two on the device and three in memory answer as with room for all."""
    small, large = fleet_of(tmp_path / "small", active=2, resident=3), fleet_of(tmp_path / "large", active=12)
    for step in range(3):
        for first in range(0, 12, 2):
            pair = range(first, first + 2)
            assert torch.allclose(feed(small, pair, step), feed(large, pair, step), atol=1e-4)
    assert len(list((tmp_path / "small").glob("*/*.stream"))) >= 7
    assert not list((tmp_path / "large").glob("*/*.stream"))
    assert large.save() == 12
    assert large.save() == 0


def test_a_new_fleet_goes_on_from_the_folder(tmp_path):
    first = fleet_of(tmp_path)
    for step in range(3):
        feed(first, range(3), step)
    first["s1"].pause()
    first.save()
    feed(first, range(3), 3)
    expected = first["s0"].online_state()
    first.close()
    second = fleet_of(tmp_path)
    assert second.streams == ["s0", "s1", "s2"]
    assert second["s1"].paused
    assert second["s0"].calls == second["s1"].calls == 4
    found = second["s0"].online_state()
    for name, value in expected.items():
        assert torch.allclose(value.double(), found[name].double(), atol=1e-9, equal_nan=True), name
    second.close()
    other = wildtta.Fleet(copy.deepcopy(trained("resnet_gn", torch.float32)), "tent", folder=tmp_path)
    with pytest.raises(ValueError, match="is a state of 'sar2'"):
        other(pool(0, torch.float32)[:1], ["s0"])


def test_the_stored_form_is_small(tmp_path):
    """On disk the sums and the rows of classes that were never seen are left out."""
    fleet = fleet_of(tmp_path)
    feed(fleet, range(1), 0)
    fleet.save()
    (path,) = tmp_path.glob("*/s0.stream")
    tensors, facts = read_state(path)
    stored = sum(value.numel() * value.element_size() for value in tensors.values())
    assert stored < fleet.stream_bytes / 4
    assert facts["version"] == 1


@pytest.mark.parametrize("name", ["a/../../b", "ü ~.x", "n" * 300, "CON", "."])
def test_any_name_is_a_file_in_the_folder(name, tmp_path):
    folder = StateFolder(tmp_path)
    folder.claim(name)
    folder.write(name, {"weights": torch.zeros(2)}, _FACTS, 0)
    assert folder.file_of(name).resolve().parent.parent == tmp_path.resolve()
    assert folder.names() == [name]
    assert folder.read(name)[1]["stream"] == name
    folder.close()


def test_what_is_no_state_is_no_stream(tmp_path):
    folder = StateFolder(tmp_path)
    folder.claim("n" * 300)
    folder.write("n" * 300, {"weights": torch.zeros(2)}, _FACTS, 0)
    (tmp_path / "zz").mkdir()
    (tmp_path / "zz" / "a~b.stream").write_bytes(b"something else")
    assert folder.names() == ["n" * 300]
    folder.close()


_FACTS = {
    "method": "tent", "options": {}, "network": "", "batch_size": 1, "share": None, "host_steps": 0, "calls": 0,
    "gate_open": False, "image_shape": None, "precision": None,
}


def test_a_state_has_one_writer_and_versions_are_checked(tmp_path):
    first, second = StateFolder(tmp_path), StateFolder(tmp_path)
    first.claim("a")
    with pytest.raises(StreamHeld, match="another fleet of this process"):
        second.claim("a")
    second.claim("b")
    first.write("a", {"weights": torch.zeros(2)}, _FACTS, 0)
    with pytest.raises(RuntimeError, match="has version 1, and this fleet's is from version 0"):
        first.write("a", {"weights": torch.ones(2)}, _FACTS, 0)
    first.close()
    second.claim("a")
    second.close()


_CHILD = """
import sys, torch, wildtta, warnings
warnings.simplefilter("ignore")
torch.set_num_threads(1)
from wildtta.glyphs import network
fleet = wildtta.Fleet(network("resnet_gn"), "tent", folder=sys.argv[1], active=2, resident=1)
draw = torch.Generator().manual_seed(0)
step = 0
while True:
    names = [f"s{(step + place) % 6}" for place in range(2)]
    fleet(torch.randn(2, 3, 32, 32, generator=draw), names)
    step += 1
    if step == 6:
        print("ready", flush=True)
"""


def test_a_killed_process_leaves_whole_states_and_no_lock(tmp_path):
    """Killed in the middle of swapping, three times: a living one keeps others out, a dead one does not."""
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        folder = StateFolder(tmp_path)
        with pytest.raises(StreamHeld, match="held by another process"):
            folder.claim("s1")
        time.sleep(0.3)
        child.send_signal(signal.SIGKILL)
        child.wait()
        folder.claim("s1")
        names = folder.names()
        assert names
        for name in names:
            folder.claim(name)
            assert folder.read(name) is not None
        folder.close()


def one_at_a_time(folder: Path, **options) -> wildtta.Fleet:
    """Room for one stream on the device and for one in host memory."""
    network = copy.deepcopy(trained("resnet_gn", torch.float32))
    return wildtta.Fleet(network, "tent", folder=folder, active=1, resident=1, **options)


def answer(fleet: wildtta.Fleet, name: str) -> torch.Tensor:
    return fleet(pool(0, torch.float32)[:2], [name] * 2)


def test_a_stream_whose_state_does_not_fit_takes_no_place_from_others(tmp_path):
    network = trained("resnet_gn", torch.float32)
    with wildtta.Fleet(copy.deepcopy(network), "sar", recovery="relative", folder=tmp_path) as first:
        answer(first, "odd")
    fleet = wildtta.Fleet(copy.deepcopy(network), "sar", folder=tmp_path, active=2)
    for _ in range(3):
        with pytest.raises(ValueError, match="does not fit the fleet's options"):
            answer(fleet, "odd")
    batch = pool(0, torch.float32)[:2]
    for _ in range(2):
        assert fleet(batch, ["a", "b"]).isfinite().all()
    fleet.drop("odd")
    assert answer(fleet, "odd").isfinite().all()


def test_a_stream_whose_file_is_gone_keeps_no_other_from_coming_in(tmp_path):
    fleet = one_at_a_time(tmp_path)
    for name in "abc":
        answer(fleet, name)
    (gone,) = tmp_path.glob("*/a.stream")
    gone.unlink()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"state of 'a' .* is gone; drop the stream"):
            answer(fleet, "a")
        for name in ("b", "c", "new"):
            answer(fleet, name)
    assert fleet["b"].calls == 3


@pytest.mark.filterwarnings("ignore:the state of 'a' cannot be written")
def test_a_stream_that_something_else_overwrote_keeps_no_other_from_going_or_being_saved(tmp_path):
    fleet = one_at_a_time(tmp_path)
    for name in "abc":
        answer(fleet, name)
    (path,) = tmp_path.glob("*/a.stream")
    tensors, facts = read_state(path)
    answer(fleet, "a")
    write_state(path, tensors, {**facts, "version": 7})
    answer(fleet, "b")
    with pytest.warns(UserWarning, match="state of 'a' cannot be written and stays in memory"):
        answer(fleet, "c")
    for name in "dbcd":
        answer(fleet, name)
    with pytest.raises(RuntimeError, match="has version 7"):
        fleet.save()
    assert all(read_state(next(tmp_path.glob(f"*/{name}.stream")))[1]["calls"] == 3 for name in "bc")


def test_a_write_that_is_broken_off_leaves_each_stream_in_one_place(tmp_path, monkeypatch):
    """By an interruption while a stream makes room for another: what it learns afterwards is what is saved."""
    fleet = one_at_a_time(tmp_path)
    for name in "ab":
        answer(fleet, name)

    def broken_off(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("wildtta.fleet.state_folder.write_state", broken_off)
        with pytest.raises(KeyboardInterrupt):
            answer(fleet, "c")
    answer(fleet, "b")
    expected = fleet["b"].online_state()
    fleet.close()
    found = one_at_a_time(tmp_path)["b"].online_state()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_nobody_learns_between_the_last_save_and_the_end(tmp_path, monkeypatch):
    """A thread that calls or closes the fleet meanwhile waits, and then finds it closed."""
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "a")
    refused: list[str] = []

    def tried(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            refused.append(str(error))

    threads = [threading.Thread(target=tried, args=(work,)) for work in (lambda: answer(fleet, "a"), fleet.close)]
    close = StateFolder.close

    def slowly(folder: StateFolder) -> None:
        for thread in threads:
            thread.start()
        threads[0].join(1)
        close(folder)

    monkeypatch.setattr(StateFolder, "close", slowly)
    fleet.close()
    for thread in threads:
        thread.join()
    assert [said[:21] for said in refused] == ["this fleet was closed"]
    assert one_at_a_time(tmp_path)["a"].calls == 1


def test_a_stream_whose_file_cannot_be_removed_is_not_dropped(tmp_path):
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "a")
    answer(fleet, "b")
    for name in ("a", "elsewhere"):
        StateFolder(tmp_path).file_of(name).mkdir(parents=True)  # a folder in its place
        with pytest.raises(OSError):
            fleet.drop(name)
    assert fleet["a"].calls == 1
    other = StateFolder(tmp_path)
    other.claim("elsewhere")
    other.close()


def test_all_streams_can_be_named_for_a_save(tmp_path):
    """Those too that are in the folder and were not seen yet."""
    with one_at_a_time(tmp_path) as first:
        answer(first, "a")
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "b")
    assert fleet.save(fleet.streams) == 1
    answer(fleet, "b")
    with pytest.raises(KeyError, match="there is no stream 'c' to save"):
        fleet.save(["b", "c"])
    with pytest.raises(TypeError, match="expected a list of stream names, got the text 'b'"):
        fleet.save("b")
    assert fleet.save(["b"]) == 1


def test_sizes_can_be_asked_for_while_streams_come_and_go(tmp_path, monkeypatch):
    fleet = one_at_a_time(tmp_path)
    for name in "abcd":
        answer(fleet, name)
    stored, resident = fleet.stored_bytes, fleet.resident_bytes

    def meanwhile(packed: dict[str, torch.Tensor]) -> int:
        answer(fleet, "e")
        return size_of(packed)

    with monkeypatch.context() as patched:
        patched.setattr("wildtta.fleet.places.size_of", meanwhile)
        assert fleet.resident_bytes == resident
    files = sorted(tmp_path.glob("*/*.stream"))
    monkeypatch.setattr(Path, "glob", lambda *_: (path for path in (*files, tmp_path / "dropped.stream")))
    assert fleet.stored_bytes > stored


def test_what_a_guard_did_before_a_batch_that_fails_is_stored(tmp_path, monkeypatch):
    fleet = one_at_a_time(tmp_path, guard=wildtta.Guard())
    answer(fleet, "a")
    fleet.save()

    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched, fleet._engine.network.head.register_forward_hook(broken):
        patched.setattr(Watch, "prepare", lambda watch, engine: engine.restart())
        with pytest.raises(RuntimeError, match="out of memory"):
            answer(fleet, "a")
    fleet.close()
    assert one_at_a_time(tmp_path)["a"].distance == 0


def test_a_move_that_is_broken_off_loses_no_place(tmp_path, monkeypatch):
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "a")
    take_one = Slots.take_one

    def broken_off(slots: Slots) -> int:
        take_one(slots)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Slots, "take_one", broken_off)
        with pytest.raises(KeyboardInterrupt):
            answer(fleet, "b")
    for name in "bab":
        assert answer(fleet, name).isfinite().all()
    assert fleet["a"].calls == fleet["b"].calls == 2


def test_a_fleet_that_finds_no_memory_for_more_places_keeps_those_it_has(monkeypatch):
    fleet, twin = (wildtta.Fleet(copy.deepcopy(trained("resnet_gn", torch.float32)), "sar2", warmup=2) for _ in range(2))
    for each in (fleet, twin):
        feed(each, range(4), 0)
    joined, calls = torch.cat, []

    def scarce(*given: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise torch.cuda.OutOfMemoryError
        return joined(*given)

    with monkeypatch.context() as patched:
        patched.setattr(torch, "cat", scarce)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            fleet["s4"]
    torch.testing.assert_close(feed(fleet, range(12), 1), feed(twin, range(12), 1))


def test_a_save_whose_end_is_interrupted_can_be_done_again(tmp_path, monkeypatch):
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "a")

    def after(*given: object) -> None:
        write_state(*given)
        raise KeyboardInterrupt

    def before(*_: object) -> None:
        raise KeyboardInterrupt

    for interrupted in (after, before, after):
        with monkeypatch.context() as patched:
            patched.setattr("wildtta.fleet.state_folder.write_state", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fleet.save()
    answer(fleet, "a")
    assert fleet.save() == 1
    (path,) = tmp_path.glob("*/a.stream")
    tensors, facts = read_state(path)
    assert facts["calls"] == 2
    write_state(path, tensors, {**facts, "version": facts["version"] + 1})
    answer(fleet, "a")
    with pytest.raises(RuntimeError, match="something else wrote it"):
        fleet.save()


def in_a_fork(work: Callable[[], str]) -> str:
    """What ``work`` says in a forked process, or the words of its refusal."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            try:
                said = work()
            except StreamHeld as error:
                said = str(error)
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def claim_of(folder: Path, name: str) -> str:
    StateFolder(folder).claim(name)
    return "free"


def elsewhere(folder: Path, name: str) -> str:
    """Whether a stream is free for another process, or why not."""
    return in_a_fork(lambda: claim_of(folder, name))


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fleet_that_is_gone_holds_nothing(tmp_path):
    """Neither in its process nor for another: as when a notebook's cell runs again."""
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "a")
    fleet = one_at_a_time(tmp_path)
    answer(fleet, "a")
    assert "held by another process" in elsewhere(tmp_path, "a")
    del fleet
    assert elsewhere(tmp_path, "a") == "free"


def test_a_fleet_that_is_collected_while_another_is_made_leaves_it_a_lock_file(tmp_path, monkeypatch):
    class Collecting(dict):
        def get(self, *given):
            found = super().get(*given)
            gc.collect()
            return found

    monkeypatch.setattr(locks, "_in_use", Collecting(locks._in_use))
    gone = StateFolder(tmp_path)
    gone.claim("a")
    gone.itself = gone
    gc.disable()
    try:
        del gone
        folder = StateFolder(tmp_path)
    finally:
        gc.enable()
    folder.claim("a")
    with pytest.raises(StreamHeld, match="another fleet of this process"):
        StateFolder(tmp_path).claim("a")
    folder.close()


@forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_folder_that_is_closed_takes_no_lock_of_another(tmp_path):
    (tmp_path / "sub").mkdir()
    first, second = StateFolder(tmp_path), StateFolder(tmp_path / "sub" / "..")
    first.claim("a")
    second.claim("b")
    second.close()
    assert "held by another process" in elsewhere(tmp_path, "a")
    assert elsewhere(tmp_path, "b") == "free"
    third = StateFolder(tmp_path)
    third.claim("b")
    with pytest.raises(StreamHeld, match="another fleet of this process"):
        third.claim("a")
    del third
    assert "held by another process" in elsewhere(tmp_path, "a")
    first.close()
    assert elsewhere(tmp_path, "a") == "free"


@forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_writes_none_of_its_parents_streams(tmp_path):
    """Its copies say why; a folder of its own has locks of its own, whatever becomes of the copies."""
    parent, fleet = StateFolder(tmp_path), one_at_a_time(tmp_path)
    parent.claim("a")
    parent.write("a", {"weights": torch.zeros(2)}, _FACTS, 0)
    answer(fleet, "b")

    def write() -> str:
        return str(parent.write("a", {"weights": torch.ones(2)}, _FACTS, 1))

    def beside_the_copy() -> str:
        nonlocal parent
        own = StateFolder(tmp_path)
        own.claim("c")
        parent.close()
        del parent
        return elsewhere(tmp_path, "c")

    for work in (write, lambda: str(parent.claim("c")), lambda: str(answer(fleet, "b")), lambda: str(fleet.save())):
        assert "is a fork of it: a state has one writer" in in_a_fork(work)
    assert "held by another process" in in_a_fork(beside_the_copy)
    for name in "ab":
        assert "held by another process" in elsewhere(tmp_path, name)
    assert parent.write("a", {"weights": torch.zeros(2)}, _FACTS, 1) == 2
    assert fleet.save() == 1
    parent.close()
