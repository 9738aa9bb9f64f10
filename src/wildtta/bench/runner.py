"""Run one cell: the stream from labels, scenario and seed alone; the network adapted online; everything measured.

The row (see :mod:`wildtta.bench.journal`) holds:

- ``metrics``: accuracy, top5, ece, ece_adaptive, per_corruption, per_class, running, top_class_share in percent; nll;
  histogram (prediction counts over the last fifth); collapsed; samples.
- ``series``: per batch (thinned to means over windows that end at ``batch``): entropy, selected, gradient_norm,
  gradient_norm_second, redundancy and inequity where the method's loss uses them, e_m, resets, bank_rows; with the
  measure ``representation`` also feature_redundancy, feature_redundancy_rows and feature_inequity of each batch.
- ``diagnostics``: what the cell's ``measure`` asked for (:mod:`wildtta.bench.diagnostics`).
- ``cost``: forwards and backwards (samples, as the paper counts them; computed_*: as they ran), batches, ms_per_batch,
  ms_per_batch_median, peak_mb, resets, skipped.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildtta.bench.cell import Cell
from wildtta.bench.datasets import Images, open_images
from wildtta.bench.determinism import repeatable
from wildtta.bench.diagnostics import Diagnostics
from wildtta.bench.errors import BenchError
from wildtta.bench.execute import Conditions, Progress
from wildtta.bench.journal import Row
from wildtta.bench.models import build_model, weights_digest
from wildtta.bench.source_data import source_options, wanted_source_fields
from wildtta.bench.streaming import stream_of
from wildtta.methods.registry import config_classes
from wildtta.metrics import Series, Stopwatch, StreamMeter, peak_memory, reset_peak_memory
from wildtta.metrics.series import thin
from wildtta.streams import Stream

_PER_BATCH = (
    "entropy",
    "selected",
    "selected_second",
    "gradient_norm",
    "gradient_norm_second",
    "e_m",
    "resets",
    "bank_rows",
    "used_redundancy",
    "used_inequity",
)

_TOTALS = ("forwards", "backwards", "computed_forwards", "computed_backwards", "resets", "skipped")


def run_cell(
    cell: Cell, conditions: Conditions | None = None, device: str = "cpu", *, progress: Progress | None = None
) -> Row:
    """Run ``cell`` and give its row; raises where it cannot be run (:func:`wildtta.bench.execute.execute` catches)."""
    conditions = conditions or Conditions()
    began = time.perf_counter()
    place = torch.device(device)
    # Events and streams belong to the current device, which on a machine with several GPUs is another one by default.
    current: AbstractContextManager[object] = torch.cuda.device(place) if place.type == "cuda" else nullcontext()
    with current, repeatable(cell.seed, threads=conditions.threads, device=place):
        network = build_model(cell)
        images, network = open_images(cell, conditions.root, network, place, loaders=conditions.loaders)
        network = network.to(place)
        digest = weights_digest(network)
        stream = stream_of(cell, images.labels)
        try:
            row = _measured(cell, conditions, network, images, stream, place, progress)
        except ValueError as error:
            if wanted_source_fields(cell) and conditions.source is None and cell.data != "glyphs":
                raise BenchError(f"{error}. Here: name a folder (or zip) of clean images with --source") from error
            raise
    return {
        "key": cell.key,
        "cell": cell.to_json(),
        "status": "ok",
        "reason": None,
        **row,
        "versions": {**versions(), "weights": digest, "threads": conditions.threads},
        "wall_s": round(time.perf_counter() - began, 3),
        "device": _device_name(place),
        "protocol": images.protocol,
    }


def _measured(
    cell: Cell,
    conditions: Conditions,
    network: nn.Module,
    images: Images,
    stream: Stream,
    device: torch.device,
    progress: Progress | None,
) -> dict[str, Any]:
    diagnostics = Diagnostics(cell, network, images, stream)
    diagnostics.before()
    from_source, note = source_options(cell, images, conditions.source, device)
    model = _adapter(cell, network, {**_pixel_scale(cell, images), **from_source})
    labels = torch.from_numpy(images.labels[stream.index]).to(device)
    meter, series = StreamMeter(labels), Series()
    watch = Stopwatch(device, stream.batch_count)
    reset_peak_memory(device)
    for number, (batch, inputs) in enumerate(zip(stream.batches(), images.batches(stream), strict=True)):
        if batch.reset and number:
            model.reset()
        extra = diagnostics.on_batch(inputs)
        watch.start()
        logits = model(inputs)
        watch.stop()
        meter.update(logits)
        series.add({**_last(model), **extra})
        if progress is not None:
            progress((number + 1) / stream.batch_count)
    record = meter.record()
    if record.first_non_finite is not None:
        raise BenchError(f"the predictions became non-finite at sample {record.first_non_finite} of {len(stream)}")
    return {
        "metrics": record.summary(images.classes, *_by_corruption(stream)),
        "series": thin(_renamed(series.read())),
        "cost": {
            **_counts(model),
            "batches": stream.batch_count,
            **{name: round(value, 4) for name, value in watch.summary().items()},
            "peak_mb": round(peak_memory(device), 1),
        },
        "diagnostics": diagnostics.after(record),
        "data_note": "; ".join(filter(None, (images.note, note))),
    }


def _by_corruption(stream: Stream) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Per sample the number of its corruption, and their names; a gradual stream meets one at several severities."""
    names = list(dict.fromkeys(domain.name for domain in stream.domains))
    number = np.array([names.index(domain.name) for domain in stream.domains], dtype=np.int64)
    return number[stream.domain], names


def _adapter(cell: Cell, network: nn.Module, from_data: dict[str, Any]) -> Any:
    import wildtta

    return wildtta.adapt(network, cell.method, **{"batch_size": cell.batch_size, **from_data, **cell.options})


def _pixel_scale(cell: Cell, images: Images) -> dict[str, Any]:
    """The preprocessing's mean and std for the methods that augment: they work on pixels, not on network inputs."""
    known = {entry.name for entry in dataclasses.fields(config_classes()[cell.method])}
    return {name: value for name, value in images.pixel_scale.items() if name in known}


def _last(model: Any) -> dict[str, Any]:
    return {name: getattr(model.last, name, None) for name in _PER_BATCH}


def _renamed(columns: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("used_"): column for name, column in columns.items()}


def _counts(model: Any) -> dict[str, int]:
    return {name: int(getattr(model.cost, name)) for name in _TOTALS}


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


@cache
def versions() -> dict[str, str]:
    """What the numbers were made with."""
    told = {"python": platform.python_version(), "torch": torch.__version__}
    named = {"wildtta", "timm", "torchvision", "numpy"}
    installed = {str(found.name).lower(): found.version for found in metadata.distributions() if found.name}
    return told | {package: installed[package] for package in sorted(named & set(installed))}
