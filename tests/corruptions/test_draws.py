"""Random numbers of the corruptions: right distributions, and nothing but seed and position decides them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from corruption_pictures import ALL, photographs
from wildtta.corruptions import corrupt
from wildtta.corruptions.draws import DeviceDraws, image_keys

CPU = torch.device("cpu")


def draws(count: int = 1, seed: int = 0) -> DeviceDraws:
    return DeviceDraws(image_keys(np.asarray(seed), np.arange(count), "fog", 1), CPU)


@pytest.mark.parametrize("corruption", ALL)
def test_batch_of_64_equals_batches_of_1(corruption: str) -> None:
    images = photographs(64, 64)
    together = corrupt(images, corruption, 4, seed=7)
    for position in (0, 1, 20, 21, 42, 63):
        alone = corrupt(images[position : position + 1], corruption, 4, seed=7, index=[position])
        assert torch.equal(alone[0], together[position]), position


@pytest.mark.parametrize("corruption", ALL)
def test_large_images_do_not_depend_on_the_batch(corruption: str) -> None:
    images = photographs(3, 64).repeat(1, 1, 2, 3)[..., :130]  # 128 x 130, ImageNet's constants
    together = corrupt(images, corruption, 1, seed=1, index=[4, 5, 6])
    reordered = corrupt(images.flip(0), corruption, 1, seed=1, index=[6, 5, 4])
    assert torch.equal(reordered.flip(0), together)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("corruption", ALL)
def test_on_the_gpu(corruption: str) -> None:
    images = photographs(64, 64).repeat(1, 1, 4, 4)[..., :224, :224].contiguous().cuda()
    together = corrupt(images, corruption, 5, seed=7)
    for position in (0, 31, 63):
        alone = corrupt(images[position : position + 1], corruption, 5, seed=7, index=[position])
        assert torch.equal(alone[0], together[position]), position
    on_cpu = corrupt(images[:4].cpu(), corruption, 5, seed=[1, 2, 3, 4], draws="official").int()
    on_gpu = corrupt(images[:4], corruption, 5, seed=[1, 2, 3, 4], draws="official").cpu().int()
    assert float(((on_cpu - on_gpu).abs() <= 1).float().mean()) > 0.999


@pytest.mark.parametrize("source", ["device", "official"])
def test_seed_position_and_severity_select_the_noise(source) -> None:
    grey = torch.full((3, 3, 32, 32), 128, dtype=torch.uint8)
    first = corrupt(grey, "gaussian_noise", 3, seed=0, draws=source)
    assert torch.equal(first, corrupt(grey, "gaussian_noise", 3, seed=0, draws=source))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, corrupt(grey, "gaussian_noise", 3, seed=1, draws=source))
    shifted = corrupt(grey, "gaussian_noise", 3, seed=0, index=[1, 2, 3], draws=source)
    assert torch.equal(shifted[:2], first[1:])
    # Severity 4 draws anew: it is not severity 3 scaled by 0.15 / 0.12.
    noise_3, noise_4 = (
        corrupt(grey, "gaussian_noise", severity, draws=source).double().flatten() - 128 for severity in (3, 4)
    )
    assert abs(float(torch.corrcoef(torch.stack((noise_3, noise_4)))[0, 1])) < 0.05


def test_official_draws_are_numpys() -> None:
    grey = torch.full((2, 3, 20, 24), 100, dtype=torch.uint8)
    produced = corrupt(grey, "speckle_noise", 2, seed=[11, 12], draws="official").permute(0, 2, 3, 1).numpy()
    for image, seed in zip(produced, (11, 12), strict=True):
        noise = np.random.RandomState(seed).normal(size=(20, 24, 3), scale=0.2)
        expected = (np.clip(100 / 255.0 + 100 / 255.0 * noise, 0, 1) * 255).astype(np.uint8)
        assert np.array_equal(image, expected)


def test_normal_numbers_follow_the_normal_distribution() -> None:
    values = draws(4).normal((50_001,)).double().flatten().sort().values.numpy()
    count = len(values)
    normal = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
    distance = np.abs(normal - (np.arange(count) + 0.5) / count).max()
    assert distance < 1.63 / math.sqrt(count)  # Kolmogorov-Smirnov, 1 % level
    assert abs(np.mean(values**4) - 3) < 0.1


def test_images_calls_and_neighbours_are_uncorrelated() -> None:
    source = draws(3)
    first, second = source.normal((40_000,)).double(), source.normal((40_000,)).double()
    rows = torch.cat((first, second, first.roll(1, 1), first.roll(20_000, 1)))
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert float(correlation.abs().max()) < 5 / math.sqrt(40_000)


def test_uniform_numbers_and_integers_fill_their_range_evenly() -> None:
    uniform = draws().uniform((100_000,)).flatten()
    assert 0 < float(uniform.min()) < 1e-4
    assert 1 - 1e-4 < float(uniform.max()) < 1
    counts = torch.histc(uniform, 50, 0, 1)
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 85.4  # chi-square, 49 degrees of freedom, 0.1 % level
    integers = draws().integers(-4, 4, (80_000,)).flatten()
    counts = torch.bincount(integers + 4, minlength=8).double()
    assert len(counts) == 8
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 24.3  # 7 degrees of freedom


@pytest.mark.parametrize(("grey", "scale"), [(255, 60.0), (128, 25.0), (3, 3.0), (200, 250.0)])
def test_poisson_counts_follow_the_poisson_distribution(grey: int, scale: float) -> None:
    images = torch.full((1, 3, 200, 200), grey, dtype=torch.uint8)
    counts = draws(seed=grey).poisson(images, scale).flatten().numpy().astype(int)
    mean = grey / 255 * scale
    masses = np.array([math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(int(mean * 3 + 40))])
    expected = masses * counts.size
    observed = np.bincount(counts, minlength=len(expected))[: len(expected)]
    frequent = expected > 10
    chi_square = float(((observed - expected)[frequent] ** 2 / expected[frequent]).sum())
    freedom = int(frequent.sum())
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_black_stays_black_under_shot_noise() -> None:
    black = torch.zeros((1, 3, 32, 32), dtype=torch.uint8)
    assert int(corrupt(black, "shot_noise", 5).max()) == 0


def test_integers_below_stay_below_and_reach_all() -> None:
    drawn = draws(2000).integers_below([5] * 1000 + [3] * 1000)
    assert set(drawn[:1000]) == {0, 1, 2, 3, 4}
    assert set(drawn[1000:]) == {0, 1, 2}
