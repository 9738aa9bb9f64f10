"""Real processes for the tests of replicas: they meet in a file, by gloo, and leave what they found in files."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import wildtta
from wildtta.data import corrupt, preprocess
from wildtta.glyphs import Glyphs, network

Found = dict[str, Any]
TOTALS = (
    *("seen", "selected", "selected_second", "gradient_norm", "gradient_norm_second", "e_m", "resets", "bank_rows"),
    *("forwards", "backwards", "computed_forwards", "computed_backwards", "learned", "skipped", "left_out", "loss"),
)
"""What a report tells of the joint batch, and every replica alike."""


def run_replicas(number: int, work: Callable[..., Found], folder: Path, *arguments: Any, limit: float = 500) -> list[Found]:
    """``work(rank, …)`` in ``number`` processes: what each returned, ``{}`` where it was killed, and its ``exitcode``."""
    folder.mkdir(parents=True, exist_ok=True)
    context = mp.get_context("spawn")
    processes = [
        context.Process(target=_process, args=(rank, number, str(folder), work, arguments)) for rank in range(number)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(limit)
    found = []
    for rank, process in enumerate(processes):
        if process.is_alive():
            process.kill()
            raise AssertionError(f"replica {rank} did not end within {limit} s")
        path = folder / f"{rank}.pt"
        found.append({**(torch.load(path) if path.exists() else {}), "exitcode": process.exitcode})
    return found


def _process(rank: int, number: int, folder: str, work: Callable[..., Found], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=number, timeout=timedelta(seconds=120))
    torch.save(work(rank, *arguments), f"{folder}/{rank}.pt")


def glyph_stream(count: int, corruption: str = "gaussian_noise", severity: int = 5) -> Tensor:
    """Corrupted glyphs, in an order of chance."""
    glyphs = Glyphs(count, seed=11, split="test")
    order = np.random.default_rng(0).permutation(count)
    return preprocess(corrupt(glyphs.images(order), corruption, severity, index=order), "glyphs").double()


def parts(step: int, batch: int, number: int) -> list[int]:
    """How a batch is dealt out to replicas: by chance, so that parts differ and some are empty."""
    return [int(part) for part in np.random.default_rng(step).multinomial(batch, [1 / number] * number)]


def follow(adapter: wildtta.Adapter, batches: Sequence[Tensor]) -> Found:
    """Answers, reports and the state after a stream."""
    found: Found = {"answers": [], "entropies": [], "masks": [], "totals": [], "strengths": []}
    for batch in batches:
        found["answers"].append(adapter(batch))
        report = adapter.last
        found["entropies"].append(report.entropies.detach())
        found["masks"].append(report.mask)
        found["totals"].append(torch.tensor([float(getattr(report, name)) for name in TOTALS], dtype=torch.float64))
        found["strengths"].append(torch.tensor(0.0) if report.strength is None else report.strength)
    return {**found, "state": adapter.online_state(), "learning_rate": adapter.learning_rate}


def stream_with_gaps(steps: int, batch: int) -> list[Tensor]:
    """Batches of glyphs; in some an image is not finite."""
    batches = list(glyph_stream(steps * batch).split(batch))
    for step in range(7, steps, 20):
        batches[step] = batches[step].clone()
        batches[step][step % batch, 0, 3, 4] = torch.nan if step % 40 == 7 else torch.inf
    return batches


Case = tuple[str, str, dict[str, Any], int, int]
"""A network of the glyphs, a method, its options, the number of batches and their size."""


def follow_cases(rank: int, number: int, cases: dict[str, Case]) -> Found:
    """Every case on this replica's parts of the joint batches."""
    found = {}
    for name, (kind, method, options, steps, size) in cases.items():
        adapter = wildtta.adapt(network(kind).double(), method, group=True, **options)
        own = [
            batch.split(parts(step, size, number))[rank] for step, batch in enumerate(stream_with_gaps(steps, size))
        ]
        found[name] = follow(adapter, own)
        adapter.unload()
    return found


def follow_alone(case: Case) -> Found:
    """The same case by one adapter on the joint batches."""
    kind, method, options, steps, size = case
    return follow(wildtta.adapt(network(kind).double(), method, **options), stream_with_gaps(steps, size))


# -- losses ------------------------------------------------------------------------------------------------------------------


def lose_one(rank: int, when_lost: str, timeout: float, method: str, options: dict[str, Any], killed_at: int) -> Found:
    """Of three replicas, rank 1 is killed (kill -9) in the middle of a pass of its batch ``killed_at``."""
    model = network("resnet_gn").double()
    group = wildtta.Replicas(timeout=timeout, when_lost=when_lost)  # type: ignore[arg-type]
    adapter = wildtta.adapt(model, method, group=group, **options)
    found: Found = {"answers": []}
    for step, batch in enumerate(stream_with_gaps(12, 6)):
        if rank == 1 and step == killed_at:
            model.layer3.register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        before, began = adapter.online_state(), time.monotonic()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found["answers"].append(adapter(batch[2 * rank : 2 * rank + 2]))
        except wildtta.ReplicaLost as error:
            found["noticed_after"] = time.monotonic() - began
            found["said"] = str(error)
            found["lost_at"] = step
            found["as_before"] = _same(before, adapter.online_state())
            with adapter.paused():
                found["paused"] = adapter(batch)
            adapter.save(f"{tempfile.gettempdir()}/wildtta-{os.getpid()}.safetensors")
            os.remove(f"{tempfile.gettempdir()}/wildtta-{os.getpid()}.safetensors")
            began = time.monotonic()
            try:
                adapter(batch[:2])
            except wildtta.ReplicaLost as again:
                found["said_again"] = str(again)
            found["again_after"] = time.monotonic() - began
            break
        if caught:
            found["went_on_after"] = time.monotonic() - began
            found["warned"] = [str(warning.message) for warning in caught]
    return {**found, "state": adapter.online_state(), "replicas": adapter.replicas}


def come_late(rank: int, timeout: float, pause: float) -> Found:
    """Rank 1 lives and does not call for ``pause`` seconds; the other one goes on without it."""
    adapter = wildtta.adapt(network("resnet_gn").double(), "tent", group=wildtta.Replicas(timeout=timeout, when_lost="continue"))
    batches = stream_with_gaps(4, 4)
    found: Found = {}
    adapter(batches[0][2 * rank :][:2])
    if rank == 1:
        time.sleep(pause)
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapter(batches[1][2 * rank :][:2])
    except wildtta.ReplicaLost as error:
        found["said"] = str(error)
    return {**found, "seconds": time.monotonic() - began, "replicas": adapter.replicas}


class FailsOnce(wildtta.Tent):
    """Tent that fails on one replica after the gradient was shared: the others have learned from that batch."""

    name = "fails-once"
    failing = False

    def remember(self, *arguments: Any) -> None:
        if FailsOnce.failing:
            FailsOnce.failing = False
            raise OSError("no space left on device")


def fail_alone(rank: int) -> Found:
    """Rank 1 fails within step 3 and is called again with the same part; the other one has gone on to the next batch."""
    group = wildtta.Replicas(timeout=30, when_lost="continue")
    adapter = wildtta.adapt(network("resnet_gn").double(), FailsOnce(lr=0.01), group=group)
    found: Found = {"answers": [], "failed": 0}
    for step, batch in enumerate(stream_with_gaps(6, 4)):
        own = batch[2 * rank :][:2]
        FailsOnce.failing = rank == 1 and step == 3
        try:
            answer = adapter(own)
        except OSError:
            found["failed"] += 1
            answer = adapter(own)
        found["answers"].append(answer)
    return {**found, "state": adapter.online_state()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value.nan_to_num(-1), other[name].nan_to_num(-1)) for name, value in one.items())
