"""Kernels of a fleet in Triton's interpreter, against float64; prints a report for the tests.

A process of its own: the interpreter is chosen by the environment, before Triton is imported.
"""

from __future__ import annotations

import copy
import json
import os
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import torch
from test_dispatch import SmallViT
from test_fleet_kernels import small_resnet
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from wildtta.kernels import group_norm, layer_norm, passes
from wildtta.kernels.changed_products import add_products
from wildtta.kernels.clear_where import clear_where
from wildtta.kernels.norm import Norm
from wildtta.methods.sar2 import redundancy
from wildtta.methods.sar2.redundancy import ColumnRedundancy, RowRedundancy

NORMS: tuple[type[Norm], ...] = (group_norm.GroupNorm, layer_norm.LayerNorm)


def apart(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> list[float]:
    """Largest difference of each pair, by the scale of what was wanted."""
    return [float((a.detach() - b.detach()).abs().max() / b.detach().abs().max()) for a, b in zip(found, wanted, strict=True)]


def own_rows(samples: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """A table of weights of which γ and β are slices, as a fleet has them, and both of them."""
    table = torch.randn(samples, 7 + 2 * width + 3, requires_grad=True)
    return table, table[:, 7 : 7 + width], table[:, 7 + width : 7 + 2 * width]


def group_norm_errors(shape: tuple[int, ...], groups: int, *, relu: bool) -> list[float]:
    """Errors of z, dx, dγ and dβ."""
    x = torch.randn(shape, requires_grad=True)
    table, gamma, beta = own_rows(shape[0], shape[1])
    assert group_norm.suits(x, groups, gamma, beta)
    ours = group_norm.group_norm(x, groups, gamma, beta, 1e-5, relu=relu, dtype=x.dtype)
    exact = [value.detach().double().requires_grad_() for value in (x, gamma, beta)]
    y = F.group_norm(exact[0], groups) * exact[1][..., None, None] + exact[2][..., None, None]
    wanted = torch.relu(y) if relu else y
    slope = torch.randn(shape)
    found = torch.autograd.grad(ours, (x, gamma, beta), slope, retain_graph=True)
    (joined,) = torch.autograd.grad(ours, table, slope)
    assert torch.equal(joined[:, 7:-3], torch.cat(found[1:], 1))
    return apart((ours, *found), (wanted, *torch.autograd.grad(wanted, exact, slope.double())))


def layer_norm_errors(shape: tuple[int, ...], samples: int) -> list[float]:
    """Errors of y, dx, dγ and dβ."""
    x = torch.randn(shape, requires_grad=True)
    _, gamma, beta = own_rows(samples, shape[-1])
    assert layer_norm.suits(x, shape[-1:], gamma, beta)
    ours = layer_norm.layer_norm(x, gamma, beta, 1e-6, x.dtype)
    exact = [value.detach().double().requires_grad_() for value in (x, gamma, beta)]
    normal = F.layer_norm(exact[0], shape[-1:], eps=1e-6).view(samples, -1, shape[-1])
    wanted = (normal * exact[1][:, None] + exact[2][:, None]).view(shape)
    slope = torch.randn(shape)
    found = torch.autograd.grad(ours, (x, gamma, beta), slope)
    return apart((ours, *found), (wanted, *torch.autograd.grad(wanted, exact, slope.double())))


def by_torch() -> list[float]:
    """What takes a kernel's place in the backward pass, against the kernel."""
    x = torch.randn(3, 8, 5, 5)
    _, gamma, beta = own_rows(3, 8)
    norm = group_norm.GroupNorm(2, 1e-5, True, torch.float32)
    rows = torch.randn(6, 4, 16)
    _, scale, shift = own_rows(3, 16)
    other = layer_norm.LayerNorm(1e-5, torch.float32)
    cases: list[tuple[Norm, tuple[Tensor, ...]]] = [(norm, (x, gamma, beta)), (other, (rows, scale, shift))]
    with torch.no_grad():
        return [float((operation(*given) - operation.by_torch(*given)).abs().max()) for operation, given in cases]


def redundancy_errors(shape: tuple[int, ...], rows: int, kind: Any, *further: Any) -> list[float]:
    """Errors of R and its gradient with the kernel against torch's operations; both in float64."""
    width = shape[-1]
    stored = torch.randn(*shape[:-1], 40, width, dtype=torch.float64)
    arriving = torch.randn(*shape[:-1], rows, width, dtype=torch.float64, requires_grad=True)
    leaving, count = stored[..., :rows, :], torch.full(shape[:-1], 40)
    found = []
    for kernels in (True, False):
        sums = [stored.mT @ stored, *([stored.sum(-2)] if kind is ColumnRedundancy else []), count, *further]
        with mock.patch.object(redundancy, "kernels_run_on", lambda device, kernels=kernels: kernels):
            values = kind.apply(arriving, leaving, *sums)[0]
        found.append((values, *torch.autograd.grad(values.sum(), arriving)))
    return apart(*found)


def added() -> float:
    """Error of sums after products have been added in place."""
    sums, left, right = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 70, 70), (3, 4, 70), (3, 4, 70)))
    wanted = sums + left.mT @ right
    add_products(sums, left, right)
    return float((sums - wanted).abs().max())


def cleared() -> bool:
    """Only the flagged streams' values become 0, whatever they were."""
    values = torch.randn(4, 3, 700, dtype=torch.float64)
    values[2, 0, 0] = torch.nan
    before, flags = values.clone(), torch.tensor([False, True, True, False])
    clear_where(values, flags)
    return torch.equal(values[~flags], before[~flags]) and not values[flags].any()


def fleets(model: nn.Module, side: int, method: str, **options: Any) -> dict[str, float]:
    """Four batches of three streams with and without kernels."""
    answers, calls = {}, 0
    for kernels in (False, True):
        fleet = wildtta.Fleet(copy.deepcopy(model), method, **options)
        fleet._engine.fast.kernels = kernels
        draw = torch.Generator().manual_seed(1)
        launch = {kind: mock.patch.object(kind, "forward", autospec=True, side_effect=kind.forward) for kind in NORMS}
        with launch[NORMS[0]] as first, launch[NORMS[1]] as second:
            found = [fleet(torch.randn(5, 3, side, side, generator=draw), ["a", "b", "c", "a", "b"]) for _ in range(4)]
        answers[kernels], calls = torch.stack(found), first.call_count + second.call_count
    bare = torch.stack([
        model(torch.randn(5, 3, side, side, generator=draw)) for draw in [torch.Generator().manual_seed(1)] for _ in range(4)
    ]).detach()
    return {
        "apart": float((answers[True] - answers[False]).abs().max()),
        "learned": float((answers[False] - bare).abs().max()),
        "calls": calls,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    passes.kernels_run_on = lambda device: True
    report = {
        "group norm": {
            "whole groups": group_norm_errors((3, 8, 5, 6), 2, relu=False),
            "with ReLU": group_norm_errors((4, 12, 7, 7), 3, relu=True),
            "groups in tiles": group_norm_errors((2, 2, 200, 200), 1, relu=True),
            "one sample": group_norm_errors((1, 6, 4, 4), 2, relu=False),
        },
        "layer norm": {
            "transformer": layer_norm_errors((3, 7, 768), 3),
            "narrow": layer_norm_errors((4, 50, 48), 4),
            "windows": layer_norm_errors((6, 9, 96), 2),
            "vectors": layer_norm_errors((5, 33), 5),
            "one sample": layer_norm_errors((1, 9, 64), 1),
        },
        "redundancy": {
            "columns": redundancy_errors((3, 50), 1, ColumnRedundancy, 0.0),
            "columns, floor": redundancy_errors((2, 130), 3, ColumnRedundancy, 0.5),
            "rows": redundancy_errors((3, 150), 2, RowRedundancy),
            "one stream": redundancy_errors((33,), 1, RowRedundancy),
        },
        "cleared": cleared(),
        "added": added(),
        "by torch": by_torch(),
        "fleets": {
            "resnet": fleets(small_resnet(), 8, "sar", lr=1e-2, reliable=2.0),
            "vit": fleets(SmallViT(16), 16, "tent", lr=1e-2),
        },
    }
    print(json.dumps(report))
