"""NEO, T3A, SHOT, POEM, SPA, FOA: parts against independent formulas, and properties (trajectories: see the parity cases)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import wildtta
from toy_networks import build, images
from wildtta.methods.foa.cma import CMA
from wildtta.methods.losses import entropy
from wildtta.methods.poem import Bettor, Distribution
from wildtta.methods.shot import nearest_centroids
from wildtta.methods.spa import bootstrap_loss, held_amounts, without_frequencies
from wildtta.methods.t3a import most_certain


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features_of(network: nn.Module, batch: Tensor) -> Tensor:
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    taken: list[Tensor] = []
    with head.register_forward_pre_hook(lambda module, inputs: taken.append(inputs[0])), torch.no_grad():
        network(batch)
    return taken[0]


# -- NEO ---------------------------------------------------------------------------------------------------------------


def test_neo_centres_by_the_mean_of_everything_seen_whatever_the_batches() -> None:
    network = build("ln_vit", dtype=torch.float64)
    stream = images("ln_vit", 12, dtype=torch.float64)
    adapter = wildtta.adapt(build("ln_vit", dtype=torch.float64), "neo")
    for part in (stream[:1], stream[1:6], stream[6:]):
        answer = adapter(part)
    features = features_of(network, stream)
    centred = (features - features.mean(0))[6:]
    torch.testing.assert_close(answer, centred @ network.head.weight.T + network.head.bias)
    with adapter.paused():
        torch.testing.assert_close(adapter(stream[6:]), answer)


# -- T3A ---------------------------------------------------------------------------------------------------------------


def test_t3a_keeps_the_most_certain_of_each_class() -> None:
    classes, places, width = 5, 3, 4
    kept = torch.zeros(classes, places, width, dtype=torch.float64)
    entropies = torch.full((classes, places), math.nan, dtype=torch.float64)
    seen: list[tuple[int, float, Tensor]] = []
    for step in range(6):
        features = torch.randn(7, width, generator=generator(step), dtype=torch.float64)
        logits = torch.randn(7, classes, generator=generator(100 + step), dtype=torch.float64)
        kept, entropies = most_certain(kept, entropies, features, logits)
        found = zip(logits.argmax(1).tolist(), entropy(logits).tolist(), features, strict=True)
        seen += [(label, value, row / row.norm()) for label, value, row in found]
        for label in range(classes):
            best = sorted((value, number) for number, (of, value, _) in enumerate(seen) if of == label)[:places]
            held = torch.isfinite(entropies[label])
            assert entropies[label][held].tolist() == pytest.approx([value for value, _ in best])
            rows = torch.stack([seen[number][2] for _, number in best]) if best else kept[label][:0]
            torch.testing.assert_close(kept[label][held], rows)
            assert not kept[label][~held].any()


# -- SHOT --------------------------------------------------------------------------------------------------------------


def test_shot_labels_by_the_nearest_centroid() -> None:
    """A sample between two clusters is predicted as one class and labelled as the other, whose centroid is nearer."""
    features = torch.randn(30, 6, generator=generator(), dtype=torch.float64)
    probabilities = (3 * torch.randn(30, 4, generator=generator(1), dtype=torch.float64)).softmax(1)
    probabilities[:, 3] = 0  # a class that nobody is predicted to have
    points = np.concatenate([features.numpy(), np.ones((30, 1))], 1)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    weights, labels = probabilities.numpy(), probabilities.numpy().argmax(1)
    for _ in range(2):
        centroids = [(weights[:, c, None] * points).sum(0) / max(weights[:, c].sum(), 1e-8) for c in range(4)]
        far = [
            [1 - p @ m / np.linalg.norm(m) if np.any(labels == c) else np.inf for c, m in enumerate(centroids)]
            for p in points
        ]
        labels = np.argmin(far, 1)
        weights = np.eye(4)[labels]
    assert nearest_centroids(features, probabilities, torch.ones(30, dtype=torch.bool)).tolist() == labels.tolist()
    assert (labels != probabilities.numpy().argmax(1)).any()


# -- POEM --------------------------------------------------------------------------------------------------------------


@given(stake=st.floats(-1.7, 1.7), level=st.floats(0.01, 0.99))
@settings(max_examples=50, deadline=None)
def test_the_bettor_follows_the_gradient_of_what_he_wins(stake: float, level: float) -> None:
    def won(at: float) -> float:
        return math.log(1 + at * (level - 0.5))

    slope = (won(stake + 1e-6) - won(stake - 1e-6)) / 2e-6
    before = Bettor(stake=stake, squares=1.0, bets=5.0)
    after = before.after(level, rate=0.1, largest=1.8)
    assert after.stake - stake == pytest.approx(0.1 * slope / math.sqrt(1 + slope**2), rel=1e-4, abs=1e-9)
    assert after.wealth == pytest.approx(math.exp(won(stake)))


@given(stake=st.floats(-1.9, 1.9))
@settings(max_examples=20, deadline=None)
def test_protection_is_the_distribution_that_the_bettor_believes_in(stake: float) -> None:
    """ũ(u) is the integral of the density 1 + ε(u − ½): 0 at 0, 1 at 1, rising."""
    bettor = Bettor(stake=stake)
    levels = np.linspace(0, 1, 201)
    density = 1 + stake * (levels - 0.5)
    integral = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2) * (levels[1] - levels[0])])
    assert [bettor.protected(level) for level in levels] == pytest.approx(integral.tolist(), abs=1e-12)


def test_the_bettor_stays_poor_on_the_source_and_grows_rich_on_a_shift() -> None:
    rng = np.random.default_rng(0)
    source = Distribution.of(rng.gamma(2.0, size=4000))
    fortunes = {}
    for name, sample in {"same": rng.gamma(2.0, size=2000), "shifted": 1.3 * rng.gamma(2.0, size=2000)}.items():
        bettor = Bettor()
        for level in source.level(sample):
            bettor = bettor.after(level, rate=1 / (8 * math.sqrt(3)), largest=1.8)
        fortunes[name] = bettor.wealth
    assert fortunes["same"] < 20  # a test martingale exceeds 20 with a probability of at most 1/20
    assert fortunes["shifted"] > 1e6


def test_poem_keeps_quantiles_of_many_source_images_and_needs_some() -> None:
    source = images("gn_resnet", 96)
    adapter = wildtta.adapt(build("gn_resnet"), "poem", source_images=source, source_kept=24)
    adapter(images("gn_resnet", 8, seed=1))
    with torch.no_grad():
        values = entropy(build("gn_resnet")(source)).double().sort().values
    kept = adapter.online_state()["memory/source_entropies"]
    torch.testing.assert_close(kept, values[2::4], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="give source_images="):
        wildtta.adapt(build("gn_resnet"), "poem")(images("gn_resnet", 8))


def test_poem_learns_nothing_where_the_stream_is_the_source() -> None:
    """With ε = 0 every target is the entropy itself: no gradient."""
    adapter = wildtta.adapt(build("gn_resnet"), "poem", source_images=images("gn_resnet", 64), stake_rate=1e-12, delay=0)
    adapter(images("gn_resnet", 16, seed=3))
    assert float(adapter.last.gradient_norm) < 1e-4


# -- SPA ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [16, 15])
def test_spa_takes_amplitudes_away_at_low_frequencies_alone(side: int) -> None:
    pictures = torch.randn(2, 3, side, side, generator=generator(), dtype=torch.float64)
    changed = without_frequencies(pictures, torch.zeros_like(pictures))
    before, after = torch.fft.fft2(pictures), torch.fft.fft2(changed)
    frequencies = torch.fft.fftfreq(side).abs() * side
    low = (frequencies[:, None] <= 0.1 * side) & (frequencies[None] <= 0.1 * side)
    torch.testing.assert_close(after[..., ~low], before[..., ~low])  # a real image has mirrored amplitudes: none leaks
    assert after[..., 0, 0].abs().max() < 1e-12
    assert (after.abs()[..., low] < 1e-12).float().mean() > 0.5
    torch.testing.assert_close(without_frequencies(pictures, torch.ones_like(pictures)), pictures)


def test_spa_moves_the_noise_up_the_loss_and_holds_its_mean_share() -> None:
    """The first momentum is minus the loss's gradient for α, by finite differences."""
    batch = images("gn_resnet", 16, dtype=torch.float64)

    def stepped(change: float) -> tuple[float, Tensor, Tensor]:
        adapter = wildtta.adapt(build("gn_resnet", dtype=torch.float64), "spa", patch=8, limit=None, lr=1e-9)
        adapter(batch)  # the first look at an image makes room for its patches
        adapter.reset()
        adapter.engine.memory["noise_amounts"][2] += change
        adapter(batch)
        state = adapter.online_state()
        return float(adapter.last.loss), state["memory/noise_momentum"], state["memory/noise_amounts"]

    (above, _, _), (below, _, _), (_, momentum, amounts) = stepped(1e-5), stepped(-1e-5), stepped(0.0)
    assert float(momentum[2]) == pytest.approx(-(above - below) / 2e-5, rel=1e-5)
    assert float(amounts.square().mean()) == pytest.approx(0.1)
    assert float(held_amounts(torch.tensor([0.1, 5.0]), 0.9).max()) == 1.0


def test_spa_learns_from_samples_that_lost_confidence() -> None:
    target = torch.tensor([[3.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    spoilt = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    p, q = target[0].softmax(0), spoilt[0].softmax(0)
    loss = bootstrap_loss(spoilt, target)
    assert loss.item() == pytest.approx((p * (p / q).log()).sum().item())
    (gradient,) = torch.autograd.grad(loss, spoilt)
    torch.testing.assert_close(gradient, torch.stack([q - p, torch.zeros(3, dtype=torch.float64)]))


# -- FOA ---------------------------------------------------------------------------------------------------------------


def test_cma_finds_the_minimum_of_a_stretched_and_turned_bowl() -> None:
    size = 6
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator(), dtype=torch.float64)).Q
    scales = torch.logspace(0, 2, size, dtype=torch.float64)
    strategy = CMA(size, 10)
    state = strategy.first_state(torch.device("cpu"))
    draws = generator(1)
    least = math.inf
    for _ in range(250):
        state |= strategy.prepared(state)
        candidates = strategy.ask(state, torch.randn(10, size, generator=draws, dtype=torch.float64))
        losses = (((candidates - 1.5) @ turn).square() * scales).sum(1)
        least = min(least, float(losses.min()))
        state |= strategy.tell(state, candidates, losses, 10)
    assert least < 1e-10
    torch.testing.assert_close(state["cma_mean"], torch.full((size,), 1.5, dtype=torch.float64), rtol=0, atol=1e-4)
    axes = state["cma_axes"].square()
    assert float(axes.max() / axes.min()) > 20  # it has learned the bowl's shape


def test_foa_never_answers_worse_than_the_best_prompts_before() -> None:
    """The best set of prompts stays in the race: on a repeated batch its loss cannot rise."""
    source, batch = images("ln_vit", 32, seed=9), images("ln_vit", 16)
    adapter = wildtta.adapt(build("ln_vit"), "foa", source_images=source, prompts=1, population=6)
    losses = []
    for _ in range(6):
        adapter(batch)
        losses.append(float(adapter.last.loss))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    assert adapter.cost.forwards == 6 * 7 * 16
    with pytest.raises(ValueError, match="give source_images="):
        wildtta.adapt(build("ln_vit"), "foa", prompts=1)(batch)
