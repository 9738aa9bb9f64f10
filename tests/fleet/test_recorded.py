"""Recorded steps of a fleet: what they compute (on any device), and that replaying computes it (on a GPU)."""

from __future__ import annotations

import copy

import pytest
import torch

import wildtta
from fleet_streams import METHODS, Beside, mixed_batches, noisy_beside_clean, pool, trained
from wildtta.fleet.recorded import RecordedSteps
from wildtta.step.graphs import Recording

pytestmark = pytest.mark.filterwarnings("ignore")


class Rerun:
    """In place of a CUDA graph: the work itself, run again at every replay."""

    def __init__(self, work, before):
        self.work, self.before, self.recording = work, before, Recording(self, None)

    def replay(self):
        self.recording.result = self.work(self.before and self.before.recording.result)


@pytest.fixture
def rerun(monkeypatch):
    """Every batch goes the way of recorded steps, which run as they would be recorded, without a graph."""

    def recordings(self, works):
        made = [None]
        for work in works:
            made.append(Rerun(work, made[-1]))
        return [one.recording for one in made[1:]]

    def ready(self, images, records, grouping, resting, scales):
        return all(scale == 1 for scale in scales)

    monkeypatch.setattr(RecordedSteps, "_recordings", recordings)
    monkeypatch.setattr(RecordedSteps, "ready_for", ready)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("net", ["resnet_gn", pytest.param("vit", marks=pytest.mark.slow)])
def test_masks_leave_every_stream_as_its_own_adapter_has_it(rerun, net, method, tmp_path):
    """Counters too, for streams that rest, that wait for their gate, and of which no image is selected."""
    both = Beside(net, method, active=5, resident=1, folder=tmp_path)
    for images, names in mixed_batches(24 if net == "resnet_gn" else 12):
        both.feed(images, names)
        assert both.fleet.replayed
    assert both.difference() < 1e-9
    assert both.total("left_out") > 0
    assert both.total("learned") > 0 or method == "steady"


def test_streams_that_rest_beside_streams_that_learn(rerun):
    both = Beside("resnet_gn", "steady", active=8)
    for images, names in noisy_beside_clean(32):
        both.feed(images, names)
    assert both.difference() < 1e-9
    assert both.adapters["noisy"].cost.learned > 0
    report, own = both.fleet["noisy"].last, both.adapters["noisy"].last
    for name in ("loss", "selected", "gradient_norm", "strength", "learned", "forwards", "computed_backwards"):
        assert float(getattr(report, name)) == pytest.approx(float(getattr(own, name)), rel=1e-9, nan_ok=True), name


def test_a_turn_that_is_not_learned_from_changes_nothing(rerun):
    fleet = wildtta.Fleet(copy.deepcopy(trained("resnet_gn")), "tent")
    fleet(pool(0)[:4], ["a", "a", "b", "b"])
    before = fleet["a"].online_state()
    with fleet.turn(pool(0)[4:8], ["a", "a", "b", "b"]) as turn:
        assert fleet.replayed
        assert len(turn.logits) == 4
    after = fleet["a"].online_state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert fleet["a"].calls == 2


# -- on a GPU ------------------------------------------------------------------------------------------------------------


def on_gpu(test):
    without = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(without(test))


def gpu_fleets(net: str, method: str, dtype: torch.dtype = torch.float64, **options):
    options = {**METHODS[method], **options}
    network = trained(net, dtype)
    made = []
    for graphs in (False, True):
        fleet = wildtta.Fleet(copy.deepcopy(network).cuda(), method.split()[0], precision="fp32", active=8, **options)
        fleet.cuda_graphs = graphs
        made.append(fleet)
    return made


@on_gpu
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("net", ["resnet_gn", "vit"])
@pytest.mark.parametrize("streams", [8, 3], ids=["all active streams", "some"])
def test_replayed_steps_equal_eager_ones(net, method, streams):
    eager, replaying = gpu_fleets(net, method)
    everyone = [f"s{number}" for number in range(8)]
    draw = torch.Generator().manual_seed(0)
    replayed = 0
    for step in range(24):
        order = torch.randperm(8, generator=draw)[:streams].tolist() if step else list(range(8))
        names = [everyone[stream] for stream in order for _ in range(2)]
        images = torch.cat([pool(stream)[2 * step : 2 * step + 2] for stream in order])
        if step == 9:
            images[1, 0, 3, 3] = torch.nan
        answers = [fleet(images.cuda(), names) for fleet in (eager, replaying)]
        assert torch.equal(answers[0].isnan(), answers[1].isnan())
        assert (answers[0] - answers[1]).abs().nan_to_num().max() < 1e-7
        replayed += replaying.replayed
        assert not eager.replayed
    assert replayed >= 20
    for name in everyone:
        states = [fleet[name].online_state() for fleet in (eager, replaying)]
        for key, value in states[0].items():
            assert (value.double() - states[1][key].double()).abs().nan_to_num().max() < 1e-7, (name, key)


@on_gpu
def test_choosing_a_precision_times_steps_and_changes_nothing():
    network = trained("resnet_gn", torch.float32).cuda()
    fleet = wildtta.Fleet(copy.deepcopy(network), "sar2", precision="auto", warmup=8)
    batches = [torch.cat([pool(stream)[2 * step : 2 * step + 2] for stream in range(4)]).float().cuda() for step in range(6)]
    names = [f"s{stream}" for stream in range(4) for _ in range(2)]
    answers = [fleet(batch, names) for batch in batches]
    chosen = fleet._engine.precision
    assert chosen in ("tf32", "bf16")
    twin = wildtta.Fleet(copy.deepcopy(network), "sar2", precision=chosen, warmup=8)
    expected = [twin(batch, names) for batch in batches]
    assert (torch.stack(answers) - torch.stack(expected)).abs().max() < 5e-2 * torch.stack(expected).abs().max()
    assert fleet.replayed
    for name in set(names):
        states = [one[name].online_state() for one in (fleet, twin)]
        counters = [key for key, value in states[0].items() if not value.is_floating_point()]
        assert all(torch.equal(states[0][key], states[1][key]) for key in counters if "bank" not in key)
