"""Recording work on an NVIDIA GPU as a CUDA graph, and replaying a pass whose shape comes again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wildtta.step.engine import Engine

_WARM_UP_RUNS = 2
_RECORDING = threading.Lock()
"""One adapter of the process records at a time: each frees cached memory first, which would break another's recording."""
_MOST_PASSES = 4
"""Shapes of a pass that are recorded; others run as usual."""


@dataclass
class Recording:
    """A recorded piece of work and the tensors that it fills on every replay."""

    graph: torch.cuda.CUDAGraph
    result: Any


def record(work: Callable[[], Any], pool: Any, *, fastest: bool) -> Recording:
    """Run ``work`` a few times on the side (libraries choose their kernels), then record it.

    Args:
        work: what is recorded; what it changes is changed by these runs too.
        pool: of memory that recordings share.
        fastest: whether libraries may time their kernels.
    """
    cudnn = torch.backends.cudnn
    timed = cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark or fastest,
        deterministic=cudnn.deterministic,
        allow_tf32=cudnn.allow_tf32,
    )
    with _RECORDING, timed:
        # What ran eagerly is cached by the allocator; neither a side stream nor a recording can use it.
        _release_cached_memory()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        _release_cached_memory()
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: what they do is no part of this recording, and no error in it.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = work()
    return Recording(graph, result)


def settings_key(engine: Engine, images: Tensor, *places: Tensor) -> Hashable:
    """All that a recording over ``images`` depends on: shapes, where its weights lie, and the numeric settings in force."""
    backends = torch.backends
    return (
        tuple(images.shape),
        images.dtype,
        engine.lr,
        engine.precision,
        engine.fast.kernels,
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.allow_tf32,
        *(place.data_ptr() for place in places),
    )


@dataclass
class RecordedPass:
    """Passes without a gradient, replayed from the second time on that a shape comes.

    Launching a network's kernels one by one costs more than they do where a pass has few images. Copies and pickles are
    made without the recordings, which belong to one process and one place in its memory.
    """

    _seen: dict[Hashable, tuple[Tensor, Recording] | None] = field(default_factory=dict)
    _failed: bool = False

    def __call__(
        self, engine: Engine, images: Tensor, run: Callable[[Tensor, bool], Tensor], *places: Tensor
    ) -> Tensor:
        """``run(images, recording)``: a tensor of its own, on the same device; ``places``: weights that must not move."""
        if self._failed or images.device.type != "cuda":
            return run(images, False)
        key = settings_key(engine, images, *places)
        if key not in self._seen:
            if len(self._seen) < _MOST_PASSES:
                self._seen[key] = None
            return run(images, False)
        found = self._seen[key] or self._recorded(engine, images.clone(), run)
        if found is None:
            return run(images, False)
        self._seen[key] = found
        static, recording = found
        static.copy_(images)
        recording.graph.replay()
        result: Tensor = recording.result
        return result.clone()

    def _recorded(
        self, engine: Engine, static: Tensor, run: Callable[[Tensor, bool], Tensor]
    ) -> tuple[Tensor, Recording] | None:
        try:
            return static, record(lambda: run(static, True), torch.cuda.graph_pool_handle(), fastest=engine.fastest)
        except RuntimeError as error:
            self.forget()
            self._failed = True
            warnings.warn(f"the guard's passes are not recorded as CUDA graphs: {error}", stacklevel=2)
            return None

    def forget(self) -> None:
        """Drop every recording (the network moved)."""
        self._seen.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedPass:
        return RecordedPass()

    def __getstate__(self) -> dict[str, Any]:
        return {"_seen": {}, "_failed": False}


def _release_cached_memory() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
