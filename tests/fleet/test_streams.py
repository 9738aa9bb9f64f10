"""The life of streams: made on first sight, listed, watched, paused, reset, saved, loaded, dropped; one at a time."""

from __future__ import annotations

import copy
import shutil
import threading
import warnings

import pytest
import torch

import wildtta
from fleet_streams import pool, trained
from wildtta.fleet.norm_weights import NormWeights
from wildtta.guard.audit import read_audit
from wildtta.guard.ladder import Rung
from wildtta.guard.shadow import Shadow
from wildtta.step.learnables import Learnables


def fleet_of(method: str = "tent", **options) -> wildtta.Fleet:
    return wildtta.Fleet(copy.deepcopy(trained("resnet_gn", torch.float32)), method, **options)


def images(stream: int, number: int, start: int = 0) -> torch.Tensor:
    return pool(stream, torch.float32)[start : start + number]


def test_streams_are_made_on_first_sight_and_watched():
    fleet = fleet_of("sar2", warmup=2)
    fleet(torch.cat((images(0, 3), images(1, 5))), ["a"] * 3 + ["b"] * 5)
    assert fleet.streams == ["a", "b"]
    assert "a" in fleet
    assert "c" not in fleet
    last = fleet["b"].last
    assert int(last.seen) == 5
    assert last.entropies.shape == (5,)
    assert int(last.forwards) == 10
    assert bool(last.learned)
    assert float(last.distance) == pytest.approx(fleet["b"].distance)
    assert float(last.redundancy) > 0
    assert fleet["a"].top_share >= 1 / 3
    assert fleet["c"].last is None
    assert "c" in fleet


def test_a_stream_that_is_made_in_inference_mode_learns_outside_of_it():
    fleet, twin = fleet_of(), fleet_of()
    with torch.inference_mode():
        stream = fleet["a"]
    torch.testing.assert_close(fleet(images(0, 4), ["a"] * 4), twin(images(0, 4), ["a"] * 4))
    with torch.inference_mode():
        assert int(stream.last.seen) == 4
    assert stream.distance > 0


def test_what_an_interrupted_pass_left_on_the_network_is_taken_back():
    fleet, twin = fleet_of(), fleet_of()
    seen = []
    head = fleet._engine.network.head
    block = fleet._engine.changes.hook(head, lambda *_: seen.append(1), before=False)
    block.__enter__()  # its end never comes
    torch.testing.assert_close(fleet(images(0, 4), ["a"] * 4), twin(images(0, 4), ["a"] * 4))
    assert not seen


def test_a_check_of_the_network_whose_end_is_interrupted_leaves_it_whole(monkeypatch):
    fleet = fleet_of()
    network = fleet._engine.network.module
    source = copy.deepcopy(network.state_dict())
    assign, backs = Learnables.assign, []

    def interrupted(learnables: Learnables, values: torch.Tensor) -> None:
        if not backs and torch.equal(values, fleet._engine.source):
            backs.append(values)
            raise KeyboardInterrupt
        assign(learnables, values)

    monkeypatch.setattr(Learnables, "assign", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fleet(images(0, 4), ["a"] * 4)
    fleet["a"].pause()
    assert all(torch.equal(value, source[name]) for name, value in network.state_dict().items())
    assert fleet._engine.precision is None


def test_weights_that_an_interrupted_pass_left_in_force_reach_no_other(monkeypatch):
    fleet = fleet_of(lr=0.1)
    for _ in range(3):
        fleet(images(0, 4), ["a"] * 4)
    network = fleet._engine.network.module
    expected = network(images(1, 4))
    end, left = NormWeights.__exit__, []

    def interrupted(weights: NormWeights, *given: object) -> None:
        if not left:
            left.append(weights)
            raise KeyboardInterrupt
        end(weights, *given)

    monkeypatch.setattr(NormWeights, "__exit__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fleet(images(0, 4), ["a"] * 4)
    try:
        torch.testing.assert_close(network(images(1, 4)), expected, rtol=0, atol=0)
    finally:
        end(left[0], None, None, None)


def test_a_paused_stream_answers_and_does_not_move():
    fleet = fleet_of()
    batch = torch.cat((images(0, 4), images(1, 4)))
    names = ["a"] * 4 + ["b"] * 4
    fleet(batch, names)
    fleet["a"].pause()
    before = fleet["a"].online_state()
    first, second = fleet(batch, names), fleet(batch, names)
    assert torch.equal(first[:4], second[:4])
    assert not torch.equal(first[4:], second[4:])
    after = fleet["a"].online_state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    fleet["a"].resume()
    fleet(batch, names)
    assert fleet["a"].distance > 0


def test_reset_and_drop_begin_a_stream_anew():
    fleet = fleet_of()
    fresh = fleet(images(0, 4), ["a"] * 4)
    fleet["a"].reset()
    assert fleet["a"].distance == 0
    assert torch.equal(fleet(images(0, 4), ["a"] * 4), fresh)
    fleet["a"].drop()
    assert "a" not in fleet
    assert torch.equal(fleet(images(0, 4), ["a"] * 4), fresh)


def test_states_go_from_fleet_to_adapter_and_back(tmp_path):
    fleet, other = fleet_of("sar2", warmup=2), fleet_of("sar2", warmup=2)
    adapter = wildtta.adapt(copy.deepcopy(trained("resnet_gn", torch.float32)), "sar2", warmup=2)
    for step in range(3):
        fleet(images(0, 4, 4 * step), ["a"] * 4)
    fleet["a"].save(tmp_path / "a.safetensors")
    adapter.load(tmp_path / "a.safetensors")
    adapter.save(tmp_path / "b.safetensors")
    other["z"].load(tmp_path / "b.safetensors")
    mine, theirs = fleet(images(0, 4, 50), ["a"] * 4), other(images(0, 4, 50), ["z"] * 4)
    assert torch.equal(mine, theirs)
    assert torch.allclose(adapter(images(0, 4, 50)), mine, atol=1e-4)


def test_answers_come_before_learning_and_learning_may_be_left_out():
    fleet, plain = fleet_of(), fleet_of()
    with fleet.turn(images(0, 4), ["a"] * 4) as turn:
        assert torch.equal(turn.logits, plain(images(0, 4), ["a"] * 4))
    assert fleet["a"].distance == 0  # left without learning
    with fleet.turn(images(0, 4), ["a"] * 4, learn=[True, True, True, False]) as turn:
        turn.learn()
    assert fleet["a"].distance == 0  # one image did not allow it
    with fleet.turn(images(0, 4), ["a"] * 4) as turn:
        turn.learn()
        with pytest.raises(RuntimeError, match="learned from once"):
            turn.learn()
    assert fleet["a"].distance > 0
    assert fleet["a"].calls == 3


def test_wrong_calls_say_what_was_expected(tmp_path):
    fleet = fleet_of(active=2)
    with pytest.raises(ValueError, match="one stream name for each of the 3 images, got 2"):
        fleet(images(0, 3), ["a", "b"])
    with pytest.raises(ValueError, match="3 streams, and the fleet keeps 2"):
        fleet(images(0, 3), ["a", "b", "c"])
    for odd in ("", 5, None, "\ud800"):
        with pytest.raises(TypeError, match="must be a text"):
            fleet(images(0, 1), [odd])
        with pytest.raises(TypeError, match="must be a text"):
            fleet[odd]
        assert odd not in fleet
    with pytest.raises(TypeError, match=r"expected a list .* got the text 'ab'"):
        fleet(images(0, 2), "ab")
    assert fleet.streams == []
    with pytest.raises(ValueError, match="active must be a number of streams"):
        fleet_of(active=0)
    with pytest.raises(RuntimeError, match="no folder"):
        fleet.save()
    network = copy.deepcopy(trained("resnet_gn", torch.float32))
    with pytest.raises(TypeError, match="guard must be a wildtta"):
        wildtta.Fleet(network, guard=True)
    wildtta.adapt(network).unload()  # it was not left held
    (tmp_path / "file").touch()
    for option in ({"folder": tmp_path / "file"}, {"guard": wildtta.Guard(audit=tmp_path / "file")}):
        with pytest.raises(OSError, match="file"):
            wildtta.Fleet(network, **option)
        assert all(parameter.requires_grad for parameter in network.parameters())
        wildtta.adapt(network).unload()
    with pytest.raises(RuntimeError, match="no guard"):
        fleet["a"].rollback()


def test_the_network_is_left_as_it_was():
    network = copy.deepcopy(trained("resnet_gn", torch.float32)).train()
    before = copy.deepcopy(network.state_dict())
    fleet = wildtta.Fleet(network, "tent")
    with pytest.raises(ValueError, match="held by another adapter"):
        wildtta.adapt(network)
    fleet(images(0, 4), ["a"] * 4)
    assert fleet.close() is network
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with pytest.raises(RuntimeError, match="was closed"):
        fleet(images(0, 4), ["a"] * 4)


def test_threads_take_turns():
    """Four threads, each with a stream of its own: every stream ends as if it had been alone."""
    fleet, alone = fleet_of(), fleet_of()
    failures: list[Exception] = []

    def work(stream: int) -> None:
        try:
            for step in range(10):
                fleet(images(stream, 2, 2 * step), [f"s{stream}"] * 2)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for stream in range(4):
        for step in range(10):
            alone(images(stream, 2, 2 * step), [f"s{stream}"] * 2)
        mine, theirs = fleet[f"s{stream}"].online_state(), alone[f"s{stream}"].online_state()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_every_stream_has_a_guard_of_its_own(tmp_path):
    """One stream is taught nonsense at a high rate, the other is left alone: only the first one's guard acts."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    guard = wildtta.Guard(shadow=1.0, sample=16, memory=32, audit=tmp_path / "audit", registry=registry)
    fleet = fleet_of("tent", guard=guard, lr=0.2)
    flood = images(1, 1).expand(16, -1, -1, -1)
    fleet["calm"].pause()
    for step in range(60):
        noise = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(step))
        fleet(torch.cat((images(0, 16, 2 * step), flood + 0.5 * noise)), ["calm"] * 16 + ["flooded"] * 16)
    assert fleet["flooded"].guard.decisions
    assert not fleet["calm"].guard.decisions
    assert fleet["flooded"].last.disagreement >= 0
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {"calm.jsonl", "flooded.jsonl"}
    assert b'wildtta_guard_looks_total{model="flooded"}' in generate_latest(registry)


def test_the_source_answers_for_a_stream_whose_guard_went_back_to_it():
    fleet = fleet_of("tent", guard=wildtta.Guard(), lr=0.05)
    source = trained("resnet_gn", torch.float32).eval()
    for step in range(3):
        fleet(torch.cat((images(0, 4, 4 * step), images(1, 4, 4 * step))), ["a"] * 4 + ["b"] * 4)
    fleet["a"].guard.judge.ladder.rung = Rung.SOURCE
    batch = torch.cat((images(0, 4, 40), images(1, 4, 40)))
    answers = fleet(batch, ["a"] * 4 + ["b"] * 4)
    with torch.no_grad():
        bare = source(batch)
    assert torch.allclose(answers[:4], bare[:4], atol=1e-4)
    assert not torch.allclose(answers[4:], bare[4:], atol=1e-2)


def test_audits_of_streams_whose_names_begin_alike_are_apart(tmp_path):
    """A letter of Japanese takes nine signs in a file's name: long names come soon."""
    fleet = fleet_of("tent", guard=wildtta.Guard(sample=8, memory=8, audit=tmp_path))
    places = ["東京都千代田区丸の内一丁目東京駅前交差点カメラ1", "東京都千代田区丸の内一丁目東京駅前交差点カメラ2"]
    fleet(images(0, 2), places)
    starts = [read_audit(path)[0] for path in tmp_path.iterdir()]
    assert sorted(start["guard"]["name"] for start in starts) == places


def test_a_stream_without_a_place_for_its_audit_is_answered(tmp_path):
    fleet = fleet_of("tent", guard=wildtta.Guard(audit=tmp_path / "audit"))
    fleet(images(0, 2), ["old"] * 2)
    shutil.rmtree(tmp_path / "audit")
    (tmp_path / "audit").touch()
    with pytest.warns(UserWarning, match="'new' goes on without its audit"):
        answers = fleet(images(0, 4), ["old", "old", "new", "new"])
    assert answers.isfinite().all()
    assert fleet["new"].guard is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fleet(images(0, 4), ["old", "old", "new", "new"])
    assert fleet["new"].calls == 2


def test_a_guard_that_cannot_look_costs_no_stream_its_answer(monkeypatch):
    guarded, plain = fleet_of("tent", guard=wildtta.Guard(sample=8, memory=8)), fleet_of("tent")

    def short_of_memory(*_):
        raise torch.OutOfMemoryError("no memory for a look")

    monkeypatch.setattr(Shadow, "logits", short_of_memory)
    batch, names = images(0, 8), ["a"] * 4 + ["b"] * 4
    with pytest.warns(UserWarning, match="could not look at a batch"):
        answers = [guarded(batch, names) for _ in range(3)]
    assert all(torch.equal(answer, plain(batch, names)) for answer in answers)
