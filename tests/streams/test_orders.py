"""Orders within a domain: the authors' recorded ones, the shares that the formula asks for, and purity."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from wildtta.streams import balanced_subset, build, dirichlet, label_shift, mild, one_class, runs, single

RECORDED = json.loads((Path(__file__).parent / "label_shift_orders.json").read_text())
CLASS_ORDERED = np.repeat(np.arange(20), 10)


def recorded_arguments(key: str) -> tuple[np.ndarray, dict[str, int]]:
    found = re.fullmatch(r"seed(\d+)_C(\d+)_n(\d+)_T(\d+)_ir(\d+)", key)
    assert found
    seed, classes, per_class, steps, ratio = map(int, found.groups())
    return np.repeat(np.arange(classes), per_class), {"ratio": ratio, "draws": steps // classes, "seed": seed}


@pytest.mark.parametrize("key", sorted(RECORDED))
def test_official_order_equals_the_recorded_one(key: str) -> None:
    labels, arguments = recorded_arguments(key)
    order = label_shift(labels, **arguments, order="official")
    assert order.dtype == np.int64
    assert order.tolist() == RECORDED[key]["indices"]


def test_official_infinity_is_500000() -> None:
    key = "seed2023_C20_n10_T400_ir500000"
    order = label_shift(CLASS_ORDERED, draws=20, seed=2023, ratio=math.inf, order="official")
    assert order.tolist() == RECORDED[key]["indices"]


def test_official_order_at_full_size_touches_as_many_images_as_the_authors_files() -> None:
    order = label_shift(np.repeat(np.arange(1000), 50), seed=2022, order="published")
    assert order.shape == (100_000,)
    assert len(np.unique(order)) == pytest.approx(43_300, abs=100)


def test_official_order_against_the_generator_written_with_numpys_own_choice() -> None:
    """The facts of the authors' generator, step by step with the global generators, at another size."""
    classes, per_class, draws, ratio, seed = 7, 3, 5, 4.0, 11
    random.seed(seed)
    class_order = list(range(classes))
    random.shuffle(class_order)
    np.random.seed(2022)  # noqa: NPY002
    minor = 1.0 / (ratio + classes - 1)
    steps = []
    for block in range(classes):
        q = [minor] * classes
        q[class_order[block]] = minor * ratio
        steps += [int(np.random.choice(classes, 1, p=q)[0]) for _ in range(draws)]  # noqa: NPY002
    expected = np.empty(len(steps), dtype=np.int64)
    for label in range(classes):
        where = [i for i, s in enumerate(steps) if s == label]
        expected[where] = label * per_class + np.random.randint(0, per_class, len(where))  # noqa: NPY002
    labels = np.repeat(np.arange(classes), per_class)
    assert label_shift(labels, ratio=ratio, draws=draws, seed=seed, order="official").tolist() == expected.tolist()


def test_published_files_take_the_next_shuffle_for_each_ratio_of_the_run() -> None:
    generator = random.Random(2022)
    for ratio in (1, 1000, 2000, 3000, 4000, 5000, math.inf):
        class_order = list(range(20))
        generator.shuffle(class_order)
        order = label_shift(CLASS_ORDERED, ratio=ratio, draws=50, seed=2022, order="published")
        if ratio > 1:
            dominant = [np.bincount(block // 10).argmax() for block in order.reshape(20, 50)]
            assert dominant == class_order
    with pytest.raises(ValueError, match="1, 1000, 2000"):
        label_shift(CLASS_ORDERED, ratio=10, order="published")


@pytest.mark.parametrize(
    ("labels", "found"),
    [(np.arange(20).repeat(10)[::-1].copy(), "not in class order"), (np.array([0, 0, 1]), "1 to 2 images each")],
)
def test_official_order_refuses_other_sets(labels: np.ndarray, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        label_shift(labels, order="official")


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_stored_order_is_read_as_it_is(tmp_path: Path, dtype: type) -> None:
    path = tmp_path / "order.npy"
    np.save(path, np.array([3, 199, 3, 0], dtype=dtype))
    for name in (path, str(path)):
        order = label_shift(CLASS_ORDERED, order=name)
        assert order.dtype == np.int64
        assert order.tolist() == [3, 199, 3, 0]


@pytest.mark.parametrize(
    ("stored", "message"),
    [([0.5], "whole numbers"), ([200], "200 images"), ([-1], "from -1"), ([[1, 2]], "one-dimensional")],
)
def test_stored_order_that_does_not_fit_is_named(tmp_path: Path, stored: list[float], message: str) -> None:
    path = tmp_path / "order.npy"
    np.save(path, np.array(stored))
    with pytest.raises(ValueError, match=message) as error:
        label_shift(CLASS_ORDERED, order=path)
    assert str(path) in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        label_shift(CLASS_ORDERED, order=tmp_path / "gone.npy")


@pytest.mark.parametrize("order", ["resample", "official"])
@pytest.mark.parametrize("ratio", [2, 19, 100, 1000])
def test_share_of_the_dominant_class_matches_the_ratio(order: str, ratio: int) -> None:
    classes, draws = 20, 2000
    drawn = CLASS_ORDERED[label_shift(CLASS_ORDERED, ratio=ratio, draws=draws, seed=3, order=order)]
    blocks = drawn.reshape(classes, draws)
    dominant = [int(np.bincount(block, minlength=classes).argmax()) for block in blocks]
    assert sorted(dominant) == list(range(classes))  # every class has its period
    share = np.mean([np.mean(block == major) for block, major in zip(blocks, dominant, strict=True)])
    expected = ratio / (ratio + classes - 1)
    assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / (classes * draws)))


@pytest.mark.parametrize("order", ["resample", "official"])
def test_ratio_one_is_uniform(order: str) -> None:
    indices = label_shift(CLASS_ORDERED, ratio=1, draws=2000, seed=5, order=order)
    for counts in (np.bincount(CLASS_ORDERED[indices]), np.bincount(indices)):
        expected = len(indices) / len(counts)
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        freedom = len(counts) - 1
        assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)  # mean and std of the chi-square distribution


def test_infinite_ratio_is_pure_class_order() -> None:
    labels = np.random.default_rng(0).integers(0, 50, 700) * 2  # no class order, unequal counts, odd classes absent
    indices = label_shift(labels, draws=30, seed=1)
    present = np.unique(labels)
    assert indices.shape == (30 * len(present),)
    blocks = labels[indices].reshape(len(present), 30)
    assert (blocks == blocks[:, :1]).all()
    assert sorted(blocks[:, 0]) == present.tolist()
    assert blocks[:, 0].tolist() != present.tolist()  # the class order is shuffled


def test_resampling_is_with_replacement_and_differs_by_seed_where_official_images_do_not() -> None:
    assert len(np.unique(label_shift(CLASS_ORDERED, draws=10))) < 200
    resampled = [np.sort(label_shift(CLASS_ORDERED, draws=10, seed=s)) for s in (0, 1)]
    assert not np.array_equal(*resampled)
    uniform = [label_shift(CLASS_ORDERED, ratio=1, draws=10, seed=s, order="official") for s in (0, 1)]
    assert np.array_equal(*uniform)


@pytest.mark.parametrize("ratio", [0.5, 0, -1, math.nan])
def test_impossible_ratio(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio must be from 1"):
        label_shift(CLASS_ORDERED, ratio=ratio)


def test_unknown_order_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'resample', 'official', 'published' or the path.*'sorted'"):
        label_shift(CLASS_ORDERED, order="sorted")


def test_mild_and_single_are_one_permutation() -> None:
    order = mild(CLASS_ORDERED, seed=4)
    assert sorted(order) == list(range(200))
    assert np.array_equal(order, single(CLASS_ORDERED, seed=4))
    assert not np.array_equal(order, mild(CLASS_ORDERED, seed=5))


def changes_of_class(labels: np.ndarray) -> float:
    return float(np.mean(labels[1:] != labels[:-1]))


def test_dirichlet_shows_every_image_once_and_gamma_sets_the_correlation() -> None:
    labels = np.repeat(np.arange(100), 30)
    changes = []
    for gamma in (0.001, 0.1, 1.0, 1000.0):
        order = dirichlet(labels, gamma, seed=2)
        assert sorted(order) == list(range(3000))
        changes.append(changes_of_class(labels[order]))
    assert changes == sorted(changes)
    assert changes[0] < 0.1  # nearly one burst per class: 100 bursts in 3000 images
    shuffled = np.mean([changes_of_class(labels[mild(labels, seed=s)]) for s in range(20)])
    assert changes[-1] == pytest.approx(shuffled, abs=0.02)


def test_dirichlet_spreads_a_class_over_periods_as_the_distribution_says() -> None:
    """Share of the largest period of a symmetric Dirichlet, from an independent simulation by gamma variables."""
    labels = np.repeat(np.arange(40), 500)
    gamma, slots = 0.3, 10
    largest = []
    order = dirichlet(labels, gamma, slots=slots, seed=0)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    for label in range(40):
        places = np.sort(place[labels == label])
        bursts = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        largest.append(max(map(len, bursts)) / 500)
    gammas = np.random.default_rng(1).gamma(gamma, size=(20000, slots))
    expected = (gammas / gammas.sum(1, keepdims=True)).max(1)
    assert np.mean(largest) == pytest.approx(expected.mean(), abs=4 * expected.std() / math.sqrt(40))


@pytest.mark.parametrize("gamma", [0, -1, math.inf, math.nan])
def test_dirichlet_refuses_impossible_concentrations(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma must be a positive"):
        dirichlet(CLASS_ORDERED, gamma)


@pytest.mark.parametrize("order", [mild, label_shift, dirichlet, lambda x: label_shift(x, order="official", draws=3)])
def test_orders_neither_read_nor_change_global_random_state(order) -> None:  # type: ignore[no-untyped-def]
    def states() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    before = states()
    first = order(CLASS_ORDERED)
    assert states() == before
    random.seed(2), np.random.seed(2), torch.manual_seed(2)  # noqa: NPY002
    assert np.array_equal(first, order(CLASS_ORDERED))


@pytest.mark.parametrize("labels", [[], [[0, 1]], [0.5], ["cat"], [-1, 0]])
def test_labels_that_are_none_are_refused(labels: list[object]) -> None:
    with pytest.raises(ValueError, match="labels must be"):
        mild(labels)


def test_balanced_subset_spreads_over_classes() -> None:
    kept = balanced_subset(CLASS_ORDERED, 45)
    counts = np.bincount(CLASS_ORDERED[kept], minlength=20)
    assert counts.sum() == 45
    assert set(counts) == {2, 3}
    assert (np.diff(kept) > 0).all()
    assert balanced_subset(CLASS_ORDERED, 10_000).tolist() == list(range(200))


def test_runs_hold_one_class_each_and_repeat_an_image_only_after_all_of_its_class() -> None:
    order = runs(CLASS_ORDERED, run=4, length=480, seed=3)
    by_run = CLASS_ORDERED[order].reshape(120, 4)
    assert (by_run == by_run[:, :1]).all()
    rounds = by_run[:, 0].reshape(6, 20)
    assert all(sorted(one) == list(range(20)) for one in rounds)
    assert len({tuple(one) for one in rounds}) == 6
    first = order[CLASS_ORDERED[order] == 7][:10]
    assert sorted(first) == list(range(70, 80))
    with pytest.raises(ValueError, match="run must be at least 1"):
        runs(CLASS_ORDERED, run=0)


def test_one_class_is_one_class_and_its_seed_chooses_which() -> None:
    order = one_class(CLASS_ORDERED, length=25, seed=0)
    assert len(set(CLASS_ORDERED[order])) == 1
    assert sorted(order[:10]) == sorted(order[10:20]) == sorted(set(order))
    assert len({int(CLASS_ORDERED[one_class(CLASS_ORDERED, seed=seed)[0]]) for seed in range(20)}) > 5


@pytest.mark.parametrize(
    ("order", "options", "message"),
    [
        ("label_shift", {"draws": "x"}, "draws must be at least 1 image per period .*'x'"),
        ("label_shift", {"draws": True}, "draws must be"),
        ("label_shift", {"draws": 2**63}, "draws must be"),
        ("label_shift", {"ratio": "x"}, "ratio must be from 1 .*'x'"),
        ("label_shift", {"ratio": []}, "ratio must be"),
        ("dirichlet", {"gamma": "x"}, "gamma must be a positive finite number .*'x'"),
        ("dirichlet", {"gamma": 10**400}, "gamma must be"),
        ("dirichlet", {"slots": "x"}, "slots must be at least 1 .*'x'"),
    ],
)
def test_options_of_an_order_of_the_wrong_type_are_told(order: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(order, [0, 1, 2, 0, 1, 2], **options)
