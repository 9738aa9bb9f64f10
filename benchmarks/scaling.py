"""How the cost of an image grows with batch size, classes, feature width and the length of the stream.

    python benchmarks/scaling.py --device cuda --json scaling.json
    python benchmarks/scaling.py --device cpu --steps 1000000         # a longer stream
    python benchmarks/scaling.py --device cuda --share --json share.json

A small network with a head of C classes on D features; one of the three sizes changes, the others stay at the
base point of the device. Timed: bare inference (``none``), SAR and SAR² (a full bank, a quarter of the
samples reliable, tiny learning rates), and SAR²'s own pieces (``pieces.py``) with the direct form of R that
they replace. ``steps`` runs one stream of single samples through a tiny network; each row is the stretch
since the row before.

Growth is the slope of log cost over log size: over all points, and over the three largest, where fixed costs
count least. It is shown next to the exponent that the operations' shapes predict. Memory: ``peak_mb`` is what
one step (not yet recorded) allocates on top of what was there, ``state_mb`` what the method keeps between
steps, ``resident_mb`` the process.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# torch's profiler, which tells what the CPU allocates, otherwise reports on missing GPUs.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import numpy as np
import torch
from torch import Tensor, nn

import share
import speed
import wildtta
from growth import Point, growth_table, growths, points_table
from pieces import BankPieces, Work, repeatable
from wildtta.methods.losses import entropy


@dataclass(frozen=True)
class Sizes:
    """A point of the three axes, and how heavy the network's body is."""

    batch: int
    classes: int
    width: int
    channels: int
    side: int


BASE = {"cpu": Sizes(16, 100, 512, 32, 32), "cuda": Sizes(64, 1000, 2048, 256, 64)}
AXES: dict[str, tuple[int, ...]] = {
    "batch": (1, 2, 8, 32, 128, 512),
    "classes": (10, 100, 1000, 10_000),
    "width": (256, 512, 1024, 2048, 4096),
}
QUICK = {"batch": (1, 8, 64), "classes": (10, 100, 1000), "width": (256, 512, 1024)}
STREAM_LIMITS = {"sar": 100_000, "sar2": 10_000}
"""Steps of the longest stream by default; on two slow cores a step of SAR² takes 3 to 4 ms."""
METHODS = ("none", "sar", "sar2")
PIECES = ("redundancy", "direct_redundancy", "inequity", "refresh")
MOST_MS = 4000.0
"""No further repetition of a piece of work once its runs took so long together."""
NETWORK_OF_STREAM = Sizes(1, 10, 32, 8, 8)


class SmallNetwork(nn.Module):
    """Convolutions with GroupNorm whose cost does not depend on C and D, then D features and C classes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels = sizes.channels
        self.body = nn.Sequential(
            nn.Conv2d(3, channels, 4, 4),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1),
            nn.GroupNorm(4, channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.features = nn.Sequential(nn.Linear(channels, sizes.width), nn.LayerNorm(sizes.width), nn.GELU())
        self.head = nn.Linear(sizes.width, sizes.classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(self.body(images)))
        return logits


def prepared(method: str, sizes: Sizes, images: Tensor) -> wildtta.Adapter:
    """An adapter amid a stream: a quarter of ``images`` is reliable (a single one is), the bank is full."""
    torch.manual_seed(0)
    network = SmallNetwork(sizes).to(images.device).eval()
    threshold = speed.ALWAYS
    if len(images) > 1:
        with torch.no_grad(), speed.at_precision("fp32", images.device):
            entropies = entropy(network(images)).sort().values
        selected = max(1, len(images) // 4)
        threshold = float(entropies[selected - 1 : selected + 1].mean())
    rows = torch.randn(sizes.classes, sizes.width, device=images.device) * 0.5 + 1.0
    if method == "none":
        return wildtta.adapt(network, "none", precision="fp32")
    return speed.ours(network, method, threshold, "fp32", rows, False)


def peak_mb(work: Work, device: str) -> float:
    """MiB that ``work`` allocates on top of what is allocated before, at its highest."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return max(0.0, float(np.cumsum([0, *(amount for _, amount in changes)]).max())) / 2**20


def resident_mb() -> float:
    """MiB of the process in memory now (where the system does not tell: at its highest so far)."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def state_mb(adapter: wildtta.Adapter) -> float:
    return sum(value.nbytes for value in adapter.online_state().values()) / 2**20


def median_ms(work: Work, device: str, seconds: float, least: int) -> float:
    """Median of at least ``least`` runs and as many as fit into ``seconds``, after one that warms up.

    Work of many seconds is timed once: its size drowns the noise.
    """
    clock = speed.Clock(device)
    times: list[float] = []
    clock(work)
    spent = 0.0
    while spent < MOST_MS and (len(times) < least or (spent < seconds * 1e3 and len(times) < 200)):
        times.append(clock(work))
        spent += times[-1]
    return statistics.median(times)


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure_point(axis: str, sizes: Sizes, device: str, seconds: float, least: int) -> Iterator[Point]:
    """Every method and piece at one point of an axis."""
    images = torch.randn(sizes.batch, 3, sizes.side, sizes.side, device=device)

    def point(what: str, ms: float, peak: float, state: float | None) -> Point:
        return Point(
            axis=axis,
            size=getattr(sizes, axis),
            what=what,
            batch=sizes.batch,
            classes=sizes.classes,
            width=sizes.width,
            ms=round(ms, 4),
            us_per_image=round(ms / sizes.batch * 1e3, 3),
            peak_mb=round(peak, 4),
            state_mb=None if state is None else round(state, 4),
            resident_mb=None,
        )

    for method in METHODS:
        adapter = prepared(method, sizes, images)
        step: Work = functools.partial(adapter, images)
        peak = peak_mb(step, device)
        step()
        yield point(method, median_ms(step, device, seconds, least), peak, state_mb(adapter))
        if method != "sar2":
            continue
        labels = torch.randint(sizes.classes, (sizes.batch,), device=device)
        pieces = BankPieces(adapter, torch.randn(sizes.batch, sizes.width, device=device), labels)
        for name in PIECES:
            work = getattr(pieces, name)
            peak = peak_mb(work, device)
            yield point(name, median_ms(repeatable(work, device), device, seconds, least), peak, None)


def measure_stream(method: str, limit: int, device: str, say: Callable[[str], None]) -> Iterator[Point]:
    """One stream of single samples: what a step costs in each stretch up to 10³, 10⁴ … steps."""
    sizes = NETWORK_OF_STREAM
    images = torch.randn(256, 1, 3, sizes.side, sizes.side, device=device)
    adapter = prepared(method, sizes, images[0])
    for warm_up in range(64):
        adapter(images[warm_up])
    done, told = 0, time.perf_counter()
    powers = len(str(limit)) - 1
    for mark in (10**power for power in range(max(1, min(3, powers - 1)), powers + 1)):
        wait_for(device)
        started, before = time.perf_counter(), done
        while done < mark:
            adapter(images[done % len(images)])
            done += 1
            if done % 1000 == 0 and time.perf_counter() - told > 10:
                told = time.perf_counter()
                say(f"steps, {method}: {done:,} of {limit:,}, {(told - started) / (done - before) * 1e3:.2f} ms a step")
        wait_for(device)
        ms = (time.perf_counter() - started) / (mark - before) * 1e3
        yield Point(
            axis="steps",
            size=mark,
            what=method,
            batch=1,
            classes=sizes.classes,
            width=sizes.width,
            ms=round(ms, 5),
            us_per_image=round(ms * 1e3, 2),
            peak_mb=None,
            state_mb=round(state_mb(adapter), 4),
            resident_mb=round(resident_mb(), 1),
        )


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def arguments_of(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    # The stream comes first: memory that other axes left to the process would hide what a stream gathers.
    parser.add_argument("--axes", default="steps,batch,classes,width", help="which axes, comma-separated")
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=numbers, default=None, help=f"sizes of the axis (default: {AXES[axis]})")
    parser.add_argument("--steps", type=int, default=None, help=f"longest stream (default: {STREAM_LIMITS})")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (one: the clearest exponents; default)")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, one run each, 1000 steps: a look, not a result")
    parser.add_argument("--share", action="store_true", help="instead: the share of SAR²'s step that is bank, R and I")
    parser.add_argument("--models", default="resnet50_gn,vit_base_patch16_224", help="with --share: timm networks")
    parser.add_argument("--batches", type=numbers, default=(64, 1), help="with --share: batch sizes")
    parser.add_argument("--precision", default="fp32,tf32,auto", help="with --share: of the passes")
    parser.add_argument("--repetitions", type=int, default=None, help="with --share; default: 20 on a GPU, 5 on the CPU")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    arguments = arguments_of(given)
    device: str = arguments.device
    torch.set_num_threads(arguments.threads)
    command = shlex.join(["benchmarks/scaling.py", *(sys.argv[1:] if given is None else given)])
    print(f"# {speed.machine(device)}\n# {command}", flush=True)
    started = time.perf_counter()
    points: list[Point] = []
    shares: list[dict[str, Any]] = []

    def say(text: str) -> None:
        print(f"# {time.perf_counter() - started:5.0f} s  {text}", flush=True)

    if arguments.share:
        repetitions = arguments.repetitions or (20 if device == "cuda" else 5)
        names = arguments.models.split(","), list(arguments.batches), arguments.precision.split(",")
        shares = share.run(*names, device, repetitions)
        print(share.table(shares))
    else:
        seconds, least = (0.0, 1) if arguments.quick else (0.05, 20) if device == "cuda" else (0.15, 3)
        for axis in arguments.axes.split(","):
            if axis == "steps":
                for method, limit in STREAM_LIMITS.items():
                    limit = arguments.steps or (1000 if arguments.quick else limit)
                    for found in measure_stream(method, limit, device, say):
                        points.append(found)
                        say(f"steps, {method}: {found.size:,} done, {found.ms:.3f} ms a step, {found.resident_mb:.0f} MiB")
                continue
            for size in getattr(arguments, axis) or (QUICK if arguments.quick else AXES)[axis]:
                gc.collect()
                here = list(measure_point(axis, replace(BASE[device], **{axis: size}), device, seconds, least))
                points += here
                say(f"{axis} {size}: " + ", ".join(f"{p.what} {p.us_per_image:.1f}" for p in here) + " µs an image")
        print(points_table(points))
        print(growth_table(growths(points)))
    if arguments.json:
        result = {
            "machine": speed.machine(device),
            "command": command,
            "device": device,
            "seconds": round(time.perf_counter() - started, 1),
            "points": [asdict(p) for p in points],
            "growth": [asdict(g) for g in growths(points)],
            "share": shares,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    say("done")


if __name__ == "__main__":
    main()
