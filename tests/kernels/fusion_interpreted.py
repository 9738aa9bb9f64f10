"""Run by ``test_fusion.py`` in a process of its own, with Triton's interpreter on: the kernels on the CPU, as JSON.

Triton decides when a kernel is defined whether it will be interpreted, so the variable must be set before anything imports it.
"""

from __future__ import annotations

import copy
import json
import os
import warnings
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import wildtta
from wildtta.kernels import FastPasses, group_norm, passes

SHAPES = {
    "odd sides": ((2, 6, 5, 7), 3),
    "one pixel": ((3, 8, 1, 1), 2),
    "a channel a group": ((2, 5, 1, 3), 5),
    "one group": ((2, 12, 3, 3), 1),
    "powers of two": ((1, 8, 4, 4), 2),
}
SMALL_TILE = 16


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.detach().double() - want.detach()).abs().max() / want.detach().abs().max())


def errors(shape: tuple[int, ...], groups: int, relu: bool, **given: Any) -> list[float]:
    """Largest relative error of z, ∂x, ∂γ and ∂β against torch's own layers in float64."""
    shift, dtype, out = given.get("shift", 0.0), given.get("dtype", torch.float32), given.get("out")
    x = (2 * torch.randn(shape) + shift).to(dtype).requires_grad_()
    gamma, beta = torch.randn(2, shape[1]).unbind()
    leaves = [x, gamma.clone().requires_grad_(), beta.clone().requires_grad_()]
    z = group_norm.group_norm(leaves[0], groups, leaves[1], leaves[2], 1e-5, relu=relu, dtype=out or dtype)
    assert z.dtype == (out or dtype)
    dz = torch.randn(shape).to(z.dtype)
    found = torch.autograd.grad(z, leaves, dz)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    want = F.group_norm(exact[0], groups, exact[1], exact[2], 1e-5)
    want = torch.relu(want) if relu else want
    wanted = torch.autograd.grad(want, exact, dz.double())
    return [relative(got, it) for got, it in zip((z, *found), (want, *wanted), strict=True)]


def all_errors() -> dict[str, list[float]]:
    result = {}
    for relu in (False, True):
        for name, (shape, groups) in SHAPES.items():
            result[f"{name}, relu {relu}"] = errors(shape, groups, relu)
        result[f"bfloat16, relu {relu}"] = errors((2, 6, 5, 7), 3, relu, dtype=torch.bfloat16)
        result[f"bfloat16 to float32, relu {relu}"] = errors(
            (2, 6, 5, 7), 3, relu, dtype=torch.bfloat16, out=torch.float32
        )
        result[f"large mean, relu {relu}"] = errors((2, 4, 5, 5), 2, relu, shift=100.0)
    whole = group_norm.FORWARD_TILE, group_norm.BACKWARD_TILE
    group_norm.FORWARD_TILE = group_norm.BACKWARD_TILE = SMALL_TILE
    for relu in (False, True):
        for name, (shape, groups) in {"many rows": ((2, 40, 1, 1), 2), "many tiles": ((1, 6, 5, 7), 2)}.items():
            result[f"{name}, relu {relu}"] = errors(shape, groups, relu)
        result[f"large mean in tiles, relu {relu}"] = errors((2, 4, 5, 5), 2, relu, shift=100.0)
    group_norm.FORWARD_TILE, group_norm.BACKWARD_TILE = whole
    return result


def keeps_what_is_not_a_number() -> bool:
    x = torch.randn(2, 4, 2, 2)
    x[0, 0, 0, 0] = torch.nan
    z = group_norm.group_norm(x, 2, torch.ones(4), torch.zeros(4), 1e-5, relu=True, dtype=torch.float32)
    return bool(torch.equal(z.isnan(), torch.relu(F.group_norm(x, 2)).isnan()) and z.isnan().any())


class Block(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1, self.norm1, self.act1 = nn.Conv2d(inside, outside, 3, 2, 1), nn.GroupNorm(2, outside), nn.ReLU(True)
        self.conv2, self.norm2, self.act2 = nn.Conv2d(outside, outside, 3, 1, 1), nn.GroupNorm(2, outside), nn.ReLU()
        self.short, self.checkpointed = nn.Conv2d(inside, outside, 1, 2), False

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)

    def body(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        return self.act2(inner + self.short(x))


def network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(3, 4), Block(4, 6), Block(6, 8)]
    made = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    with torch.no_grad():
        made[-1].weight.mul_(8)
    return made.eval()


def answers(method: str, fused: bool, checkpointed: bool = False, **options: Any) -> tuple[Tensor, int]:
    """Three steps; and how often the kernel ran."""
    model = network()
    for block in model[:3]:
        block.checkpointed = checkpointed
    adapter = wildtta.adapt(model, method, **options)
    adapter.engine.fast.kernels = fused
    calls, own = [], group_norm.group_norm
    group_norm.group_norm = lambda *given, **named: calls.append(1) or own(*given, **named)
    generator = torch.Generator().manual_seed(1)
    try:
        found = torch.stack([adapter(torch.randn(3, 3, 8, 8, generator=generator)) for _ in range(3)])
    finally:
        group_norm.group_norm = own
    return found, len(calls)


def trajectories() -> dict[str, dict[str, float]]:
    result = {}
    bare, _ = answers("none", False)
    for name, method, options in (
        ("sar", "sar", {"lr": 1e-2, "reliable": 2.0}),
        ("sar2", "sar2", {"lr": 1e-3, "reliable": 2.0, "warmup": 0}),
        ("checkpointed", "tent", {"lr": 1e-2, "checkpointed": True}),
    ):
        native, none = answers(method, False, **options)
        fused, calls = answers(method, True, **options)
        result[name] = {
            "apart": float((native - fused).abs().max()),
            "learned": float((native - bare).abs().max()),
            "calls": calls,
            "calls_when_off": none,
        }
    return result


class Broken:
    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError("no compiler")


def failures() -> dict[str, Any]:
    """A kernel that cannot be compiled: one warning, torch's numbers, and no second attempt."""
    result = {}
    model, x = nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()), torch.randn(2, 4, 3, 3)
    for name in ("forward_kernel", "backward_kernel"):
        network, twin, kept = copy.deepcopy(model), copy.deepcopy(model), getattr(group_norm, name)
        fast = FastPasses(network, nn.Linear(1, 1))
        setattr(group_norm, name, Broken())
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            apart = 0.0
            for _ in range(2):
                with fast.applied(x, recording=True):
                    got = network(x)
                ours = torch.autograd.grad(got.square().sum(), list(network.parameters()))
                theirs = torch.autograd.grad(twin(x).square().sum(), list(twin.parameters()))
                apart = max(apart, *(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)))
        broken, group_norm.GroupNorm.broken = group_norm.GroupNorm.broken, False
        result[name] = {"apart": apart, "warnings": [str(item.message) for item in said], "gave_up": broken}
        setattr(group_norm, name, kept)
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    passes.kernels_run_on = lambda device: True
    report = {
        "errors": all_errors(),
        "not a number": keeps_what_is_not_a_number(),
        "trajectories": trajectories(),
        "failures": failures(),
    }
    print(json.dumps(report))
