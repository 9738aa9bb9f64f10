"""Steady's step: its class cap, source pull and gradient bound; without evidence it does what version 0.1 did."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import CLASSES, batches, build, images, snapshot
from wildtta.methods.steady.method import above_chance, capped_weights, followed_shares


def _run(method: str, kind: str = "ln_mlp", *, size: int = 16, number: int = 1, **options: Any) -> wildtta.Adapter:
    if method == "steady":
        options = {"evidence": False, **options}
    adapter = wildtta.adapt(build(kind, dtype=torch.float64), method, lr=0.02, **options)
    for batch in batches(kind, number, size, dtype=torch.float64):
        adapter(batch)
    return adapter


# -- the classes' shares and weights -------------------------------------------------------------------------------------


def test_shares_follow_predictions_with_the_stated_window() -> None:
    shares = torch.full((200,), 1 / 200, dtype=torch.float64)
    for _ in range(20):
        shares = followed_shares(shares, torch.full((50,), 7))
    # 1000 samples of one class, a window of 5 x 200: what was there before is left by a factor of 1/e.
    assert shares[7] == pytest.approx(1 - math.exp(-1) * (1 - 1 / 200), rel=1e-12)
    assert shares[8] == pytest.approx(math.exp(-1) / 200, rel=1e-12)
    assert shares.sum() == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("size", [1, 4, 64])
def test_shares_hardly_depend_on_how_samples_are_cut_into_batches(size: int) -> None:
    labels = torch.arange(1024) % 10
    shares = torch.full((100,), 0.01, dtype=torch.float64)
    for part in labels.split(size):
        shares = followed_shares(shares, part)
    expected = math.exp(-1.024) / 100 + (1 - math.exp(-1.024)) / 10
    assert torch.allclose(shares[:10], torch.full((10,), expected, dtype=torch.float64), rtol=0.02)


@pytest.mark.parametrize(("classes", "cap"), [(1000, 0.01), (200, 0.05), (20, 0.3), (4, 0.3)])
def test_one_class_never_weighs_more_than_its_cap(classes: int, cap: float) -> None:
    for share in (0.001, 0.01, 0.05, 0.3, 0.5, 0.98):
        shares = torch.full((classes,), (1 - share) / (classes - 1), dtype=torch.float64)
        shares[2] = share
        weight = capped_weights(shares, torch.tensor([2]), 10.0).item()
        assert weight == pytest.approx(min(1.0, cap / share))
        assert weight * share <= cap + 1e-12 or weight == 1.0


# -- in a step -----------------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"evidence": False, "bank": False, "redundancy": None, "inequity": None}
PLAIN |= {"gradient_bound": None, "source_pull": None}
"""Steady reduced to the entropy of reliable samples."""


def test_the_cap_scales_the_entropy_gradient_and_not_what_recovery_watches() -> None:
    kind, batch = "ln_mlp", images("ln_mlp", 16, dtype=torch.float64)
    gradients, averages = [], []
    for share in (None, 0.6):
        options = {**PLAIN, "reliable": None, "recovery": 1e-6, "class_cap": 1.0}
        adapter = wildtta.adapt(build(kind, dtype=torch.float64), "steady", lr=0.02, lr_scale=1.0, **options)
        cap = min(0.3, 1 / CLASSES)
        adapter.engine.memory["class_shares"].fill_(cap if share is None else share)
        before = snapshot(adapter.network)
        adapter(batch)
        after = snapshot(adapter.network)
        gradients.append(torch.cat([(after[name] - before[name]).flatten() for name in after]))
        averages.append(float(adapter.last.e_m))
    assert gradients[0].norm() > 1e-6
    assert torch.allclose(gradients[1], gradients[0] * (cap / 0.6), rtol=1e-9, atol=1e-14)
    assert averages[0] == pytest.approx(averages[1], rel=1e-12)


def test_shares_survive_saving_and_start_again_with_a_reset(tmp_path: Any) -> None:
    adapter = _run("steady", number=3)
    shares = adapter.online_state()["memory/class_shares"].clone()
    assert shares.std() > 0
    adapter.save(tmp_path / "state.safetensors")
    other = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady", lr=0.02, evidence=False)
    other.load(tmp_path / "state.safetensors")
    assert torch.equal(other.online_state()["memory/class_shares"], shares)
    other.reset()
    assert torch.allclose(other.online_state()["memory/class_shares"], torch.full_like(shares, 1 / CLASSES))


def test_a_stream_that_feeds_a_collapse_moves_less_with_the_cap() -> None:
    """The same batch again and again: entropy falls, and one class takes more and more of it."""

    def largest_share(cap: float | None) -> float:
        options = {**PLAIN, "reliable": None, "recovery": None, "class_cap": cap, "momentum": 0.9, "parameters": "norms"}
        adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady", lr=0.05, lr_scale=1.0, **options)
        batch = images("ln_mlp", 64, dtype=torch.float64)
        for _ in range(150):
            logits = adapter(batch)
        return float(logits.argmax(1).bincount(minlength=CLASSES).max()) / len(batch)

    assert largest_share(1.0) < largest_share(None)


# -- the pull to the source ----------------------------------------------------------------------------------------------


def _learned(adapter: wildtta.Adapter) -> Tensor:
    parameters = dict(adapter.network.named_parameters())
    return torch.cat([parameters[name].detach().flatten() for name in adapter.learned_parameters])


@pytest.mark.parametrize(("size", "kept"), [(64, 0.9), (16, 0.9**0.25)])
def test_one_step_goes_back_by_the_stated_share(size: int, kept: float) -> None:
    source = _learned(wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady"))
    free = _learned(_run("steady", size=size, warmup=1, source_pull=None))
    pulled = _learned(_run("steady", size=size, warmup=1, source_pull=0.1))
    assert (free - source).abs().max() > 1e-6
    assert torch.allclose(pulled, kept * free + (1 - kept) * source, rtol=0, atol=1e-14)


def test_roids_weight_ensembling_is_the_same_in_every_step() -> None:
    source = _learned(wildtta.adapt(build("ln_mlp", dtype=torch.float64), "roid"))
    free = _learned(_run("roid", ensembling=None, consistency=False))
    held = _learned(_run("roid", ensembling=0.9, consistency=False))
    assert torch.allclose(held, 0.9 * free + 0.1 * source, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("trust", "classes", "kept"), [(0.0, 1, 1.0), (0.0, 3, 0.9**0.5), (0.0, 9, 0.9), (1.0, 1, 0.9)])
def test_the_pull_rests_while_samples_of_one_class_tell_nothing(trust: float, classes: int, kept: float) -> None:
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady", source_pull=0.1)
    engine = adapter.engine
    source = engine.learnables.vector()
    engine.learnables.assign(source + 0.01)
    engine.memory["recent_trust"].fill_(trust)
    engine.memory["present"][:classes] = 1.0
    engine.memory["strength"].zero_()
    adapter(images("ln_mlp", 64, dtype=torch.float64))
    torch.testing.assert_close(engine.learnables.vector(), source + kept * 0.01, rtol=0, atol=1e-12)


def test_the_pull_bounds_an_endless_run() -> None:
    """With a constant gradient g the weights stop at lr·g·w/(1−w) from the source; without a pull they go on for ever."""
    distances = {}
    for pull in (None, 0.1):
        options = {**PLAIN, "reliable": None, "recovery": None, "class_cap": None, "source_pull": pull, "clip_norm": 1e-3}
        adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady", lr=1e-3, lr_scale=1.0, **options)
        source = _learned(adapter)
        batch = images("ln_mlp", 64, dtype=torch.float64)
        for _ in range(100):
            adapter(batch)
        distances[pull] = float((_learned(adapter) - source).norm())
    assert distances[0.1] <= 1e-3 * 1e-3 * 0.9 / 0.1 * (1 + 1e-6)
    assert distances[None] > 5 * distances[0.1]


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_share_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"source_pull must be a number in \[0, 1\]"):
        wildtta.Steady(source_pull=value)


# -- the bound on the gradient -------------------------------------------------------------------------------------------


def _step_lengths(adapter: wildtta.Adapter, number: int) -> list[float]:
    places = [_learned(adapter)]
    for batch in batches("ln_mlp", number, 16, dtype=torch.float64):
        adapter(batch)
        places.append(_learned(adapter))
    return [float((after - before).norm()) for before, after in pairwise(places)]


def _with_norm_weights_times(factor: float) -> torch.nn.Module:
    network = build("ln_mlp", dtype=torch.float64)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.mul_(factor)
                module.bias.mul_(factor)
    return network


@pytest.mark.parametrize("sharpness", [None, 0.05])
def test_a_step_is_no_longer_than_a_share_of_the_source_weights_whatever_r_weighs(sharpness: float | None) -> None:
    source = _learned(wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady"))
    longest = 4e-3 * 0.045 * math.sqrt(sum(float(weight) ** 2 for weight in source))

    def steps(**options: Any) -> list[float]:
        free = {"evidence": False, "warmup": 1, "source_pull": None, "sharpness": sharpness, "redundancy": 1e6, **options}
        adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "steady", lr=1e-4, **free)
        return _step_lengths(adapter, 6)

    assert max(steps(gradient_bound=None)) > 100 * longest
    assert max(steps()) == pytest.approx(longest, rel=1e-6)
    assert max(steps(gradient_bound=0.0225)) == pytest.approx(longest / 2, rel=1e-6)
    assert max(steps(lr_scale=20.0)) == pytest.approx(longest / 2, rel=1e-6)  # the bound is on the gradient
    assert max(steps(clip_norm=1e9)) == pytest.approx(longest, rel=1e-6)
    assert max(steps(clip_norm=0.005)) == pytest.approx(4e-3 * 0.005, rel=1e-3)


def test_the_bound_grows_with_the_networks_weights_and_stays_when_they_have_moved() -> None:
    """All norm weights doubled: twice the step. After some steps, and after a reset, the length is what it was at first."""

    def lengths(factor: float) -> list[float]:
        options: dict[str, Any] = {"evidence": False, "warmup": 1, "source_pull": None, "redundancy": 1e9}
        adapter = wildtta.adapt(_with_norm_weights_times(factor), "steady", lr=2.5e-4, **options)
        found = _step_lengths(adapter, 4)
        adapter.reset()
        return found + _step_lengths(adapter, 4)

    once, twice = lengths(1.0), lengths(2.0)
    assert once == pytest.approx([once[0]] * 8, rel=1e-6)
    assert twice == pytest.approx([2 * once[0]] * 8, rel=1e-6)


def test_weights_that_are_all_zero_cannot_measure_a_step() -> None:
    network = _with_norm_weights_times(0.0)
    with pytest.raises(ValueError, match=r"gradient_bound=0\.045 .* are zero at the start.*gradient_bound=None"):
        wildtta.adapt(network, "steady")
    wildtta.adapt(network, "steady", gradient_bound=None)


# -- what version 0.1 did ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gn", "vit"])
def test_steady_equals_the_recorded_single_pass_method_of_version_0_1(kind: str, golden: Any) -> None:
    """100 batches of 0.1's ``sar2-single`` in float64 (see RECORDED.md): Steady without evidence, with recovery."""
    pool = golden.images(golden.pool["pool_u8"])
    with np.load(Path(__file__).parents[1] / "recordings" / "steady_0_1.npz", allow_pickle=False) as recorded:
        rows, logits, theta, learned = (recorded[f"{kind}/{name}"] for name in ("idx", "logits", "theta", "learned"))
    model = wildtta.adapt(golden.network(kind), evidence=False, recovery=0.2)
    for step, row in enumerate(rows):
        ours = model(pool[torch.from_numpy(row)]).numpy()
        assert np.abs(ours - logits[step]).max() < 1e-9, step
        assert bool(model.last.learned) == bool(learned[step])
    ours = np.concatenate([value.numpy().ravel() for name, value in model.online_state().items() if "parameters/" in name])
    assert np.abs(ours - theta).max() < 1e-9


def test_at_rest_it_answers_as_without_adaptation_without_a_backward_pass_and_says_so() -> None:
    model, none = wildtta.adapt(build("gn_resnet")), wildtta.adapt(build("gn_resnet"), "none")
    for batch in batches("gn_resnet", 3, 16):
        assert torch.equal(model(batch), none(batch))
        assert model.last.strength is not None
        assert float(model.last.strength) == 0
    assert model.cost.backwards == 0


def test_redundancy_weighs_as_far_as_it_can_be_told_from_chance() -> None:
    """Chance: the mean squared correlation of two columns of C independent rows is 1/(C − 1)."""
    for rows in (10, 50):
        table = torch.randn(rows, 400, dtype=torch.float64)
        squared = torch.corrcoef(table.T).square()
        chance = float((squared.sum() - 400) / (400 * 399))
        assert 1 - above_chance(rows) == pytest.approx(9 * chance, rel=0.1)
    network = wildtta.adapt(build("gn_resnet")).engine.network
    by_evidence, always = wildtta.Steady(), wildtta.Steady(evidence=False)
    assert always.redundancy_weight(network) == 5e3 / network.feature_width
    assert by_evidence.redundancy_weight(network) == above_chance(CLASSES) * 5e3 / network.feature_width
    assert [above_chance(classes) for classes in (2, 5, 10)] == [0, 0, 0]
    assert above_chance(200) > 0.95
