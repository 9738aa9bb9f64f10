"""Attention at TF32 and LayerNorm for the sizes in a ViT-B/16: torch against our kernels, in time and errors.

    python benchmarks/attention.py --device cuda
    python benchmarks/attention.py --device cuda --sweep          # which blocks of work are fastest
    python benchmarks/attention.py --device cuda --cut            # without rounding operands to TF32

q, k and v are slices of one linear layer's output, as in timm. ``forward`` runs without a graph; ``both`` is
forward and backward to that output (for LayerNorm to x, γ and β), so that what puts three gradients together
is counted. Work is recorded as CUDA graphs, as in the adapter's steps; medians are shown. Errors are the
largest difference from float64, divided by the largest value, of the result and of the first gradient.
torch's attention for float32 uses no tensor cores, so its errors are smaller.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from pieces import repeatable
from speed import machine

CALLS = 10
"""Calls in one recording, so that starting a replay does not count."""
Function = Callable[..., Tensor]


def milliseconds(work: Callable[[], object], device: str, repetitions: int) -> float:
    """Median time of one call."""

    def calls() -> None:
        for _ in range(CALLS):
            work()

    replay = repeatable(calls, device)
    times = []
    for _ in range(repetitions):
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        replay()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3 / CALLS)
    return statistics.median(times)


def passes(function: Function, inputs: list[Tensor], slope: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward pass without a graph, and forward and backward."""

    def forward() -> None:
        with torch.no_grad():
            function(*inputs)

    return forward, lambda: torch.autograd.grad(function(*inputs), inputs, slope)


def errors(function: Function, exact: Function, inputs: list[Tensor], slope: Tensor) -> tuple[float, float]:
    """Largest differences from ``exact`` in float64, of result and first gradient, by the largest value."""
    found = function(*inputs)
    gradient = torch.autograd.grad(found, inputs, slope)[0]
    twins = [value.detach().double().requires_grad_() for value in inputs]
    wanted = exact(*twins)
    wanted_gradient = torch.autograd.grad(wanted, twins, slope.double())[0]
    pairs = ((found.detach(), wanted.detach()), (gradient, wanted_gradient))
    first, second = (float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    return first, second


def of_joined(attend: Function, heads: int) -> Function:
    """Attention as a function of what one linear layer made, [batch, tokens, 3 · heads · width]."""

    def function(made: Tensor) -> Tensor:
        samples, tokens, channels = made.shape
        joined = made.view_as(made).reshape(samples, tokens, 3, heads, channels // heads // 3).permute(2, 0, 3, 1, 4)
        q, k, v = joined.unbind(0)
        return attend(q, k, v).transpose(1, 2).reshape(samples, tokens, channels // 3)

    return function


def show(
    name: str, function: Function, exact: Function, inputs: list[Tensor], slope: Tensor, arguments: argparse.Namespace
) -> None:
    forward, both = (milliseconds(work, arguments.device, arguments.repetitions) for work in passes(function, inputs, slope))
    result, gradient = errors(function, exact, inputs, slope)
    print(f"{name:44} {forward:8.3f} {both:8.3f} {both - forward:8.3f} {result:10.1e} {gradient:10.1e}", flush=True)


def header() -> None:
    print(f"{'':44} {'forward':>8} {'both':>8} {'rest':>8} {'error':>10} {'gradient':>10}", flush=True)


def attention(arguments: argparse.Namespace) -> None:
    """The table of attention."""
    heads, width = arguments.heads, arguments.width
    made = torch.randn(arguments.batch, arguments.tokens, 3 * heads * width, device=arguments.device, requires_grad=True)
    slope = torch.randn(arguments.batch, arguments.tokens, heads * width, device=arguments.device)
    native = of_joined(F.scaled_dot_product_attention, heads)
    show("attention, torch", native, native, [made], slope, arguments)
    if arguments.device != "cuda":
        return
    from wildtta.kernels import attention as attention_kernels

    plan = attention_kernels.plan_for(width, made.device)._replace(rounded=not arguments.cut)
    ours = of_joined(lambda q, k, v: attention_kernels.attention(q, k, v, None, plan), heads)
    show("attention, ours", ours, native, [made], slope, arguments)
    if arguments.sweep:
        sweep(made, slope, arguments)


def sweep(made: Tensor, slope: Tensor, arguments: argparse.Namespace) -> None:
    """Each of the three kernels with other blocks, the other two as usual."""
    from wildtta.kernels import attention as attention_kernels
    from wildtta.kernels.attention import Blocks

    usual = attention_kernels.plan_for(arguments.width, made.device)
    for name, rounded in itertools.product(("forward", "queries", "keys"), (True, False)):
        print(f"{name}, operands {'rounded' if rounded else 'cut'}: usually {getattr(usual, name)}", flush=True)
        found = []
        for size in itertools.product((32, 64, 128), (32, 64, 128), (4, 8), (1, 2, 3)):
            plan = usual._replace(**{name: Blocks(*size), "rounded": rounded})
            ours = of_joined(lambda q, k, v, plan=plan: attention_kernels.attention(q, k, v, None, plan), arguments.heads)
            forward, both = passes(ours, [made], slope)
            try:
                ms = milliseconds(forward if name == "forward" else both, "cuda", 5)
            except Exception as error:  # too much shared memory, mostly
                print(f"    {Blocks(*size)}: {str(error).splitlines()[0][:90]}", flush=True)
                ms = float("inf")
            if attention_kernels.Attention.broken:  # the backward pass failed, and torch's own was timed
                attention_kernels.Attention.broken, ms = False, float("inf")
            found.append((ms, Blocks(*size)))
        for ms, blocks in sorted(found)[:5]:
            print(f"    {ms:.3f} ms  {blocks}", flush=True)


def layer_norm(arguments: argparse.Namespace) -> None:
    """The table of LayerNorm."""
    rows, width, device = arguments.batch * arguments.tokens, arguments.heads * arguments.width, arguments.device
    x = torch.randn(rows, width, device=device, requires_grad=True)
    gamma, beta = (torch.randn(width, device=device, requires_grad=True) for _ in range(2))
    inputs = [x, gamma, beta]

    def native(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), gamma, beta, 1e-6)

    for dtype in (torch.float32, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        slope = torch.randn(rows, width, device=device).to(dtype)
        show(f"LayerNorm, torch, to {kind}", lambda *given, to=dtype: native(*given).to(to), native, inputs, slope, arguments)
        if device == "cuda":
            from wildtta.kernels import layer_norm as layer_norm_kernels

            def ours(x: Tensor, gamma: Tensor, beta: Tensor, to: torch.dtype = dtype) -> Tensor:
                return layer_norm_kernels.layer_norm(x, gamma, beta, 1e-6, to)

            show(f"LayerNorm, ours, to {kind}", ours, native, inputs, slope, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=197)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--sweep", action="store_true", help="try other blocks of work (minutes: each is compiled)")
    parser.add_argument("--cut", action="store_true", help="cut operands off to TF32, as the hardware does, instead of rounding")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"# {machine(arguments.device)}\n# {' '.join(sys.argv)}", flush=True)
    header()
    attention(arguments)
    layer_norm(arguments)


if __name__ == "__main__":
    main()
