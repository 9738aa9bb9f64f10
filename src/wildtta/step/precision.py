"""Numeric precision of the passes: the caller's, or one of three, or the fastest on this device."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Literal, get_args

import torch

Precision = Literal["fp32", "tf32", "bf16"] | None
PRECISIONS: tuple[str, ...] = (*get_args(Literal["fp32", "tf32", "bf16"]), "auto")

# What the caller had on when losses switched autocast off: passes in between run at the caller's setting.
_callers_autocast: ContextVar[tuple[bool, torch.dtype] | None] = ContextVar("callers_autocast", default=None)

# torch has one TF32 setting for the whole process: adapters in several threads that set it take turns.
_tf32_setting = threading.RLock()


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Autocast remembers cast weights for as long as the caller's context lasts. Ours change in between, and a copy that

    was cast without a graph would hide the gradient: within our passes nothing is remembered.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextlib.contextmanager
def pass_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Autocast of one forward pass (its backward pass follows by itself); None takes the caller's setting."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_autocast_cache())
        caller = _callers_autocast.get()
        if precision == "bf16":
            stack.enter_context(torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False))
        elif precision is not None:
            stack.enter_context(torch.autocast(device.type, enabled=False))
        elif caller is not None:
            enabled, dtype = caller
            stack.enter_context(torch.autocast(device.type, dtype=dtype, enabled=enabled, cache_enabled=False))
        yield


@contextlib.contextmanager
def step_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """TF32 on or off for a whole step, backward passes included; None and bf16 leave the caller's setting as it is."""
    if device.type != "cuda" or precision not in ("fp32", "tf32"):
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with _tf32_setting:
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before


@contextlib.contextmanager
def losses_in_full_precision(device: torch.device) -> Iterator[None]:
    """Objectives are computed outside autocast, whatever the caller has on (passes within are at the caller's setting)."""
    outermost = _callers_autocast.get() is None
    kind = device.type
    token = (
        _callers_autocast.set((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))) if outermost else None
    )
    try:
        with torch.autocast(kind, enabled=False):
            yield
    finally:
        if token is not None:
            _callers_autocast.reset(token)


_WARM_UP_RUNS = 6
"""A step is recorded when its shape has come for the second or third time, its halves one after the other."""
_TIMED_RUNS, _MOST_TIMED_RUNS, _TIMED_SECONDS = 5, 25, 0.1
"""Five runs of a large batch. Of a short step more, up to a tenth of a second: one of 2 ms varies by more than is at stake."""


def fastest_precision(run: Callable[[Precision], object], device: torch.device, *, passes: bool) -> Precision:
    """The faster of tf32 (fp32 where there are no tensor cores) and bf16, by the medians of ``run``.

    ``passes``: it is one pass of the network, which needs no more than two runs to warm up, and not a whole step.
    """
    cuda = device.type == "cuda"
    candidates: tuple[Precision, ...] = ("tf32", "bf16") if cuda else ("fp32", "bf16")
    warm_up, fewest, most = (2, 3, 3) if passes else (_WARM_UP_RUNS, _TIMED_RUNS, _MOST_TIMED_RUNS)

    def seconds(precision: Precision) -> float:
        started = time.perf_counter()
        with step_precision(precision, device):
            run(precision)
        if cuda:
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    def median(precision: Precision) -> float:
        for _ in range(warm_up):
            seconds(precision)
        times: list[float] = []
        while len(times) < fewest or (len(times) < most and sum(times) < _TIMED_SECONDS):
            times.append(seconds(precision))
        return statistics.median(times)

    return min(candidates, key=median)
