"""What a fleet costs, and whether it stays small.

    python benchmarks/fleet.py speed --network glyphs:resnet_gn --methods tent,steady,sar2
    python benchmarks/fleet.py speed --network resnet50_gn --device cuda --precision tf32 --methods tent,sar2-one-pass,steady
    python benchmarks/fleet.py many --network glyphs:resnet_gn --streams 10000 --images 100000
    python benchmarks/fleet.py many --network resnet50_gn --device cuda --precision tf32 --streams 500 --images 2000 \
        --at-once 1 --resident 100 --folder /tmp/streams

``speed``: 64 streams with one image each, beside one adapter with a batch of 64, and 64 adapters in turn with one image
each; timed in turn, repetition by repetition, medians are shown. A repetition is eight batches, since Steady compares itself
with the source in one of eight. ``steady`` is all of it here, evidence and comparison, but learns from every batch: at rest,
as on these random images, it would be bare inference. ``many``: streams take turns on 64 places; memory is read along the
way, beside what the size of a state says it must be.
"""

from __future__ import annotations

import argparse
import copy
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import wildtta
from wildtta.progress import shown
from wildtta.step.comparison import EVERY
from wildtta.step.engine import Engine

OPTIONS: dict[str, dict[str, Any]] = {
    "steady": {"warmup": 1},
    "sar2": {"warmup": 1},
    "sar2-one-pass": {"warmup": 1, "sharpness": None},
    "sar2-efficient": {"warmup": 1, "reliable": 1e9},
    "sar": {"reliable": 1e9},
    "eta": {"reliable": None, "redundant": 1.0},
}
"""So that every image is learned from."""
PLACES = 64
BATCHES = EVERY
"""Of one timing."""


def build(name: str, device: str) -> tuple[nn.Module, int]:
    """A network and the side of its images; timm's have random weights."""
    if name.startswith("glyphs:"):
        from wildtta.glyphs import network

        return network(name.removeprefix("glyphs:")).to(device), 32
    import timm

    torch.manual_seed(0)
    return timm.create_model(name, num_classes=1000).to(device).eval(), 224


def timed(run: Callable[[], Any], device: torch.device) -> float:
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - started)


def whole_steps(_: wildtta.Steady, engine: Engine) -> Tensor:
    """In place of the evidence's strength: on random images it would be 0."""
    return torch.ones_like(engine.memory["strength"])


def again(run: Callable[[], Any]) -> None:
    for _ in range(BATCHES):
        run()


def in_turn(single: wildtta.Adapter, images: Sequence[Tensor]) -> None:
    for image in images:
        single(image)


def speed(arguments: argparse.Namespace) -> None:
    device = torch.device(arguments.device)
    network, side = build(arguments.network, arguments.device)
    names = [f"s{stream}" for stream in range(PLACES)]
    print("| method | fleet, 64 × 1 | adapter, 64 | fleet / adapter | 64 adapters in turn | times as fast |")
    print("|---|---|---|---|---|---|")
    for method in arguments.methods.split(","):
        options = {**OPTIONS.get(method, {}), "precision": arguments.precision, "lr": 1e-12}
        kind = method.removesuffix("-one-pass")
        fleet = wildtta.Fleet(copy.deepcopy(network), kind, active=PLACES, **options)
        whole = wildtta.adapt(copy.deepcopy(network), kind, **options)
        single = wildtta.adapt(copy.deepcopy(network), kind, **options)
        images = torch.randn(PLACES, 3, side, side, device=device)
        ones = images.split(1)[: arguments.singles]
        runs = [partial(again, partial(fleet, images, names)), partial(again, partial(whole, images))]
        runs.append(partial(in_turn, single, ones))
        for run in runs:
            timed(run, device)  # a step is recorded when its shape comes for the second or third time
        times = [[timed(run, device) for run in runs] for _ in range(arguments.repeats)]
        mixed, batch, turns = (statistics.median(column) for column in zip(*times, strict=True))
        mixed, batch, turns = mixed / BATCHES, batch / BATCHES, turns * PLACES / len(ones)
        print(f"| {method} | {mixed:.1f} ms | {batch:.1f} ms | {mixed / batch:.2f} | {turns:.1f} ms | {turns / mixed:.1f} |")
        sys.stdout.flush()


def many(arguments: argparse.Namespace) -> None:
    """Random groups of 64 streams, every stream once in each round."""
    network, side = build(arguments.network, arguments.device)
    places = {"active": PLACES, "resident": arguments.resident, "folder": arguments.folder}
    fleet = wildtta.Fleet(network, arguments.methods.split(",")[0], precision=arguments.precision, **places)
    draw, torch_draw = random.Random(0), torch.Generator().manual_seed(0)
    rounds = max(2, -(-arguments.images // (arguments.streams * arguments.at_once)))
    weights = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    print(f"{fleet!r}; a stream on the device: {fleet.stream_bytes / 1e6:.3f} MB")
    computed = (weights + PLACES * fleet.stream_bytes) / 1e6
    print(f"network and {PLACES} streams on the device, by their sizes: {computed:.0f} MB")
    print("| round | images | host memory, MB | of it packed states | device memory, MB | states on disk, MB | seconds |")
    print("|---|---|---|---|---|---|---|")
    answered, started = 0, time.perf_counter()
    for number in range(1, rounds + 1):
        order = draw.sample(range(arguments.streams), arguments.streams)
        groups = [order[start : start + PLACES] for start in range(0, len(order), PLACES)]
        for group in shown(groups, f"round {number} of {rounds}"):
            names = [f"s{stream}" for stream in group for _ in range(arguments.at_once)]
            images = torch.randn(len(names), 3, side, side, generator=torch_draw).to(arguments.device)
            assert len(fleet(images, names)) == len(names)
            answered += len(names)
        host, packed, device, disk = memory_of(fleet, arguments)
        seconds = time.perf_counter() - started
        print(f"| {number} | {answered:,} | {host:.0f} | {packed:.1f} | {device:.0f} | {disk:.1f} | {seconds:.0f} |")
        sys.stdout.flush()
    fleet.close()


def memory_of(fleet: wildtta.Fleet, arguments: argparse.Namespace) -> tuple[float, float, float, float]:
    """In MB: the process, packed states in it, the device, states on disk."""
    with open("/proc/self/statm") as file:
        host = int(file.read().split()[1]) * resource.getpagesize()
    device = torch.cuda.memory_allocated() if arguments.device == "cuda" else 0
    return host / 1e6, fleet.resident_bytes / 1e6, device / 1e6, fleet.stored_bytes / 1e6


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "many"))
    parser.add_argument("--network", default="glyphs:resnet_gn")
    parser.add_argument("--methods", default="steady")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default=None)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--singles", type=int, default=PLACES, help="single images timed; the rest is taken as alike")
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=5, help="images of a stream in one batch")
    parser.add_argument("--resident", type=int, default=1024)
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args(given)
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, wildtta {wildtta.__version__}")
    print("python benchmarks/fleet.py " + " ".join(given if given is not None else sys.argv[1:]))
    with patch.object(wildtta.Steady, "_strength", whole_steps):
        {"speed": speed, "many": many}[arguments.what](arguments)


if __name__ == "__main__":
    main()
