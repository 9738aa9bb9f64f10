"""Run one cell: make its stream, adapt the network online, measure everything.

The row (see :mod:`wildtta.bench.journal`) holds:

- ``resolved``: the method's options in force, and ``learning_rate``.
- ``metrics``: accuracy, top5, ece, ece_adaptive, per_corruption, per_class, running, top_class_share in
  percent; nll; histogram (prediction counts over the last fifth); collapsed; samples.
- ``series``: per batch (thinned to means over windows that end at ``batch``): entropy, selected,
  gradient_norm, gradient_norm_second, redundancy and inequity where the method's loss uses them, e_m, resets,
  bank_rows; with the measure ``representation`` also feature_redundancy, feature_redundancy_rows and
  feature_inequity of each batch.
- ``diagnostics``: what the cell's ``measure`` asked for (:mod:`wildtta.bench.diagnostics`).
- ``cost``: forwards and backwards (samples, as the paper counts them; computed_*: as they ran), batches,
  learned_batches (all, unless the cell has a pace), ms_per_batch, ms_per_batch_median, peak_mb, resets, skipped.

A method that answers each image by itself (DDA) gets up to 64 at a time, however small the cell's batches; ``cost``
then counts these.
"""

from __future__ import annotations

import os
import platform
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import wildtta
from wildtta.bench.cell import Cell
from wildtta.bench.datasets import Images, open_images
from wildtta.bench.diagnostics import Diagnostics
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row
from wildtta.bench.models import build_model, weights_digest
from wildtta.bench.plain import each_value, infinite, plain
from wildtta.bench.regularise import take_regularising_steps
from wildtta.bench.segmenting import SEGMENTATION_DATA, segmentation_row
from wildtta.bench.source_data import known_of_source, source_options, wanted_source_fields
from wildtta.bench.streaming import stream_of
from wildtta.metrics import Series, Stopwatch, StreamMeter, peak_memory, reset_peak_memory
from wildtta.metrics.series import thin
from wildtta.streams import Stream, learning_turns

Progress = Callable[[float], None]
"""Receives the share of a cell's stream that is done."""

_PER_BATCH = ("entropy", "selected", "selected_second", "gradient_norm", "gradient_norm_second", "e_m", "resets")
_OF_SAR2 = ("bank_rows", "used_redundancy", "used_inequity")
_AT_ONCE = 64
_TOTALS = ("forwards", "backwards", "computed_forwards", "computed_backwards", "resets", "skipped")


# cuBLAS reads this when its handle is made; without it some matrix products differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Where and how cells are run; nothing here is part of a cell's identity.

    Attributes:
        root: folder of the data (``--data``).
        source: folder of clean source images, for methods that want them (EATA's Fisher, ReCAP's variance).
        threads: CPU threads of one worker. It decides the order of float32 sums, so journals that are to
            agree to the last digit use the same number; it is recorded.
        loaders: processes that read and decode images for one cell, where they don't fit into memory.
    """

    root: str | None = None
    source: str | None = None
    threads: int = 1
    loaders: int = 0


def execute(cell: Cell, conditions: Conditions, device: str, *, progress: Progress | None = None) -> Row:
    """Run a cell; a failure becomes a row that tells its reason."""
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # Operations without a deterministic form on a GPU say so once per call.
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            return run_cell(cell, conditions, device, progress=progress)
    except Exception as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        row = failed_row(cell, _reason(error), device=device, wall_s=time.perf_counter() - began)
        if not isinstance(error, BenchError):
            # Not the user's mistake: the last frames tell where it happened.
            frames = traceback.extract_tb(error.__traceback__)[-4:]
            row["trace"] = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
        return row


def failed_row(cell: Cell, reason: str, *, device: str, wall_s: float = 0.0) -> Row:
    """The row of a cell that has no numbers."""
    row = {"key": cell.key, "cell": cell.to_json(), "status": "failed", "reason": reason}
    return {**row, "device": device, "wall_s": round(wall_s, 3)}


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"out of memory: {text}"
    if isinstance(error, BenchError | ValueError | FileNotFoundError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def run_cell(
    cell: Cell, conditions: Conditions | None = None, device: str = "cpu", *, progress: Progress | None = None
) -> Row:
    """Run ``cell`` and give its row; raises where it cannot be run (:func:`execute` catches)."""
    conditions = conditions or Conditions()
    began = time.perf_counter()
    place = torch.device(device)
    # Events and streams belong to the current device, which with several GPUs is another one by default.
    current: AbstractContextManager[object] = torch.cuda.device(place) if place.type == "cuda" else nullcontext()
    with current, repeatable(cell.seed, threads=conditions.threads, device=place):
        network = build_model(cell)
        if cell.data in SEGMENTATION_DATA:
            network = network.to(place)
            digest = weights_digest(network)
            row = segmentation_row(cell, conditions.root, network, place, progress)
            return _whole_row(cell, row, digest, conditions, place, began)
        images, network = open_images(cell, conditions.root, network, place, loaders=conditions.loaders)
        network = network.to(place)
        digest = weights_digest(network)
        stream = stream_of(cell, images.labels)
        try:
            row = _measured(cell, conditions.source, network, digest, images, stream, progress)
        except ValueError as error:
            if wanted_source_fields(cell) and conditions.source is None and cell.data != "glyphs":
                raise BenchError(f"{error}. Here: name a folder (or zip) of clean images with --source") from error
            raise
    return _whole_row(cell, {**row, "protocol": str(images.protocol)}, digest, conditions, place, began)


def _whole_row(
    cell: Cell, measured: dict[str, Any], digest: str, conditions: Conditions, place: torch.device, began: float
) -> Row:
    """What was measured, with what identifies it and what it was made with."""
    return {
        "key": cell.key,
        "cell": cell.to_json(),
        "status": "ok",
        "reason": None,
        **measured,
        "versions": {**versions(), "weights": digest, "threads": conditions.threads},
        "wall_s": round(time.perf_counter() - began, 3),
        "device": f"cuda ({torch.cuda.get_device_name(place)})" if place.type == "cuda" else place.type,
    }


def _measured(
    cell: Cell,
    source: str | None,
    network: nn.Module,
    digest: str,
    images: Images,
    stream: Stream,
    progress: Progress | None,
) -> dict[str, Any]:
    from_source, note = source_options(cell, images, source)
    known = {entry.name for entry in fields(cell.config)}
    # Methods that augment work on pixels, so they are told the preprocessing's mean and std.
    pixel_scale = {name: getattr(images.protocol, name) for name in ("mean", "std") if name in known}
    options = {"batch_size": cell.batch_size, **pixel_scale, **from_source, **each_value(cell.options, infinite)}
    if cell.regularise:
        take_regularising_steps(cell, network, images, stream, options)
    if cell.config.image_by_image and not cell.pace:
        stream = replace(stream, batch_size=max(stream.batch_size, _AT_ONCE))
    diagnostics = Diagnostics(cell, network, images, stream)
    model = wildtta.adapt(network, cell.method, **options)
    # Steps of R and I before the stream make another network of it, which no other cell shares.
    shared = bool(from_source) and not cell.regularise
    facts = known_of_source(cell, digest, images, source) if shared else {}
    for name, value in facts.items():
        model.engine.memory[name].copy_(value)
    labels = torch.from_numpy(images.labels[stream.index]).to(images.device)
    meter, series = StreamMeter(labels), Series()
    watch, told = Stopwatch(images.device, stream.batch_count), time.monotonic()
    turns = learning_turns(stream, cell.pace) if cell.pace else np.ones(stream.batch_count, dtype=bool)
    reset_peak_memory(images.device)
    for number, (batch, inputs) in enumerate(zip(stream.batches(), images.batches(stream), strict=True)):
        if batch.reset and number:
            model.reset()
        extra = diagnostics.on_batch(inputs)
        watch.start()
        with nullcontext() if turns[number] else model.paused():
            logits = model(inputs)
        watch.stop()
        meter.update(logits)
        series.add({**{name: getattr(model.last, name, None) for name in _PER_BATCH + _OF_SAR2}, **extra})
        if progress is not None and time.monotonic() - told > 0.5:
            # Batches of one come faster than anybody reads.
            told = time.monotonic()
            progress((number + 1) / stream.batch_count)
    if shared and not facts:
        facts.update(model.engine.known_of_source())
    record = meter.record()
    if record.first_non_finite is not None:
        raise BenchError(f"the predictions became non-finite at sample {record.first_non_finite} of {len(stream)}")
    in_force = {name: value for name, value in model.resolved.items() if name != "lr"}
    in_force["learning_rate"] = model.learning_rate
    return {
        "resolved": plain({**cell.config.identity(cell.batch_size), **in_force}, "resolved"),
        "metrics": record.summary(images.classes, *_by_corruption(stream), adapts=cell.method != "none"),
        "series": thin({name.removeprefix("used_"): column for name, column in series.read().items()}),
        "cost": {
            **{name: int(getattr(model.cost, name)) for name in _TOTALS},
            "batches": stream.batch_count,
            "learned_batches": int(turns.sum()),
            **{name: round(value, 4) for name, value in watch.summary().items()},
            "peak_mb": round(peak_memory(images.device), 1),
        },
        "diagnostics": diagnostics.after(record),
        "data_note": "; ".join(filter(None, (images.note, note))),
    }


@contextmanager
def repeatable(seed: int, *, threads: int, device: torch.device) -> Iterator[None]:
    """Random draws start from ``seed``; sums are split over ``threads``, or have a fixed order on a GPU.

    The number of threads changes the order of float32 sums, and adaptation carries such differences on, so it
    is fixed rather than left to the machine.
    """
    cudnn, memory = torch.backends.cudnn, torch.utils.deterministic
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng([device] if device.type == "cuda" else []), ExitStack() as afterwards:
        afterwards.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        # Python's and NumPy's global generators: for methods of the user's own that use them.
        afterwards.callback(random.setstate, random.getstate())
        random.seed(seed)
        afterwards.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002
        np.random.seed(seed % 2**32)  # noqa: NPY002
        was_deterministic = torch.are_deterministic_algorithms_enabled()
        afterwards.callback(torch.use_deterministic_algorithms, was_deterministic, warn_only=warn_only)
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Uninitialised memory is never read here, so filling it would only cost time.
        switches = ((cudnn, "benchmark", False), (cudnn, "deterministic", True))
        for place, name, value in (*switches, (memory, "fill_uninitialized_memory", False)):
            afterwards.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def _by_corruption(stream: Stream) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Per sample the number of its corruption (at whatever severity), and the corruptions' names."""
    names = list(dict.fromkeys(domain.name for domain in stream.domains))
    number = np.array([names.index(domain.name) for domain in stream.domains], dtype=np.int64)
    return number[stream.domain], names


@cache
def versions() -> dict[str, str]:
    """What the numbers were made with."""
    told = {"python": platform.python_version(), "torch": torch.__version__}
    named = {"wildtta", "timm", "torchvision", "numpy"}
    installed = {str(found.name).lower(): found.version for found in metadata.distributions() if found.name}
    return told | {package: installed[package] for package in sorted(named & set(installed))}
