"""Real processes for the tests of replicas: they meet in a file, by gloo, and leave what they found in files."""

from __future__ import annotations

import dataclasses
import multiprocessing as mp
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import wildtta
from toy_networks import batches, build, images
from wildtta.data import corrupt, preprocess
from wildtta.glyphs import Glyphs, network
from wildtta.methods.registry import config_classes

Found = dict[str, Any]
TOTALS = (
    *("seen", "selected", "selected_second", "gradient_norm", "gradient_norm_second", "e_m", "resets", "bank_rows"),
    *("forwards", "backwards", "computed_forwards", "computed_backwards", "learned", "skipped", "left_out", "loss"),
)
"""What a report tells of the joint batch, and every replica alike."""


def run_replicas(
    number: int, work: Callable[..., Found], folder: Path, *arguments: Any, meeting: str = "", limit: float = 500
) -> list[Found]:
    """``work(rank, …)`` in ``number`` processes: what each returned, ``{}`` where it was killed, and its ``exitcode``.

    They meet in a file, or at the address ``meeting`` (where rank 0 has the store).
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = meeting or f"file://{folder}/meeting"
    context = mp.get_context("spawn")
    processes = [
        context.Process(target=_process, args=(rank, number, place, str(folder), work, arguments))
        for rank in range(number)
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


def _process(
    rank: int, number: int, meeting: str, folder: str, work: Callable[..., Found], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
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
    stream = list(glyph_stream(steps * batch).split(batch))
    for step in range(7, steps, 20):
        stream[step] = stream[step].clone()
        stream[step][step % batch, 0, 3, 4] = torch.nan if step % 40 == 7 else torch.inf
    return stream


Case = tuple[str, str, dict[str, Any], int, int]
"""A network of the glyphs, a method, its options, the number of batches and their size."""


def follow_cases(rank: int, number: int, cases: dict[str, Case]) -> Found:
    """Every case on this replica's parts of the joint batches."""
    found = {}
    for name, (kind, method, options, steps, size) in cases.items():
        adapter = wildtta.adapt(network(kind).double(), method, group=True, **options)
        own = [batch.split(parts(step, size, number))[rank] for step, batch in enumerate(stream_with_gaps(steps, size))]
        found[name] = follow(adapter, own)
        adapter.unload()
    return found


def follow_alone(case: Case) -> Found:
    """The same case by one adapter on the joint batches."""
    kind, method, options, steps, size = case
    return follow(wildtta.adapt(network(kind).double(), method, **options), stream_with_gaps(steps, size))


# -- every method, and the rest of an adapter's life ---------------------------------------------------------------------------

SMALL = {"lr": 0.01, "every": 4, "reliable": 0.9, "warmup": 2, "evidence": False}
"""Settings, by the name of the option, with which a few samples are enough to learn from."""


def small_options(method: str) -> dict[str, Any]:
    """The fewest options with which a method runs on a small network, and learns at once."""
    config = config_classes()[method]
    needed = config.example_options(images("ln_vit", 8, dtype=torch.float64))
    names = {item.name for item in dataclasses.fields(config)}
    return {**needed, **{name: value for name, value in SMALL.items() if name in names and name not in needed}}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "episodes": ("sar", {"episodic": True, "steps": 2}),
    "selective reset": ("tent", {"recovery": "asr"}),
    "relative recovery": ("tent", {"recovery": "relative", "lr": 0.2}),
    "opinions": ("sar", {"objective": "conservative", "momentum": 0.0}),
    "a perturbation per term": ("sar2", {"perturbation": "per_term"}),
    # At 0.01 rounding grows tenfold with every batch here.
    "features after the step": ("sar2", {"bank_features": "post", "lr": 1e-3}),
    "the bank before the step": ("sar2", {"bank_refresh": "before", "second_labels": "second"}),
    "the live batch": ("sar2", {"bank": False}),
    "evidence": ("steady", {"evidence": True}),
}
"""Further ways through a step."""


def variant_options(name: str) -> tuple[str, dict[str, Any]]:
    """A method and its options, by the name of a variant or of the method itself."""
    method, options = VARIANTS.get(name, (name, {}))
    small = {key: value for key, value in small_options(method).items() if options.get("bank", True) or key != "warmup"}
    return method, {**small, **options}


def follow_methods(rank: int, number: int, names: Sequence[str]) -> Found:
    """Every method on a small network, or what its refusal says."""
    found: Found = {}
    for name in names:
        model = build("ln_vit", dtype=torch.float64)
        method, options = variant_options(name)
        try:
            adapter = wildtta.adapt(model, method, group=True, **options)
        except ValueError as error:
            found[name] = str(error)
            continue
        stream = batches("ln_vit", 6, 8, dtype=torch.float64)
        found[name] = follow(adapter, [batch.split(parts(step, 8, number))[rank] for step, batch in enumerate(stream)])
    return found


class TwoInputs(nn.Module):
    """A network that is called with two named tensors, and returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.body = build("ln_mlp", dtype=torch.float64)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.body(left + right), "sum": (left + right).sum(1)}


def follow_two_inputs(rank: int | None) -> list[dict[str, Tensor]]:
    """Two replicas' parts, or (None) the whole of batches with two inputs; one of them is not finite."""
    stream = batches("ln_mlp", 5, 7, dtype=torch.float64)
    example = {"left": stream[0], "right": stream[0]}
    adapter = wildtta.adapt(TwoInputs(), "tent", lr=0.01, example=example, group=None if rank is None else True)
    answers = []
    for batch in stream:
        batch[5, 2] = torch.nan
        own = batch if rank is None else batch.split([4, 3])[rank]
        answers.append(adapter(left=own, right=0.5 * own))
    return answers


WHOLE = {"lr": 1e-3, "warmup": 2, "reliable": 0.9, "redundancy": 10.0, "inequity": 1.0}


def follow_whole_network(rank: int | None) -> dict[str, Tensor]:
    """All parameters learn, those of the head too: I reaches them directly, and not by the outputs alone."""
    model = build("ln_mlp", dtype=torch.float64)
    adapter = wildtta.adapt(model, "sar2", parameters=".*", group=None if rank is None else True, **WHOLE)
    for batch in batches("ln_mlp", 3, 9, dtype=torch.float64):
        adapter(batch if rank is None else batch.split([2, 7])[rank])
    return adapter.online_state()


def live(rank: int, folder: str) -> Found:
    """Pauses, saving, loading, resetting, and what is refused while replicas are connected."""
    stream = [batch.split([3, 5])[rank] for batch in batches("ln_mlp", 6, 8, dtype=torch.float64)]
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar", lr=0.01, group=True)
    found: Found = {}
    for batch in stream[:3]:
        adapter(batch)
    after_three = adapter.online_state()
    if rank == 0:  # alone: nobody else is waited for
        adapter.save(f"{folder}/state.safetensors")
        with adapter.paused():
            found["paused"] = adapter(stream[3])
    found["pause_changed_nothing"] = _same(after_three, adapter.online_state())
    found["empty"] = _refusal(adapter, stream[0][:0])
    for batch in stream[3:]:
        adapter(batch)
    found["state"] = adapter.online_state()

    if rank == 1:
        adapter.reset()
    found["reset_of_one"] = _refusal(adapter, stream[0])
    adapter.load(f"{folder}/state.safetensors")
    if rank == 1:  # as another processor's rounding would leave it
        with torch.no_grad():
            dict(adapter.network.named_parameters())[adapter.learned_parameters[0]].mul_(1 + 2.0**-52)
    for batch in stream[3:]:
        adapter(batch)
    found["resumed"] = adapter.online_state()
    adapter.reset()
    adapter(stream[0])
    found["calls_after_reset"] = int(adapter.cost.learned)

    other = wildtta.adapt(build("ln_mlp", seed=rank, dtype=torch.float64), "sar", group=True)
    found["other_weights"] = _refusal(other, stream[0])
    other = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar", lr=0.01 * (1 + rank), group=True)
    found["other_options"] = _refusal(other, stream[0])
    return {**found, "inputs": follow_two_inputs(rank), "whole": follow_whole_network(rank)}


def follow_in_a_part_of_the_world(rank: int) -> Found:
    """Of three processes, 0 and 2 are replicas in a group of their own; 1 has its own stream."""
    pair = dist.new_group([0, 2])
    group = pair if rank != 1 else None
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "tent", lr=0.01, group=group)
    for batch in batches("ln_mlp", 4, 8, seed=rank % 2, dtype=torch.float64):
        adapter(batch if rank == 1 else batch.split([3, 5])[rank // 2])
    return {"state": adapter.online_state(), "replicas": [] if rank == 1 else adapter.replicas}


def _refusal(adapter: wildtta.Adapter, batch: Tensor) -> str:
    before = adapter.online_state()
    try:
        adapter(batch)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}" if _same(before, adapter.online_state()) else "the state changed"
    return "no refusal"


def everything(rank: int, folder: str, cases: dict[str, Case], names: Sequence[str]) -> Found:
    """What two replicas do in the default tests, in one life: starting processes is what takes time."""
    return {
        "cases": follow_cases(rank, 2, cases),
        "methods": follow_methods(rank, 2, names),
        "life": live(rank, folder),
    }


# -- losses ------------------------------------------------------------------------------------------------------------------


def lose_one(
    rank: int, when_lost: str, timeout: float, method: str, options: dict[str, Any], killed_at: int, killed: int = 1
) -> Found:
    """Of three replicas, the one of rank ``killed`` is (kill -9), in the middle of a pass of its batch ``killed_at``."""
    model = network("resnet_gn").double()
    group = wildtta.Replicas(timeout=timeout, when_lost=when_lost)  # type: ignore[arg-type]
    adapter = wildtta.adapt(model, method, group=group, **options)
    found: Found = {"answers": []}
    for step, batch in enumerate(stream_with_gaps(12, 6)):
        if rank == killed and step == killed_at:
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


def lose_the_one_without_gpu(rank: int, when_lost: str, timeout: float) -> Found:
    """Two replicas over NCCL: rank 0 on a GPU; rank 1, on the CPU, is killed (kill -9) within its first pass."""
    nccl = dist.new_group(backend="nccl")
    group = wildtta.Replicas(group=nccl, timeout=timeout, when_lost=when_lost)  # type: ignore[arg-type]
    device = ("cuda", "cpu")[rank]
    model = build("ln_vit", dtype=torch.float64).to(device)
    if rank == 1:
        model.norm.register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    adapter = wildtta.adapt(model, "tent", lr=0.01, group=group)
    parts = [batch[4 * rank :][:4].to(device) for batch in batches("ln_vit", 4, 8, dtype=torch.float64)]
    before, began, found = adapter.online_state(), time.monotonic(), Found()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found["answers"] = [adapter(part).cpu() for part in parts]
        except wildtta.ReplicaLost as error:
            found["said"] = str(error)
            found["as_before"] = _same(before, adapter.online_state())
            with adapter.paused():
                found["paused"] = adapter(parts[0]).cpu()
    found["seconds"] = time.monotonic() - began
    return {**found, "state": {name: value.cpu() for name, value in adapter.online_state().items()}}


def soak_stream() -> list[Tensor]:
    return batches("ln_vit", 150, 8, dtype=torch.float64)


def soak_options() -> dict[str, Any]:
    return {"lr": 1e-4, "warmup": 3, "reliable": 0.9, "redundancy": 10.0, "inequity": 1.0}


def be_killed_any_time(rank: int, doomed: dict[int, float]) -> Found:
    """Of four replicas some are killed (kill -9), each so many seconds after its first answer, wherever it then is."""
    group = wildtta.Replicas(timeout=8.0, when_lost="continue")
    adapter = wildtta.adapt(build("ln_vit", dtype=torch.float64), "sar2", group=group, **soak_options())
    found: Found = {"answers": [], "seen": []}
    for step, batch in enumerate(soak_stream()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found["answers"].append(adapter(batch[2 * rank :][:2]))
        found["seen"].append(int(adapter.last.seen))
        if step == 0 and rank in doomed:
            threading.Timer(doomed[rank], os.kill, (os.getpid(), signal.SIGKILL)).start()
    return {**found, "state": adapter.online_state(), "replicas": adapter.replicas}


def come_late(rank: int, when_lost: str, timeout: float, pause: float) -> Found:
    """Rank 1 lives and does not call for ``pause`` seconds."""
    group = wildtta.Replicas(timeout=timeout, when_lost=when_lost)  # type: ignore[arg-type]
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "tent", group=group)
    stream = batches("ln_mlp", 2, 4, dtype=torch.float64)
    found: Found = {}
    adapter(stream[0][2 * rank :][:2])
    if rank == 1:
        time.sleep(pause)
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapter(stream[1][2 * rank :][:2])
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
