"""The pace of a method: the time of its step over the unadapted network's, measured.

Images arrive as fast as the network can answer. On a GPU that is its pass recorded as a CUDA graph: as it is usually called,
a small network waits for its launches longer than it computes, and methods whose steps are recorded (Tent, SAR, SAR², Steady
and others) would seem faster than no adaptation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from wildtta.bench.cell import Cell
from wildtta.bench.datasets import open_images
from wildtta.bench.models import build_model
from wildtta.bench.running import Conditions, repeatable, run_cell
from wildtta.bench.streaming import stream_of
from wildtta.metrics import Stopwatch
from wildtta.step.precision import pass_precision, step_precision

WARM_UP = 3
"""Passes before a recording: libraries choose their algorithms, and kernels are compiled."""


def measured_pace(cell: Cell, conditions: Conditions | None = None, device: str = "cpu", *, batches: int = 16) -> float:
    """The time of the method's step over the unadapted network's: medians over the first batches of the cell's stream."""
    short = replace(cell, limit=batches * cell.batch_size, pace=0.0, measure=(), regularise=0)
    own = {name: value for name, value in cell.options.items() if name == "precision"}
    bare = replace(short, method="none", options=own)
    spent, alone = (run_cell(each, conditions, device)["cost"]["ms_per_batch_median"] for each in (short, bare))
    recorded = recorded_milliseconds(bare, conditions, device)
    return float(spent / (alone if recorded is None else min(alone, recorded)))


def recorded_milliseconds(
    cell: Cell, conditions: Conditions | None = None, device: str = "cuda", *, passes: int = 50
) -> float | None:
    """The median time of the cell's bare network for one batch, recorded as a CUDA graph.

    None without a GPU, and where the network cannot be recorded.
    """
    place, conditions = torch.device(device), conditions or Conditions()
    if place.type != "cuda":
        return None
    precision = cell.options.get("precision")
    with torch.cuda.device(place), repeatable(cell.seed, threads=conditions.threads, device=place):
        images, network = open_images(cell, conditions.root, build_model(cell), place, loaders=conditions.loaders)
        network = network.to(place).eval()
        inputs = next(images.batches(stream_of(cell, images.labels)))
        with torch.no_grad(), step_precision(precision, place), pass_precision(precision, place):
            made: Any = torch.cuda.Stream  # untyped
            beside = made()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(WARM_UP):
                    network(inputs)
            torch.cuda.current_stream().wait_stream(beside)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph):
                    network(inputs)
            except RuntimeError:  # it reads from the device in between
                return None
        watch = Stopwatch(place, passes)
        for _ in range(passes):
            watch.start()
            graph.replay()
            watch.stop()
    return watch.summary()["ms_per_batch_median"]
