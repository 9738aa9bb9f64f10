"""Attention and LayerNorm kernels in Triton's interpreter, against torch in float64; prints a report for the tests.

A process of its own: the interpreter is chosen by the environment, before Triton is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import torch
from test_dispatch import METHODS, Block, SmallViT, images_for
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import wildtta
from wildtta.kernels import attention as attention_kernels
from wildtta.kernels import layer_norm as layer_norm_kernels
from wildtta.kernels import passes

ATTENTION = {
    "197 tokens": (1, 1, 197, 197, 64),
    "65 tokens": (2, 1, 65, 65, 64),
    "few queries": (1, 2, 5, 33, 16),
    "wide": (1, 1, 40, 40, 128),
    "a multiple of the block": (1, 2, 64, 96, 32),
}
NORM = {"transformer": (3, 7, 768), "narrow": (200, 48), "odd": (2, 3, 1001), "widest": (3, 8192)}


def apart(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> list[float]:
    """Largest difference of each pair, by the scale of what was wanted."""
    return [float((a.detach() - b.detach()).abs().max() / b.detach().abs().max()) for a, b in zip(found, wanted, strict=True)]


def attention(shape: tuple[int, ...], scale: float | None, *, strided: bool) -> list[float]:
    """Errors of O, dQ, dK and dV."""
    samples, heads, queries, keys, width = shape
    sizes = [(samples, length, heads, width) for length in (queries, keys, keys)]
    made = [torch.randn(size).transpose(1, 2) for size in sizes]
    inputs = [(x if strided else x.contiguous()).requires_grad_() for x in made]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    assert attention_kernels.suits(*inputs)
    ours, native = attention_kernels.attention(*inputs, scale), F.scaled_dot_product_attention(*exact, scale=scale)
    slope = torch.randn(native.shape)
    return apart(
        (ours, *torch.autograd.grad(ours, inputs, slope)),
        (native, *torch.autograd.grad(native, exact, slope.double())),
    )


def packed() -> list[float]:
    """Errors of O and of the gradient of what one linear layer made, q, k and v being slices of it."""

    def run(made: Tensor, function: Any) -> tuple[Tensor, Tensor]:
        samples, tokens, heads, width = 2, 37, 3, 32
        joined = made * 1.0
        q, k, v = joined.reshape(samples, tokens, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        if made.dtype == torch.float32:
            assert attention_kernels._packed(q, k, v) is not None
            assert attention_kernels._packed(k, q, v) is None, "another order of the same slices"
        out = function(q, k, v).transpose(1, 2).reshape(samples, tokens, heads * width)
        (gradient,) = torch.autograd.grad((out * torch.linspace(-1, 1, 96, dtype=made.dtype)).sum(), made)
        return out, gradient

    made = torch.randn(2, 37, 288, requires_grad=True)
    exact = made.detach().double().requires_grad_()
    return apart(run(made, attention_kernels.attention), run(exact, F.scaled_dot_product_attention))


def large_scores() -> list[float]:
    """Scores of several hundreds, of either sign: exponentials that would overflow."""
    q, k, v = (torch.randn(1, 1, 70, 16) * size for size in (1, 20, 1))
    k[..., 0] -= 200.0
    q[..., 0] = 10.0
    q, k, v = (x.bfloat16().float().requires_grad_() for x in (q, k, v))  # exact in TF32: only sums are rounded
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    ours, native = attention_kernels.attention(q, k, v), F.scaled_dot_product_attention(*exact)
    found = torch.autograd.grad(ours.sum(), (q, k, v))
    assert all(bool(torch.isfinite(x).all()) for x in found)
    return apart((ours,), (native,))


def layer_norm(shape: tuple[int, ...], inside: torch.dtype, outside: torch.dtype) -> list[float]:
    """Errors of y, dx, ∂γ and ∂β."""
    x = (torch.randn(shape) * 2 + 5).to(inside).requires_grad_()
    gamma, beta = torch.randn(2, shape[-1]).unbind()
    inputs = [x, gamma.requires_grad_(), beta.requires_grad_()]
    assert layer_norm_kernels.suits(x, shape[-1:], gamma, beta)
    y = layer_norm_kernels.layer_norm(x, gamma, beta, 1e-6, outside)
    slope = torch.randn(shape).to(outside)
    found = torch.autograd.grad(y, inputs, slope)
    assert (y.dtype, found[0].dtype, found[1].dtype) == (outside, inside, torch.float32)
    exact = [value.detach().double().requires_grad_() for value in inputs]
    native = F.layer_norm(exact[0], shape[-1:], exact[1], exact[2], 1e-6)
    return apart((y, *found), (native, *torch.autograd.grad(native, exact, slope.double())))


def parts_of_the_gradient() -> dict[str, bool]:
    """Gradients that nobody wants are not made, and the others do not change."""
    x, gamma, beta = torch.randn(9, 48), torch.randn(48), torch.randn(48)
    slope = torch.randn(9, 48)

    def gradients(*wanted: int) -> dict[int, Tensor]:
        inputs = [value.clone().requires_grad_(place in wanted) for place, value in enumerate((x, gamma, beta))]
        y = layer_norm_kernels.layer_norm(*inputs, 1e-5, torch.float32)
        found = torch.autograd.grad(y, [inputs[place] for place in wanted], slope)
        return dict(zip(wanted, found, strict=True))

    everything, only_input, only_parameters = gradients(0, 1, 2), gradients(0), gradients(1, 2)
    return {
        "input alone": torch.equal(only_input[0], everything[0]),
        "parameters alone": all(torch.equal(only_parameters[place], everything[place]) for place in (1, 2)),
    }


def not_a_number() -> bool:
    q = torch.randn(1, 2, 20, 16)
    k = q.clone()
    k[0, 1, 3, 5] = torch.nan
    out = attention_kernels.attention(q, k, q)
    x = torch.randn(4, 16)
    x[2, 3] = torch.inf
    y = layer_norm_kernels.layer_norm(x, torch.ones(16), torch.zeros(16), 1e-5, torch.float32)
    rows = torch.isfinite(y).all(1)
    return bool(torch.isnan(out[0, 1]).all() and torch.isfinite(out[0, 0]).all() and rows.tolist() == [True, True, False, True])


def trajectory(method: str, faster: bool, **options: Any) -> Tensor:
    torch.manual_seed(3)
    adapter = wildtta.adapt(SmallViT(24), method, **options)
    adapter.engine.fast.kernels = faster
    return torch.stack([adapter(batch) for batch in images_for(3, 2, 24)])


def adapters() -> dict[str, dict[str, float]]:
    """Steps of an adapter with and without the kernels, as if the CPU were a GPU that allows TF32."""
    found = {}
    for name, method, options in (
        ("sar", "sar", METHODS["sar"]),
        ("sar2", "sar2", METHODS["sar2"]),
        ("sar bf16", "sar", {**METHODS["sar"], "precision": "bf16"}),
    ):
        used.clear()
        ours, native = trajectory(method, True, **options), trajectory(method, False, **options)
        bare = trajectory("none", False, **({"precision": "bf16"} if "bf16" in name else {}))
        found[name] = {
            "apart": float((ours - native).abs().max() / native.abs().max()),
            "learned": float((native - bare).abs().max() / native.abs().max()),
            **{what: len(times) for what, times in used.items()},
        }
    return found


used: dict[str, list[torch.dtype]] = {}


def counted(name: str, function: Any) -> Any:
    def counting(*args: Any) -> Tensor:
        result: Tensor = function(*args)
        used.setdefault(f"{name} {str(result.dtype).removeprefix('torch.')}", []).append(result.dtype)
        return result

    return counting


class PostNorm(nn.Module):
    """A LayerNorm whose output is added to something, one for a linear layer, and one whose output enters the head."""

    def __init__(self) -> None:
        super().__init__()
        self.added, self.before, self.last = (nn.LayerNorm(16) for _ in range(3))
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.added(x)
        x = x + self.inner(self.before(x))
        return self.head(self.last(x))


def output_types(*, hooked: bool = False) -> dict[str, list[str]]:
    """Types that the kernel writes for LayerNorms under autocast, pass by pass."""
    network, types = PostNorm(), {}
    names = {module.weight: name for name, module in network.named_modules() if isinstance(module, nn.LayerNorm)}
    if hooked:
        network.before.register_forward_hook(lambda module, inputs, output: None)

    def noted(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        types.setdefault(names[gamma], []).append(str(dtype))
        return layer_norm_kernels.LayerNorm(eps, dtype)(x, gamma, beta)

    fast = passes.FastPasses(network, network.head)
    with mock.patch.object(layer_norm_kernels, "layer_norm", noted):
        for _ in range(2):
            x = torch.randn(3, 16)
            with torch.autocast("cpu", torch.bfloat16), fast.applied(x):
                network(x)
    return types


def multi_head() -> dict[str, Any]:
    """``nn.MultiheadAttention`` within the context: our attention, torch's result."""
    module = nn.MultiheadAttention(32, 2, batch_first=True).eval()
    x = torch.randn(2, 11, 32)
    wanted, _ = module(x, x, x, need_weights=False)
    used.clear()
    with passes.FastPasses(module, module.out_proj).applied(x):
        found, _ = module(x, x, x, need_weights=False)
    return {"error": apart((found,), (wanted,))[0], "used": sum(map(len, used.values()))}


def failing() -> dict[str, Any]:
    """Kernels that fail, in the forward and in the backward pass: what is warned of, and how far results are off."""

    def fails(*args: Any) -> Any:
        raise RuntimeError("out of resources")

    result: dict[str, Any] = {}
    operations = attention_kernels.Attention, layer_norm_kernels.LayerNorm
    for name in ("forward", "backward"):
        with warnings.catch_warnings(record=True) as seen, contextlib.ExitStack() as stack:
            warnings.simplefilter("always")
            for operation in operations:
                stack.enter_context(mock.patch.object(operation, name, fails))
            ours = trajectory("sar", True, **METHODS["sar"])
        native = trajectory("sar", False, **METHODS["sar"])
        for operation in operations:
            operation.broken = False
        told = [str(warning.message) for warning in seen if "Triton" in str(warning.message)]
        result[name] = {"warnings": told, "apart": float((ours - native).abs().max() / native.abs().max())}
    return result


def checkpointed() -> dict[str, float]:
    """A pass that runs again in the backward pass, where the kernels are not in place."""
    torch.manual_seed(0)
    x, network = torch.randn(2, 5, 32, requires_grad=True), Block(32, 2)
    (wanted,) = torch.autograd.grad(network(x).sum(), x)
    used.clear()
    with passes.FastPasses(network, network.proj).applied(x):
        result = checkpoint(network, x, use_reentrant=False)
    (found,) = torch.autograd.grad(result.sum(), x)
    return {"apart": float((found - wanted).abs().max()), "used": sum(map(len, used.values()))}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    float32, bfloat16, float16 = torch.float32, torch.bfloat16, torch.float16
    report: dict[str, Any] = {
        "attention": {
            **{name: attention(shape, None, strided=True) for name, shape in ATTENTION.items()},
            "scaled": attention((1, 2, 30, 30, 32), 0.5, strided=False),
            "packed": packed(),
        },
        "large scores": large_scores(),
        "layer norm": {name: layer_norm(shape, float32, float32) for name, shape in NORM.items()},
        "bfloat16 output": {name: layer_norm(shape, float32, bfloat16) for name, shape in NORM.items()},
        "float16 output": layer_norm((3, 7, 768), bfloat16, float16),
        "parts": parts_of_the_gradient(),
        "not a number": not_a_number(),
    }
    passes.kernels_run_on = lambda device: True
    torch.backends.cuda.matmul.allow_tf32 = True
    attention_kernels.attention = counted("attention", attention_kernels.attention)
    layer_norm_kernels.layer_norm = counted("norm", layer_norm_kernels.layer_norm)
    report["adapters"] = adapters()
    report["output types"] = output_types()
    report["hooked output types"] = output_types(hooked=True)
    report["multi head"] = multi_head()
    report["failing"] = failing()
    report["checkpointed"] = checkpointed()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
