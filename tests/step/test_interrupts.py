"""A call that is broken off, by a signal or an error, leaves the state from before it or from after it, bit for bit."""

from __future__ import annotations

import contextlib
import functools
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import batches, build, flags, images, same_bits, snapshot
from wildtta.step.atomic_file import write_atomically
from wildtta.step.interrupts import Held
from wildtta.step.undo import HOST_STATE


class Broken(BaseException):
    """What the signal handlers of these tests raise."""


def _raise(number: int, frame: FrameType | None) -> None:
    raise Broken(number)


@pytest.fixture
def raising() -> Iterator[None]:
    """SIGALRM and SIGUSR1 raise, as a time limit or Ctrl-C does; afterwards nobody but the test's handler is in place."""
    before = {number: signal.signal(number, _raise) for number in (signal.SIGALRM, signal.SIGUSR1)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        assert signal.getsignal(number) is _raise
        signal.signal(number, handler)


def _whole_state(adapter: wildtta.Adapter) -> dict[str, Any]:
    return {**adapter.online_state(), **{name: getattr(adapter.engine, name) for name in HOST_STATE}}


def _same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    tensors = [{name: value for name, value in state.items() if isinstance(value, Tensor)} for state in (ours, theirs)]
    plain = [
        {name: value for name, value in state.items() if not isinstance(value, Tensor)} for state in (ours, theirs)
    ]
    return tensors[0].keys() == tensors[1].keys() and same_bits(*tensors) == [] and plain[0] == plain[1]


def _interrupt_many(kind: str, method: str, times: int, **options: Any) -> None:
    draw = random.Random(0)
    network = build(kind)
    source, flags_before = snapshot(network), flags(network)
    adapter, twin = (wildtta.adapt(each, method, **options) for each in (network, build(kind)))
    stream = batches(kind, 16, 8)
    started = time.perf_counter()
    for batch in stream[:4]:
        adapter(batch)
        twin(batch)
    longest = (time.perf_counter() - started) / 8
    interrupted = 0
    for number in range(times):
        before, batch = _whole_state(adapter), stream[number % len(stream)]
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, longest))
            adapter(batch)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Broken:
            interrupted += 1
        after = _whole_state(adapter)
        if not _same(after, before):
            twin(batch)
            assert _same(after, _whole_state(twin))
    assert interrupted > times // 4
    assert torch.equal(adapter(stream[1]), twin(stream[1]))
    adapter.unload()
    assert same_bits(snapshot(network), source) == []
    assert flags(network) == flags_before


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize(("kind", "method"), [("ln_mlp", "sar2"), ("bn_resnet", "bn-adapt"), ("ln_mlp", "cotta")])
def test_real_signals_at_any_time_leave_the_old_state_or_the_new_one(kind: str, method: str) -> None:
    options: dict[str, Any] = {"bn-adapt": {"momentum": 0.1}, "sar2": {"lr": 1e-3, "warmup": 2}}.get(method, {})
    if method == "cotta":
        options = wildtta.CoTTA.example_options(images(kind, 8))
    _interrupt_many(kind, method, 60, **options)


@pytest.mark.slow
@pytest.mark.usefixtures("raising")
def test_thousands_of_real_signals() -> None:
    _interrupt_many("ln_mlp", "sar2", 5000, lr=1e-3, warmup=2)


class Disturbed(nn.Module):
    """A network that does something in the middle of a pass, once, in the pass with this number."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = build(kind)
        self.act: Callable[[], None] | None = None
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.act is not None:
            self.passes -= 1
            if self.passes == 0:
                act, self.act = self.act, None
                act()
        return self.inner(x)


def _disturbed(method: str, **options: Any) -> tuple[Disturbed, wildtta.Adapter]:
    network = Disturbed("ln_mlp")
    adapter = wildtta.adapt(network, method, lr=0.02, head="inner.9", **options)
    for batch in batches("ln_mlp", 3, 8):
        adapter(batch)
    return network, adapter


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("passes", [1, 2])
def test_a_signal_waits_for_the_end_and_a_second_one_does_not(passes: int) -> None:
    network, adapter = _disturbed("sar", reliable=0.9)
    _, twin = _disturbed("sar", reliable=0.9)
    batch = images("ln_mlp", 8, seed=70)
    network.act, network.passes = (lambda: signal.raise_signal(signal.SIGUSR1)), passes
    with pytest.raises(Broken):
        adapter(batch)
    twin(batch)
    assert _same(_whole_state(adapter), _whole_state(twin))

    def twice() -> None:
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("the second signal waited too")

    network.act, network.passes = twice, passes
    with pytest.raises(Broken):
        adapter(batch)
    assert _same(_whole_state(adapter), _whole_state(twin))
    assert torch.equal(adapter(batch), twin(batch))


class Fragile(nn.BatchNorm2d):
    """A layer during whose changes of attributes interruptions arrive: after ``calm`` of them, ``times`` in a row."""

    calm = 0
    times = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("running_mean", "running_var") and Fragile.times:
            Fragile.calm -= 1
            if Fragile.calm < 0:
                Fragile.times -= 1
                raise Broken


@pytest.mark.parametrize(("method", "options"), [("steady", {}), ("bn-adapt", {"momentum": 0.1})])
def test_any_number_of_interruptions_leaves_the_network_whole(method: str, options: dict[str, Any]) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Conv2d(3, 4, 3), Fragile(4), nn.ReLU(), nn.Conv2d(4, 4, 3), Fragile(4), nn.Flatten())
        return nn.Sequential(made, nn.Linear(4 * 16, 5)).eval()

    batch = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    broken = 0
    for calm in range(0, 40, 3):
        model, twin = network(), wildtta.adapt(network(), method, **options)
        source, flags_before = snapshot(model), flags(model)
        adapter = wildtta.adapt(model, method, **options)
        Fragile.calm, Fragile.times = calm, 1 + calm % 5
        try:
            adapter(batch)
        except Broken:
            broken += 1
            while Fragile.times:  # each next use is interrupted too, until the network is whole
                Fragile.calm = 0
                with contextlib.suppress(Broken):
                    adapter.online_state()
                    Fragile.times = 0
            assert torch.equal(adapter(batch), twin(batch))
        Fragile.times = 0
        assert same_bits(snapshot(adapter.unload()), source) == []
        assert flags(model) == flags_before
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert broken > 1


def _broken_off(block: Callable[[], AbstractContextManager[Any]], steps: int) -> bool:
    """Whether an exception arrives in ``with block():`` after so many of the interpreter's steps."""
    left = steps

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= event == "opcode"
        if left < 0:
            sys.settrace(None)
            raise Broken
        return trace

    def use() -> None:
        with block():
            pass

    sys.settrace(trace)
    try:
        use()
    except Broken:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("block", ["paused", "senders"])
def test_a_block_that_is_interrupted_anywhere_is_over(block: str) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.02)
    batch = images("ln_mlp", 4)
    enter = adapter.paused if block == "paused" else functools.partial(adapter.senders, ["one"])
    steps = 0
    while _broken_off(enter, steps):
        adapter(batch)  # would ask for 4 senders
        assert bool(adapter.last.learned)
        steps += 1
    assert steps > 20


def _bn_in_training() -> nn.Module:
    return build("bn_resnet").train()


def test_an_unload_that_is_broken_off_anywhere_is_completed() -> None:
    """Half unloaded, the network would learn its buffers anew in the next call (a second Ctrl-C is handled at once)."""
    source, flags_before = snapshot(_bn_in_training()), flags(_bn_in_training())
    batch = images("bn_resnet", 8)

    @contextlib.contextmanager
    def unloading(adapter: wildtta.Adapter) -> Iterator[None]:
        adapter.unload()
        yield

    completed = 0
    for steps in (0, 50, *range(100, 20_000, 400)):
        network = _bn_in_training()
        adapter = wildtta.adapt(network, "tent", lr=0.02)
        adapter(batch)
        broken = _broken_off(functools.partial(unloading, adapter), steps)
        with contextlib.suppress(RuntimeError):
            adapter(batch)
            adapter.unload()
            completed -= 1
        completed += broken
        assert same_bits(snapshot(network), source) == []
        assert flags(network) == flags_before
        wildtta.adapt(network, "tent").unload()
        if not broken:
            break
    assert completed > 10
    assert not broken


def test_a_save_that_is_broken_off_anywhere_leaves_no_other_file(tmp_path: Path) -> None:
    """Of a process that goes on nobody would remove it."""

    @contextlib.contextmanager
    def writing() -> Iterator[None]:
        write_atomically(tmp_path / "state", b"new")
        yield

    steps = 0
    while _broken_off(writing, steps):
        assert [path.name for path in tmp_path.iterdir()] in ([], ["state"])
        steps += 1
    assert steps > 100


@pytest.mark.usefixtures("raising")
def test_a_signal_waits_for_a_move() -> None:
    """It would leave a half of the network in another type."""
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=0.02)
    signals = [signal.SIGALRM]

    def moved(value: Tensor) -> Tensor:
        if value.numel() and signals:
            signal.raise_signal(signals.pop())
        return value.double()

    with pytest.raises(Broken):
        adapter._apply(moved)
    assert {parameter.dtype for parameter in adapter.network.parameters()} == {torch.float64}
    adapter(images("ln_mlp", 8, dtype=torch.float64))


@pytest.mark.usefixtures("raising")
def test_signals_come_again_after_a_block_that_was_not_left_in_order() -> None:
    held = Held()
    held.__enter__()
    signal.raise_signal(signal.SIGALRM)
    del held  # as where a signal arrives just before the block's end can begin
    with pytest.raises(Broken):
        signal.raise_signal(signal.SIGUSR1)
    with Held():
        pass


@pytest.mark.usefixtures("raising")
def test_a_handler_may_save(tmp_path: Path) -> None:
    """SIGTERM's handler of a service: it runs between two steps, and finds a whole state."""
    network, adapter = _disturbed("sar", reliable=0.9)
    signal.signal(signal.SIGTERM, lambda number, frame: adapter.save(tmp_path / "state"))
    network.act, network.passes = (lambda: signal.raise_signal(signal.SIGTERM)), 2
    try:
        adapter(images("ln_mlp", 8, seed=70))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other = wildtta.adapt(Disturbed("ln_mlp"), "sar", lr=0.02, head="inner.9", reliable=0.9)
    other.load(tmp_path / "state")
    assert same_bits(other.online_state(), adapter.online_state()) == []


def test_an_adapter_within_its_own_step_is_told_so() -> None:
    network, adapter = _disturbed("tent")
    before = _whole_state(adapter)
    for verb in (lambda: adapter(images("ln_mlp", 2)), adapter.reset, lambda: adapter.save("never")):
        network.act, network.passes = verb, 1
        with pytest.raises(RuntimeError, match="within its own step"):
            adapter(images("ln_mlp", 8))
        assert _same(_whole_state(adapter), before)
    adapter(images("ln_mlp", 8))


@pytest.mark.parametrize(("method", "passes"), [("tent", 1), ("sar", 2), ("sar2", 2), ("roid", 2), ("deyo", 2)])
def test_a_batch_that_fails_moves_nothing(method: str, passes: int) -> None:
    options: dict[str, Any] = {"reliable": 0.9} if method in ("sar", "sar2", "deyo") else {}
    if method == "roid":
        options = wildtta.ROID.example_options(images("ln_mlp", 8))
    network, adapter = _disturbed(method, **options)
    before = _whole_state(adapter)

    def fail() -> None:
        raise ArithmeticError

    for seed in range(3):
        network.act, network.passes = fail, passes
        with pytest.raises(ArithmeticError):
            adapter(images("ln_mlp", 8, seed=seed))
        assert _same(_whole_state(adapter), before)


def test_a_load_or_reset_that_is_broken_off_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, adapter = _disturbed("sar2")
    adapter.save(tmp_path / "state")
    adapter(images("ln_mlp", 8, seed=5))
    before = _whole_state(adapter)
    assign = type(adapter.engine.learnables).assign

    def broken(learnables: Any, values: Tensor) -> None:
        assign(learnables, values)
        monkeypatch.undo()
        raise Broken

    for verb in (adapter.reset, lambda: adapter.load(tmp_path / "state")):
        monkeypatch.setattr(type(adapter.engine.learnables), "assign", broken)
        with pytest.raises(Broken):
            verb()
        assert _same(_whole_state(adapter), before)
