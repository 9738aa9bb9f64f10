"""Where the time of one forward and backward pass goes, kernel by kernel, and how far it could fall.

    python benchmarks/breakdown.py --models resnet50_gn,vit_base_patch16_224 --batch 64 --precision tf32,bf16 --json FILE

One pass is what Tent does: forward, entropy, gradient of the norms' affine parameters. SAR is a bare forward,
and two such passes over the selected samples; SAR² is two such passes over the whole batch. So twice the
matrix work of a pass (``matrix``: convolutions and matrix products) is what no arrangement of kernels can go
below; everything else is bound by memory, and fusing may take some of it away.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import speed
from wildtta.step.precision import Precision

KINDS: dict[str, tuple[str, ...]] = {
    "layout": ("nchwtonhwc", "nhwctonchw", "transpose"),
    "attention": ("fmha", "flash", "attention", "softmax"),
    "matrix": ("gemm", "conv", "cutlass", "xmma", "wgmma", "dgrad", "cublas", "nvjet", "sm80_", "sm90_"),
    "norm": ("norm", "moments", "gamma", "internalgradients", "computefusedparams", "computebackwardfused"),
    "activation": ("gelu", "relu", "threshold", "clamp"),
    "copy": ("copy", "cast", "memcpy", "memset", "fill"),
}
"""Kinds of kernels by parts of their names, the first that fits counts."""


def kind_of(kernel: str) -> str:
    """The kind of a kernel; ``other`` (mostly additions) where no name fits."""
    name = kernel.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "other")


def kernel_times(work: Callable[[], Any], repetitions: int) -> Counter[str]:
    """Milliseconds per call on the device, by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(repetitions):
            work()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        times[event.key] += event.self_device_time_total / 1e3 / repetitions
    return times


def clock(work: Callable[[], Any], repetitions: int) -> float:
    """Median milliseconds of a call."""
    times = []
    for _ in range(repetitions):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def one_pass(network: nn.Module, images: torch.Tensor, precision: Precision) -> dict[str, Callable[[], Any]]:
    """A bare forward pass, and forward and backward with gradients of the norms' parameters."""
    network.requires_grad_(False)
    learn = [p for m in network.modules() if isinstance(m, (nn.GroupNorm, nn.LayerNorm)) for p in m.parameters()]
    for parameter in learn:
        parameter.requires_grad_(True)

    def forward() -> None:
        with torch.no_grad(), speed.at_precision(precision, images.device):
            network(images)

    def both() -> None:
        with speed.at_precision(precision, images.device):
            logits = network(images).float()
            loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
            torch.autograd.grad(loss, learn)

    return {"forward": forward, "forward and backward": both}


def measure(model: str, batch: int, precision: Precision, repetitions: int, shown: int) -> list[dict[str, Any]]:
    """The breakdown of one network at one precision."""
    network = copy.deepcopy(speed.build(model, "cuda"))
    images = torch.randn(batch, 3, speed.SIDE, speed.SIDE, device="cuda")
    rows = []
    for what, work in one_pass(network, images, precision).items():
        for _ in range(3):
            work()
        ms = clock(work, repetitions)
        kernels = kernel_times(work, 3)
        kinds: Counter[str] = Counter()
        for kernel, spent in kernels.items():
            kinds[kind_of(kernel)] += spent
        total = sum(kinds.values())
        parts = "  ".join(f"{kind} {spent:.2f}" for kind, spent in kinds.most_common())
        print(f"{model} batch {batch} {precision}, {what}: {ms:.2f} ms, kernels {total:.2f} ms: {parts}", flush=True)
        for kernel, spent in kernels.most_common(shown):
            print(f"    {spent:7.3f} ms  {kind_of(kernel):10} {kernel[:110]}", flush=True)
        rows.append(
            {
                "model": model,
                "batch": batch,
                "precision": precision,
                "what": what,
                "ms": round(ms, 3),
                "kernels_ms": round(total, 3),
                "kinds_ms": {kind: round(spent, 3) for kind, spent in kinds.most_common()},
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet50_gn,vit_base_patch16_224")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", default="tf32,bf16", help="comma-separated: fp32, tf32, bf16")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--kernels", type=int, default=12, help="how many of the dearest kernels to list")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    print(f"# {speed.machine('cuda')}\n# {' '.join(sys.argv)}", flush=True)
    rows: list[dict[str, Any]] = []
    for model in arguments.models.split(","):
        for precision in arguments.precision.split(","):
            rows += measure(model, arguments.batch, precision, arguments.repetitions, arguments.kernels)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
