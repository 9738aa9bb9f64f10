"""Methods that run their own step, and their parts: properties and independent formulas (trajectories: see the parity cases)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from toy_networks import CLASSES, batches, build, images, same_bits, snapshot
from wildtta.data import ArrayImages, InputProtocol
from wildtta.methods import augmix
from wildtta.methods.lame import affinities, agreeing_log_probabilities
from wildtta.methods.losses import cross_entropy, symmetric_cross_entropy
from wildtta.methods.memo import marginal_entropy
from wildtta.methods.registry import config_classes
from wildtta.methods.rotta import BalancedMemory, timeliness_weights
from wildtta.methods.ttt.rotation import load_branch, rotate, rotation_branch, save_branch
from wildtta.methods.views import jitter, pixel_scale
from wildtta.network.changes import Changes
from wildtta.network.stages import middle_stage, parameters_up_to, run_to
from wildtta.network.statistics import NormStatistics
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.optimizers import FlatOptimizer
from wildtta.training.rotation import RATES, BranchPlan, train_branch

OWN_STEP = ("bn-adapt", "cotta", "dda", "lame", "memo", "rotta", "ttt")
# bn-adapt refuses a network without BatchNorm: test_matrix holds that.
ON_ANY_NETWORK = tuple(method for method in OWN_STEP if method != "bn-adapt")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def adapted(method: str, kind: str, **options: Any) -> wildtta.Adapter:
    base = config_classes()[method].example_options(images(kind, 4))
    return wildtta.adapt(build(kind), method, **{**base, **options})


# -- optimizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FlatOptimizer("sgd"), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            FlatOptimizer("sgd", momentum=0.9, nesterov=True, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        ),
        (FlatOptimizer("adam"), lambda p: torch.optim.Adam(p, lr=0.1)),
        (FlatOptimizer("adamw", weight_decay=0.01), lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01)),
    ],
    ids=["sgd", "nesterov", "adam", "adamw"],
)
def test_flat_optimizers_equal_torchs(ours: FlatOptimizer, theirs: Any) -> None:
    values = torch.randn(7, generator=generator(), dtype=torch.float64)
    parameter = nn.Parameter(values.clone())
    optimizer = theirs([parameter])
    state = ours.first_state(values)
    for step in range(5):
        gradient = torch.randn(7, generator=generator(step), dtype=torch.float64)
        parameter.grad = gradient.clone()
        optimizer.step()
        values, state = ours.update(values, gradient, state, 0.1)
        torch.testing.assert_close(values, parameter.detach(), rtol=1e-12, atol=1e-13)


def test_a_generator_depends_on_seed_and_position_alone() -> None:
    memory = no_draws_yet()
    first = [torch.rand(3, generator=next_generator(memory, 5, torch.device("cpu"))) for _ in range(3)]
    again = no_draws_yet()
    again["draws"].fill_(2)
    torch.testing.assert_close(torch.rand(3, generator=next_generator(again, 5, torch.device("cpu"))), first[2])
    other = torch.rand(3, generator=next_generator(no_draws_yet(), 6, torch.device("cpu")))
    assert not any(torch.equal(a, b) for a, b in [(first[0], first[1]), (first[0], other)])


# -- statistics ------------------------------------------------------------------------------------------------------


def test_chosen_moments_equal_batch_norm_with_these_moments_and_leave_no_trace() -> None:
    network = build("bn_resnet")
    wildtta.adapt(network, "none")
    before = snapshot(network)
    batch = images("bn_resnet", 8)
    statistics = NormStatistics(network, Changes())
    mean, variance = statistics.source()
    with statistics.chosen(lambda place, moments, count: (mean[place] + 0.1, 2 * variance[place])):
        ours = network(batch)
    assert same_bits(snapshot(network), before) == []
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean += 0.1
            layer.running_var *= 2
    torch.testing.assert_close(ours, network(batch), rtol=1e-4, atol=1e-5)

    def refuse(*_: Any) -> Any:
        raise RuntimeError("on purpose")

    broken = snapshot(network)
    with pytest.raises(RuntimeError, match="on purpose"), statistics.chosen(refuse):
        network(batch)
    assert same_bits(snapshot(network), broken) == []
    assert not any(layer._forward_pre_hooks for layer in network.modules())


def test_chosen_moments_keep_what_a_layer_does_after_normalising() -> None:
    timm_layers = pytest.importorskip("timm.layers")
    layer = timm_layers.BatchNormAct2d(3).eval()  # normalises, then ReLU
    layer.running_mean.normal_()
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(48, 4)).eval()
    adapter = wildtta.adapt(network, "bn-adapt")
    batch = torch.randn(6, 3, 4, 4, generator=generator())
    centred = (batch - batch.mean((0, 2, 3), keepdim=True)) / (
        batch.var((0, 2, 3), keepdim=True, correction=0) + layer.eps
    ).sqrt()
    torch.testing.assert_close(adapter(batch), network[2](F.relu(centred).flatten(1)).detach(), rtol=1e-4, atol=1e-5)


def test_bn_adapt_runs_from_the_batchs_statistics_to_the_sources() -> None:
    batch = images("bn_resnet", 16, dtype=torch.float64)

    def answer(**options: Any) -> Tensor:
        return wildtta.adapt(build("bn_resnet", dtype=torch.float64), "bn-adapt", **options)(batch)

    bare = build("bn_resnet", dtype=torch.float64)
    with torch.no_grad():
        source, own = bare.eval()(batch), bare.train()(batch)
    torch.testing.assert_close(answer(), own, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(answer(prior=1e12), source, rtol=1e-6, atol=1e-6)
    # N = n: halfway, by an independent pass with averaged moments (first layer only).
    network = build("bn_resnet", dtype=torch.float64)
    adapter = wildtta.adapt(network, "bn-adapt", prior=16.0)
    seen: list[Tensor] = []
    network.stem_norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    adapter(batch)
    stem, norm = network.stem(batch), network.stem_norm
    mean = (norm.running_mean + stem.mean((0, 2, 3))) / 2
    variance = (norm.running_var + stem.var((0, 2, 3), correction=0)) / 2
    expected = F.batch_norm(stem, mean, variance, norm.weight, norm.bias, False, 0.0, norm.eps)
    torch.testing.assert_close(seen[0], expected.detach(), rtol=1e-9, atol=1e-9)


def test_bn_adapts_running_average_serves_batches_of_one() -> None:
    stream = batches("bn_resnet", 30, 1, dtype=torch.float64)
    adapter = wildtta.adapt(build("bn_resnet", dtype=torch.float64), "bn-adapt", momentum=0.05, use="running")
    for batch in stream:
        assert torch.isfinite(adapter(batch)).all()
    state = adapter.online_state()
    stem = build("bn_resnet", dtype=torch.float64).stem
    mean = build("bn_resnet", dtype=torch.float64).stem_norm.running_mean
    for batch in stream:
        mean = 0.95 * mean + 0.05 * stem(batch).mean((0, 2, 3)).detach()
    torch.testing.assert_close(state["memory/running_mean"][:8], mean, rtol=1e-9, atol=1e-9)


# -- LAME ------------------------------------------------------------------------------------------------------------


def test_lames_answer_is_a_fixed_point_with_less_energy_than_the_networks() -> None:
    logits = 3 * torch.randn(12, 5, generator=generator(), dtype=torch.float64)
    features = F.normalize(torch.randn(12, 6, generator=generator(1), dtype=torch.float64), dim=1)
    for kind in ("kNN", "rbf", "linear"):
        kernel = affinities(features, kind, 3)
        kernel = (kernel + kernel.T) / 2
        answer = agreeing_log_probabilities(logits, kernel, rounds=2000, tolerance=1e-15).exp()
        again = (logits.log_softmax(-1) + kernel @ answer).softmax(-1)
        torch.testing.assert_close(again, answer, rtol=1e-5, atol=1e-6)

        def energy(shares: Tensor, kernel: Tensor = kernel) -> float:
            unary = -(logits.softmax(-1) + 1e-10).log()
            return float(
                (unary * shares + shares * shares.clamp(min=1e-20).log()).sum() - 0.5 * (kernel @ shares * shares).sum()
            )

        assert energy(answer) < energy(logits.softmax(-1))


def test_nearest_neighbours_by_hand() -> None:
    points = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    kernel = affinities(points, "kNN", 1)
    assert kernel.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    width = (1 + 1 + 2 + 4) / 4  # with k = 2 the point itself counts as the first
    expected = math.exp(-9 / (2 * width**2))
    assert float(affinities(points, "rbf", 2)[0, 2]) == pytest.approx(expected, rel=1e-6)
    assert affinities(points[:1], "rbf", 5).tolist() == [[1.0]]


def test_lame_on_one_image_answers_as_the_network_does() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "lame", affinity="kNN")
    batch = images("gn_resnet", 1)
    with torch.no_grad():
        bare = build("gn_resnet")(batch).softmax(-1)
    torch.testing.assert_close(adapter(batch).softmax(-1), bare, rtol=1e-4, atol=1e-6)


# -- RoTTA's memory --------------------------------------------------------------------------------------------------


def test_the_memory_stays_balanced_timely_and_certain() -> None:
    kept = BalancedMemory(capacity=20, classes=4)
    memory = kept.empty()
    draws = np.random.default_rng(0)
    for _ in range(400):
        label = 0 if draws.random() < 0.85 else int(draws.integers(1, 4))
        kept.offer(memory, label, float(draws.random() * math.log(4)))
    counts = Counter(memory["kept_class"].tolist())
    assert counts == {0: 5, 1: 5, 2: 5, 3: 5}
    assert float(memory["kept_uncertainty"].mean()) < 0.35 * math.log(4)  # offered: 0.5 on average
    assert int(memory["offered"]) == 400


def test_a_newcomer_replaces_the_worst_only_if_it_is_better() -> None:
    kept = BalancedMemory(capacity=2, classes=2)
    memory = kept.empty()
    assert kept.offer(memory, 0, 0.1) == 0
    assert kept.offer(memory, 0, 0.0) == 0  # class 0 has its share; age and uncertainty of the first weigh more
    assert kept.offer(memory, 0, 0.69) is None
    assert kept.offer(memory, 1, 0.69) == 1
    assert memory["kept_age"].tolist() == [3, 1]
    assert kept.rows(memory) == [0, 1]
    torch.testing.assert_close(
        timeliness_weights(torch.tensor([0, 2]), 2).double(),
        torch.tensor([0.5, math.exp(-1) / (1 + math.exp(-1))]).double(),
    )


# -- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "posterize", "solarize"])
def test_augmixs_operations_equal_pillows(name: str) -> None:
    image_ops = pytest.importorskip("PIL.ImageOps")
    from PIL import Image

    pixels = np.random.default_rng(3).integers(40, 200, (20, 24, 3), dtype=np.uint8) // 3 * 2
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None].double() / 255
    picture = Image.fromarray(pixels)
    threshold = torch.tensor([100 / 255], dtype=torch.float64)
    ours, theirs = {
        "autocontrast": lambda: (augmix.autocontrast(tensor), image_ops.autocontrast(picture)),
        "equalize": lambda: (augmix.equalize(tensor), image_ops.equalize(picture)),
        "posterize": lambda: (augmix.posterize(tensor, torch.tensor([3])), image_ops.posterize(picture, 3)),
        "solarize": lambda: (augmix.solarize(tensor, threshold), image_ops.solarize(picture, 100)),
    }[name]()
    difference = ours[0].permute(1, 2, 0) * 255 - torch.from_numpy(np.array(theirs)).double()
    tolerance = 1.0 if name == "autocontrast" else 1e-9  # Pillow cuts to whole levels, floats need not
    assert float(difference.abs().max()) <= tolerance


def test_augmix_is_a_mixture_within_range_and_repeats_with_its_generator() -> None:
    image = torch.rand(3, 24, 24, generator=generator())
    views = augmix.augmix(image, 40, generator(7), severity=3.0)
    assert views.shape == (40, 3, 24, 24)
    assert float(views.min()) >= -1e-6
    assert float(views.max()) <= 1 + 1e-6
    assert torch.equal(views, augmix.augmix(image, 40, generator(7), severity=3.0))
    assert not torch.equal(views, augmix.augmix(image, 40, generator(8), severity=3.0))
    assert len({view.numpy().tobytes() for view in views}) == 40
    # The middle of the views still looks like the middle of the image (crops shift by at most 3 pixels).
    smooth = F.avg_pool2d(F.interpolate(image[None], 24), 12)
    assert float((F.avg_pool2d(views, 12).mean(0) - smooth[0]).abs().mean()) < 0.15


def test_large_images_are_cropped_and_resized() -> None:
    crops = augmix.random_crops(torch.rand(50, 1, 96, 96, generator=generator()), generator(1))
    assert crops.shape == (50, 1, 96, 96)
    assert float((crops == 0).float().mean()) < 0.01  # a crop lies inside the image


def test_jitter_stays_in_range_and_near_the_image() -> None:
    pixels = F.interpolate(torch.rand(16, 3, 4, 4, generator=generator()), 32, mode="bilinear")
    views = jitter(pixels, generator(2))
    assert views.shape == pixels.shape
    assert float(views.min()) >= 0
    assert float(views.max()) <= 1
    assert torch.equal(views, jitter(pixels, generator(2)))
    assert 0.02 < float((views - pixels).abs().mean()) < 0.3


def test_pixels_there_and_back() -> None:
    inputs = torch.randn(4, 3, 8, 8, generator=generator())
    given = pixel_scale(nn.Identity(), inputs, 0.5, (0.25, 0.2, 0.3))
    torch.testing.assert_close(given.pixels(inputs)[:, 1], inputs[:, 1] * 0.2 + 0.5)
    ranged = pixel_scale(nn.Identity(), inputs, None, None)
    assert ranged.pixels(inputs).amin((1, 2, 3)).abs().max() < 1e-6
    torch.testing.assert_close(ranged.inputs(ranged.pixels(inputs)), inputs, rtol=1e-4, atol=1e-5)
    network = nn.Identity()
    network.pretrained_cfg = {"mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}
    torch.testing.assert_close(pixel_scale(network, inputs, None, None).pixels(inputs)[0, 2], inputs[0, 2] + 0.3)
    with pytest.raises(ValueError, match="mean and std together"):
        pixel_scale(nn.Identity(), inputs, 0.5, None)


# -- MEMO ------------------------------------------------------------------------------------------------------------


def test_marginal_entropy_by_hand() -> None:
    logits = torch.randn(6, 4, generator=generator(), dtype=torch.float64)
    mean = torch.softmax(logits, -1).mean(0).numpy()
    assert float(marginal_entropy(logits)) == pytest.approx(float(-(mean * np.log(mean)).sum()), rel=1e-12)


def _turned_views(image: Tensor, number: int, _: torch.Generator) -> Tensor:
    return torch.stack([torch.roll(image, shift, -1) for shift in range(number)])


@pytest.mark.parametrize("kind", ["gn_resnet", "bn_resnet", "ln_vit"])
def test_memo_answers_each_image_alone_and_forgets(kind: str) -> None:
    batch = images(kind, 3, dtype=torch.float64)
    network = build(kind, dtype=torch.float64)
    before = snapshot(network)
    adapter = wildtta.adapt(network, "memo", lr=1e-2, views=8, augment=_turned_views)
    together = adapter(batch)
    assert (adapter.cost.forwards, adapter.cost.backwards) == (3 * 9, 3 * 8)
    assert same_bits(snapshot(network), before) == []
    one_by_one = torch.cat([adapter(image[None]) for image in batch])
    torch.testing.assert_close(together, one_by_one, rtol=1e-10, atol=1e-10)
    with adapter.paused():
        assert float((adapter(batch) - together).abs().max()) > 1e-6


def test_memos_passes_are_the_papers() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "memo")
    adapter(images("gn_resnet", 1))
    assert (int(adapter.last.forwards), int(adapter.last.backwards)) == (65, 64)
    assert wildtta.MEMO().passes == "65 / 64"


# -- TTT -------------------------------------------------------------------------------------------------------------


def test_rotations_equal_numpys() -> None:
    batch = torch.randn(4, 3, 6, 6, generator=generator())
    turned = rotate(batch, torch.tensor([0, 1, 2, 3]))
    for number in range(4):
        assert np.array_equal(turned[number].numpy(), np.rot90(batch[number].numpy(), number, (1, 2)))
    with pytest.raises(ValueError, match="square"):
        rotate(torch.zeros(2, 3, 4, 6), torch.tensor([0, 1]))


@pytest.mark.parametrize(("kind", "stage", "later"), [("gn_resnet", "stage2", 2), ("ln_vit", "blocks.3", 4)])
def test_the_middle_of_a_network(kind: str, stage: str, later: int) -> None:
    network = build(kind)
    assert middle_stage(network)[0] == stage
    assert len(middle_stage(network)[1]) == later
    names = parameters_up_to(network, stage)
    probe = images(kind, 2)
    features = run_to(network, stage, probe)
    used = torch.autograd.grad(features.sum(), list(network.parameters()), allow_unused=True)
    reached = [name for (name, _), grad in zip(network.named_parameters(), used, strict=True) if grad is not None]
    assert names == reached


def rotation_accuracy(network: nn.Module, branch: nn.Module, stage: str, inputs: torch.Tensor) -> float:
    """Percent of all four turns of the inputs that the branch names correctly."""
    hits = 0
    with torch.no_grad():
        for turn in range(4):
            turns = torch.full((len(inputs),), turn)
            hits += int((branch(run_to(network, stage, rotate(inputs, turns))).argmax(1) == turns).sum())
    return 100 * hits / (4 * len(inputs))


@pytest.mark.parametrize("kind", ["gn_resnet", "bn_resnet", "ln_vit"])
def test_a_branch_begins_at_random_and_holds_nothing_of_the_network(kind: str) -> None:
    """A.2: "a new branch (random initialized)". With the option it begins as a copy of the network's stages."""
    network = build(kind)
    _, later = middle_stage(network)
    trained = [parameter for name in later for parameter in network.get_submodule(name).parameters()]
    with torch.no_grad():
        for parameter in trained:
            parameter.fill_(7.0)  # what no initialisation gives
    copied = rotation_branch(network, initial="copied")
    assert all(bool((parameter == 7).all()) for parameter in copied.stages.parameters())
    fresh = rotation_branch(network)
    assert [p.shape for p in fresh.stages.parameters()] == [p.shape for p in trained]
    assert not any(bool((parameter == 7).any()) for parameter in fresh.parameters())
    assert all(p.std() > 0 for p in fresh.parameters() if p.dim() > 1), "matrices are drawn, not constant"
    again = rotation_branch(network)
    assert all(torch.equal(one, other) for one, other in zip(fresh.parameters(), again.parameters(), strict=True))


def test_a_branch_learns_to_tell_turns_is_written_and_read(tmp_path: Path) -> None:
    ramp = torch.linspace(0, 200, 16).view(1, 1, 16, 1) + torch.randint(0, 40, (256, 3, 16, 16), generator=generator())
    data = ArrayImages(ramp.to(torch.uint8), np.zeros(256, dtype=np.int64))
    protocol = InputProtocol("test", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    network = build("gn_resnet")
    before = snapshot(network)
    branch, stage = train_branch(
        network, data, protocol, BranchPlan(epochs=3, lr=0.05, batch_size=32), lambda line: None
    )
    assert same_bits(snapshot(network), before) == []  # the trunk is frozen
    inputs = protocol.normalise(data.images(list(range(64))))
    upright = rotation_accuracy(network, branch, stage, inputs)
    assert upright > 90  # chance is 25
    save_branch(tmp_path / "branch.safetensors", branch, stage)
    again, same_stage, mirror = load_branch(tmp_path / "branch.safetensors", network)
    assert (same_stage, mirror) == (stage, True)
    assert rotation_accuracy(network, again.eval(), stage, inputs) == upright
    with pytest.raises(ValueError, match="another network"):
        load_branch(tmp_path / "branch.safetensors", build("ln_vit"))
    adapter = wildtta.adapt(network, "ttt", branch=tmp_path / "branch.safetensors")
    adapter(inputs[:2])
    assert (int(adapter.last.forwards), int(adapter.last.backwards)) == (2 * 21, 2 * 20)


def test_a_branch_begins_at_random_and_is_trained_as_the_paper_says() -> None:
    """10 epochs, momentum 0.9, rates 0.1 and 0.005, times 0.1 after epochs 4 and 7; no word of clipping."""
    network = build("gn_resnet")
    copied, drawn = rotation_branch(network, initial="copied"), rotation_branch(network)
    own = snapshot(nn.ModuleList(network.get_submodule(name) for name in middle_stage(network)[1]))
    assert same_bits(snapshot(copied.stages), own) == []
    for name, value in drawn.stages.state_dict().items():
        if value.dim() > 1:
            assert torch.corrcoef(torch.stack([value.flatten(), own[name].flatten()]))[0, 1].abs() < 0.2, name
    assert same_bits(snapshot(rotation_branch(network)), snapshot(drawn)) == []
    assert same_bits(snapshot(rotation_branch(network, seed=1)), snapshot(drawn)) != []
    plan = BranchPlan()
    assert (plan.epochs, plan.decay_after, plan.momentum, plan.initial, plan.clip) == (10, (4, 7), 0.9, "random", None)
    assert RATES == {"convolutional": 0.1, "transformer": 0.005}
    for wrong, message in (({"initial": "trained"}, "random, copied, got 'trained'"), ({"clip": 0.0}, "clip must be")):
        with pytest.raises(ValueError, match=message):
            BranchPlan(**wrong)


def test_ttt_lowers_the_rotation_loss_and_says_what_it_needs() -> None:
    batch = images("gn_resnet", 4)
    turns = torch.arange(16) % 4
    options: dict[str, Any] = {"augment": lambda copies, _: copies, "turns": lambda number, _: turns, "copies": 4}
    adapter = wildtta.adapt(build("gn_resnet"), "ttt", branch=rotation_branch, lr=0.01, **options)
    losses = []
    for _ in range(6):
        adapter(batch)
        losses.append(float(adapter.last.loss))
    assert losses == sorted(losses, reverse=True)
    assert all(name.startswith(("stem", "stage1", "stage2")) for name in adapter.learned_parameters)
    frozen = wildtta.adapt(build("gn_resnet"), "ttt", branch=rotation_branch, lr=0.05, update_branch=False, **options)
    weights = frozen.online_state()["memory/branch"].clone()
    frozen(batch)
    assert torch.equal(frozen.online_state()["memory/branch"], weights)
    with pytest.raises(ValueError, match="ttt-train"):
        wildtta.adapt(build("gn_resnet"), "ttt")
    with pytest.raises(FileNotFoundError, match="ttt-train"):
        wildtta.adapt(build("gn_resnet"), "ttt", branch="nowhere.safetensors")


def test_ttts_episodes_start_at_the_source_with_new_draws() -> None:
    batch = images("gn_resnet", 2)
    options: dict[str, Any] = {"branch": rotation_branch, "lr": 0.05, "copies": 4}

    def same_views(copies: Tensor, _: torch.Generator) -> Tensor:
        return copies

    def same_turns(number: int, _: torch.Generator) -> Tensor:
        return torch.arange(number) % 4

    fixed = {**options, "augment": same_views, "turns": same_turns}
    episodes = wildtta.adapt(build("gn_resnet"), "ttt", episodic=True, **fixed)
    online = wildtta.adapt(build("gn_resnet"), "ttt", **fixed)
    first, second = episodes(batch), episodes(batch)
    assert torch.equal(first, second)
    assert torch.equal(online(batch), first)
    assert not torch.equal(online(batch), first)
    assert episodes.cost.forwards == 2 * 2 * 5
    drawing = wildtta.adapt(build("gn_resnet"), "ttt", episodic=True, **options)
    assert not torch.equal(drawing(batch), drawing(batch))


# -- CoTTA, RoTTA ----------------------------------------------------------------------------------------------------


def test_consistency_by_hand() -> None:
    a, b = (torch.randn(3, 4, generator=generator(seed), dtype=torch.float64) for seed in (0, 1))
    p, q = a.softmax(-1).numpy(), b.softmax(-1).numpy()
    np.testing.assert_allclose(cross_entropy(b, a).numpy(), -(q * np.log(p)).sum(1))
    both = -(q * np.log(p)).sum(1) / 2 - (p * np.log(q)).sum(1) / 2
    np.testing.assert_allclose(symmetric_cross_entropy(a, b).numpy(), both)


def test_cotta_averages_views_only_where_the_source_is_unsure() -> None:
    batch = images("gn_resnet", 4)
    sure = wildtta.adapt(build("gn_resnet"), "cotta", confidence=0.0)
    sure(batch)
    assert (sure.cost.forwards, sure.cost.backwards) == (3 * 4, 4)
    unsure = wildtta.adapt(build("gn_resnet"), "cotta", confidence=1.0, views=5)
    unsure(batch)
    assert (unsure.cost.forwards, unsure.cost.backwards) == (8 * 4, 4)


def test_cotta_puts_weights_back() -> None:
    batch = images("gn_resnet", 4)
    network = build("gn_resnet")
    before = snapshot(network)
    adapter = wildtta.adapt(network, "cotta", restore=1.0, teacher_keep=0.5, confidence=0.0)
    source = adapter.online_state()["memory/teacher"].clone()
    adapter(batch)
    assert same_bits(snapshot(network), before) == []
    assert not torch.equal(adapter.online_state()["memory/teacher"], source)
    partly = wildtta.adapt(build("gn_resnet"), "cotta", restore=0.25, lr=0.5, confidence=0.0)
    partly(batch)
    now = torch.cat([value.flatten() for value in partly.network.state_dict().values()])
    start = torch.cat([value.flatten() for value in before.values()])
    assert 0.2 < float((now == start).float().mean()) < 0.35
    wrong = wildtta.adapt(build("gn_resnet"), "cotta", confidence=0.0, restore_mask=lambda size, _: torch.ones(3))
    with pytest.raises(ValueError, match="restore_mask must give"):
        wrong(batch)


def test_rotta_learns_from_its_memory_and_answers_by_the_teacher() -> None:
    adapter = wildtta.adapt(build("bn_resnet"), "rotta", capacity=8, every=8, teacher_rate=0.5, lr=0.05)
    stream = batches("bn_resnet", 4, 4)
    learned = []
    for batch in stream:
        adapter(batch)
        learned.append(bool(adapter.last.learned))
    assert learned == [False, True, False, True]
    assert adapter.cost.backwards <= 16
    state = adapter.online_state()
    kept = state["memory/kept_images"][state["memory/kept_class"] >= 0]
    seen = torch.cat(stream)
    assert all(any(torch.equal(image, other) for other in seen) for image in kept)
    with adapter.paused():
        by_teacher = adapter(stream[0])
    with torch.no_grad():
        assert float((adapter.network(stream[0]) - by_teacher).abs().max()) > 1e-4


# -- DDA -------------------------------------------------------------------------------------------------------------


class KnowsOneImage(nn.Module):
    """The exact noise predictor of a distribution that holds one image only."""

    def __init__(self, image: Tensor, scheduler: Any) -> None:
        super().__init__()
        self.image = nn.Parameter(image)
        self.shares = scheduler.alphas_cumprod

    def forward(self, noisy: Tensor, time: Tensor) -> Any:
        share = self.shares[time]
        noise = (noisy - share.sqrt() * self.image) / (1 - share).sqrt()
        return type("Prediction", (), {"sample": noise})()


def test_guided_diffusion_brings_images_home_and_keeps_their_structure() -> None:
    diffusers = pytest.importorskip("diffusers")
    from wildtta.methods.dda.diffusion import DiffusionModel, guided_images, low_pass

    home = 0.5 * torch.sin(torch.linspace(0, 9, 16)).expand(1, 3, 16, 16).contiguous()
    scheduler = diffusers.DDPMScheduler()
    model = DiffusionModel(KnowsOneImage(home, scheduler), scheduler)
    away = torch.rand(2, 3, 16, 16, generator=generator()) - 0.5
    own = [generator(1), generator(2)]
    free = guided_images(model, away, own, steps=50, depth=25, factor=4, guidance=0.0)
    torch.testing.assert_close(free, home.expand_as(free), rtol=0, atol=0.02)
    flat = torch.full((1, 3, 16, 16), 0.3)
    torch.testing.assert_close(low_pass(flat, 4), flat, rtol=1e-4, atol=1e-5)
    checks = (torch.arange(16) % 2 * 2.0 - 1).expand(1, 3, 16, 16)
    assert float(low_pass(checks, 4)[..., 4:-4].abs().max()) < 0.1


def test_dda_answers_an_image_alike_in_whichever_batch_it_comes() -> None:
    pytest.importorskip("diffusers")
    batch = images("gn_resnet", 5)
    together = adapted("dda", "gn_resnet", mean=0.5, std=0.25)(batch)
    in_chunks = adapted("dda", "gn_resnet", mean=0.5, std=0.25, chunk=2)(batch)
    one_by_one = adapted("dda", "gn_resnet", mean=0.5, std=0.25)
    alone = torch.cat([one_by_one(image[None]).clone() for image in batch])
    other_noise = adapted("dda", "gn_resnet", mean=0.5, std=0.25, seed=1)(batch)
    torch.testing.assert_close(in_chunks, together, rtol=0, atol=1e-5)
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-5)
    assert float((other_noise - together).abs().max()) > 1e-3


def test_dda_averages_two_predictions_and_learns_nothing() -> None:
    pytest.importorskip("diffusers")
    adapter = adapted("dda", "gn_resnet", mean=0.5, std=0.25)
    batch = images("gn_resnet", 3)
    answer = adapter(batch)
    assert (int(adapter.last.forwards), int(adapter.last.backwards)) == (6, 0)
    assert int(adapter.last.extra["diffusions"]) == 3
    adapter.reset()
    moved = adapter.method.adapted(adapter.engine, batch)
    with torch.no_grad():
        bare = build("gn_resnet")
        expected = (bare(batch).softmax(-1) + bare(moved).softmax(-1)) / 2
    torch.testing.assert_close(answer.softmax(-1), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="diffusion-train"):
        wildtta.adapt(build("gn_resnet"), "dda")
    with pytest.raises(FileNotFoundError, match="diffusion-train"):
        wildtta.adapt(build("gn_resnet"), "dda", diffusion="nowhere")(batch)


# -- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kind"), [*product(OWN_STEP, ["bn_resnet"]), *product(ON_ANY_NETWORK, ["gn_resnet"])]
)
def test_a_batch_that_is_not_finite_is_answered_and_moves_nothing(method: str, kind: str) -> None:
    adapter = adapted(method, kind)
    good = images(kind, 4)
    adapter(good)
    state = {name: value.clone() for name, value in adapter.online_state().items()}
    before = snapshot(adapter.network)
    bad = good.clone()
    bad[:, 0, 0, 0] = math.nan
    answer = adapter(bad)
    assert answer.shape == (4, CLASSES)
    assert answer.isnan().all()
    assert same_bits(snapshot(adapter.network), before) == []
    moved = same_bits(adapter.online_state(), state)
    free = {
        "memory/skipped",
        "memory/left_out",
        *(f"memory/{kind}{way}" for kind in ("", "computed_") for way in ("forwards", "backwards")),
    }
    assert set(moved) <= free
    assert adapter.cost.skipped == 1
    assert torch.isfinite(adapter(good)).all()
