"""CUDA graphs: a step's kernels recorded once and replayed, for streams of one shape.

A step of a small batch is hundreds of kernels of a few microseconds each; launching them one by one from Python costs
many times their work. A step that is the same sequence of kernels for every batch can be recorded. Where all samples are
passed (Tent, SAR², a single sample) the whole step is one graph. Where only selected samples are passed, the first half
(predict, select) is one graph; the number of selected samples is read; and the second half is one graph per rounded
number of them.

State is changed in place everywhere, so that a graph stays valid after ``reset`` and ``load``. A network that moved,
another shape, learning rate, precision or autocast setting makes another graph. Where recording fails, the step runs
as usual.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from wildtta.methods.gradient import GradientMethod
from wildtta.step.comparison import compare, due
from wildtta.step.engine import Engine
from wildtta.step.loop import (
    KEEP_GRAPH_ABOVE,
    Prediction,
    learn_from,
    learn_from_batch,
    learns_on_selected,
    predict,
    upkeep,
)
from wildtta.step.report import Answer, Output, StepReport
from wildtta.step.undo import Snapshot

T = TypeVar("T")
SMALL_BATCH = 8
"""Up to this batch size all samples are passed: choosing among so few saves nothing."""
SELECTED_SHAPES = 8
"""The number of selected samples is rounded up to a multiple of an eighth of the batch."""
MOST_SHAPES = 4
_WARM_UP_RUNS = 2
_RECORDING = threading.Lock()
"""One adapter of the process records at a time: each frees cached memory first, which would break another's recording."""


@dataclasses.dataclass
class Recording:
    """A recorded piece of work and the tensors that it fills on every replay."""

    graph: torch.cuda.CUDAGraph
    result: Any


class GraphRunner:
    """Replays recorded steps of one adapter; made anew when the network moves."""

    def __init__(self, method: GradientMethod, engine: Engine) -> None:
        self.method = method
        self.engine = engine
        self._recordings: dict[Hashable, Recording] = {}
        self._static_images: dict[Hashable, Tensor] = {}
        self._last_key: Hashable = None
        self._failed = False
        self._pool: Any = None

    # -- whether ---------------------------------------------------------------------------------------------------------

    def _key(self, images: Tensor) -> Hashable:
        return self.engine.lr, setting_of(self.engine, images)

    def ready_for(self, images: Tensor) -> bool:
        """Whether this batch is replayed: its shape came last time too, and its steps can be recorded."""
        method = self.method
        if self._failed or images.device.type != "cuda" or not method.recordable(self.engine):
            return False
        if self.engine.inputs is not None:
            return False  # a recording reads its images from one place, and these arguments lie elsewhere each time
        if method.episodic or method.steps > 1 or method.selective_reset is not None:
            return False
        key = self._key(images)
        repeated, self._last_key = key == self._last_key, key
        return repeated

    # -- running ---------------------------------------------------------------------------------------------------------

    def run(self, images: Tensor) -> Answer | None:
        """Answer and learn by replaying; None where recording failed (nothing has changed then)."""
        key = self._key(images)
        if key not in self._static_images:
            if len(self._static_images) >= MOST_SHAPES:
                self.forget()
            self._static_images[key] = images.clone()
        static = self._static_images[key]
        static.copy_(images)
        try:
            answer = self._replay(key, static)
        except RuntimeError as error:
            self._failed = True
            self.forget()
            warnings.warn(f"CUDA graphs are not used for this network: {error}", stacklevel=2)
            return None
        return _own(answer)

    def _replay(self, key: Hashable, images: Tensor) -> Answer:
        method, engine = self.method, self.engine
        samples, comparison = len(images), None
        rows = due(method, engine, engine.host_steps + 1, images, samples)
        selective = learns_on_selected(method, engine) and samples > SMALL_BATCH
        if not selective or (engine.share or 0.0) > KEEP_GRAPH_ABOVE:
            whole = self._recorded((key, "whole"), lambda: self._whole(images))
            if rows is not None:  # recorded before anything is replayed: where that fails, nothing has changed
                work = functools.partial(self._compare, whole, rows)
                comparison = self._recorded((key, "compare", rows.step), work)
            whole.graph.replay()
            answer: Answer = whole.result
            if selective:
                engine.share = int(answer.report.selected) / samples
        else:
            first = self._recorded((key, "predict"), lambda: self._predict(images))
            first.graph.replay()
            seen, order, number = first.result
            selected = int(number)  # the one read
            engine.share = selected / samples
            unit = max(1, samples // SELECTED_SHAPES)
            size = min(samples, -(-selected // unit) * unit)
            second = self._recorded((key, size), lambda: learn_from(method, engine, seen, order[:size], exact=False))
            second.graph.replay()
            answer = second.result
        engine.host_steps += 1
        upkeep(method, engine)
        if comparison is not None:
            comparison.graph.replay()
            answer = dataclasses.replace(answer, report=answer.report.with_more_forwards(comparison.result))
        return answer

    def _whole(self, images: Tensor) -> Answer:
        return learn_from_batch(self.method, self.engine, predict(self.method, self.engine, images, grad=True))

    def _compare(self, whole: Recording, rows: slice) -> int:
        return compare(self.method, self.engine, whole.result.output, rows)

    def _predict(self, images: Tensor) -> tuple[Prediction, Tensor, Tensor]:
        seen = predict(self.method, self.engine, images, grad=False)
        assert seen.selection.mask is not None
        order = seen.selection.mask.to(torch.uint8).argsort(descending=True, stable=True)
        return seen, order, seen.selection.mask.sum()

    # -- recording -------------------------------------------------------------------------------------------------------

    def _recorded(self, key: Hashable, work: Callable[[], Any]) -> Recording:
        if key not in self._recordings:
            self._recordings[key] = self._record(work)
        return self._recordings[key]

    def _record(self, work: Callable[[], Any]) -> Recording:
        """Record ``work``; the state is put back."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with self._unchanged_state():
            (recording,) = record([lambda _: work()], self._pool, fastest=self.engine.fastest)
        return recording

    @contextlib.contextmanager
    def _unchanged_state(self) -> Iterator[None]:
        engine = self.engine
        before = Snapshot()
        before.take(engine)
        engine.unfinished = functools.partial(before.restore, engine)
        engine.fixed_shapes = True
        try:
            yield
        finally:
            engine.fixed_shapes = False
            engine.settle()

    def forget(self) -> None:
        """Drop every recording."""
        self._recordings.clear()
        self._static_images.clear()
        self._pool = None


def record(works: Sequence[Callable[[Any], Any]], pool: Any, *, fastest: bool) -> list[Recording]:
    """Run pieces of work a few times on the side (libraries choose their kernels), then record each as a graph.

    They are replayed in this order: each is given the result of the one before, the first None. ``fastest``: libraries may
    time their kernels.
    """
    cudnn = torch.backends.cudnn
    timed = cudnn.flags(
        enabled=cudnn.enabled,
        benchmark=cudnn.benchmark or fastest,
        deterministic=cudnn.deterministic,
        allow_tf32=cudnn.allow_tf32,
    )
    with _RECORDING, timed, _no_garbage_collected():
        # What ran eagerly is cached by the allocator; neither a side stream nor a recording can use it.
        _release_cached_memory()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                result = None
                for work in works:
                    result = work(result)
        del result
        torch.cuda.current_stream().wait_stream(stream)
        _release_cached_memory()
        recordings: list[Recording] = []
        for work in works:
            graph = torch.cuda.CUDAGraph()
            before = recordings[-1].result if recordings else None
            # Other threads may use the device meanwhile: what they do is no part of this recording, and no error in it.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                recordings.append(Recording(graph, work(before)))
    return recordings


@contextlib.contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """What is unused goes before, and nothing within: giving device memory back breaks a recording, whoever held it."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def setting_of(engine: Engine, images: Tensor) -> Hashable:
    """What a recording is made for beside its method: shapes and types, precision, kernels, where the network is."""
    backends = torch.backends
    return (
        tuple(images.shape),
        images.dtype,
        engine.precision,
        engine.fast.kernels,
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.allow_tf32,
        engine.learnables.parameters[0].data_ptr(),
        engine.network.reference.data_ptr(),
    )


def _release_cached_memory() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _own(answer: Answer) -> Answer:
    """The answer with tensors of its own: a replay overwrites the recorded ones."""
    output, report = answer.output, answer.report
    features = output.features.detach().clone()
    raw = output.raw.detach().clone() if isinstance(output.raw, Tensor) else output.raw
    kept = Output(output.images, output.logits.detach().clone(), features, raw)
    changes: dict[str, Any] = {
        item.name: value.detach().clone()
        for item in dataclasses.fields(StepReport)
        if isinstance(value := getattr(report, item.name), Tensor) and value.is_cuda
    }
    twin = dataclasses.replace(report, **changes)
    if report._features is not None:
        _, network = report._features()
        twin._features = lambda: (features, network)
    return Answer(kept, twin)
