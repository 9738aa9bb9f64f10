"""Replicas: several processes learn as one adapter on the joint batch does, and a lost one is noticed.

The processes are real, connected by gloo. What they must equal is an adapter without replicas, in this process.
"""

from __future__ import annotations

import contextlib
import copy
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import wildtta
from replica_processes import (
    TOTALS,
    VARIANTS,
    Case,
    FailsOnce,
    Found,
    be_killed_any_time,
    come_late,
    everything,
    fail_alone,
    follow,
    follow_alone,
    follow_cases,
    follow_in_a_part_of_the_world,
    follow_two_inputs,
    follow_whole_network,
    lose_one,
    run_replicas,
    soak_options,
    soak_stream,
    stream_with_gaps,
    variant_options,
)
from toy_networks import batches, build, same_bits
from wildtta.glyphs import network

NEAR = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
CASES: dict[str, Case] = {
    "sar": ("resnet_gn", "sar", {"lr": 0.005, "recovery": 1.45}, 100, 3),
    "sar2": ("resnet_gn", "sar2", {"lr": 5e-4, "warmup": 20, "recovery": 1.45}, 100, 3),
    "steady": ("resnet_gn", "steady", {}, 100, 3),
}
MORE_CASES: dict[str, Case] = {
    "sar": ("resnet_gn", "sar", {"lr": 0.005, "recovery": 1.45}, 100, 8),
    "sar2": ("resnet_gn", "sar2", {"lr": 0.002, "warmup": 20, "recovery": 1.45}, 100, 8),
    "steady": ("resnet_gn", "steady", {}, 100, 8),
    "steady with recovery": ("resnet_gn", "steady", {"recovery": 1.4}, 100, 8),
    "sar2-efficient": ("resnet_gn", "sar2-efficient", {"lr": 0.005, "warmup": 20, "recovery": 1.45}, 100, 8),
    "eta": ("resnet_gn", "eta", {"lr": 0.005, "redundant": 0.5, "recovery": 1.3}, 100, 8),
    "tent": ("resnet_gn", "tent", {"lr": 0.005}, 100, 8),
    "steady on a ViT": ("vit", "steady", {}, 100, 8),
    "sar2 on a ViT": ("vit", "sar2", {"lr": 0.002, "warmup": 20, "recovery": 1.4}, 100, 8),
}
# A recovery is part of these cases only if it happens in them.
RECOVERS = {name for name, case in {**CASES, **MORE_CASES}.items() if "recovery" in case[2]}
REFUSED = {
    *("bn-adapt", "cotta", "rotta", "memo", "deyo", "roid", "cmf", "ttt", "dda"),  # images, or BatchNorm alone
    *("foa", "eata", "poem", "recap", "spa"),  # source images
}


def near(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found.double(), expected.double(), **NEAR)


def farthest(found: Tensor, expected: Tensor) -> float:
    """The largest difference, where values are above 1 relative to them."""
    away = (found.double() - expected.double()).abs() / expected.double().abs().clamp(min=1)
    return float(away.nan_to_num(0.0).max()) if away.numel() else 0.0


def check(found: list[Found], alone: Found, what: str) -> None:
    """Parts put together are the joint answers; totals and states are those of the one adapter, on every replica."""
    for name in ("answers", "entropies", "masks"):
        for step, expected in enumerate(alone[name]):
            joint = torch.cat([one[name][step] for one in found])
            assert near(joint, expected), f"{what}: {name} of batch {step}"
    for one in found:
        for step, expected in enumerate(alone["totals"]):
            assert near(one["totals"][step], expected), f"{what}: totals of batch {step}"
            assert near(one["strengths"][step], alone["strengths"][step]), f"{what}: strength at batch {step}"
        assert one["learning_rate"] == alone["learning_rate"]
        assert set(one["state"]) == set(alone["state"])
        odd = [name for name, value in alone["state"].items() if not near(one["state"][name], value)]
        assert odd == [], what
        assert same_bits(one["state"], found[0]["state"]) == [], f"{what}: replicas differ"


def check_cases(found: list[Found], cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        alone = follow_alone(case)
        check([one[name] for one in found], alone, name)
        answers = max(
            farthest(torch.cat([one[name]["answers"][step] for one in found]), expected)
            for step, expected in enumerate(alone["answers"])
        )
        state = max(farthest(found[0][name]["state"][key], value) for key, value in alone["state"].items())
        print(f"{len(found)} replicas, {name}: answers within {answers:.0e}, state within {state:.0e}")
        totals = dict(zip(TOTALS, torch.stack(alone["totals"]).T, strict=True))
        assert totals["learned"].sum() > case[3] / 2, f"{name} hardly learned, so that little was tested"
        assert (float(totals["resets"][-1]) > 0) == (name in RECOVERS), name
        if case[1] == "steady":
            assert float(alone["strengths"][-1]) > 0
        if case[1] != "tent":
            assert 0 < totals["selected"].mean() < 0.9 * case[4]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    """What two replicas found."""
    folder = tmp_path_factory.mktemp("two")
    found = run_replicas(2, everything, folder, str(folder), CASES, [*wildtta.methods(), *VARIANTS])
    assert [one["exitcode"] for one in found] == [0, 0]
    return found


def test_two_replicas_learn_as_one_adapter_over_100_batches(two: list[Found]) -> None:
    check_cases([one["cases"] for one in two], CASES)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_replicas_learn_as_one_adapter_over_100_batches(number: int, tmp_path: Path) -> None:
    found = run_replicas(number, follow_cases, tmp_path, number, MORE_CASES, limit=3000)
    assert [one["exitcode"] for one in found] == [0] * number
    check_cases(found, MORE_CASES)


def test_every_method_learns_as_one_adapter_or_is_refused(two: list[Found]) -> None:
    ran = set()
    for name in (*wildtta.methods(), *VARIANTS):
        found = [one["methods"][name] for one in two]
        if isinstance(found[0], str):
            assert found[0] == found[1]
            assert f"{name} on" in found[0] or "BatchNorm" in found[0]
            continue
        ran.add(name)
        method, options = variant_options(name)
        adapter = wildtta.adapt(build("ln_vit", dtype=torch.float64), method, **options)
        check(found, follow(adapter, batches("ln_vit", 6, 8, dtype=torch.float64)), name)
    assert {*wildtta.methods(), *VARIANTS} - ran == REFUSED


def test_pausing_saving_loading_and_resetting(two: list[Found]) -> None:
    one, other = (found["life"] for found in two)
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar", lr=0.01)
    stream = batches("ln_mlp", 6, 8, dtype=torch.float64)
    for batch in stream[:3]:
        adapter(batch)
    with adapter.paused():
        assert near(one["paused"], adapter(stream[3][:3]))
    for batch in stream[3:]:
        adapter(batch)
    for found in (one, other):
        assert found["pause_changed_nothing"]
        assert all(near(found["state"][name], value) for name, value in adapter.online_state().items())
        assert same_bits(found["resumed"], found["state"]) == []
        assert found["calls_after_reset"] == 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("empty", "ValueError: expected at least one sample among all replicas"),
        ("reset_of_one", "RuntimeError: replica 1 is in another state than replica 0"),
        ("other_weights", "ValueError: replica 1 has another network, method or setting"),
        ("other_options", "ValueError: replica 1 has another network, method or setting"),
    ],
)
def test_what_does_not_fit_is_refused_by_all(two: list[Found], what: str, words: str) -> None:
    for found in two:
        assert found["life"][what].startswith(words)


def test_several_inputs_and_answers_that_are_objects(two: list[Found]) -> None:
    parts = [found["life"]["inputs"] for found in two]
    for one, other, alone in zip(*parts, follow_two_inputs(None), strict=True):
        assert near(torch.cat([one["logits"], other["logits"]]), alone["logits"])
        assert near(torch.cat([one["sum"], other["sum"]]), alone["sum"].nan_to_num(0.0))


def test_a_head_that_learns_gets_its_gradient_once(two: list[Found]) -> None:
    alone = follow_whole_network(None)
    start = dict(build("ln_mlp", dtype=torch.float64).named_parameters())
    moved = [name for name, value in start.items() if not near(alone[f"parameters/{name}"], value)]
    assert len(moved) == len(start)
    for found in two:
        assert all(near(found["life"]["whole"][name], value) for name, value in alone.items())


@pytest.mark.slow
def test_a_group_may_be_a_part_of_all_processes(tmp_path: Path) -> None:
    found = run_replicas(3, follow_in_a_part_of_the_world, tmp_path)
    assert [one["replicas"] for one in found] == [[0, 1], [], [0, 1]]
    for rank, one in enumerate(found):
        alone = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "tent", lr=0.01)
        for batch in batches("ln_mlp", 4, 8, seed=rank % 2, dtype=torch.float64):
            alone(batch)
        assert all(near(one["state"][name], value) for name, value in alone.online_state().items())


# -- losses ------------------------------------------------------------------------------------------------------------------

SAR2: dict[str, Any] = {"lr": 0.002, "warmup": 5}


def test_when_a_replica_is_killed_the_rest_stops_with_the_state_from_before(tmp_path: Path) -> None:
    found = run_replicas(3, lose_one, tmp_path, "stop", 20.0, "sar2", SAR2, 4)
    assert [one["exitcode"] for one in found] == [0, -9, 0]
    alone = wildtta.adapt(network("resnet_gn").double(), "sar2", **SAR2)
    for batch in stream_with_gaps(12, 6)[:4]:
        alone(batch)
    for one in (found[0], found[2]):
        assert one["lost_at"] == 4
        assert one["noticed_after"] < 20
        assert one["as_before"]
        assert "a replica of this adapter was lost" in one["said"]
        assert "when_lost='stop'" in one["said_again"]
        assert one["paused"].shape == (6, 200)
        assert all(near(one["state"][name], value) for name, value in alone.online_state().items())


def test_when_a_replica_is_killed_the_rest_goes_on_as_one_adapter_without_it(tmp_path: Path) -> None:
    found = run_replicas(3, lose_one, tmp_path, "continue", 8.0, "sar2", SAR2, 4)
    assert [one["exitcode"] for one in found] == [0, -9, 0]
    alone = wildtta.adapt(network("resnet_gn").double(), "sar2", **SAR2)
    for step, batch in enumerate(stream_with_gaps(12, 6)):
        answer = alone(batch if step < 4 else torch.cat([batch[:2], batch[4:]]))
        parts = answer.split(2)
        for one, expected in zip((found[0], found[2]), (parts[0], parts[-1]), strict=True):
            assert near(one["answers"][step], expected)
    for one in (found[0], found[2]):
        assert one["replicas"] == [0, 2]
        assert len(one["warned"]) == 1
        assert one["warned"][0].startswith("replicas lost (by rank): 1; 2 go on")
        assert all(near(one["state"][name], value) for name, value in alone.online_state().items())
    assert same_bits(found[0]["state"], found[2]["state"]) == []


def test_a_replica_that_fails_alone_comes_back_and_takes_over_what_the_others_learned(tmp_path: Path) -> None:
    found = run_replicas(2, fail_alone, tmp_path)
    assert [one["failed"] for one in found] == [0, 1]
    alone = wildtta.adapt(network("resnet_gn").double(), FailsOnce(lr=0.01))
    for step, batch in enumerate(stream_with_gaps(6, 4)):
        assert near(torch.cat([one["answers"][step] for one in found]), alone(batch))
    for one in found:
        assert all(near(one["state"][name], value) for name, value in alone.online_state().items())
    assert same_bits(found[0]["state"], found[1]["state"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_replicas_that_are_killed_at_any_time_leave_one_adapter_behind(seed: int, tmp_path: Path) -> None:
    """What the survivors report to have seen tells which step was the first without whom."""
    moments = np.random.default_rng(seed).uniform(0.0, 1.0, 2)
    doomed = {1: float(moments[0]), 2 + seed % 2: float(moments[1])}
    found = run_replicas(4, be_killed_any_time, tmp_path, doomed)
    living = [rank for rank in range(4) if rank not in doomed]
    assert [one["exitcode"] for one in found] == [0 if rank in living else -9 for rank in range(4)]
    lost = sorted(doomed, key=lambda rank: doomed[rank])
    alone = wildtta.adapt(build("ln_vit", dtype=torch.float64), "sar2", **soak_options())
    sizes = set()
    for step, batch in enumerate(soak_stream()):
        # (One that was a step behind reports its own two.)
        seen = max(found[rank]["seen"][step] for rank in living)
        sizes.add(seen)
        members = [rank for rank in range(4) if rank not in lost[: (8 - seen) // 2]]
        answer = alone(torch.cat([batch[2 * rank :][:2] for rank in members])).split(2)
        for rank in living:
            assert near(found[rank]["answers"][step], answer[members.index(rank)]), f"batch {step}"
    assert {8, 4} <= sizes
    for rank in living:
        assert found[rank]["replicas"] == living
        assert all(near(found[rank]["state"][name], value) for name, value in alone.online_state().items())
        assert same_bits(found[rank]["state"], found[living[0]]["state"]) == []


@pytest.mark.slow
def test_where_the_store_dies_with_its_process_the_rest_stops_and_says_so(tmp_path: Path) -> None:
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    found = run_replicas(3, lose_one, tmp_path, "continue", 4.0, "sar2", SAR2, 4, 0, meeting=address)
    assert [one["exitcode"] for one in found] == [-9, 0, 0]
    for one in found[1:]:
        assert one["as_before"]
        assert "the others cannot meet without it" in one["said"]
    found = run_replicas(3, lose_one, tmp_path / "another", "continue", 4.0, "sar2", SAR2, 4, 2, meeting=address)
    assert [one["exitcode"] for one in found] == [0, 0, -9]
    assert [one["replicas"] for one in found[:2]] == [[0, 1]] * 2


@pytest.mark.slow
def test_a_replica_that_does_not_come_is_lost_after_the_timeout(tmp_path: Path) -> None:
    silence = 20.0
    stopped, _ = run_replicas(2, come_late, tmp_path / "stop", "stop", 3.0, silence)
    assert 2.9 < stopped["seconds"] < silence
    assert "did not come within 3 s" in stopped["said"]
    went_on, late = run_replicas(2, come_late, tmp_path / "continue", "continue", 3.0, silence)
    assert "said" not in went_on
    assert went_on["replicas"] == [0]
    assert went_on["seconds"] < silence
    assert "came too late and was counted as lost" in late["said"]


# -- what is refused at once ---------------------------------------------------------------------------------------------------


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_group_of_one_learns_as_an_adapter_does() -> None:
    alone = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar2", warmup=2, lr=0.01)
    group = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar2", warmup=2, lr=0.01, group=dist.group.WORLD)
    for batch in batches("ln_mlp", 4, 8, dtype=torch.float64):
        assert near(group(batch), alone(batch))
    assert same_bits(group.online_state(), alone.online_state()) == []
    assert group.replicas == [0]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"guard": wildtta.Guard()}, "each replica has its own alone"),
        ({"precision": "auto"}, "replicas must compute alike"),
    ],
)
def test_settings_that_replicas_cannot_share_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wildtta.adapt(build("ln_mlp"), "tent", group=True, **settings)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("method", ["steady", "sar", "tent"])
def test_networks_that_mix_samples_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} on SmallResNet cannot be spread over replicas.*BatchNorm"):
        wildtta.adapt(build("bn_resnet"), method, group=True)


@pytest.mark.usefixtures("one_rank")
def test_copies_and_senders_are_refused() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", group=True)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(adapter)
    with pytest.raises(RuntimeError, match="senders are not counted over replicas"), adapter.senders(["a"]):
        pass


def test_a_group_must_be_there() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        wildtta.adapt(build("ln_mlp"), "tent", group=True)
    with pytest.raises(RuntimeError, match="no replicas"):
        _ = wildtta.adapt(build("ln_mlp"), "tent").replicas


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "seconds above 0"),
        ({"timeout": math.inf}, "seconds above 0"),
        ({"when_lost": "wait"}, "'stop' or 'continue'"),
        ({"group": "world"}, "process group of torch.distributed"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        wildtta.Replicas(**options)
    if "group" in options:
        with pytest.raises(TypeError, match="got 'world'"):
            wildtta.adapt(build("ln_mlp"), "tent", group="world")
