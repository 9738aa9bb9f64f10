"""One adapter, many callers: threads, asyncio, web servers. Calls are answered one at a time, and a replay finds the same."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import wildtta
from toy_networks import batches, build, images, same_bits


def _together(number: int, work: Callable[[int], None]) -> None:
    """``work(0)``, ``work(1)`` … in threads that start at the same moment; the first error is raised here."""
    start = threading.Barrier(number)

    def run(index: int) -> None:
        start.wait()
        work(index)

    with ThreadPoolExecutor(number) as pool:
        for done in [pool.submit(run, index) for index in range(number)]:
            done.result()


def _saved(path: Path) -> tuple[int, dict[str, Tensor]]:
    """After how many calls a state was saved, and its tensors."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return int(json.loads(file.metadata()["wildtta"])["calls"]), tensors


def _mixed_calls(kind: str, method: str, threads: int, calls: int, saves: float, folder: Path) -> None:
    """Calls, paused calls and saves from several threads; then the same calls one after the other, in the order reported."""
    stream = batches(kind, 24, 4)
    adapter = wildtta.adapt(build(kind), method, lr=1e-3)
    answered: list[tuple[int, int, bool, Tensor]] = []
    saved: list[Path] = []

    def work(index: int) -> None:
        draw = random.Random(index)
        for number in range(calls):
            choice, batch = draw.random(), draw.randrange(len(stream))
            if choice < saves:
                path = folder / f"{index}-{number}.safetensors"
                adapter.save(path)
                saved.append(path)
                continue
            paused = choice < 0.3
            with adapter.paused() if paused else contextlib.nullcontext():
                logits = adapter(stream[batch])
            assert bool(adapter.last.seen == len(stream[batch]))
            answered.append((adapter.last.step, batch, paused, logits))

    _together(threads, work)
    answered.sort(key=lambda call: call[0])
    assert [step for step, *_ in answered] == list(range(1, len(answered) + 1))
    states = dict(map(_saved, saved))
    assert saved
    twin = wildtta.adapt(build(kind), method, lr=1e-3)
    for step, batch, paused, logits in answered:
        if step - 1 in states:
            assert same_bits(twin.online_state(), states[step - 1]) == []
        with twin.paused() if paused else contextlib.nullcontext():
            assert torch.equal(twin(stream[batch]), logits)
        assert twin.last.step == step
    assert same_bits(twin.online_state(), adapter.online_state()) == []


@pytest.mark.parametrize(("kind", "method"), [("ln_mlp", "sar2"), ("bn_resnet", "tent")])
def test_calls_from_many_threads_equal_a_replay_in_the_order_reported(kind: str, method: str, tmp_path: Path) -> None:
    _mixed_calls(kind, method, threads=4, calls=30, saves=0.1, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sar", "steady"])
def test_twenty_thousand_calls_from_four_threads(method: str, tmp_path: Path) -> None:
    _mixed_calls("ln_mlp", method, threads=4, calls=5000, saves=0.02, folder=tmp_path)


def test_every_verb_is_safe_while_others_call(tmp_path: Path) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "sar", lr=1e-3)
    adapter(images("ln_mlp", 4))
    path = tmp_path / "state"
    adapter.save(path)
    verbs: list[Callable[[], object]] = [
        lambda: adapter.load(path),
        adapter.reset,
        lambda: adapter.cost,
        lambda: repr(adapter),
        lambda: copy.deepcopy(adapter)(images("ln_mlp", 4)),
        adapter.online_state,
    ]

    def work(index: int) -> None:
        for number in range(25):
            if index == 0:
                verbs[number % len(verbs)]()
            else:
                assert torch.isfinite(adapter(images("ln_mlp", 4, seed=number))).all()

    _together(3, work)
    adapter.reset()
    twin = wildtta.adapt(build("ln_mlp"), "sar", lr=1e-3)
    assert same_bits(adapter.online_state(), twin.online_state()) == []


def test_unload_waits_for_the_step_and_later_calls_are_told() -> None:
    network = build("gn_resnet")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    adapter = wildtta.adapt(network, "sar", lr=0.05, reliable=0.9)
    told = []

    def work(index: int) -> None:
        try:
            for seed in range(40):
                adapter(images("gn_resnet", 4, seed=seed))
                if index == 0 and seed == 10:
                    adapter.unload()
        except RuntimeError as error:
            told.append(str(error))

    _together(3, work)
    assert len(told) == 3
    assert all("unloaded" in message for message in told)
    assert same_bits({name: value.clone() for name, value in network.state_dict().items()}, before) == []


# -- whose pause, whose report ---------------------------------------------------------------------------------------------


def test_a_pause_is_its_threads_own() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.05)
    adapter(images("ln_mlp", 8))
    learned: list[bool] = []

    def elsewhere() -> None:
        adapter(images("ln_mlp", 8, seed=1))
        learned.append(bool(adapter.last.learned))

    with adapter.paused(), adapter.paused():
        with adapter.paused():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        adapter(images("ln_mlp", 8, seed=2))
        assert not bool(adapter.last.learned)
    assert learned == [True]
    adapter(images("ln_mlp", 8, seed=3))
    assert bool(adapter.last.learned)


def test_a_pause_is_of_one_adapter() -> None:
    first, second = (wildtta.adapt(build("ln_mlp"), "tent", lr=0.05) for _ in range(2))
    with first.paused():
        second(images("ln_mlp", 8))
        first(images("ln_mlp", 8))
    assert bool(second.last.learned)
    assert not bool(first.last.learned)


def test_a_pause_and_a_report_belong_to_their_task() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.05)

    async def caller(size: int, paused: bool) -> None:
        for _ in range(5):
            with adapter.paused() if paused else contextlib.nullcontext():
                await asyncio.sleep(0)
                adapter(images("ln_mlp", size))
                await asyncio.sleep(0)
                assert int(adapter.last.seen) == size
                assert bool(adapter.last.learned) is not paused

    async def served() -> None:
        await asyncio.gather(*(caller(size, paused=size % 2 == 0) for size in range(2, 10)))

    asyncio.run(served())


def test_a_pause_follows_its_task_into_a_thread_and_ends_with_the_block() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.05)

    def call() -> bool:
        adapter(images("ln_mlp", 8))
        return bool(adapter.last.learned)

    async def served() -> tuple[bool, bool, bool]:
        entered = asyncio.Event()

        async def later() -> bool:
            await entered.wait()
            return await asyncio.to_thread(call)

        with adapter.paused():
            within = await asyncio.to_thread(call)
            started_within = asyncio.create_task(later())
            await asyncio.sleep(0)
        entered.set()
        return within, await started_within, await asyncio.to_thread(call)

    assert asyncio.run(served()) == (False, True, True)


def test_a_pause_may_be_left_in_another_context_than_it_was_entered_in() -> None:
    """Web frameworks run the two halves of a generator in different worker threads."""
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.05)

    def dependency() -> Iterator[None]:
        with adapter.paused():
            yield

    halves = dependency()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(next, halves).result()
        other.submit(next, halves, None).result()
        for pool in (one, other):
            pool.submit(adapter, images("ln_mlp", 8)).result()
            assert bool(pool.submit(lambda: adapter.last.learned).result())


def test_a_thread_that_has_not_called_has_no_report() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent")
    adapter(images("ln_mlp", 3))
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match=r"own.*to_thread"):
            pool.submit(lambda: adapter.last).result()
        pool.submit(adapter, images("ln_mlp", 5)).result()
        assert int(pool.submit(lambda: adapter.last.seen).result()) == 5
    assert int(adapter.last.seen) == 3
    assert adapter.last.step == 1


def test_a_report_does_not_change_with_later_calls() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "sar", lr=0.05)
    adapter(images("ln_mlp", 8))
    with adapter.paused():
        adapter(images("ln_mlp", 8))
    report, skipped = adapter.last, int(adapter.last.skipped)
    adapter(torch.full((8, 12), torch.nan))
    assert int(adapter.last.skipped) == skipped + 1
    assert int(report.skipped) == skipped


def test_a_report_stays_its_callers_own_when_somebody_else_resets() -> None:
    """``logits = model(images)``, then ``model.last``: between the two lines another thread may reset."""
    adapter = wildtta.adapt(build("ln_mlp"), "tent")
    adapter(images("ln_mlp", 3))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(adapter.reset).result()
    assert adapter.last.step == 1


@pytest.mark.parametrize("block", ["paused", "senders"])
def test_a_block_that_is_in_use_is_refused(block: str) -> None:
    """Its first end would end it for both, and the other caller would learn unasked."""
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.05)
    shared = adapter.paused() if block == "paused" else adapter.senders(["one"])
    with shared, ThreadPoolExecutor(1) as pool:
        for enter in (shared.__enter__, pool.submit(shared.__enter__).result):
            with pytest.raises(RuntimeError, match=r"entered already.*make a new one"):
                enter()
        adapter(images("ln_mlp", 1))
        assert bool(adapter.last.learned) is (block == "senders")
    with shared:
        pass


def test_the_next_cell_of_a_notebook_sees_the_last_step() -> None:
    """A notebook runs each cell as a task of its own, one after the other; tasks that run side by side see only their own."""
    adapter = wildtta.adapt(build("ln_mlp"), "tent")
    seen: list[int] = []

    async def call(number: int) -> None:
        adapter(images("ln_mlp", number))

    async def look() -> None:
        seen.append(int(adapter.last.seen))

    async def busy(number: int) -> None:
        adapter(images("ln_mlp", number))
        await asyncio.sleep(0.01)
        seen.append(int(adapter.last.seen))

    async def notebook() -> None:
        await asyncio.create_task(call(3))
        await asyncio.create_task(look())
        await asyncio.gather(busy(4), busy(5))

    asyncio.run(notebook())
    assert seen == [3, 4, 5]
