"""The guard on a real adapter: it acts, it undoes, it costs nothing it should not, it writes down what it did."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import CLASSES, batches, build
from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs, network
from wildtta.glyphs.networks import normalise
from wildtta.guard.audit import is_audit, read_audit
from wildtta.guard.ladder import Rung

SMALL = wildtta.Guard(shadow=0.5, sample=8, memory=16)


@pytest.fixture(scope="module")
def noisy() -> tuple[Tensor, Tensor]:
    """Glyphs under impulse noise, shuffled: what Tent with a large step collapses on."""
    glyphs = Glyphs(2560)
    order = np.random.default_rng(0).permutation(2560)
    images = corrupt(glyphs.images(order), "impulse_noise", 5, index=order)
    return normalise(images), torch.from_numpy(glyphs.labels[order])


def test_a_collapse_is_stopped_unless_the_guard_only_watches(noisy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    images, labels = noisy
    source = network("resnet_gn")
    with torch.no_grad():
        none = torch.cat([source(batch).argmax(1) for batch in images.split(64)])
    answers: dict[bool, Tensor] = {}
    for guarded in (False, True):
        guard = wildtta.Guard(shadow=0.5, act=guarded, audit=tmp_path / f"{guarded}.jsonl")
        model = wildtta.adapt(network("resnet_gn"), "tent", lr=20 * 2.5e-4, guard=guard)
        answers[guarded] = torch.cat([model(batch).argmax(1) for batch in images.split(64)])
    last = slice(-256, None)
    share = {key: float(value[last].bincount().max()) / 256 for key, value in answers.items()}
    right = {key: float((value == labels)[last].float().mean()) for key, value in answers.items()}
    assert share[False] > 0.4
    assert right[False] < 0.5 * float((none == labels)[last].float().mean())
    assert share[True] < 0.25
    assert right[True] > 0.8 * float((none == labels)[last].float().mean())
    lines = read_audit(tmp_path / "True.jsonl")
    assert is_audit(tmp_path / "True.jsonl")
    assert lines[0]["kind"] == "start"
    decisions = [line for line in lines if line["kind"] == "decision"]
    assert decisions[0]["evidence"] >= 100
    assert decisions[0]["because"] == "takeover"
    watched = [line for line in read_audit(tmp_path / "False.jsonl") if line["kind"] == "decision"]
    assert watched[0]["look"] == decisions[0]["look"]
    assert not watched[0]["acted"]


def test_a_guard_that_never_acts_changes_no_number() -> None:
    guarded = wildtta.adapt(build("gn_resnet"), "sar2", guard=SMALL)
    plain = wildtta.adapt(build("gn_resnet"), "sar2")
    for batch in batches("gn_resnet", 12, 8):
        torch.testing.assert_close(guarded(batch), plain(batch), rtol=0, atol=0)
    assert guarded.guard.judge.looks > 3
    assert not guarded.guard.decisions


def test_looks_compare_with_the_network_as_it_was() -> None:
    """After learning, the shadow still answers what the untouched network answers, and shares its frozen weights."""
    untouched = build("gn_resnet")
    model = wildtta.adapt(copy.deepcopy(untouched), "tent", lr=0.1, guard=SMALL)
    stream = batches("gn_resnet", 6, 8)
    for batch in stream:
        model(batch)
    shadow = model.guard._shadow
    torch.testing.assert_close(shadow.logits(stream[0], None), untouched(stream[0]).detach())
    learned = set(model.learned_parameters)
    own = dict(model.network.named_parameters())
    for name, value in shadow.network.named_parameters():
        assert (value is own[name]) == (name not in learned)


def _force(model: wildtta.Adapter, monkeypatch: pytest.MonkeyPatch, action: Rung) -> None:
    """The next look finds overwhelming evidence."""
    ladder = model.guard.judge.ladder

    def judge(evidence: float, *, suspicious: bool, can_return: bool) -> Rung:
        ladder.rung = min(action, Rung.PAUSE)
        return action

    monkeypatch.setattr(ladder, "judge", judge)


@pytest.mark.parametrize("method", ["tent", "sar2", "cotta", "rotta"])
def test_going_back_to_a_snapshot_is_exact_and_keeps_the_counters(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = wildtta.adapt(build("gn_resnet"), method, lr=0.001, guard=SMALL)
    watch = model.guard
    for batch in batches("gn_resnet", 4, 512):
        model(batch)
    snapshot = watch._snapshots.before(watch.judge.images - 1280)
    assert snapshot is not None
    wanted = {name: value.clone() for name, value in snapshot.memory.items()}
    _force(model, monkeypatch, Rung.SNAPSHOT)
    forwards = model.cost.forwards
    for batch in batches("gn_resnet", 12, 8, seed=1):
        model(batch)
        if watch.decisions:
            break
    assert watch.decisions[0].action == Rung.SNAPSHOT
    assert model.cost.forwards > forwards
    if snapshot.parameters is not None:
        torch.testing.assert_close(model.engine.learnables.vector(), snapshot.parameters, rtol=0, atol=0)
    for name, value in wanted.items():
        torch.testing.assert_close(model.engine.memory[name], value, rtol=0, atol=0, equal_nan=True)


def test_going_back_to_the_source_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    untouched = build("gn_resnet")
    model = wildtta.adapt(copy.deepcopy(untouched), "tent", lr=0.05, guard=SMALL)
    _force(model, monkeypatch, Rung.SOURCE)
    stream = batches("gn_resnet", 30, 8)
    for batch in stream:
        model(batch)
    assert model.guard.decisions
    torch.testing.assert_close(model(stream[0]), untouched(stream[0]).detach())
    assert not bool(model.last.learned)


def test_slow_is_a_quarter_of_the_step() -> None:
    batch = batches("gn_resnet", 1, 8)[0]
    moves = []
    for rung in (Rung.LEARN, Rung.SLOW, Rung.PAUSE):
        model = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01, guard=SMALL)
        model.guard.judge.ladder.rung = rung
        before = model.engine.learnables.vector()
        model(batch)
        moves.append(model.engine.learnables.vector() - before)
    torch.testing.assert_close(moves[1], moves[0] / 4, rtol=1e-4, atol=1e-7)
    assert moves[2].abs().max() == 0


def test_labels_reach_the_judge() -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01, guard=SMALL)
    images = batches("gn_resnet", 1, 64)[0]
    right = model.guard._shadow.logits(images, None).argmax(1)
    with torch.no_grad():
        model.engine.learnables.parameters[0].mul_(-3)
    model.labelled(images, right)
    model.labelled(images, right)
    assert model.guard.decisions[0].because == "labels"
    with pytest.raises(ValueError, match="one integer label for each of the 64 images"):
        model.labelled(images, right[:3])


def test_last_tells_share_inequity_distance_and_disagreement() -> None:
    model = wildtta.adapt(build("gn_resnet"), "sar2", guard=SMALL)
    answers = [model(batch).argmax(1) for batch in batches("gn_resnet", 10, 8)]
    last = model.last
    counts = torch.cat(answers).bincount(minlength=CLASSES)
    assert float(last.top_share) == pytest.approx(float(counts.max() / counts.sum()))
    source, now = model.engine.source, model.engine.learnables.vector()
    assert source is not None
    assert float(last.distance) == pytest.approx(float((now - source).norm() / source.norm()))
    assert 0 <= last.disagreement <= 1
    assert float(last.batch_inequity) > 0


def test_the_batchs_own_inequity_rises_when_one_class_floods_it() -> None:
    """The bank has a row per class whatever the batch shows; the batch's own I sees the flood."""
    model = wildtta.adapt(network("resnet_gn"), "sar2")
    glyphs = Glyphs(12800)
    mixed = normalise(glyphs.images(np.arange(64)))
    flood = normalise(glyphs.images(np.arange(64) * 200))
    with model.paused():
        model(mixed)
        before = float(model.last.batch_inequity)
        model(flood)
        assert float(model.last.batch_inequity) > 2 * before


def test_a_network_that_moves_takes_the_shadow_along() -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", guard=SMALL)
    for batch in batches("gn_resnet", 4, 8):
        model(batch)
    model.double()
    for batch in batches("gn_resnet", 6, 8):
        model(batch.double())
    assert model.guard.last_look is not None
    model.reset()
    assert model.guard.judge.looks == 0


def test_an_adapter_without_a_guard_says_so() -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent")
    with pytest.raises(RuntimeError, match="has no guard"):
        _ = model.guard
    with pytest.raises(TypeError, match=r"guard must be a wildtta\.Guard"):
        wildtta.adapt(build("gn_resnet"), "tent", guard=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shadow": 0.0}, "shadow must be a share"),
        ({"false_alarms": 1.5}, "false_alarms must be a probability"),
        ({"sample": 4}, "sample of at least 8"),
        ({"memory": 16}, "memory of at least one sample"),
        ({"sender_share": 0.0}, "sender_share must be a share"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wildtta.Guard(**options)


def test_metrics_for_prometheus() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    guard = wildtta.Guard(shadow=0.5, sample=8, memory=16, registry=registry, name="camera")
    model = wildtta.adapt(build("gn_resnet"), "tent", guard=guard)
    for batch in batches("gn_resnet", 10, 8):
        model(batch)
    looks = registry.get_sample_value("wildtta_guard_looks_total", {"model": "camera"})
    assert looks == model.guard.judge.looks > 0
    share = registry.get_sample_value("wildtta_guard_disagreement", {"model": "camera"})
    assert share == model.guard.disagreement


def test_a_plain_module_with_an_odd_input_is_watched_too() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    model = wildtta.adapt(net, "tent", guard=SMALL)
    for size in (1, 3, 16, 1, 64):
        model(torch.randn(size, 8))
    assert model.guard.judge.looks >= 1
