"""One image that cannot be used: it is left out and counted, the rest of its batch is answered and learned from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import KINDS, batches, build, images, same_bits
from wildtta.methods.registry import config_classes
from wildtta.network.levels import WINDOW, absurd, levels, no_levels_yet, with_levels
from wildtta.network.statistics import median_moments

WIDE = torch.float64
# Counted, or a note of what came in.
NOT_LEARNED = ("left_out", "forwards", "backwards", "input_levels", "watched")


def _options(method: str, kind: str) -> dict[str, Any]:
    defaults = config_classes()[method].example_options(images(kind, 16, dtype=WIDE))
    small = {"steady": {"warmup": 2}, "sar2": {"warmup": 2}, "sar2-efficient": {"warmup": 2, "reliable": 0.9}}
    small |= {"deyo": {"plpd": 0.01, "reliable": 0.9}, "recap": {"plpd": 0.01, "region_reliable": 3.0, "measure": 16}}
    return {**defaults, **small.get(method, {})}


def _adapted(method: str, kind: str, steps: int = 2, **options: Any) -> wildtta.Adapter:
    adapter = wildtta.adapt(build(kind, dtype=WIDE), method, **_options(method, kind), **options)
    for batch in batches(kind, steps, 16, dtype=WIDE):
        adapter(batch)
    return adapter


def _learned(adapter: wildtta.Adapter) -> dict[str, Tensor]:
    return {name: value for name, value in adapter.online_state().items() if not name.endswith(NOT_LEARNED)}


LEARNING = sorted(set(wildtta.methods()) - {"none", "lame", "dda", "bn-adapt"})


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 1e200])
@pytest.mark.parametrize(
    ("method", "kind"),
    [(method, {"ttt": "gn_resnet", "spa": "gn_resnet", "foa": "ln_vit"}.get(method, "ln_mlp")) for method in LEARNING]
    + [(method, "gn_resnet") for method in ("tent", "sar", "sar2", "steady")]
    + [(method, "bn_resnet") for method in ("tent", "sar", "sar2", "roid", "cotta", "bn-adapt")],
)
def test_the_rest_of_the_batch_is_learned_from_as_if_it_had_come_alone(method: str, kind: str, bad: float) -> None:
    extra = {"momentum": 0.1} if method == "bn-adapt" else {}
    ours, theirs = _adapted(method, kind, **extra), _adapted(method, kind, **extra)
    x = images(kind, 16, seed=90, dtype=WIDE)
    x[3].view(-1)[5] = bad
    rest = [index for index in range(16) if index != 3]
    before = _learned(ours)
    logits, expected = ours(x), theirs(x[rest])
    assert torch.isnan(logits[3]).all()
    torch.testing.assert_close(logits[rest], expected, rtol=1e-9, atol=1e-9)
    assert ours.cost.left_out == int(ours.last.left_out) == 1
    assert theirs.cost.left_out == 0
    assert ours.cost.skipped == theirs.cost.skipped
    assert bool(ours.last.learned) == bool(theirs.last.learned)
    assert torch.isnan(ours.last.entropies).tolist() == [index == 3 for index in range(16)]
    assert int(ours.last.seen) == 16
    assert not ours.last.mask[3]
    state, wanted = _learned(ours), _learned(theirs)
    assert same_bits(state, before), "nothing was learned, so nothing was compared"
    for name, value in wanted.items():
        compared = (*getattr(ours.method, "comparison", ()), *getattr(ours.method, "scrambling", ()))
        if name.partition("/")[2] in compared:
            continue  # which samples the source answers too, their places in the batch decide
        torch.testing.assert_close(state[name], value, rtol=1e-7, atol=1e-9, equal_nan=True, msg=name)
    next_batch = images(kind, 16, seed=91, dtype=WIDE)
    torch.testing.assert_close(ours(next_batch), theirs(next_batch), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", ["tent", "sar2", "t3a", "neo", "lame"])
@pytest.mark.parametrize(("kind", "size"), [("ln_mlp", 1e20), ("gn_resnet", 1e30)])
def test_an_image_that_overflows_silences_no_other(method: str, kind: str, size: float) -> None:
    options = {"warmup": 2} if method == "sar2" else {}
    ours, theirs = (wildtta.adapt(build(kind), method, batch_size=16, **options) for _ in range(2))
    for seed in range(4):
        x = images(kind, 16, seed=seed)
        x[0] *= size
        logits, expected = ours(x), theirs(x[1:])
        assert torch.isnan(logits[0]).all()
        torch.testing.assert_close(logits[1:], expected, rtol=1e-4, atol=1e-5)
    assert (ours.cost.learned, ours.cost.skipped) == (theirs.cost.learned, theirs.cost.skipped)
    assert ours.cost.left_out == 4


def test_an_image_in_bfloat16_that_overflows_silences_no_other() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent", precision="bf16")
    x = images("ln_mlp", 16).bfloat16()
    x[0] *= 1e30
    assert torch.isfinite(adapter(x)).all(1).tolist() == [row > 0 for row in range(16)]
    assert (adapter.cost.learned, adapter.cost.skipped, adapter.cost.left_out) == (1, 0, 1)


@pytest.mark.parametrize("scale", [255.0, 1e9])
def test_raw_counts_of_a_sensor_are_learned_from(scale: float) -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "tent")
    assert torch.isfinite(adapter(scale * images("gn_resnet", 8))).all()
    assert adapter.cost.left_out == 0


class Masked(nn.Module):
    """Attention over the inputs, with a mask that is added."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("ln_mlp")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weights: Tensor = self.inner(x * (x + mask).softmax(1))
        return weights


def test_a_mask_that_is_added_is_no_image_that_overflows() -> None:
    adapter = wildtta.adapt(Masked(), "tent", example=(images("ln_mlp", 4), torch.zeros(4, 12)))
    mask = torch.zeros(8, 12)
    mask[:, 7:] = torch.finfo(torch.float32).min
    assert torch.isfinite(adapter(images("ln_mlp", 8), mask)).all()
    assert adapter.cost.left_out == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_adapter_answers_the_rest_too(kind: str) -> None:
    adapter = _adapted("tent", kind)
    x = images(kind, 8, dtype=WIDE)
    x[2].view(-1)[0] = math.nan
    state = adapter.online_state()
    with adapter.paused():
        assert torch.isnan(adapter(x)).all(1).tolist() == [index == 2 for index in range(8)]
    assert same_bits(adapter.online_state(), state) == []


@pytest.mark.parametrize("method", ["roid", "deyo", "recap"])
def test_a_skipped_batch_draws_nothing(method: str) -> None:
    """A batch after it gets the random numbers that it would have had without it, also in a run that was saved between."""
    kind = "gn_resnet"
    ours, theirs = _adapted(method, kind, lr=0.01), _adapted(method, kind, lr=0.01)
    assert int(ours.online_state()["memory/draws"]) > 0
    overflowing = images(kind, 16, dtype=WIDE)
    ours.network.stage3[0].norm1.weight.register_hook(lambda gradient: gradient * math.nan)
    hook = next(iter(ours.network.stage3[0].norm1.weight._backward_hooks))
    before = _learned(ours)
    ours(overflowing)
    del ours.network.stage3[0].norm1.weight._backward_hooks[hook]
    assert ours.cost.skipped == theirs.cost.skipped + 1
    assert set(same_bits(_learned(ours), before)) == {"memory/skipped"}
    for seed in (50, 51):
        batch = images(kind, 16, seed=seed, dtype=WIDE)
        assert torch.equal(ours(batch), theirs(batch))
    assert (
        same_bits(
            {name: value for name, value in _learned(ours).items() if not name.endswith("skipped")},
            {name: value for name, value in _learned(theirs).items() if not name.endswith("skipped")},
        )
        == []
    )


# -- BatchNorm: absurd images --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e5, -1e5, 1e3])
@pytest.mark.parametrize("where", ["everywhere", "one pixel"])
def test_an_absurd_image_changes_no_other_answer(size: float, where: str) -> None:
    adapter, twin = _adapted("tent", "bn_resnet"), _adapted("tent", "bn_resnet")
    x = images("bn_resnet", 64, seed=5, dtype=WIDE)
    if where == "everywhere":
        x[7] = size
    else:
        x[7, 1, 4, 4] = size
    rest = [index for index in range(64) if index != 7]
    logits = adapter(x)
    assert torch.equal(logits[rest], twin(x[rest]))
    with torch.no_grad():
        source = build("bn_resnet", dtype=WIDE)(x[7:8])
    assert torch.isfinite(logits[7]).all()
    assert torch.allclose(logits[7], source[0], rtol=0.2) or where == "one pixel"
    assert adapter.cost.left_out == 1
    assert adapter.cost.forwards == twin.cost.forwards + 1
    assert same_bits(_learned(adapter), _learned(twin)) == []


@pytest.mark.parametrize("method", ["tent", "steady", "bn-adapt"])
@pytest.mark.parametrize("size", [1e5, -1e5])
def test_one_absurd_image_of_the_very_first_three_changes_no_other_answer(method: str, size: float) -> None:
    adapter, twin = (wildtta.adapt(build("bn_resnet", dtype=WIDE), method, batch_size=3) for _ in range(2))
    x = images("bn_resnet", 3, dtype=WIDE)
    x[1] = size
    assert torch.equal(adapter(x)[[0, 2]], twin(x[[0, 2]]))
    assert adapter.cost.left_out == 1


@pytest.mark.parametrize("size", [1, 4, 16])
def test_after_a_lens_cap_ordinary_images_are_ordinary(size: int) -> None:
    """Zeros tell nothing of the range of a stream, neither of one that is yet to come nor of one that went before."""
    adapter = wildtta.adapt(build("bn_resnet"), "tent", lr=1e-4)
    for first in (0, 100):
        for _ in range(10):
            adapter(torch.zeros_like(images("bn_resnet", 32)))
        for seed in range(first, first + 64 // size):
            adapter(images("bn_resnet", size, seed=seed))
        assert adapter.cost.left_out == 0
    adapter(images("bn_resnet", 1) * 1e4)
    assert adapter.cost.left_out == 1


@pytest.mark.parametrize("scale", [1 / 255, 1.0, 255.0])
def test_a_stream_of_any_range_is_no_error(scale: float) -> None:
    """Pixels as 0 … 1, standardised or 0 … 255, dark and bright images together; also when the range changes for good."""
    adapter = wildtta.adapt(build("bn_resnet"), "tent", lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):
        brightness = torch.rand(16, 1, 1, 1, generator=generator) * 0.8 + 0.2
        adapter(images("bn_resnet", 16, seed=seed).abs() * brightness * scale)
    assert adapter.cost.left_out == 0
    for seed in range(20, 24):
        adapter(images("bn_resnet", 16, seed=seed).abs() * scale * 50)
    assert adapter.cost.left_out == 0


def test_batches_of_one_are_compared_with_their_stream() -> None:
    adapter = wildtta.adapt(build("bn_resnet"), "tent", lr=1e-4)
    for seed in range(10):
        adapter(images("bn_resnet", 1, seed=seed))
    before = {name: value for name, value in adapter.online_state().items() if name.startswith("parameters/")}
    logits = adapter(images("bn_resnet", 1, seed=10) * 1e4)
    assert torch.isfinite(logits).all()
    assert adapter.cost.left_out == adapter.cost.skipped == 1
    after = {name: value for name, value in adapter.online_state().items() if name.startswith("parameters/")}
    assert same_bits(after, before) == []
    for seed in range(10, 300):  # a range that stays is the stream's new one
        adapter(images("bn_resnet", 1, seed=seed) * 1e4)
    assert 5 < adapter.cost.left_out < 20


def test_absurd_follows_the_formula() -> None:
    draw = np.random.default_rng(0)
    window = no_levels_yet()
    assert absurd([1.0, 1e9], window) == [False] * 2  # too few to tell
    assert absurd([1.0, 1e9, 1.0], window) == [False, True, False]
    for spread in (0.01, 0.5, 1.0):
        known = np.exp(draw.normal(2.0, spread, 100))
        window = with_levels(no_levels_yet(), list(known))
        logs = np.log(known)
        for factor in (1.0, 5.0, 7.9, 8.2, 40.0, 1e3):
            level = float(np.exp(np.median(logs)) * factor)
            logs_with = np.append(logs, math.log(level))
            middle = np.median(logs_with)
            limit = middle + max(math.log(8), 8 * 1.4826 * np.median(np.abs(logs_with - middle)))
            assert absurd([level], window) == [math.log(level) > limit]
    assert absurd([math.nan, math.inf, 3.0], window) == [False] * 3
    alike = [1e6, 2e6, 3e6, 4e6, math.nan]
    assert absurd(alike, window) == [False] * 5  # the stream has changed
    assert absurd([*known[:5], 1e6], window) == [False] * 5 + [True]


def test_the_window_keeps_the_newest_finite_levels() -> None:
    window = no_levels_yet()
    for start in range(0, 2 * WINDOW, 64):
        window = with_levels(window, [float(value) for value in range(start, start + 64)] + [math.nan, math.inf])
    assert window.tolist() == list(range(WINDOW, 2 * WINDOW))
    x = torch.tensor([[1.0, -4.0], [math.nan, 1.0], [-math.inf, 0.0], [0.0, 0.0]])
    assert str(levels(x).tolist()) == "[4.0, nan, inf, 0.0]"
    assert levels(torch.tensor([[5, 7]])).tolist() == [0.0]


# -- BatchNorm: the median -----------------------------------------------------------------------------------------------------


def test_median_moments_are_numpys() -> None:
    values = torch.randn(7, 3, 5, 5, dtype=WIDE, generator=torch.Generator().manual_seed(0))
    median, variance = median_moments(values)
    for channel in range(3):
        flat = values[:, channel].numpy().ravel()
        assert median[channel].item() == np.median(flat)  # an odd number of values: no halfway
        assert variance[channel].item() == pytest.approx(np.square(flat - np.median(flat)).mean(), rel=1e-12)


def test_one_layer_by_the_median() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)).double().eval()
    x = torch.randn(9, 4, dtype=WIDE)
    adapter = wildtta.adapt(network, "tent", statistics="median", lr=1e-3)
    assert "batch median" in repr(adapter)
    with adapter.paused():
        logits = adapter(x)
    norm = network[1]
    with torch.no_grad():
        z = network[0](x)
        middle = torch.from_numpy(np.median(z.numpy(), axis=0))
        standard = (z - middle) / ((z - middle).square().mean(0) + norm.eps).sqrt()
        expected = network[2](standard)  # its weights are still 1 and 0
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)
    adapter(x)
    assert bool(adapter.last.learned)
    bare = adapter.unload()
    assert bare(x).shape == (9, 3)


def test_the_median_withstands_what_moves_the_mean() -> None:
    """A tenth of the batch shifted alike, within the stream's range: others' answers move less than with the mean."""
    x = images("bn_resnet", 60, dtype=WIDE)
    attacked = x.clone()
    attacked[:6] = 4 * attacked[:6].abs()
    moved = {}
    for statistics in ("mean", "median"):
        logits = [
            wildtta.adapt(build("bn_resnet", dtype=WIDE), "tent", statistics=statistics)(batch)[6:]
            for batch in (x, attacked)
        ]
        moved[statistics] = float((logits[1] - logits[0]).square().mean().sqrt())
    assert moved["median"] < moved["mean"]


def test_the_median_is_refused_where_it_has_no_effect() -> None:
    for kind, method in (("ln_mlp", "tent"), ("bn_resnet", "none")):
        with pytest.raises(ValueError, match="no effect"):
            wildtta.adapt(build(kind), method, statistics="median")
    with pytest.raises(ValueError, match="'mean' or 'median'"):
        wildtta.adapt(build("bn_resnet"), "tent", statistics="mode")
