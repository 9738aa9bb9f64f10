"""The guard on a real adapter: it acts, it undoes, it costs nothing it should not, it writes down what it did."""

from __future__ import annotations

import copy
import json
import math
import pickle
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import CLASSES, batches, build, images
from wildtta.corruptions import corrupt
from wildtta.glyphs import Glyphs, network
from wildtta.glyphs.networks import normalise
from wildtta.guard.audit import Audit, is_audit, read_audit
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
    torch.testing.assert_close(shadow.logits(model.engine, stream[0]), untouched(stream[0]).detach())
    learned = set(model.learned_parameters)
    own = dict(model.network.named_parameters())
    for name, value in shadow.network.named_parameters():
        assert (value is own[name]) == (name not in learned)


def _force(model: wildtta.Adapter, monkeypatch: pytest.MonkeyPatch, action: Rung) -> None:
    """The next look finds overwhelming evidence."""
    ladder = model.guard.judge.ladder

    def judge(evidence: float, *, suspicious: bool, can_return: bool, images: int) -> Rung:
        ladder.rung = min(action, Rung.PAUSE)
        return action

    monkeypatch.setattr(ladder, "judge", judge)


@pytest.mark.parametrize("method", ["tent", "sar2", "cotta", "rotta"])
def test_going_back_to_a_snapshot_is_exact_and_keeps_the_counters(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wildtta.guard.watch._LAG", 256)
    model = wildtta.adapt(build("gn_resnet"), method, lr=1e-4, guard=SMALL)
    watch = model.guard
    for batch in batches("gn_resnet", 8, 64):
        model(batch)
    snapshot = watch._snapshots.before(watch.judge.images - 256)
    assert snapshot is not None
    wanted = {name: value.clone() for name, value in snapshot.memory.items()}
    _force(model, monkeypatch, Rung.SNAPSHOT)
    forwards = model.cost.forwards
    for batch in batches("gn_resnet", 12, 8, seed=1):
        model(batch)
        if watch.decisions:
            break
    assert watch.decisions[0].action == Rung.SNAPSHOT
    assert model.cost.forwards >= forwards > 256
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


def _class_after_class(number: int, batch: int) -> tuple[list[Tensor], Tensor]:
    """Glyphs under a light JPEG compression, one class in every batch."""
    glyphs = Glyphs(12800)
    order = np.concatenate([np.flatnonzero(glyphs.labels == label)[:batch] for label in range(number)])
    images = normalise(corrupt(glyphs.images(order), "jpeg_compression", 3, index=order))
    return list(images.split(batch)), torch.from_numpy(glyphs.labels[order])


def test_answers_that_scatter_are_seen_and_the_source_answers_in_their_place() -> None:
    """Batch statistics of one class at a time ruin every answer, and leave nothing collapsed: certainty tells."""
    stream, labels = _class_after_class(20, 64)
    source = network("resnet_bn")
    with torch.no_grad():
        wanted = torch.cat([source(batch) for batch in stream])
    none = (wanted.argmax(1) == labels).float()
    plain = wildtta.adapt(network("resnet_bn"), "tent")
    ruined = torch.cat([plain(batch) for batch in stream]).argmax(1) == labels
    assert float(none.mean()) > 0.8
    assert float(ruined.float().mean()) < 0.4
    model = wildtta.adapt(network("resnet_bn"), "tent", guard=wildtta.Guard())
    answers = torch.cat([model(batch) for batch in stream])
    decision = model.guard.decisions[0]
    assert decision.because == "statistics"
    assert decision.action == Rung.SOURCE
    assert decision.images <= 128
    # From that batch on the answers are the source's own, although the paused adapter would still use batch statistics.
    from_there = slice(decision.images - 64, None)
    torch.testing.assert_close(answers[from_there], wanted[from_there])
    assert float((answers.argmax(1) == labels).float().mean()) > float(none.mean()) - 0.1


@pytest.mark.parametrize("kind", ["gn_resnet", "bn_resnet"])
def test_in_a_trial_the_weights_move_and_the_source_answers(kind: str) -> None:
    untouched = build(kind)
    model = wildtta.adapt(copy.deepcopy(untouched), "tent", lr=0.01, guard=SMALL)
    ladder = model.guard.judge.ladder
    ladder.rung, ladder.returns = Rung.TRIAL, 4
    for batch in batches(kind, 3, 8):
        torch.testing.assert_close(model(batch), untouched(batch).detach())
        entropy = torch.distributions.Categorical(logits=untouched(batch)).entropy()
        torch.testing.assert_close(model.last.entropies, entropy.detach())
        assert bool(model.last.learned)
        with model.paused():
            torch.testing.assert_close(model(batch), untouched(batch).detach())
    assert float(model.last.distance) > 0
    ladder.rung = Rung.LEARN
    assert not torch.allclose(model(batch), untouched(batch))


def test_a_trial_that_is_passed_ends_in_learning_with_what_it_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", lr=1e-4, guard=SMALL)
    _force(model, monkeypatch, Rung.SOURCE)
    stream = batches("gn_resnet", 400, 8)
    for batch in stream:
        model(batch)
        if model.guard.decisions:
            break
    monkeypatch.undo()
    ladder = model.guard.judge.ladder
    ladder.rung, ladder.returns, ladder.rest, ladder.patience = Rung.SOURCE, 1, 32, 32
    seen = []
    for batch in stream:
        model(batch)
        seen.append(ladder.rung)
        if ladder.rung == Rung.LEARN:
            break
    assert list(dict.fromkeys(seen)) == [Rung.SOURCE, Rung.TRIAL, Rung.LEARN]
    trial = next(decision for decision in model.guard.decisions if decision.action == Rung.TRIAL)
    assert model.guard._age == model.guard.judge.images - trial.images
    assert float(model.last.distance) > 0


def test_the_latest_decisions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard runs for months."""
    monkeypatch.setattr("wildtta.guard.watch._DECISIONS", 3)
    model = wildtta.adapt(build("gn_resnet"), "tent", lr=1e-4, guard=SMALL)
    _force(model, monkeypatch, Rung.SLOW)
    for batch in batches("gn_resnet", 40, 8):
        model(batch)
    watch = model.guard
    assert watch.decided > 3
    assert len(watch.decisions) == 3
    assert watch.decisions[-1].look == watch.judge.looks


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
    right = model.guard._shadow.logits(model.engine, images).argmax(1)
    with torch.no_grad():
        model.engine.learnables.parameters[0].mul_(-3)
    model.labelled(images, right)
    model.labelled(images, right)
    assert model.guard.decisions[0].because == "labels"
    with pytest.raises(ValueError, match="one integer label for each of the 64 images"):
        model.labelled(images, right[:3])


@pytest.mark.parametrize("given", [Tensor.tolist, Tensor.numpy, Tensor.int, lambda right: right.numpy().astype("uint8")])
def test_labels_may_be_given_in_any_whole_numbers(given: Callable[[Tensor], Any]) -> None:
    """The source is right on all of them, a network with another sign is not: it must be seen."""
    model = wildtta.adapt(build("gn_resnet"), "tent", guard=SMALL)
    images = batches("gn_resnet", 1, 64)[0]
    right = build("gn_resnet")(images).argmax(1)
    with torch.no_grad():
        model.engine.learnables.parameters[0].mul_(-3)
    for _ in range(2):
        model.labelled(images, given(right))
    assert model.guard.decisions[0].because == "labels"


@pytest.mark.parametrize(
    "labels",
    [
        torch.arange(4) + CLASSES - 3,
        torch.tensor([0, 1, 2, -1]),
        torch.tensor([True, False, True, False]),
        torch.zeros(4, dtype=torch.complex64),
        torch.zeros(4, 1, dtype=torch.int64),
        [0.0, 1.0, 2.0, 3.0],
        ["0", "1", "2", "3"],
        [[0], [1, 2], [3], [4]],
        np.array([0, 1, 2, 2**63], dtype=np.uint64),
        [0, 1, 2],
        3,
        None,
    ],
)
def test_labels_that_are_no_classes_are_refused(labels: Any) -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", guard=SMALL)
    with pytest.raises(ValueError, match=f"one integer label for each of the 4 images, a class from 0 to {CLASSES - 1}, got"):
        model.labelled(batches("gn_resnet", 1, 4)[0], labels)
    assert model.guard.judge.evidence == 1


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
    model.reset()
    model(images("gn_resnet", 1))
    assert math.isnan(model.last.disagreement), "it is of weights that are gone"


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
        ({"shadow": "all"}, "shadow must be a share"),
        ({"false_alarms": float("nan")}, "false_alarms must be a probability"),
        ({"sample": 8.5}, "sample must be a whole number"),
        ({"memory": float("inf")}, "memory must be a whole number"),
        ({"seed": "one"}, "seed must be a whole number"),
        ({"act": "no"}, "act must be True or False"),
        ({"audit": 3}, "audit must be a path"),
        ({"name": 3}, "name must be a text"),
        ({"registry": 3}, "registry must be a CollectorRegistry"),
        ({"registry": type("Registry", (), {"register": print})}, "registry must be a CollectorRegistry"),
    ],
)
def test_options_out_of_range_or_of_the_wrong_type_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
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


def test_a_registry_that_has_such_a_metric_is_refused_and_left_as_it_was() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    client.Gauge("wildtta_guard_rung", "somebody else's", registry=registry)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"metric of the guard's name already.*CollectorRegistry\(\)"):
            wildtta.adapt(build("ln_mlp"), "tent", guard=wildtta.Guard(registry=registry))
    assert [family.name for family in registry.collect()] == ["wildtta_guard_rung"]


def test_models_share_a_registry_and_copies_keep_it() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    small = {"shadow": 0.5, "sample": 8, "memory": 16, "registry": registry}
    models = {name: wildtta.adapt(build("gn_resnet"), "tent", guard=wildtta.Guard(name=name, **small)) for name in "ab"}
    stream = batches("gn_resnet", 8, 8)
    for batch in stream:
        models["a"](batch)

    def looks(name: str) -> float:
        found: float = registry.get_sample_value("wildtta_guard_looks_total", {"model": name}) or 0.0
        return found

    before = looks("a")
    assert before > 0
    assert looks("b") == 0
    twin = copy.deepcopy(models["a"])
    sent = pickle.loads(pickle.dumps(models["a"]))
    for batch in stream:
        torch.testing.assert_close(sent(batch), twin(batch), rtol=0, atol=0)
    assert looks("a") > before
    assert sent.guard.judge.looks == twin.guard.judge.looks


@pytest.mark.parametrize("contents", ["{}", "notes\nwithout an end", '{"format": "wildtta-guard-audit-7"}\n', "\n"])
def test_a_file_that_holds_something_else_is_no_audit_and_stays_as_it_is(contents: str, tmp_path: Path) -> None:
    """Its last line would have been taken for one that broke off, and removed."""
    path = tmp_path / "file"
    path.write_text(contents)
    with pytest.raises(OSError, match=r"something else is there.*give a new file"):
        Audit(path)
    assert path.read_text() == contents


@pytest.mark.parametrize("begun", [0, 5, 20])
def test_an_audit_whose_first_line_broke_off_is_gone_on_with(begun: int, tmp_path: Path) -> None:
    Audit(tmp_path / "audit").write("start", guard={"false_alarms": 0.01})
    whole = (tmp_path / "audit").read_bytes()
    (tmp_path / "audit").write_bytes(whole[:begun])
    Audit(tmp_path / "audit").write("start", guard={"false_alarms": 0.01})
    assert len(read_audit(tmp_path / "audit")) == 1


@pytest.mark.parametrize("path", ["/dev/full", "a\0b"])
def test_devices_and_names_that_no_file_can_have_are_no_audit(path: str) -> None:
    with pytest.raises(OSError, match="cannot be written to"):
        Audit(path)


def test_an_audit_that_cannot_be_written_is_refused_at_first_and_told_later(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written to"):
        wildtta.adapt(build("gn_resnet"), "tent", guard=wildtta.Guard(audit=tmp_path / "file" / "audit.jsonl"))
    guard = wildtta.Guard(shadow=0.5, sample=8, memory=16, audit=tmp_path / "gone" / "audit.jsonl")
    model = wildtta.adapt(build("gn_resnet"), "tent", guard=guard)
    shutil.rmtree(tmp_path / "gone")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        answers = [model(batch) for batch in batches("gn_resnet", 12, 8)]
    assert all(answer.shape == (8, CLASSES) for answer in answers)
    assert ["lines are missing from now on" in str(one.message) for one in told] == [True]
    assert model.guard.judge.looks > 3


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="a limit on the size of files is POSIX's")
def test_a_disk_that_was_full_for_a_while_leaves_whole_lines(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit.write("start", guard={"false_alarms": 0.01})
    before, unlimited = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, unlimited[1]))
        with pytest.warns(UserWarning, match="lines are missing"):
            audit.write("kind", place="lost")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        signal.signal(signal.SIGXFSZ, before)
    audit.write("kind", place="kept")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["kind"], line.get("place")) for line in lines] == [("start", None), ("kind", "kept")]


def test_a_look_that_fails_costs_no_answer_and_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever got no answer would send the batch again, and it would be learned from twice."""
    guard = wildtta.Guard(shadow=0.5, sample=8, memory=16, audit=tmp_path / "audit.jsonl")
    guarded = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01, guard=guard)
    plain = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01)
    stream = batches("gn_resnet", 12, 8)

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr("wildtta.guard.watch.Comparison.of", fails)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for batch in stream[:6]:
            torch.testing.assert_close(guarded(batch), plain(batch), rtol=0, atol=0)
    assert ["could not look at a batch" in str(one.message) for one in told] == [True]
    monkeypatch.undo()
    for batch in stream[6:]:
        torch.testing.assert_close(guarded(batch), plain(batch), rtol=0, atol=0)
    assert guarded.cost.learned == 12
    kinds = [line["kind"] for line in read_audit(tmp_path / "audit.jsonl")]
    assert list(dict.fromkeys(kinds)) == ["start", "failure", "look"]


def test_in_a_trial_nothing_is_learned_where_the_source_cannot_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01, guard=SMALL)
    model.guard.judge.ladder.rung, model.guard.judge.ladder.returns = Rung.TRIAL, 4
    first, second = batches("gn_resnet", 2, 8)
    model(first)
    before, cost = model.online_state(), model.cost

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr("wildtta.guard.watch.Shadow.logits", fails)
    with pytest.raises(torch.OutOfMemoryError):
        model(second)
    assert model.cost == cost
    torch.testing.assert_close(model.online_state(), before, rtol=0, atol=0, equal_nan=True)


def test_segmentation_is_refused() -> None:
    from wildtta.segmentation import adapt_segmentation

    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    with pytest.raises(ValueError, match="segmentation is not watched yet"):
        adapt_segmentation(net, "tent", example=torch.randn(1, 3, 16, 16), guard=wildtta.Guard())


def test_a_plain_module_with_an_odd_input_is_watched_too() -> None:
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    model = wildtta.adapt(net, "tent", guard=SMALL)
    for size in (1, 3, 16, 1, 64):
        model(torch.randn(size, 8))
    assert model.guard.judge.looks >= 1
