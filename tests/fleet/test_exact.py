"""A stream of a fleet learns and answers exactly as an adapter of its own, whatever the others send."""

from __future__ import annotations

import copy

import pytest
import torch

import wildtta
from fleet_streams import METHODS, Beside, mixed_batches, noisy_beside_clean, pool, trained
from wildtta.guard.ladder import Rung
from wildtta.methods.steady.contents import contents
from wildtta.methods.steady.evidence import noise_entropy

pytestmark = pytest.mark.filterwarnings("ignore")


def compare(net: str, method: str, batches: int, folder) -> Beside:
    both = Beside(net, method, active=5, resident=1, folder=folder)
    for images, names in mixed_batches(batches, clear=method == "steady"):
        both.feed(images, names)
    assert both.difference() < 1e-9
    # By its evidence Steady rests more often than the others.
    assert both.total("learned") > batches * (1 / 3 if method == "steady" else 1 / 2)
    return both


@pytest.mark.parametrize(
    ("net", "method"),
    [("resnet_gn", "tent"), ("resnet_gn", "sar"), ("resnet_gn", "sar2-efficient"), ("vit", "eta"), ("vit", "sar2")],
)
def test_every_stream_equals_its_own_adapter(net, method, tmp_path):
    both = compare(net, method, 24 if net == "resnet_gn" else 12, tmp_path)
    assert method != "sar" or both.total("resets") > 0
    assert both.total("left_out") > 0


@pytest.mark.slow
@pytest.mark.parametrize("net", ["resnet_gn", "vit"])
@pytest.mark.parametrize("method", METHODS)
def test_every_stream_equals_its_own_adapter_over_300_batches(net, method, tmp_path):
    compare(net, method, 300, tmp_path)


def test_the_first_fleet_of_a_process_weighs_the_evidence():
    """Nothing may be left for within torch.vmap that another adapter of the process happened to do before."""
    noise_entropy.cache_clear()
    fleet = wildtta.Fleet(copy.deepcopy(trained("resnet_gn")), "steady")
    answers = fleet(torch.zeros(4, 3, 32, 32, dtype=torch.float64), ["a", "b", "a", "b"])
    assert answers.isfinite().all()


def test_steady_rests_and_wakes_stream_by_stream():
    """One stream is noisy and one clean: who learns is each stream's own evidence, and equals its adapter's."""
    both = Beside("resnet_gn", "steady", active=8)
    for images, names in noisy_beside_clean(32):
        both.feed(images, names)
    assert both.difference() < 1e-9
    assert both.adapters["noisy"].cost.learned > 0


def test_with_few_classes_every_stream_is_compared_with_its_own_scrambled_images():
    both = Beside("resnet_gn@10", "steady", active=8)
    for images, names in noisy_beside_clean(60):
        both.feed(images, names)
    assert both.difference() < 1e-9
    for adapter in both.adapters.values():
        assert adapter.cost.forwards == 2 * 480
        assert float(contents(adapter.engine.memory).known) == 1


def test_a_streams_answers_are_the_same_whatever_the_others_send():
    calm, mad = (wildtta.Fleet(copy.deepcopy(trained("resnet_gn")), "sar2", warmup=4) for _ in range(2))
    draw = torch.Generator().manual_seed(0)
    for step in range(6):
        mine = pool(0)[step * 4 : step * 4 + 4]
        alone = calm(mine, ["mine"] * 4)
        worst = torch.randn(6, *mine.shape[1:], generator=draw, dtype=torch.float64) * 1e4
        worst[0], worst[1], worst[2] = float("nan"), float("inf"), 1e300
        order = torch.randperm(10, generator=draw)
        batch = torch.cat((mine, worst))[order]
        names = [["mine"] * 4 + ["mad"] * 3 + ["other"] * 3][0]
        beside = mad(batch, [names[int(place)] for place in order])
        assert (beside[order.argsort()[:4]] - alone).abs().max() < 1e-9
    states = calm["mine"].online_state(), mad["mine"].online_state()
    assert all((states[0][key].double() - states[1][key].double()).abs().nan_to_num().max() < 1e-9 for key in states[0])


@pytest.mark.parametrize("method", ["sar", "sar2-efficient"])
def test_a_stream_with_an_image_that_overflows_learns_whatever_the_others_send(method):
    """Whether the first pass keeps its graph hangs on all streams: certain ones beside it, or unsure ones."""
    found = []
    for others in (pool(1)[:24], 3 * torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()):
        fleet = wildtta.Fleet(copy.deepcopy(trained("vit")), method, **({} if method == "sar" else {"warmup": 2}))
        for step in range(4):
            mine = pool(0)[step * 4 : step * 4 + 4].clone()
            mine[0] *= 1e200
            answers = fleet(torch.cat((mine, others)), ["mine"] * 4 + ["other"] * 24)
            assert answers[:4].isnan().all(1).tolist() == [True, False, False, False]
        found.append(fleet["mine"].online_state())
    assert int(found[0]["memory/learned"]) == int(found[1]["memory/learned"]) > 0
    assert all((found[0][key].double() - found[1][key].double()).abs().nan_to_num().max() < 1e-9 for key in found[0])


def test_a_guarded_stream_equals_its_own_guarded_adapter():
    """Up to the batch that raises the alarm: the source answers it already. One stream learns far too fast, one sleeps."""
    guard = wildtta.Guard(sample=8, memory=32)
    options = {"guard": guard, "lr": 0.5, "batch_size": 8}
    fleet = wildtta.Fleet(copy.deepcopy(trained("resnet_gn")), "tent", **options)
    adapters = {name: wildtta.adapt(copy.deepcopy(trained("resnet_gn")), "tent", **options) for name in "ab"}
    fleet["b"].pause()
    for step in range(12):
        batch = torch.cat((pool(0)[8 * step : 8 * step + 8], pool(1)[8 * step : 8 * step + 8]))
        answers = fleet(batch, ["a"] * 8 + ["b"] * 8)
        with adapters["b"].paused():
            expected = torch.cat((adapters["a"](batch[:8]), adapters["b"](batch[8:])))
        assert (answers - expected).abs().max() < 1e-9
    decisions = fleet["a"].guard.decisions
    assert decisions == adapters["a"].guard.decisions
    assert Rung.SOURCE in {decision.action for decision in decisions}
    assert not fleet["b"].guard.decisions
