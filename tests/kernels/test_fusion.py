"""GroupNorm kernels against torch's own layers, what is fused and what is not, and that the network is left unchanged."""

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
from wildtta.kernels import FastPasses, passes


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    without = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    marked: Callable[..., None] = pytest.mark.gpu(without(test))
    return marked


# -- the kernels, interpreted on the CPU ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    pytest.importorskip("triton")
    script = Path(__file__).with_name("fusion_interpreted.py")
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


class Emulated:
    """torch's own operations in place of the kernel, on the CPU, and the calls that it got."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, bool, torch.dtype]] = []
        """γ, whether with the ReLU, and the result's type."""

    def __call__(
        self, x: Tensor, groups: int, gamma: Tensor, beta: Tensor, eps: float, *, relu: bool, dtype: torch.dtype
    ) -> Tensor:
        self.calls.append((gamma, relu, dtype))
        z = F.group_norm(x, groups, gamma, beta, eps)
        return (torch.relu(z) if relu else z).to(dtype)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    """A CPU that counts as a GPU: finding what may be fused needs no kernel."""
    pytest.importorskip("triton")
    from wildtta.kernels import group_norm

    emulated = Emulated()
    monkeypatch.setattr(passes, "kernels_run_on", lambda device: True)
    monkeypatch.setattr(group_norm, "group_norm", emulated)
    return emulated


def fast_passes(network: nn.Module) -> FastPasses:
    head = next(module for module in network.modules() if isinstance(module, nn.Linear))
    fast = FastPasses(network, head)
    fast.kernels = True
    return fast


def run(network: nn.Module, x: Tensor, fast: FastPasses | None = None) -> Any:
    fast = fast or fast_passes(network)
    with fast.applied(x):
        return fast.run(x)


IMAGES = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(3))


def found_in(network: nn.Module, kernel: Emulated) -> dict[str, bool]:
    """By the norms that went to the kernel: whether with their ReLU. What the network returns must not change."""
    names = {module.weight: name for name, module in network.named_modules() if isinstance(module, nn.GroupNorm)}
    kernel.calls.clear()
    expected = network(IMAGES)
    torch.testing.assert_close(run(network, IMAGES), expected, rtol=0, atol=0)
    return {names.get(gamma, "another γ"): relu for gamma, relu, _ in kernel.calls}


def test_a_bottleneck_s_inner_relus_are_fused_and_the_one_behind_the_sum_is_not(kernel: Emulated) -> None:
    network = shake(classifier(Bottleneck(4)))
    assert found_in(network, kernel) == {"1.bn1": True, "1.bn2": True, "1.bn3": False}
    kernel.calls.clear()
    with torch.autocast("cpu", torch.bfloat16):
        expected = network(IMAGES)
        assert torch.equal(run(network, IMAGES), expected)
    types = {relu: dtype for _, relu, dtype in kernel.calls}
    assert types == {True: torch.bfloat16, False: torch.float32}, "convolutions cast what they take"


@pytest.mark.parametrize("gate", [0.5, 0.0])
def test_a_result_that_goes_elsewhere_too_keeps_its_relu(kernel: Emulated, gate: float) -> None:
    """With a gate of 0 the logits do not tell; the gate may learn."""
    assert found_in(shake(classifier(Branching(gate))), kernel) == {"1.norm": False}


def test_a_shared_norm_is_not_fused_and_a_shared_relu_is(kernel: Emulated) -> None:
    assert found_in(shake(classifier(Twice("norm"))), kernel) == {"1.norm1": False}
    assert found_in(shake(classifier(Twice("relu"))), kernel) == {"1.norm1": True, "1.norm2": True}


def test_a_result_that_the_caller_gets_keeps_its_relu(kernel: Emulated) -> None:
    network = shake(nn.Sequential(nn.Conv2d(3, 4, 3), WithResult()).eval())
    assert found_in(network, kernel) == {"1.norm": False}


class Ordinary(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class OneMore(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x, self.num_groups, 1 + self.weight, self.bias, self.eps)


class Activated(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


def test_subclasses_get_what_they_compute(kernel: Emulated) -> None:
    assert found_in(shake(classifier(Ordinary(2, 4))), kernel) == {"1": False}
    assert found_in(shake(classifier(OneMore(2, 4))), kernel) == {"another γ": False}
    assert found_in(shake(classifier(Activated(2, 4))), kernel) == {"1": True}
    assert found_in(classifier(nn.GroupNorm(2, 4, affine=False)), kernel) == {}


def test_timm_s_layers(kernel: Emulated) -> None:
    layers = pytest.importorskip("timm.layers")
    assert found_in(shake(classifier(layers.GroupNorm(4, 2))), kernel) == {"1": False}
    assert found_in(shake(classifier(layers.GroupNormAct(4, 2))), kernel) == {"1": True}


def test_a_network_that_does_not_run_on_noise_keeps_its_relus(kernel: Emulated) -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 2:
                raise ValueError("two images")
            return x

    network = shake(classifier(nn.GroupNorm(2, 4), nn.ReLU(), Picky()))
    assert found_in(network, kernel) == {"1": False}


# -- what is left behind ---------------------------------------------------------------------------------------------------


def test_the_network_is_untouched_after_an_error(kernel: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    network = shake(classifier(Bottleneck(4)))
    before = {name: dict(module.__dict__) for name, module in network.named_modules()}

    def fail(*given: object, **named: object) -> Tensor:
        raise KeyboardInterrupt

    from wildtta.kernels import group_norm

    monkeypatch.setattr(group_norm, "group_norm", fail)
    with pytest.raises(KeyboardInterrupt):
        run(network, IMAGES)
    assert {name: set(module.__dict__) for name, module in network.named_modules()} == {
        n: set(d) for n, d in before.items()
    }
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert copy.deepcopy(network).state_dict().keys() == network.state_dict().keys()


def test_hooks_see_what_they_would_have_seen(kernel: Emulated) -> None:
    network = shake(classifier(Bottleneck(4)))
    fast = fast_passes(network)
    run(network, IMAGES, fast)
    seen: list[Tensor] = []
    watched = (network[1].drop_block, network[1].act1)
    handles = [module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone())) for module in watched]
    expected = network(IMAGES)
    kernel.calls.clear()
    assert torch.equal(run(network, IMAGES, fast), expected)
    assert not any(relu for _, relu, _ in kernel.calls)
    for handle in handles:
        handle.remove()
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert (seen[0] < 0).any()
    assert (seen[1] < 0).any()


def test_what_the_kernel_is_not_made_for_goes_to_torch(kernel: Emulated) -> None:
    norm, relu = shake(nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()))
    tensors = {
        "contiguous": (torch.randn(2, 4, 3, 5), True),
        "channels last": (torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last), False),
        "three dimensions": (torch.randn(2, 4, 5), False),
        "empty": (torch.randn(0, 4, 3, 5), False),
        "float64": (torch.randn(2, 4, 3, 5, dtype=torch.float64), False),
    }
    for name, (x, taken) in tensors.items():
        network = copy.deepcopy(nn.Sequential(norm, relu)).to(x.dtype)
        kernel.calls.clear()
        with FastPasses(network, nn.Linear(1, 1)).applied(x, recording=True):
            result = network(x)
        assert torch.equal(result, network(x)), name
        assert bool(kernel.calls) == taken, name
    kernel.calls.clear()
    with FastPasses(norm, nn.Linear(1, 1)).applied(x):
        norm(torch.randn(2, 4, 3, 5))
    assert not kernel.calls, "too small to be worth a launch"


def test_nothing_is_looked_for_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastPasses, "_fusions_for", lambda *given: pytest.fail("looked for norms on the CPU"))
    network = shake(classifier(Bottleneck(4)))
    adapter = wildtta.adapt(network, "tent")
    adapter.engine.fast.kernels = True
    adapter(IMAGES)


def test_a_copied_adapter_has_norms_of_its_own(kernel: Emulated) -> None:
    fast = fast_passes(shake(classifier(Bottleneck(4))))
    run(fast._network, IMAGES, fast)
    twin = copy.deepcopy(fast)
    kernel.calls.clear()
    run(twin._network, IMAGES, twin)
    assert sorted(relu for _, relu, _ in kernel.calls) == [False, True, True]
    used = {id(gamma) for gamma, _, _ in kernel.calls}
    assert used <= {id(parameter) for parameter in twin._network.parameters()}
    assert not used & {id(parameter) for parameter in fast._network.parameters()}


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
    adapter.engine.fast.kernels = fused
    adapter.cuda_graphs = graphs
    generator = torch.Generator().manual_seed(1)
    images = [2 * torch.randn(32, 3, 33, 33, generator=generator).cuda() for _ in range(6)]
    answers = torch.stack([adapter(batch).float().cpu() for batch in images])
    assert adapter.replayed == graphs
    return answers, adapter


# Rounding that tips a pseudo label over moves a whole centroid: over six steps SAR² spreads it ten times as far.
@pytest.mark.parametrize(("method", "tolerance"), [("sar", 1e-4), ("sar2", 1e-3)])
@pytest.mark.parametrize("graphs", [False, True])
@on_gpu
def test_fused_steps_equal_native_ones(method: str, tolerance: float, graphs: bool) -> None:
    from wildtta.kernels import group_norm

    native, _ = gpu_answers(method, False, graphs)
    fused, adapter = gpu_answers(method, True, graphs)
    assert len(adapter.engine.fast._fusions[False]) == 4, "one ReLU of each block"
    assert not group_norm.GroupNorm.broken
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
    assert not group_norm.GroupNorm.broken
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
    assert not adapter.engine.fast._fusions
    adapter.cuda()
    adapter.engine.fast.kernels = True
    answer = adapter(torch.randn(8, 3, 32, 32).cuda())
    assert torch.isfinite(answer).all()
    assert len(adapter.engine.fast._fusions[True]) == 4


@on_gpu
@pytest.mark.parametrize(("added", "narrow"), [(0.0, True), (1e-3, False)])
def test_a_result_that_is_summed_as_float32_stays_so_under_autocast(added: float, narrow: bool) -> None:
    """(The CPU's autocast does not make a GroupNorm float32, so only a GPU can tell.)"""

    class Added(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + added if added else x

    body = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), Added(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1)
    network = shake(nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 5)).cuda().eval())
    from wildtta.kernels.fusion import find_fusions

    with torch.autocast("cuda", torch.bfloat16):
        (fusion,) = find_fusions(network, network[-1], IMAGES.cuda()).values()
    assert network[2] in fusion.modules
    assert fusion.narrow == narrow
