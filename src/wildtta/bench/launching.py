"""From a list of cells to a finished journal: the one way in which commands run cells."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from wildtta.bench.campaign import Observer, Outcome, run_cells
from wildtta.bench.cell import Cell
from wildtta.bench.checks import check_cells
from wildtta.bench.cluster import RayPool
from wildtta.bench.errors import BenchError
from wildtta.bench.execute import Conditions
from wildtta.bench.gpu_sharing import sharing_hint
from wildtta.bench.journal import Journal
from wildtta.bench.local import InProcess, Processes
from wildtta.bench.pool import Pool
from wildtta.bench.progress import observer_for


def launch(
    cells: Sequence[Cell],
    *,
    journal: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    source: str | os.PathLike[str] | None = None,
    device: str = "auto",
    per_device: int = 1,
    ray: str | None = None,
    threads: int = 1,
    loaders: int | None = None,
    tensorboard: str | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """Check the cells, run what the journal doesn't hold yet, and write every row down as it comes.

    Args:
        cells: what to run; the same cell twice is run once.
        journal: JSONL file to append to and to resume from; None keeps the rows in memory only.
        root: folder of the data.
        source: folder of clean source images, for the methods that want some.
        device: ``auto`` (all GPUs, else the CPU), ``cpu``, ``cuda`` (all GPUs), or names with commas.
        per_device: cells at a time on each device.
        ray: ``auto`` or an address: run on a Ray cluster instead of this machine.
        threads: CPU threads of each worker.
        loaders: decoding processes of each worker for data that don't fit into memory; None: some for a GPU, else none.
        tensorboard: folder for TensorBoard's files.
        observer: who is told what happens; by default a progress bar or lines on the standard error.
    """
    if per_device < 1 or threads < 1:
        raise BenchError(f"per_device and threads must be at least 1, got {per_device} and {threads}")
    folder = None if root is None else str(root)
    check_cells(cells, folder)
    watching = observer or observer_for(tensorboard=tensorboard)
    devices = [] if ray is not None and device == "auto" else devices_named(device)
    hint = None if ray is not None else sharing_hint(devices, per_device)
    if hint is not None:
        watching.notice(hint)
    on_gpu = any(name.startswith("cuda") for name in devices)
    share = max(1, (os.cpu_count() or 1) // max(1, len(devices) * per_device))
    decoding = loaders if loaders is not None else min(8, share) if on_gpu else 0
    conditions = Conditions(
        root=folder, source=None if source is None else str(source), threads=threads, loaders=decoding
    )
    if journal is None:
        return run_cells(cells, _pool(conditions, device, devices, per_device, ray), observer=watching)
    with Journal(journal, say=watching.notice) as book:
        # Workers start only after the journal is known to be good and ours.
        return run_cells(cells, _pool(conditions, device, devices, per_device, ray), journal=book, observer=watching)


def _pool(conditions: Conditions, device: str, devices: list[str], per_device: int, ray: str | None) -> Pool:
    if ray is not None:
        return RayPool(ray, conditions, gpu=None if device == "auto" else devices[0] != "cpu", per_device=per_device)
    slots = [name for name in devices for _ in range(per_device)]
    if len(slots) == 1:
        return InProcess(slots[0], conditions)
    return Processes(slots, conditions)


def devices_named(device: str) -> list[str]:
    """Device names for torch from what a user asked for; one that isn't there is an error."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device == "auto":
        return gpus or ["cpu"]
    if device == "cuda":
        if not gpus:
            raise BenchError("no CUDA device was found on this machine; use --device cpu")
        return gpus
    chosen = [name.strip() for name in device.split(",") if name.strip()]
    known = {"cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])}
    wrong = [name for name in chosen if name not in known]
    if wrong or not chosen:
        raise BenchError(f"no device {wrong[0] if wrong else device!r} here; there are {', '.join(sorted(known))}")
    return chosen
