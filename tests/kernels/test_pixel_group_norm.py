"""GroupNorm by pixels on the CPU: the numbers of torch's in float64, where it is used, and that a step learns the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from wildtta.kernels import layout, pixel_group_norm

SHAPES = [(3, 8, 4, 5, 7), (2, 64, 32, 9, 9), (5, 48, 3, 4, 4), (2, 64, 2, 6, 6), (2, 8, 4, 40, 40)]
"""Samples, channels, groups, height, width: groups of 2 to 32 channels, and more pixels than torch's own way forward wants."""


def maps(shape: tuple[int, ...], seed: int) -> Tensor:
    """Maps with a mean and scales of their own in each channel, channels last."""
    number, channels, _, height, width = shape
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(number, channels, height, width, generator=draw)
    scales, means = torch.rand(2, channels, 1, 1, generator=draw)
    return (values * (0.5 + scales) + means).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 1 << 21])
def test_result_and_gradients_are_those_of_float64(
    shape: tuple[int, ...], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_group_norm, "BLOCK", block)
    channels, groups = shape[1:3]
    x, dy = maps(shape, 0), maps(shape, 1)
    gamma, beta = (torch.randn(channels, generator=torch.Generator().manual_seed(seed)) for seed in (2, 3))
    found, expected = [], []
    for values, dtype in ((found, torch.float32), (expected, torch.float64)):
        leaves = [value.detach().to(dtype).requires_grad_() for value in (x, gamma, beta)]
        norm = pixel_group_norm.group_norm if dtype == torch.float32 else F.group_norm
        y = norm(leaves[0], groups, leaves[1], leaves[2], 1e-5)
        values += [y, *torch.autograd.grad(y, leaves, dy.to(dtype))]
    for mine, theirs in zip(found, expected, strict=True):
        scale = float(theirs.detach().abs().max())
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-6 * scale)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert found[1].is_contiguous(memory_format=torch.channels_last)


def test_it_takes_large_maps_of_float32_whose_channels_lie_together() -> None:
    gamma, beta = torch.ones(2, 64)
    large = torch.zeros(8, 64, 56, 56).contiguous(memory_format=torch.channels_last)
    assert pixel_group_norm.suits(large, 32, gamma, beta)
    assert not pixel_group_norm.suits(large.contiguous(), 32, gamma, beta)
    assert not pixel_group_norm.suits(large[:1], 32, gamma, beta)
    assert not pixel_group_norm.suits(large.double(), 32, gamma.double(), beta.double())
    assert not pixel_group_norm.suits(large, 2, gamma, beta), "torch's own is the faster one"


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, 16), nn.GroupNorm(4, 32)])
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.first(images)), inplace=True)
        x = F.relu(self.norms[1](self.second(x)), inplace=True)
        return self.head(x.mean((2, 3)))


def learned(kernels: str, method: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, int]:
    """The answers along a stream, and how many backward passes went by pixels."""
    calls: list[Tensor] = []
    own = pixel_group_norm.gradients

    def counted(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(given[0])
        return own(*given)

    with monkeypatch.context() as patch:
        patch.setenv("WILDTTA_KERNELS", kernels)
        patch.setattr(layout, "SMALLEST_INPUT", 1)
        patch.setattr(pixel_group_norm, "SMALLEST", 1)
        patch.setattr(pixel_group_norm, "gradients", counted)
        options = {"lr": 1e-3, "warmup": 1} if method == "sar2" else {"lr": 0.1}
        adapter = wildtta.adapt(Blocks().eval(), method, reliable=None, recovery=None, **options)
        images = torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(1))
        answers = [adapter(images) for _ in range(10)]
    return torch.stack(answers), len(calls)


@pytest.mark.parametrize("method", ["sar", "sar2"])
def test_a_step_learns_the_same_with_torchs_own(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, by_pixels = learned("own", method, monkeypatch)
    torchs, none = learned("torch", method, monkeypatch)
    assert (by_pixels, none) == (10 * 2 * 2, 0), "ten steps of two passes through two norms"
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)
    assert (ours[9] - ours[0]).abs().max() > 1e-2, "it learned"
