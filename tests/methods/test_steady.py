"""What keeps SAR²'s defaults from being taken over by one class, one corruption or one term: ``class_limit``, ``ensembling``,
``clip_norm`` and ``clip_ratio``."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import CLASSES, batches, build, images, snapshot
from wildtta.parts.class_limit import followed_shares, limited_weights


def _run(method: str, kind: str = "ln_mlp", *, size: int = 16, number: int = 1, **options: Any) -> wildtta.Adapter:
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


@pytest.mark.parametrize(("classes", "limit"), [(1000, 0.01), (200, 0.05), (20, 0.3), (4, 0.3)])
def test_one_class_never_weighs_more_than_its_limit(classes: int, limit: float) -> None:
    for share in (0.001, 0.01, 0.05, 0.3, 0.5, 0.98):
        shares = torch.full((classes,), (1 - share) / (classes - 1), dtype=torch.float64)
        shares[2] = share
        weight = limited_weights(shares, torch.tensor([2]), 10.0).item()
        assert weight == pytest.approx(min(1.0, limit / share))
        assert weight * share <= limit + 1e-12 or weight == 1.0


# -- in a step -----------------------------------------------------------------------------------------------------------


def test_the_limit_scales_the_entropy_gradient_and_not_what_recovery_watches() -> None:
    kind, batch = "ln_mlp", images("ln_mlp", 16, dtype=torch.float64)
    gradients, averages = [], []
    for share in (None, 0.6):
        adapter = wildtta.adapt(
            build(kind, dtype=torch.float64), "tent", lr=0.02, momentum=0.0, recovery=1e-6, class_limit=1.0
        )
        limit = min(0.3, 1 / CLASSES)
        shares = adapter._engine.memory["class_shares"]
        shares.fill_(limit if share is None else share)
        before = snapshot(adapter.network)
        adapter(batch)
        after = snapshot(adapter.network)
        gradients.append(torch.cat([(after[name] - before[name]).flatten() for name in after]))
        averages.append(float(adapter.last.e_m))
    assert gradients[0].norm() > 1e-6
    assert torch.allclose(gradients[1], gradients[0] * (limit / 0.6), rtol=1e-9, atol=1e-14)
    assert averages[0] == pytest.approx(averages[1], rel=1e-12)


def test_shares_survive_saving_and_start_again_with_a_reset(tmp_path: Any) -> None:
    adapter = _run("sar2", number=3)
    shares = adapter._engine.memory["class_shares"].clone()
    assert shares.std() > 0
    adapter.save(tmp_path / "state.safetensors")
    other = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar2", lr=0.02)
    other.load(tmp_path / "state.safetensors")
    assert torch.equal(other._engine.memory["class_shares"], shares)
    other.reset()
    assert torch.allclose(other._engine.memory["class_shares"], torch.full_like(shares, 1 / CLASSES))


def test_a_stream_that_feeds_a_collapse_moves_less_with_the_limit() -> None:
    """The same batch again and again: entropy falls, and one class takes more and more of it."""

    def largest_share(limit: float | None) -> float:
        adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "tent", lr=0.05, class_limit=limit)
        batch = images("ln_mlp", 64, dtype=torch.float64)
        for _ in range(150):
            logits = adapter(batch)
        return float(logits.argmax(1).bincount(minlength=CLASSES).max()) / len(batch)

    assert largest_share(1.0) < largest_share(None)


# -- the pull to the source ----------------------------------------------------------------------------------------------


def _learned(adapter: wildtta.Adapter) -> Tensor:
    parameters = dict(adapter.network.named_parameters())
    return torch.cat([parameters[name].detach().flatten() for name in adapter.learned_parameters])


@pytest.mark.parametrize(("method", "size", "kept"), [("tent", 64, 0.9), ("tent", 16, 0.9**0.25), ("roid", 16, 0.9)])
def test_one_step_goes_back_by_the_stated_share(method: str, size: int, kept: float) -> None:
    options: dict[str, Any] = {"consistency": False} if method == "roid" else {}
    source = _learned(wildtta.adapt(build("ln_mlp", dtype=torch.float64), method))
    free = _learned(_run(method, size=size, ensembling=None, **options))
    pulled = _learned(_run(method, size=size, ensembling=0.9, **options))
    assert (free - source).abs().max() > 1e-6
    assert torch.allclose(pulled, kept * free + (1 - kept) * source, rtol=0, atol=1e-14)


def test_the_pull_bounds_an_endless_run() -> None:
    """With a constant gradient g the weights stop at lr·g·w/(1−w) from the source; without a pull they go on for ever."""
    distances = {}
    for ensembling in (None, 0.9):
        adapter = wildtta.adapt(
            build("ln_mlp", dtype=torch.float64), "tent", lr=1e-3, momentum=0.0, clip_norm=1e-3, ensembling=ensembling
        )
        source = _learned(adapter)
        batch = images("ln_mlp", 64, dtype=torch.float64)
        for _ in range(100):
            adapter(batch)
        distances[ensembling] = float((_learned(adapter) - source).norm())
    assert distances[0.9] <= 1e-3 * 1e-3 * 0.9 / 0.1 * (1 + 1e-6)
    assert distances[None] > 5 * distances[0.9]


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_share_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="ensembling must lie between 0 and 1"):
        wildtta.SAR2(ensembling=value)


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


@pytest.mark.parametrize("method", ["sar2", "sar2-single"])
def test_a_step_is_no_longer_than_a_share_of_the_source_weights_whatever_r_weighs(method: str) -> None:
    source = _learned(wildtta.adapt(build("ln_mlp", dtype=torch.float64), method))
    longest = 1e-4 * 1.8 * math.sqrt(sum(float(weight) ** 2 for weight in source))

    def steps(**options: Any) -> list[float]:
        free = {"warmup": 1, "ensembling": None, **options}
        adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), method, lr=1e-4, redundancy=1e7, **free)
        return _step_lengths(adapter, 6)

    assert max(steps(clip_ratio=None)) > max(10 * 1e-4 * 120, 100 * longest)
    assert max(steps()) == pytest.approx(longest, rel=1e-6)
    assert max(steps(clip_ratio=0.9)) == pytest.approx(longest / 2, rel=1e-6)
    assert max(steps(clip_norm=1e9)) == pytest.approx(longest, rel=1e-6)
    assert max(steps(clip_norm=0.5)) == pytest.approx(1e-4 * 0.5, rel=1e-5)


def test_the_bound_grows_with_the_networks_weights_and_stays_when_they_have_moved() -> None:
    """All norm weights doubled: twice the step. After some steps, and after a reset, the length is that of the first day."""

    def lengths(factor: float) -> list[float]:
        options: dict[str, Any] = {"warmup": 1, "ensembling": None, "redundancy": 1e9}
        adapter = wildtta.adapt(_with_norm_weights_times(factor), "sar2-single", lr=1e-2, **options)
        found = _step_lengths(adapter, 4)
        adapter.reset()
        return found + _step_lengths(adapter, 4)

    once, twice = lengths(1.0), lengths(2.0)
    assert once == pytest.approx([once[0]] * 8, rel=1e-6)
    assert twice == pytest.approx([2 * once[0]] * 8, rel=1e-6)


def test_weights_that_are_all_zero_cannot_measure_a_step() -> None:
    network = _with_norm_weights_times(0.0)
    with pytest.raises(ValueError, match=r"clip_ratio=1\.8 .* are zero at the start.*clip_ratio=None"):
        wildtta.adapt(network, "sar2")
    wildtta.adapt(network, "sar2", clip_ratio=None)


def test_a_warm_start_keeps_to_the_bound_and_the_momentum_of_its_method() -> None:
    adapter = wildtta.adapt(build("ln_mlp", dtype=torch.float64), "sar2", redundancy=1e9, warm_start=3)
    rate = 1e-3 / 16 + (1e-3 - 1e-3 / 16) * 15 / 63  # SAR²'s own, for 16 samples
    source = float(_learned(adapter).norm())
    assert _step_lengths(adapter, 3) == pytest.approx([rate * 1.8 * source] * 3, rel=1e-6)
