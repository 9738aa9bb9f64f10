"""Nothing is lost: non-finite numbers, state on disk, killed processes, long runs, a bare environment."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import wildtta
from toy_networks import batches, build, flags, images, layer_norm_mlp, same_bits, snapshot
from wildtta.step.state_file import FORMAT

TESTS = Path(__file__).parent.parent
COUNTERS = {
    f"memory/{name}" for name in ("forwards", "backwards", "computed_forwards", "computed_backwards", "skipped", "left_out")
}


def _state(adapter: wildtta.Adapter) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in adapter.online_state().items()}


# -- non-finite numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tent", "sar2"])
@pytest.mark.parametrize("kind", ["gn_resnet", "bn_resnet"])
def test_a_batch_of_nothing_but_nan_moves_nothing(kind: str, method: str) -> None:
    adapter = wildtta.adapt(build(kind), method, lr=0.02)
    for seed in range(2):
        before = _state(adapter)
        logits = adapter(torch.full_like(images(kind, 4), math.nan))
        assert logits.shape == (4, 10)
        assert torch.isnan(logits).all()
        assert set(same_bits(_state(adapter), before)) <= COUNTERS
        assert adapter.cost.skipped == seed + 1
        assert adapter.cost.left_out == 4 * (seed + 1)
        repr(adapter.last)


class Exploding(nn.Module):
    """Finite logits, but no finite gradient where the input says so (the square root of 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layer_norm_mlp()
        self.gate = nn.LayerNorm(12)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x: Tensor) -> Tensor:
        calm = (x[:, :1] <= 100).to(x.dtype)
        zero = (self.gate(x)[:, :1] * 0).abs()
        return self.inner(x.clamp(-3, 3)) + (zero + calm).sqrt() - calm


@pytest.mark.parametrize("method", ["tent", "sar", "sar2"])
def test_non_finite_gradients_move_nothing(method: str) -> None:
    torch.manual_seed(0)
    options = {"tent": {}, "sar": {"reliable": None}, "sar2": {"reliable": None, "warmup": 1}}[method]
    adapter = wildtta.adapt(Exploding(), method, lr=0.02, parameters=r"gate|inner\.[147]\.", **options)
    for seed in range(3):
        adapter(torch.randn(16, 12, generator=torch.Generator().manual_seed(seed)))
    assert bool(adapter.last.learned)
    before = _state(adapter)
    skipped = adapter.cost.skipped
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(9))
    x[0, 0] = 200.0
    logits = adapter(x)
    assert torch.isfinite(logits).all()
    assert not math.isfinite(float(adapter.last.gradient_norm))
    assert set(same_bits(_state(adapter), before)) <= COUNTERS
    assert adapter.cost.skipped == skipped + 1


def test_overflow_within_the_network_moves_nothing() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "sar2", lr=0.02)
    for batch in batches("gn_resnet", 3, 16):
        adapter(batch)
    before = _state(adapter)
    adapter(images("gn_resnet", 16) * 1e38)
    assert set(same_bits(_state(adapter), before)) <= COUNTERS
    assert adapter.cost.skipped == 1


def test_a_diverging_learning_rate_never_brings_a_non_finite_weight() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", lr=1e38)
    for batch in batches("ln_mlp", 10, 8):
        adapter(batch)
        assert all(torch.isfinite(p).all() for p in adapter.network.parameters())
    assert adapter.cost.skipped > 0


@pytest.mark.parametrize("method", ["tent", "sar", "sar2"])
def test_buffers_of_batch_norms_come_back_exactly(method: str) -> None:
    network = build("bn_resnet").train()
    before, flags_before = snapshot(network), flags(network)
    adapter = wildtta.adapt(network, method, lr=0.05)
    for batch in batches("bn_resnet", 4, 8):
        adapter(batch)
        buffers = dict(network.named_buffers())
        assert all(torch.equal(value, before[name]) for name, value in buffers.items())
    adapter.unload()
    assert same_bits(snapshot(network), before) == []
    assert flags(network) == flags_before
    x = images("bn_resnet", 8)
    with torch.no_grad():
        assert torch.equal(network.eval()(x), build("bn_resnet")(x))


def test_batch_statistics_are_the_batchs_own_and_none_keeps_the_sources() -> None:
    x = images("bn_resnet", 16)
    training, evaluating = build("bn_resnet").train(), build("bn_resnet").eval()
    with torch.no_grad():
        by_batch, by_source = training(x), evaluating(x)
    torch.testing.assert_close(wildtta.adapt(build("bn_resnet"), "tent")(x), by_batch, rtol=1e-5, atol=1e-5)
    assert torch.equal(wildtta.adapt(build("bn_resnet"), "none")(x), by_source)
    assert not torch.allclose(by_batch, by_source, atol=1e-3)


# -- state on disk -------------------------------------------------------------------------------------------------------------


def _trained(method: str = "sar2", kind: str = "ln_mlp", **options: Any) -> wildtta.Adapter:
    adapter = wildtta.adapt(build(kind), method, **{"lr": 0.02, **options})
    for batch in batches(kind, 3, 16):
        adapter(batch)
    return adapter


def test_state_is_small_safetensors_and_nothing_else_lies_about(tmp_path: Path) -> None:
    adapter = _trained(kind="gn_resnet", method="sar")
    path = tmp_path / "deep" / "folder" / "state.safetensors"
    adapter.save(path)
    adapter.save(path)
    assert os.listdir(path.parent) == ["state.safetensors"]
    assert path.stat().st_size < 16_000
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        facts = json.loads(file.metadata()["wildtta"])
    assert names == set(adapter.online_state())
    assert (facts["format"], facts["method"]) == (FORMAT, "sar")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: wildtta.adapt(build("ln_mlp"), "sar"), r"state of 'sar2', this adapter runs 'sar'"),
        (lambda: wildtta.adapt(build("ln_mlp", seed=1), "sar2"), r"another network"),
        (lambda: wildtta.adapt(build("gn_resnet"), "sar2"), r"another network"),
        (lambda: wildtta.adapt(build("ln_mlp", classes=7), "sar2"), r"another network"),
        (lambda: wildtta.adapt(build("ln_mlp"), "sar2", parameters="1"), r"another network|parameters that learn"),
        (lambda: wildtta.adapt(build("ln_mlp"), "sar2", recovery=None), r"does not fit.*e_m"),
    ],
    ids=["method", "weights", "architecture", "classes", "parameters", "declared state"],
)
def test_states_of_others_are_refused_with_the_reason_and_change_nothing(other, message: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    _trained().save(path)
    adapter = other()
    before = _state(adapter)
    with pytest.raises(ValueError, match=message):
        adapter.load(path)
    assert same_bits(_state(adapter), before) == []


def test_other_format_versions_and_broken_files_are_refused(tmp_path: Path) -> None:
    adapter = _trained()
    good = tmp_path / "good"
    adapter.save(good)
    before = _state(adapter)
    with safe_open(good, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        facts = json.loads(file.metadata()["wildtta"])
    future = tmp_path / "future"
    save_file(tensors, future, {"wildtta": json.dumps({**facts, "format": "999"})})
    plain = tmp_path / "plain"
    save_file(tensors, plain)
    truncated = tmp_path / "truncated"
    for length in (0, 7, 100, good.stat().st_size - 1):
        truncated.write_bytes(good.read_bytes()[:length])
        with pytest.raises(ValueError, match=r"no readable safetensors file"):
            adapter.load(truncated)
    with pytest.raises(ValueError, match=r"format '999'.*reads '4'"):
        adapter.load(future)
    with pytest.raises(ValueError, match=r"no wildtta state"):
        adapter.load(plain)
    with pytest.raises(FileNotFoundError, match=r"model\.save"):
        adapter.load(tmp_path / "missing")
    assert same_bits(_state(adapter), before) == []


def test_other_options_are_told_and_the_adapters_own_win(tmp_path: Path) -> None:
    _trained(lr=0.02).save(tmp_path / "state")
    adapter = wildtta.adapt(build("ln_mlp"), "sar2", lr=0.5)
    with pytest.warns(UserWarning, match="other values of lr"):
        adapter.load(tmp_path / "state")
    assert adapter.learning_rate == 0.5
    same = wildtta.adapt(build("ln_mlp"), "sar2", lr=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.load(tmp_path / "state")


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = _trained()
    path = tmp_path / "state"
    adapter.save(path)
    old = path.read_bytes()
    adapter(images("ln_mlp", 16, seed=30))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        adapter.save(path)
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["state"]


WORKER = """
import sys
sys.path.insert(0, {tests!r})
import torch, wildtta
from toy_networks import batches, build
torch.set_num_threads(1)
adapter = wildtta.adapt(build({kind!r}), {method!r}, lr=0.02)
"""


def _process(code: str, **places: Any) -> subprocess.Popen[str]:
    source = WORKER.format(tests=str(TESTS), kind=places.pop("kind", "gn_resnet"), method=places.pop("method", "sar2"))
    command = [sys.executable, "-c", source + code.format(**places)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("method", ["sar", "sar2"])
def test_a_killed_and_resumed_run_gives_the_same_logits_bit_for_bit(method: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    victim = _process(
        """
for step, batch in enumerate(batches("gn_resnet", 1000, 8)):
    adapter(batch)
    if step == 4:
        adapter.save({path!r})
        print("saved", flush=True)
""",
        method=method,
        path=str(path),
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == "saved\n"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    assert victim.returncode == -signal.SIGKILL
    stream = batches("gn_resnet", 10, 8)
    uninterrupted = wildtta.adapt(build("gn_resnet"), method, lr=0.02)
    expected = [uninterrupted(batch) for batch in stream]
    resumed = wildtta.adapt(build("gn_resnet"), method, lr=0.02)
    resumed.load(path)
    for batch, logits in zip(stream[5:], expected[5:], strict=True):
        assert torch.equal(resumed(batch), logits)
    assert same_bits(_state(resumed), _state(uninterrupted)) == []
    assert resumed.cost.forwards == uninterrupted.cost.forwards


def test_a_process_killed_while_it_saves_never_leaves_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for delay in (0.0, 0.007):
        victim = _process(
            """
stream = batches("ln_mlp", 5, 8)
adapter(stream[0])
adapter.save({path!r})
print("saving", flush=True)
while True:
    adapter(stream[1])
    adapter.save({path!r})
""",
            kind="ln_mlp",
            path=str(path),
        )
        assert victim.stdout is not None
        assert victim.stdout.readline() == "saving\n"
        time.sleep(0.05 + delay)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        adapter = wildtta.adapt(build("ln_mlp"), "sar2", lr=0.02)
        adapter.load(path)
        assert adapter.cost.forwards > 0
        adapter(images("ln_mlp", 8))


# -- a bare environment --------------------------------------------------------------------------------------------------------

BARE = """
import sys

class Missing:
    names = {"timm", "torchvision", "PIL", "scipy", "matplotlib", "typer", "rich", "ray", "sklearn", "transformers",
             "diffusers", "webdataset", "tensorboard", "jinja2", "pandas", "torchmetrics", "yaml", "tqdm"}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import torch
from torch import nn
import wildtta

network = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
for name in ("none", "tent", "infomax", "sar", "sar2", "sar2-efficient", "steady"):
    model = wildtta.adapt(network, name)
    for _ in range(3):
        assert model(torch.randn(5, 8)).shape == (5, 4)
    model.save(sys.argv[1])
    model.load(sys.argv[1])
    network = model.unload()
assert not Missing.names & {name.split(".")[0] for name in sys.modules}
print(len(wildtta.methods()))
"""


def test_torch_numpy_and_safetensors_are_enough(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(tmp_path / "state")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(wildtta.methods())


# -- long runs -------------------------------------------------------------------------------------------------------------------


def _tensor_bytes() -> int:
    gc.collect()
    return sum(item.numel() * item.element_size() for item in gc.get_objects() if issubclass(type(item), Tensor))


def _endure(method: str, steps: int) -> None:
    """After the first 1,000 batches of one neither tensors nor Python's own objects gather, and all stays finite."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 6))
    with torch.no_grad():
        network[-1].weight.mul_(8)
    adapter = wildtta.adapt(network, method, lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    stream = torch.randn(2048, 1, 4, generator=generator)
    for step in range(1000):
        adapter(stream[step % 2048])
    tensors = _tensor_bytes()
    tracemalloc.start()
    for step in range(100):
        adapter(stream[step])
    gc.collect()
    objects, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for step in range(1100, steps - 100):
        adapter(stream[step % 2048])
    assert _tensor_bytes() <= tensors + 1024
    tracemalloc.start()
    for step in range(100):
        logits = adapter(stream[step])
    gc.collect()
    later, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert later <= objects + 64 * 1024
    assert torch.isfinite(logits).all()
    for name, value in adapter.online_state().items():
        assert torch.isfinite(value).all() or name == "memory/e_m", name
    assert adapter.cost.forwards >= steps
    assert adapter.cost.skipped == 0
    adapter.reset()
    assert adapter.cost.forwards == 0


@pytest.mark.parametrize(("method", "steps"), [("sar", 10_000), ("sar2", 2_000)])
def test_thousands_of_batches_of_one(method: str, steps: int) -> None:
    _endure(method, steps)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sar", "sar2"])
def test_a_hundred_thousand_batches_of_one(method: str) -> None:
    _endure(method, 100_000)
