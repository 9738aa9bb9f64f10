"""What a step costs: wildtta, a plain eager implementation and bare inference, measured in one run.

    python benchmarks/speed.py --device cuda --models resnet50_gn,vit_base_patch16_224 --batches 64,1 \
        --methods tent,sar,sar2,sar2-efficient,steady --precision fp32,tf32,auto --json speed.json

Conditions: random weights and images; a quarter of the samples is reliable (the head is made from the batch's
features so that the paper's threshold parts them) and passes the second filter; a batch of one is always
selected; SAR² and Steady have a full bank of C rows. Learning rates are tiny, so that the conditions stay as
they are. Ours, plain and inference are timed in turn, repetition by repetition, and medians are shown.
``plain`` runs at fp32 for ``auto``, else at the row's precision. Memory is what the allocator holds at its
peak, from before the network is made.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import math
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import plain
import wildtta
from wildtta.methods.sar2 import bank
from wildtta.step.precision import Precision, pass_precision, step_precision


@contextlib.contextmanager
def at_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    with pass_precision(precision, device), step_precision(precision, device):
        yield


TINY = 1e-30
SIDE = 224
CONFIDENT_LOGIT = 16.0
ALWAYS = 1e9


@lru_cache(maxsize=1)
def build(name: str, device: str) -> nn.Module:
    """A timm network with random weights; the last one is kept, to be copied."""
    import timm

    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=1000)
    return network.to(device).eval()


def make_a_quarter_reliable(network: nn.Module, images: Tensor) -> None:
    """Give the head one confident class for each of a quarter of the samples: w_k along z_k − mean z.

    Their entropy is near 0, all others' near ln C, so that the paper's threshold parts them, perturbed or not.
    """
    head = network.get_classifier()
    features: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
    with torch.no_grad():
        network(images)
        handle.remove()
        away = features[0] - features[0].mean(0)
        selected = away[: max(1, len(images) // 4)]
        directions = CONFIDENT_LOGIT * selected / selected.square().sum(1, keepdim=True).clamp(min=1e-20)
        head.weight.normal_(0, 1e-3 / head.in_features**0.5)
        head.weight[: len(directions)] += directions
        head.bias.zero_()
        head.bias[: len(directions)] -= directions @ features[0].mean(0)


def ours(
    network: nn.Module, method: str, threshold: float, precision: str, rows: Tensor, compiled: bool
) -> wildtta.Adapter:
    options: dict[str, Any] = {"lr": TINY}
    if method != "tent":
        options |= {"reliable": threshold / math.log(rows.shape[0]), "recovery": 1e-30}
    if method == "steady":
        options["evidence"] = False  # it would rest on these images; what a step costs is asked
    adapter = wildtta.adapt(network, method, precision=precision, compile=compiled, **options)
    if "bank_rows" in adapter.engine.memory:
        fill_bank(adapter, rows)
    return adapter


def fill_bank(adapter: wildtta.Adapter, rows: Tensor) -> None:
    """A full bank: all C classes stored."""
    memory = adapter.engine.memory
    memory["bank_rows"][:-1] = rows
    memory["bank_filled"][:-1] = True
    memory["bank_count"].fill_(len(rows))
    bank.resum(memory, adapter.resolved["normalisation"])


def theirs(
    network: nn.Module, head: nn.Linear, adapter: wildtta.Adapter, threshold: float, rows: Tensor, lr: float = TINY
) -> plain.Step:
    """The plain version of what ``adapter`` does, on a network of its own."""
    method, names = adapter.method.name, adapter.learned_parameters
    if method == "tent":
        return plain.tent(network, names, lr=lr)
    if method == "sar":
        return plain.sar(network, names, lr=lr, threshold=threshold)
    if method == "steady":
        return plain.steady(network, head, names, lr=lr, threshold=threshold, bank=rows.clone())
    return plain.sar2(
        network,
        head,
        names,
        lr=lr,
        threshold=threshold,
        bank=rows.clone(),
        along_features=adapter.resolved["normalisation"] == "rows",
        reliable_centroids=method == "sar2-efficient",
    )


class Clock:
    """Milliseconds of a piece of work, on the device that does it; ``cpu_time``: of all threads of this process together."""

    def __init__(self, device: str, *, cpu_time: bool = False) -> None:
        self.cuda = device == "cuda"
        self.now = time.process_time if cpu_time else time.perf_counter

    def __call__(self, work: Callable[[], Any]) -> float:
        if not self.cuda:
            started = self.now()
            work()
            return (self.now() - started) * 1e3
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) * 1e3


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[list[float]]:
    """Peak of the allocator, in MiB, above what it held before (on the CPU: growth of the process's peak)."""
    found = [0.0]
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        yield found
        torch.cuda.synchronize()
        found[0] = (torch.cuda.max_memory_reserved() - before) / 2**20
    else:
        started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield found
        found[0] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - started) / 2**10


def measure(
    model: str,
    batch: int,
    method: str,
    precision: str,
    device: str,
    repetitions: int,
    *,
    compiled: bool,
    with_plain: bool,
    cpu_time: bool,
) -> dict[str, Any]:
    """One row of the table."""
    base = copy.deepcopy(build(model, device))
    images = torch.randn(batch, 3, SIDE, SIDE, device=device)
    if batch > 1:
        make_a_quarter_reliable(base, images)
    threshold = 0.4 * math.log(1000) if batch > 1 else ALWAYS
    head = base.get_classifier()
    rows = torch.randn(head.out_features, head.in_features, device=device) * 0.5 + 1.0
    plain_precision: Any = "fp32" if precision == "auto" else precision
    with peak_memory(device) as our_peak:
        adapter = ours(copy.deepcopy(base), method, threshold, precision, rows, compiled)
        for _ in range(4):
            adapter(images)
    chosen: Any = adapter.engine.precision
    selected, kept = int(adapter.last.selected), int(adapter.last.selected_second)
    network = copy.deepcopy(base)
    with peak_memory(device) as their_peak:
        step = theirs(network, network.get_classifier(), adapter, threshold, rows)
        for _ in range(3 if with_plain else 0):
            with at_precision(plain_precision, images.device):
                step(images)

    def run_ours() -> Any:
        return adapter(images)

    def run_plain() -> Any:
        with at_precision(plain_precision, images.device):
            return step(images)

    inference_network = copy.deepcopy(base).requires_grad_(False)

    def run_inference() -> Any:
        with torch.no_grad(), at_precision(chosen, images.device):
            return inference_network(images)

    works = {"ours": run_ours, "plain": run_plain, "inference": run_inference}
    if not with_plain:
        del works["plain"]
    clock, times = Clock(device, cpu_time=cpu_time), {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(repetitions):
        for name, work in works.items():
            times[name].append(clock(work))
    ms = {"plain": math.nan, **{name: statistics.median(values) for name, values in times.items()}}
    print(
        f"{model:20} {batch:3} {method:14} {precision:4} {chosen or '':4} ours {ms['ours']:7.2f}  "
        f"plain {ms['plain']:7.2f}  "
        f"inference {ms['inference']:7.2f}  {ms['plain'] / ms['ours']:5.2f}x plain  "
        f"{ms['ours'] / ms['inference']:5.2f} inferences  peak {our_peak[0]:5.0f}/{their_peak[0]:5.0f} MB  "
        f"selected {selected}/{kept}",
        flush=True,
    )
    return {
        "model": model,
        "batch": batch,
        "method": method,
        "precision": precision,
        "ms": round(ms["ours"], 4),
        "plain_ms": round(ms["plain"], 4),
        "inference_ms": round(ms["inference"], 4),
        "images_per_s": round(batch / ms["ours"] * 1e3, 1),
        "ratio_to_plain": round(ms["plain"] / ms["ours"], 4),
        "ratio_to_inference": round(ms["ours"] / ms["inference"], 4),
        "peak_mb": round(our_peak[0], 1),
        "plain_peak_mb": round(their_peak[0], 1),
    }


def auto_beside_the_best(rows: list[dict[str, Any]]) -> list[str]:
    """For each model, batch and method that ran at ``auto`` and at fixed precisions: its time over the best one's."""
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        times.setdefault((row["model"], row["batch"], row["method"]), {})[row["precision"]] = row["ms"]
    lines = []
    for key, found in times.items():
        fixed = {precision: ms for precision, ms in found.items() if precision != "auto"}
        if "auto" in found and fixed:
            best = min(fixed, key=lambda precision: fixed[precision])
            name, share = "{:20} {:3} {:14}".format(*key), found["auto"] / fixed[best]
            lines.append(f"{name} auto {found['auto']:7.2f}  {best} {fixed[best]:7.2f}  {share:.3f} of the best")
    return lines


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}, wildtta {wildtta.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default="resnet50_gn,vit_base_patch16_224")
    parser.add_argument("--batches", default="64,1")
    parser.add_argument("--methods", default="tent,sar,sar2,sar2-efficient,steady")
    parser.add_argument("--precision", default="fp32,tf32,auto", help="comma-separated: fp32, tf32, bf16, auto")
    parser.add_argument("--repetitions", type=int, default=None, help="default: 20 on a GPU, 5 on the CPU")
    parser.add_argument("--compile", action="store_true", help="run our network through torch.compile")
    parser.add_argument("--without-plain", action="store_true", help="time ours and inference alone")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count the CPU time of all threads, on a machine that others use (with OMP_WAIT_POLICY=passive, so that "
        "threads that wait count nothing)",
    )
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    repetitions = arguments.repetitions or (20 if arguments.device == "cuda" else 5)
    print(f"# {machine(arguments.device)}\n# {' '.join(sys.argv)}", flush=True)
    rows = []
    for model in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            for method in arguments.methods.split(","):
                for precision in arguments.precision.split(","):
                    gc.collect()
                    given = (model, batch, method, precision, arguments.device, repetitions)
                    options = {"with_plain": not arguments.without_plain, "cpu_time": arguments.cpu_time}
                    rows.append(measure(*given, compiled=arguments.compile, **options))
                    if arguments.json:
                        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    for line in auto_beside_the_best(rows):
        print(line)


if __name__ == "__main__":
    main()
