"""GroupNorm kernels against torch's own layers, what is fused and what is not, and that nobody's module is left changed."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from wildtta.kernels import fused_norms, norm_fusion
from wildtta.kernels.fused_norms import FusedNorm, group_norm_of_torch, installed
from wildtta.kernels.norm_fusion import NormFusion, find_fused_norms


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    without = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    marked: Callable[..., None] = pytest.mark.gpu(without(test))
    return marked


# -- the kernels, interpreted on the CPU ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    pytest.importorskip("triton")
    script = Path(__file__).with_name("fused_norms_interpreted.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_results_and_gradients_are_those_of_float64(interpreted: dict[str, Any]) -> None:
    assert len(interpreted["errors"]) == 22
    for case, found in interpreted["errors"].items():
        # bfloat16 keeps 8 bits; a mean of 50 standard deviations costs float32 six of its bits, whoever subtracts it.
        bound = 1e-2 if case.startswith("bfloat16") else 3e-5 if case.startswith("large mean") else 3e-6
        assert max(found) < bound, case
    kept = [found for case, found in interpreted["errors"].items() if case.startswith("bfloat16 to float32")]
    assert all(max(z, dgamma, dbeta) < 3e-6 for z, _, dgamma, dbeta in kept), "float32 inside, whatever comes in"


def test_what_is_not_a_number_stays_none(interpreted: dict[str, Any]) -> None:
    assert interpreted["not a number"]


@pytest.mark.parametrize("method", ["sar", "sar2"])
def test_an_adapter_learns_the_same(interpreted: dict[str, Any], method: str) -> None:
    found = interpreted["trajectories"][method]
    assert found["apart"] < 1e-4
    assert found["learned"] > 1e-2, "nothing was learned, so nothing was compared"
    assert found["calls"] >= 2 * 3 * 6
    assert found["calls_when_off"] == 0


def test_a_checkpointed_pass_is_left_to_torch(interpreted: dict[str, Any]) -> None:
    found = interpreted["trajectories"]["checkpointed"]
    assert found["apart"] == 0
    assert found["calls"] == 0
    assert found["learned"] > 1e-2


@pytest.mark.parametrize("kernel", ["forward_kernel", "backward_kernel"])
def test_a_kernel_that_fails_is_not_tried_again(interpreted: dict[str, Any], kernel: str) -> None:
    found = interpreted["failures"][kernel]
    assert found["apart"] < 1e-5
    assert found["gave_up"]
    assert len(found["warnings"]) == 1
    assert "no compiler" in found["warnings"][0]


# -- what is fused -------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """As in timm: an Identity between norm and ReLU, a ReLU in place, and one behind the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(width, 4, 1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)
        self.conv2, self.bn2, self.drop_block = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Identity()
        self.act2, self.aa = nn.ReLU(), nn.Identity()
        self.conv3, self.bn3, self.act3 = nn.Conv2d(4, width, 1), nn.GroupNorm(2, width), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.aa(self.act2(self.drop_block(self.bn2(self.conv2(y)))))
        return self.act3(self.bn3(self.conv3(y)) + x)


class Branching(nn.Module):
    """A second consumer of the norm's result, switched on by a weight."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.norm, self.act = nn.GroupNorm(2, 4), nn.ReLU()
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.act(y) + self.gate * y


class Twice(nn.Module):
    """One ReLU behind two norms, or one norm before two ReLUs."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.norm1, self.act1 = nn.GroupNorm(2, 4), nn.ReLU()
        self.norm2 = self.norm1 if shared == "norm" else nn.GroupNorm(2, 4)
        self.act2 = self.act1 if shared == "relu" else nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act2(self.norm2(self.act1(self.norm1(x))))


class WithResult(nn.Module):
    """Gives the norm's result to the caller, beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act, self.head = nn.GroupNorm(2, 4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.norm(x)
        return {"logits": self.head(self.act(y).mean((2, 3))), "normal": y}


def classifier(*body: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()


def shake(network: nn.Module) -> nn.Module:
    """Other parameters than 1 and 0, with which much is the same that is not."""
    for module in network.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return network


@pytest.fixture
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search needs no kernel: it asks torch's own operations."""
    pytest.importorskip("triton")
    for module in (fused_norms, norm_fusion):
        monkeypatch.setattr(module, "DEVICES", ("cpu",))


def found_in(network: nn.Module) -> dict[str, str | None]:
    names = {module: name for name, module in network.named_modules()}
    layers = find_fused_norms(network, torch.randn(4, 3, 6, 6))
    return {names[layer.norm]: None if layer.relu is None else names[layer.relu] for layer in layers}


IMAGES = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(3))


@pytest.mark.usefixtures("_on_the_cpu")
def test_a_bottleneck_s_inner_relus_are_fused_and_the_one_behind_the_sum_is_not() -> None:
    network = shake(classifier(Bottleneck(4)))
    assert found_in(network) == {"1.bn1": "1.act1", "1.bn2": "1.act2", "1.bn3": None}
    layers = find_fused_norms(network, IMAGES)
    assert all(layer.narrow for layer in layers if layer.relu is not None), "convolutions cast what they take"
    before = network(IMAGES)
    with installed(layers, group_norm_of_torch):
        assert torch.equal(network(IMAGES), before)


@pytest.mark.usefixtures("_on_the_cpu")
@pytest.mark.parametrize("gate", [0.5, 0.0])
def test_a_result_that_goes_elsewhere_too_keeps_its_relu(gate: float) -> None:
    """With a gate of 0 the logits do not tell; the gate may learn."""
    assert found_in(shake(classifier(Branching(gate)))) == {"1.norm": None}


@pytest.mark.usefixtures("_on_the_cpu")
@pytest.mark.parametrize("shared", ["norm", "relu"])
def test_shared_modules_are_not_fused(shared: str) -> None:
    assert set(found_in(shake(classifier(Twice(shared)))).values()) == {None}


@pytest.mark.usefixtures("_on_the_cpu")
def test_a_result_that_the_caller_gets_keeps_its_relu() -> None:
    network = shake(nn.Sequential(nn.Conv2d(3, 4, 3), WithResult()).eval())
    assert found_in(network) == {"1.norm": None}


class Ordinary(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class OneMore(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, 1 + self.weight, self.bias, self.eps)


class Activated(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


@pytest.mark.usefixtures("_on_the_cpu")
def test_subclasses_are_known_by_what_they_compute() -> None:
    assert found_in(classifier(Ordinary(2, 4))) == {"1": None}
    assert found_in(classifier(OneMore(2, 4))) == {}
    assert found_in(classifier(Activated(2, 4))) == {}
    assert found_in(classifier(nn.GroupNorm(2, 4, affine=False))) == {}


@pytest.mark.usefixtures("_on_the_cpu")
def test_timm_s_layers() -> None:
    layers = pytest.importorskip("timm.layers")
    assert found_in(classifier(layers.GroupNorm(4, 2))) == {"1": None}
    assert found_in(classifier(layers.GroupNormAct(4, 2))) == {}


# -- what is left behind ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_on_the_cpu")
def test_the_network_is_untouched_after_an_error() -> None:
    network = shake(classifier(Bottleneck(4)))
    before = {name: dict(module.__dict__) for name, module in network.named_modules()}
    layers = find_fused_norms(network, IMAGES)

    def fail(*given: object, **named: object) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), installed(layers, fail):
        network(IMAGES)
    assert all("forward" not in module.__dict__ for module in network.modules())
    assert {name: set(module.__dict__) for name, module in network.named_modules()} == {
        n: set(d) for n, d in before.items()
    }
    assert [(layer.kernel, layer._through) for layer in layers] == [(None, None)] * 3
    assert copy.deepcopy(network).state_dict().keys() == network.state_dict().keys()


@pytest.mark.usefixtures("_on_the_cpu")
def test_hooks_see_what_they_would_have_seen() -> None:
    network = shake(classifier(Bottleneck(4)))
    layers = find_fused_norms(network, IMAGES)
    seen: list[Tensor] = []
    handle = network[1].drop_block.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    expected = network(IMAGES)
    with installed(layers, group_norm_of_torch):
        assert torch.equal(network(IMAGES), expected)
    handle.remove()
    assert torch.equal(seen[0], seen[1])
    assert (seen[0] < 0).any()


@pytest.mark.usefixtures("_on_the_cpu")
def test_what_the_kernel_is_not_made_for_takes_the_layer_s_own_forward() -> None:
    norm, relu = shake(nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()))
    layer = FusedNorm(norm, relu, [norm, relu])
    calls: list[torch.Size] = []

    def kernel(x: Tensor, *given: Any, **named: Any) -> Tensor:
        calls.append(x.shape)
        return group_norm_of_torch(x, *given, **named)

    tensors = {
        "contiguous": (torch.randn(2, 4, 3, 5), True),
        "channels last": (torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last), False),
        "three dimensions": (torch.randn(2, 4, 5), False),
        "empty": (torch.randn(0, 4, 3, 5), False),
    }
    for name, (x, fused) in tensors.items():
        calls.clear()
        with installed([layer], kernel):
            result = relu(norm(x))
        assert torch.equal(result, torch.relu(norm(x))), name
        assert bool(calls) == fused, name
    with installed([layer], kernel, smallest=1 << 20):
        calls.clear()
        norm(torch.randn(2, 4, 3, 5))
    assert not calls, "too small to be worth a launch"


def test_nothing_is_looked_for_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_fusion, "find_fused_norms", lambda *given: pytest.fail("looked for norms on the CPU"))
    network = shake(classifier(Bottleneck(4)))
    adapter = wildtta.adapt(network, "tent")
    adapter._engine.fused_norms = True
    adapter(IMAGES)


@pytest.mark.usefixtures("_on_the_cpu")
def test_a_copied_adapter_has_norms_of_its_own() -> None:
    fusion = NormFusion(shake(classifier(Bottleneck(4))))
    assert len(fusion._found(IMAGES)) == 3
    twin = copy.deepcopy(fusion)
    assert {layer.norm for layer in twin._found(IMAGES)} <= set(twin._network.modules())
    assert not {layer.norm for layer in twin._found(IMAGES)} & set(fusion._network.modules())


# -- on a GPU ----------------------------------------------------------------------------------------------------------------


class GpuBlock(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1, self.norm1, self.act1 = nn.Conv2d(inside, outside, 3, 2, 1), nn.GroupNorm(4, outside), nn.ReLU(True)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1), nn.GroupNorm(4, outside)
        self.short = nn.Conv2d(inside, outside, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.short(x) + self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x))))))


def gpu_network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [GpuBlock(a, b) for a, b in ((3, 16), (16, 24), (24, 32), (32, 48))]
    network = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    with torch.no_grad():
        network[-1].weight.mul_(12)
    return network.cuda().eval()


def gpu_answers(method: str, fused: bool, graphs: bool, precision: str = "fp32") -> tuple[Tensor, wildtta.Adapter]:
    options = {"lr": 4e-5, "warmup": 0} if method == "sar2" else {"lr": 1e-4}
    adapter = wildtta.adapt(gpu_network(), method, reliable=0.9, precision=precision, **options)
    adapter._engine.fused_norms = fused
    if not graphs:
        adapter._graphs._failed = True
    generator = torch.Generator().manual_seed(1)
    images = [2 * torch.randn(32, 3, 33, 33, generator=generator).cuda() for _ in range(6)]
    answers = torch.stack([adapter(batch).float().cpu() for batch in images])
    assert bool(adapter._graphs._recordings) == graphs
    return answers, adapter


# Rounding that tips a pseudo label over moves a whole centroid: over six steps SAR² spreads it ten times as far.
@pytest.mark.parametrize(("method", "tolerance"), [("sar", 1e-4), ("sar2", 1e-3)])
@pytest.mark.parametrize("graphs", [False, True])
@on_gpu
def test_fused_steps_equal_native_ones(method: str, tolerance: float, graphs: bool) -> None:
    from wildtta.kernels import group_norm

    native, _ = gpu_answers(method, False, graphs)
    fused, adapter = gpu_answers(method, True, graphs)
    layers = adapter._engine._norm_fusion._layers
    assert sorted(layer.relu is not None for layer in layers) == [False] * 4 + [True] * 4
    assert not group_norm._failed
    assert (native - fused).abs().max() < tolerance * native.abs().max()


@pytest.mark.parametrize("shape", [(4, 64, 56, 56), (2, 256, 56, 56), (4, 2048, 7, 7), (3, 96, 13, 11), (5, 64, 1, 1)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@on_gpu
def test_compiled_kernels_give_the_numbers_of_float64(shape: tuple[int, ...], relu: bool, dtype: torch.dtype) -> None:
    from wildtta.kernels import group_norm

    x = torch.randn(shape, device="cuda").to(dtype).requires_grad_()
    gamma, beta = torch.randn(2, shape[1], device="cuda").unbind()
    leaves = [x, gamma.clone().requires_grad_(), beta.clone().requires_grad_()]
    z = group_norm.group_norm(leaves[0], 32, leaves[1], leaves[2], 1e-5, relu=relu, dtype=dtype)
    dz = torch.randn_like(z)
    found = torch.autograd.grad(z, leaves, dz)
    assert not group_norm._failed
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    want = F.group_norm(exact[0], 32, exact[1], exact[2], 1e-5)
    want = torch.relu(want) if relu else want
    wanted = torch.autograd.grad(want, exact, dz.double())
    # In groups of two values dx is what is left of nearly equal numbers: no float32 has more digits of it.
    tolerance = 1e-2 if dtype != torch.float32 else 1e-5 if shape[2:] != (1, 1) else 1e-4
    for got, it in zip((z, *found), (want, *wanted), strict=True):
        assert (got.double() - it).abs().max() < (tolerance if got.dtype == dtype else 1e-5) * it.abs().max()


@on_gpu
def test_the_kernel_repeats_itself_bit_for_bit() -> None:
    from wildtta.kernels import group_norm

    x = torch.randn(16, 64, 28, 28, device="cuda", requires_grad=True)
    gamma, beta = (torch.randn(64, device="cuda", requires_grad=True) for _ in range(2))

    def once() -> tuple[Tensor, ...]:
        z = group_norm.group_norm(x, 32, gamma, beta, 1e-5, relu=True, dtype=torch.float32)
        return (z.detach(), *torch.autograd.grad(z.square().sum(), (x, gamma, beta)))

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


@on_gpu
def test_a_network_that_moves_to_the_gpu_later_is_fused_there() -> None:
    network = gpu_network().cpu()
    adapter = wildtta.adapt(network, "tent", precision="bf16")
    assert adapter._engine._norm_fusion._layers is None
    adapter.cuda()
    adapter._engine.fused_norms = True
    answer = adapter(torch.randn(8, 3, 32, 32).cuda())
    assert torch.isfinite(answer).all()
    assert len(adapter._engine._norm_fusion._layers) == 8


@on_gpu
@pytest.mark.parametrize(("added", "narrow"), [(0.0, True), (1e-3, False)])
def test_a_result_that_is_summed_as_float32_stays_so_under_autocast(added: float, narrow: bool) -> None:
    """(The CPU's autocast does not make a GroupNorm float32, so only a GPU can tell.)"""

    class Added(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + added if added else x

    body = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), Added(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1)
    network = shake(nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 5)).cuda().eval())
    (layer,) = find_fused_norms(network, IMAGES.cuda())
    assert layer.relu is network[2]
    assert layer.narrow == narrow
