"""GroupNorm (and ReLU) for the sizes in a ResNet-50: torch's layers against one kernel each way.

    python benchmarks/group_norm.py --device cuda
    python benchmarks/group_norm.py --device cuda --batch 64 --side 224 --dtype float32,bfloat16 --json group_norm.json

GB/s is against the bytes that must move: forward reads x and writes z, backward reads x and ∂z and writes ∂x,
each once. So a kernel that moves no more than that shows the memory's bandwidth, and torch's layers show how
much more they move. ``n`` is how often a size occurs in the network; the last lines are sums over all 53
norms. Work is recorded as CUDA graphs, as in the adapter's steps, and medians are shown; a small tensor stays
in the cache between calls and is faster than memory. Without a GPU there is no kernel to time: torch's layers
alone are shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from pieces import repeatable
from speed import machine

GROUPS = 32
CALLS = 10
"""Calls in one recording, so that starting a replay does not count."""


@dataclass(frozen=True)
class Size:
    """Norms of one size: channels, side of the image, whether a ReLU follows, how many the network has."""

    channels: int
    side: int
    relu: bool
    number: int


def resnet50_sizes(side: int) -> list[Size]:
    """The stem; in each stage the norm before the stride, the inner norms, and those before the sums."""
    sizes = [Size(64, side // 2, True, 1)]
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width, after = 64 * 2**stage, side // 4 // 2**stage
        before = after if stage == 0 else 2 * after
        if before == after:
            sizes.append(Size(width, after, True, 2 * blocks))
        else:
            sizes += [Size(width, before, True, 1), Size(width, after, True, 2 * blocks - 1)]
        sizes.append(Size(4 * width, after, False, blocks + 1))
    return sizes


@dataclass
class Row:
    """Milliseconds and GB/s of one size and type; None: not measured."""

    channels: int
    side: int
    relu: bool
    number: int
    dtype: str
    megabytes: float
    native_forward_ms: float
    native_backward_ms: float
    fused_forward_ms: float | None = None
    fused_backward_ms: float | None = None


def native(x: Tensor, gamma: Tensor, beta: Tensor, relu: bool) -> Tensor:
    z = F.group_norm(x, GROUPS, gamma.to(x.dtype), beta.to(x.dtype), 1e-5)
    return z.relu_() if relu else z


def fused(x: Tensor, gamma: Tensor, beta: Tensor, relu: bool) -> Tensor:
    from wildtta.kernels.group_norm import group_norm

    return group_norm(x, GROUPS, gamma, beta, 1e-5, relu=relu, dtype=x.dtype)


def milliseconds(work: Callable[[], object], device: str, repetitions: int) -> float:
    """Median over recordings of a few calls each."""
    calls = CALLS if device == "cuda" else 1

    def several() -> None:
        for _ in range(calls):
            work()

    replay = repeatable(several, device)
    times = []
    for _ in range(repetitions):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        replay()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3 / calls)
    return statistics.median(times)


def measured(
    layer: Callable[[Tensor, Tensor, Tensor, bool], Tensor], x: Tensor, relu: bool, device: str, repetitions: int
) -> tuple[float, float]:
    """Forward without a graph; backward (x, γ and β): the time of both less that of forward with a graph."""
    gamma, beta = (torch.randn(x.shape[1], device=device, requires_grad=True) for _ in range(2))
    leaf, dz = x.detach().requires_grad_(), torch.randn_like(x)

    def forward() -> None:
        with torch.no_grad():
            layer(x, gamma, beta, relu)

    def both() -> None:
        torch.autograd.grad(layer(leaf, gamma, beta, relu), (leaf, gamma, beta), dz)

    # The forward half with a graph: the same kernels, but results that backward needs stay until it has run.
    first = milliseconds(lambda: layer(leaf, gamma, beta, relu), device, repetitions)
    return milliseconds(forward, device, repetitions), max(0.0, milliseconds(both, device, repetitions) - first)


def row(size: Size, dtype: torch.dtype, batch: int, device: str, repetitions: int) -> Row:
    x = torch.randn(batch, size.channels, size.side, size.side, device=device).to(dtype)
    times = measured(native, x, size.relu, device, repetitions)
    result = Row(
        **asdict(size),
        dtype=str(dtype).removeprefix("torch."),
        megabytes=x.nbytes / 1e6,
        native_forward_ms=times[0],
        native_backward_ms=times[1],
    )
    if device == "cuda":
        result.fused_forward_ms, result.fused_backward_ms = measured(fused, x, size.relu, device, repetitions)
    return result


def _cell(ms: float | None, megabytes: float) -> str:
    return f"{'–':>21}" if ms is None else f"{ms:11.3f} ms {megabytes / max(ms, 1e-6):6.0f}"


def line(row: Row) -> str:
    """Times with GB/s beside them (megabytes per millisecond are gigabytes per second)."""
    cells = [
        _cell(row.native_forward_ms, 2 * row.megabytes),
        _cell(row.fused_forward_ms, 2 * row.megabytes),
        _cell(row.native_backward_ms, 3 * row.megabytes),
        _cell(row.fused_backward_ms, 3 * row.megabytes),
    ]
    name = f"{row.dtype:9} {row.channels:5} x {row.side:3}² {'relu' if row.relu else '':4} n={row.number:2}"
    return f"{name} {' '.join(cells)}"


def totals(rows: list[Row]) -> str:
    """The whole network: each size as often as it occurs."""

    def total(name: str) -> str:
        values = [getattr(item, name) for item in rows]
        known = all(value is not None for value in values)
        return (
            f"{sum(v * r.number for v, r in zip(values, rows, strict=True)):11.2f} ms       " if known else f"{'–':>21}"
        )

    names = ("native_forward_ms", "fused_forward_ms", "native_backward_ms", "fused_backward_ms")
    return f"{rows[0].dtype:9} {'all norms':>21} {' '.join(total(name) for name in names)}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    print(f"# {machine(given.device)}\n# {' '.join(['benchmarks/group_norm.py', *(arguments or sys.argv[1:])])}")
    columns = ("native forward", "fused forward", "native backward", "fused backward")
    print(" " * 31, " ".join(f"{name + ', GB/s':>21}" for name in columns))
    rows = []
    for name in given.dtype.split(","):
        of_dtype = []
        for size in resnet50_sizes(given.side):
            of_dtype.append(row(size, getattr(torch, name), given.batch, given.device, given.repetitions))
            print(line(of_dtype[-1]), flush=True)
        print(totals(of_dtype), flush=True)
        rows += of_dtype
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps([asdict(item) for item in rows], indent=1))


if __name__ == "__main__":
    main()
