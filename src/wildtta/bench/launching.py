"""From a list of cells to a finished journal: the one way in which commands run cells."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from wildtta.bench.cell import Cell
from wildtta.bench.datasets import check_data
from wildtta.bench.diagnostics import diagnostic_options
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.journal import Askers, Journal, Row
from wildtta.bench.models import check_model
from wildtta.bench.running import Conditions
from wildtta.bench.streaming import SPLITS, stream_options
from wildtta.bench.watching import Display, Observer, tensorboard_writer, write_curves
from wildtta.bench.workers import in_process, in_processes, on_ray


@dataclass
class Outcome:
    """What a launch did."""

    rows: list[Row] = field(default_factory=list)
    """The rows of its cells, in the cells' order: those of this run and those found in the journal."""
    ran: int = 0
    found: int = 0
    failed: int = 0
    left: int = 0
    """Cells that did not begin because the time was up."""


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
    asked_by: Mapping[str, Askers] | None = None,
    seconds: float | None = None,
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
        loaders: decoding processes of each worker for data that don't fit into memory; None: some for a GPU,
            else none.
        tensorboard: folder for TensorBoard's files.
        observer: who is told what happens; by default a progress bar or lines on the standard error.
        asked_by: a cell's key to who wants its row (plain JSON objects); rows keep it, also those found in
            the journal.
        seconds: after so many no cell begins; those that run are finished. The same call goes on later.
    """
    until = math.inf if seconds is None else time.monotonic() + seconds
    if per_device < 1 or threads < 1:
        raise BenchError(f"per_device and threads must be at least 1, got {per_device} and {threads}")
    images = None if root is None else str(root)
    check_cells(cells, images)
    wanted = {cell.key: cell for cell in cells}
    watching = observer or Display(cells)
    if tensorboard is not None:
        tensorboard_writer()  # before anything runs, in case it is not installed
    devices = [] if ray is not None and device == "auto" else devices_named(device)
    if ray is None and (hint := sharing_hint(devices, per_device)):
        watching.notice(hint)
    slots = [name for name in devices for _ in range(per_device)]
    if loaders is None:
        # Where a GPU waits for images: each worker's share of the cores.
        share = min(8, max(1, (os.cpu_count() or 1) // max(1, len(slots))))
        loaders = share if any(name.startswith("cuda") for name in devices) else 0
    conditions = Conditions(
        root=images,
        source=None if source is None else str(source),
        threads=threads,
        loaders=loaders,
    )
    outcome, asking = Outcome(), asked_by or {}
    with ExitStack() as stack:
        book = None if journal is None else stack.enter_context(Journal(journal, say=watching.notice))
        rows = _found(book, wanted, asking, watching)
        missing = [cell for key, cell in wanted.items() if rows.get(key, {}).get("status") != "ok"]
        outcome.found = len(wanted) - len(missing)
        # Workers start only after the journal is known to be good and ours.
        if ray is not None:
            gpu = None if device == "auto" else devices[0] != "cpu"
            workers, run = on_ray(ray, conditions, gpu=gpu, per_device=per_device)
        elif len(slots) == 1:
            workers, run = 1, partial(in_process, slots[0], conditions)
        else:
            workers, run = len(slots), partial(in_processes, slots, conditions)
        watching.begin(len(wanted), outcome.found, workers)
        if ray is None and (hint := idle_cores_hint(len(missing), slots, threads)):
            watching.notice(hint)
        stack.callback(watching.end)
        events = run(missing, watching.running, until=until)
        stack.callback(events.close)
        for event in events if missing else ():
            if isinstance(event, str):
                watching.notice(event)
                continue
            row = {**event, "asked_by": list(asking[event["key"]])} if asking.get(event["key"]) else event
            if book is not None:
                book.append(row)
            else:
                rows[row["key"]] = row
            outcome.ran += 1
            outcome.failed += row["status"] != "ok"
            if tensorboard is not None and row["status"] == "ok":
                write_curves(row, tensorboard)
            watching.finished(row)
        outcome.left = len(missing) - outcome.ran
        if book is not None:
            rows = {row["key"]: row for row in book.rows}
    outcome.rows = [rows[key] for key in wanted if key in rows]
    return outcome


def _found(
    book: Journal | None, wanted: Mapping[str, Cell], asking: Mapping[str, Askers], watching: Observer
) -> dict[str, Row]:
    """The journal's rows by key, after noting in it who asks now for those that are finished."""
    if book is None:
        return {}
    finished = book.finished()
    for key in wanted:
        if key in finished:
            book.add_askers(key, asking.get(key, ()))
    old = sum("resolved" not in row for row in book.rows if row["status"] == "ok")
    if old:
        watching.notice(
            f"{book.path}: {old} rows are of version 0.1 and don't count here; `wildtta migrate` translates them"
        )
    return {row["key"]: row for row in book.rows}


def check_cells(cells: Iterable[Cell], root: str | None) -> None:
    """Raise :class:`BenchError` for the first cell that cannot run as it stands; reads nothing large.

    Asked before the first cell runs, so that a misspelt name costs seconds and not a night.
    """
    models: set[tuple[str, str | None]] = set()
    for cell in cells:
        _ = cell.config
        stream_options(cell)
        diagnostic_options(cell)
        check_data(cell, root)
        refuse_unknown([cell.data_options.get("split", "all")], SPLITS, "unknown split {}")
        if cell.scenario == "single" and cell.batch_size != 1:
            raise BenchError(f"scenario 'single' means batches of one image, got batch_size {cell.batch_size}")
        if (cell.model, cell.weights) not in models:
            check_model(cell)
            models.add((cell.model, cell.weights))


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
    refuse_unknown(chosen or [device], sorted(known), "no device {} here")
    return chosen


def cells_at_a_time(cells: Sequence[Cell], device: str, threads: int) -> int:
    """How many cells run side by side on one device unless the user says: as many as cores allow on the CPU, else 1.

    Their numbers don't depend on it: every worker has the same ``threads``.
    """
    if devices_named(device) != ["cpu"]:
        return 1
    return max(1, min(len({cell.key for cell in cells}), available_cores() // threads))


def available_cores() -> int:
    """The cores that this process may use (a container or a batch system may give it fewer than there are)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def idle_cores_hint(missing: int, slots: Sequence[str], threads: int) -> str | None:
    """What to do where one cell after the other leaves cores of the CPU idle; None where none do."""
    idle = available_cores() - len(slots) * threads
    if set(slots) != {"cpu"} or idle < 1 or missing == 0:
        return None
    return (
        f"{len(slots) * threads} of {available_cores()} cores at work; --threads {available_cores() // len(slots)} uses all "
        "(other sums, so the last digits may differ from runs with another number)"
    )


def sharing_hint(devices: Sequence[str], per_device: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """What to do for several processes on one GPU to run side by side; None where nothing is amiss.

    Without NVIDIA's multi-process service they get time slices, and small networks leave the GPU idle most of
    the time.
    """
    # The service listens where the environment's processes would look for it.
    service = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"
    if per_device == 1 or service.exists() or not any(name.startswith("cuda") for name in devices):
        return None
    return (
        f"{per_device} processes share a GPU and take turns on it: small networks run several times faster side by "
        "side. Start NVIDIA's multi-process service first: nvidia-cuda-mps-control -d"
    )
