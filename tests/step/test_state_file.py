"""State files: damaged ones, ones of other networks and made-up ones are refused whole; what a killed process left goes."""

from __future__ import annotations

import json
import math
import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import wildtta
from toy_networks import batches, build, images, same_bits
from wildtta.methods.registry import config_classes
from wildtta.step import atomic_file
from wildtta.step.atomic_file import write_atomically
from wildtta.step.state_file import read_state, write_state


def _trained(method: str = "sar2", **options: Any) -> wildtta.Adapter:
    adapter = wildtta.adapt(build("ln_mlp"), method, **{"lr": 0.02, **options})
    for batch in batches("ln_mlp", 3, 16):
        adapter(batch)
    return adapter


def _contents(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return tensors, json.loads(file.metadata()["wildtta"])


def test_every_flipped_bit_is_found_and_nothing_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    _trained().save(path)
    good = path.read_bytes()
    adapter = wildtta.adapt(build("ln_mlp"), "sar2", lr=0.02)
    adapter(images("ln_mlp", 16, seed=40))
    before = adapter.online_state()
    header = 8 + int.from_bytes(good[:8], "little")
    draw = random.Random(0)
    places = [draw.randrange(header, len(good)) for _ in range(150)] + [draw.randrange(header) for _ in range(150)]
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError):
            adapter.load(path)
    assert same_bits(adapter.online_state(), before) == []
    path.write_bytes(good)
    adapter.load(path)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["parameters/1.weight", "memory/momentum", "memory/bank_rows", "memory/bank_outer"])
def test_values_that_are_not_finite_are_refused(name: str, bad: float, tmp_path: Path) -> None:
    """Also with the right checksum: one NaN would silence the model for ever."""
    path = tmp_path / "state"
    adapter = _trained()
    adapter.save(path)
    tensors, facts = _contents(path)
    assert not any(value.isinf().any() for value in tensors.values())
    tensors[name].view(-1)[0] = bad
    write_state(path, tensors, facts)
    before = adapter.online_state()
    with pytest.raises(ValueError, match=f"not finite, in {name}"):
        adapter.load(path)
    assert same_bits(adapter.online_state(), before) == []


@pytest.mark.parametrize("method", ["sar", "eta", "eata", "recap"])
def test_what_is_not_known_yet_may_be_nan(method: str, tmp_path: Path) -> None:
    options = {"fisher_images": images("ln_mlp", 8)} if method == "eata" else {}
    adapter = wildtta.adapt(build("ln_mlp"), method, **options)
    adapter.save(tmp_path / "state")
    assert any(value.isnan().any() for value in adapter.online_state().values())
    adapter(images("ln_mlp", 8))
    adapter.load(tmp_path / "state")
    adapter(images("ln_mlp", 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors, facts: tensors.update({"memory/bank_filled": tensors["memory/bank_filled"].float()}),
            "bank_filled",
        ),
        (lambda tensors, facts: tensors.update({"memory/skipped": torch.tensor(0.5)}), "skipped differ"),
        (lambda tensors, facts: tensors.update({"memory/momentum": torch.zeros(3)}), "momentum differ"),
        (lambda tensors, facts: facts.update(batch_size="64"), "batch_size"),
        (lambda tensors, facts: facts.update(host_steps=-1), "host_steps"),
        (lambda tensors, facts: facts.update(gate_open=1), "gate_open"),
        (lambda tensors, facts: facts.update(share="much"), "share"),
        (lambda tensors, facts: facts.update(image_shape=[0]), "image_shape"),
        (lambda tensors, facts: facts.update(precision="fp8"), "precision"),
        (lambda tensors, facts: facts.pop("calls"), "calls"),
    ],
)
def test_other_types_are_refused_and_nothing_is_loaded(
    change: Callable[[dict[str, Tensor], dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    _trained().save(path)
    tensors, facts = _contents(path)
    change(tensors, facts)
    write_state(path, tensors, facts)
    adapter = wildtta.adapt(build("ln_mlp"), "sar2", lr=0.02)
    before = adapter.online_state()
    with pytest.raises(ValueError, match=message):
        adapter.load(path)
    assert same_bits(adapter.online_state(), before) == []
    assert adapter.engine.image_shape is None


def test_the_fingerprint_covers_every_weight_and_buffer(tmp_path: Path) -> None:
    """Another head, another convolution, other running statistics: none of them learns."""
    path = tmp_path / "state"
    adapter = wildtta.adapt(build("bn_resnet"), "tent", lr=0.02)
    adapter(images("bn_resnet", 8))
    adapter.save(path)
    for name in ("fc.weight", "fc.bias", "stem.weight", "stage2.0.norm1.running_var", "stem_norm.num_batches_tracked"):
        network = build("bn_resnet")
        with torch.no_grad():
            network.state_dict()[name].view(-1)[-1] += 1
        with pytest.raises(ValueError, match="another network"):
            wildtta.adapt(network, "tent", lr=0.02).load(path)
    same = wildtta.adapt(build("bn_resnet"), "tent", lr=0.02)
    same(images("bn_resnet", 8, seed=1))  # what it learned is no part of the fingerprint
    same.load(path)
    assert same_bits(same.online_state(), adapter.online_state()) == []


class Shifted(nn.Module):
    """A network with buffers that its state_dict leaves out: a constant, and a table that passes make longer."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.inner = build("ln_mlp")
        self.register_buffer("shift", torch.tensor(shift), persistent=False)
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.table = torch.zeros(len(x))
        answers: Tensor = self.inner(x - self.shift)
        return answers


def test_the_fingerprint_covers_buffers_that_are_not_saved(tmp_path: Path) -> None:
    adapter = wildtta.adapt(Shifted(0.0), "tent", lr=0.02, example=images("ln_mlp", 2))
    adapter(images("ln_mlp", 8))
    adapter.save(tmp_path / "state")
    with pytest.raises(ValueError, match="another network"):
        wildtta.adapt(Shifted(5.0), "tent", lr=0.02, example=images("ln_mlp", 2)).load(tmp_path / "state")
    wildtta.adapt(Shifted(0.0), "tent", lr=0.02, example=images("ln_mlp", 2)).load(tmp_path / "state")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("made", [Tensor.to_sparse, Tensor.to_sparse_csr, lambda plain: torch.complex(plain, plain).conj()])
@pytest.mark.parametrize("saved", [False, True])
def test_a_buffer_may_be_sparse_or_conjugate(tmp_path: Path, made: Callable[[Tensor], Tensor], saved: bool) -> None:
    def adapted(size: float) -> wildtta.Adapter:
        network = build("ln_mlp")
        network.register_buffer("graph", made(torch.eye(3) * size), persistent=saved)
        return wildtta.adapt(network, "tent", lr=0.02)

    adapted(1.0).save(tmp_path / "state")
    adapted(1.0).load(tmp_path / "state")
    with pytest.raises(ValueError, match="another network"):
        adapted(2.0).load(tmp_path / "state")


def test_the_fingerprint_of_a_network_without_such_buffers_is_what_it_was(tmp_path: Path) -> None:
    """Told by the version before: its states can be loaded."""
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) / 8)
    wildtta.adapt(network, "tent").save(tmp_path / "state")
    assert _contents(tmp_path / "state")[1]["network"] == "e53a83e2ab6ce57e0ec7da337362bb5c"


def test_a_state_outlives_a_change_of_type(tmp_path: Path) -> None:
    adapter = _trained("tent")
    adapter.save(tmp_path / "narrow")
    adapter.double()
    adapter.load(tmp_path / "narrow")
    adapter(images("ln_mlp", 8).double())
    adapter.save(tmp_path / "wide")
    other = wildtta.adapt(build("ln_mlp"), "tent", lr=0.02)
    other.load(tmp_path / "wide")


@pytest.mark.parametrize("method", ["rotta", "spa", "tent"])
def test_a_state_from_before_the_first_batch_can_be_gone_back_to(method: str, tmp_path: Path) -> None:
    kind = "gn_resnet"
    options = config_classes()[method].example_options(images(kind, 8))
    adapter, twin = (wildtta.adapt(build(kind), method, **options) for _ in range(2))
    adapter.save(tmp_path / "first")
    stream = batches(kind, 4, 8)
    for batch in stream:
        adapter(batch)
    adapter.load(tmp_path / "first")
    for batch in stream[::-1]:
        assert torch.equal(adapter(batch), twin(batch))
    assert same_bits(adapter.online_state(), twin.online_state()) == []


# -- at the same time ----------------------------------------------------------------------------------------------------


def test_a_file_that_is_replaced_while_it_is_read_is_whole(tmp_path: Path) -> None:
    adapter, path, over = _trained(), tmp_path / "state", threading.Event()
    for name in ("one", "two", "state"):
        adapter(images("ln_mlp", 16))
        adapter.save(tmp_path / name)

    def replace() -> None:
        while not over.is_set():
            for name in ("one", "two"):
                os.link(tmp_path / name, tmp_path / "next")
                (tmp_path / "next").replace(path)

    writer = threading.Thread(target=replace)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer.start()
    try:
        for _ in range(500):
            read_state(path)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        writer.join()


def test_a_later_save_wins_over_one_that_the_disk_holds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, path, writes, go_on = _trained(), tmp_path / "state", threading.Event(), threading.Event()
    sync = os.fsync

    def slow(handle: int) -> None:
        if threading.current_thread() is first:
            writes.set()
            assert go_on.wait(60)
        sync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    first = threading.Thread(target=adapter.save, args=[path])
    first.start()
    assert writes.wait(60)
    adapter(images("ln_mlp", 16))  # a call does not wait for the disk
    adapter.save(path)
    go_on.set()
    first.join()
    assert same_bits(read_state(path)[0], adapter.online_state()) == []
    assert os.listdir(tmp_path) == ["state"]


# -- what lies beside the file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_follow_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        _trained().save(tmp_path / "state")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == mode


KILLED_WHILE_WRITING = """
import os, runpy, signal, sys
from pathlib import Path
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
runpy.run_path(sys.argv[1])["write_atomically"](Path(sys.argv[2]), b"new")
"""


def test_what_a_killed_process_left_is_cleaned_up(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, atomic_file.__file__, str(path)], check=False)
    assert len(os.listdir(tmp_path)) == 2  # the second one found what the first one left
    assert path.read_bytes() == b"old"
    (tmp_path / ".state.ours.tmp").touch()
    (tmp_path / ".other.0-0-0.tmp").touch()
    long_ago = time.time() - 2 * 24 * 3600
    (tmp_path / ".state.forgotten.tmp").touch()
    os.utime(tmp_path / ".state.forgotten.tmp", (long_ago, long_ago))
    write_atomically(path, b"new")
    assert sorted(os.listdir(tmp_path)) == [".other.0-0-0.tmp", ".state.ours.tmp", "state"]
