"""Streams over domains: what comes when, where batches break and where the adapter is reset."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from wildtta.streams import (
    SCENARIOS,
    Domain,
    Stream,
    build,
    continual,
    dirichlet,
    gradual,
    label_shift,
    mild,
    mixed,
    scenario_options,
    separate,
)

LABELS = np.repeat(np.arange(10), 7)
THREE = ["fog", "snow", "frost"]


def check_batches_partition(stream: Stream) -> None:
    batches = list(stream.batches())
    assert len(batches) == stream.batch_count
    assert np.array_equal(np.concatenate([b.indices for b in batches]), stream.index)
    assert np.array_equal(np.concatenate([b.domains for b in batches]), stream.domain)
    assert [b.start for b in batches] == np.cumsum([0, *(len(b.indices) for b in batches)])[:-1].tolist()
    assert tuple(b.start for b in batches if b.reset) == stream.resets
    for batch, following in pairwise(batches):
        assert len(batch.indices) == stream.batch_size or following.start in stream.breaks


def test_separate_resets_before_each_domain_and_gives_them_one_order() -> None:
    stream = separate(LABELS, THREE, batch_size=16, seed=3)
    check_batches_partition(stream)
    assert stream.resets == (0, 70, 140)
    assert [len(b.indices) for b in stream.batches()] == [16, 16, 16, 16, 6] * 3
    assert np.array_equal(stream.index.reshape(3, 70), np.tile(mild(LABELS, seed=3), (3, 1)))


def test_continual_is_never_reset_and_batches_end_with_their_domain() -> None:
    stream = continual(LABELS, THREE, batch_size=16, seed=3, reshuffle=True)
    check_batches_partition(stream)
    assert stream.resets == (0,)
    assert all(len(set(b.domains)) == 1 for b in stream.batches())
    orders = stream.index.reshape(3, 70)
    assert (np.sort(orders, axis=1) == np.arange(70)).all()
    assert len({tuple(o) for o in orders}) == 3


def test_continual_over_label_shifted_domains() -> None:
    shift = partial(label_shift, ratio=1000, draws=5)
    stream = continual(LABELS, THREE, within=shift, seed=8)
    assert (stream.index.reshape(3, 50) == label_shift(LABELS, ratio=1000, draws=5, seed=8)).all()
    by_name = build("continual_label_shift", LABELS, domains=THREE, seed=8, ratio=1000, draws=5)
    assert np.array_equal(by_name.index, stream.index)
    assert by_name.resets == (0,)


def test_mixed_shows_every_image_of_every_domain_once_in_mixed_batches() -> None:
    stream = mixed(LABELS, THREE, batch_size=1, seed=0)
    check_batches_partition(stream)
    pairs = Counter(zip(stream.domain.tolist(), stream.index.tolist(), strict=True))
    assert pairs == Counter((d, i) for d in range(3) for i in range(70))
    assert all(len(b.indices) == 1 for b in stream.batches())
    # A domain's share of any stretch is about a third: hypergeometric, 4 standard deviations.
    assert np.abs(np.bincount(stream.domain[:105]) - 35).max() <= 4 * np.sqrt(105 / 3 * 2 / 3 * 105 / 209)


def test_mixed_label_shift_keeps_class_order_and_mixes_domains() -> None:
    stream = mixed(LABELS, THREE, within=partial(label_shift, draws=60))
    classes = LABELS[stream.index].reshape(10, 60)
    assert (classes == classes[:, :1]).all()
    assert all(set(block) == {0, 1, 2} for block in stream.domain.reshape(10, 60))


def test_domains_with_their_own_labels() -> None:
    other = np.array([4, 4, 4])
    stream = continual([LABELS, other], ["photo", "sketch"], batch_size=64)
    assert np.bincount(stream.domain).tolist() == [70, 3]
    assert stream.index[stream.domain == 1].max() == 2
    pool = mixed([LABELS, other], ["photo", "sketch"])
    assert sorted(pool.index[pool.domain == 1]) == [0, 1, 2]
    with pytest.raises(ValueError, match="each of the 3 domains, got 2"):
        mixed([LABELS, other], THREE)


def test_gradual_ramps_up_and_down() -> None:
    stream = gradual(LABELS, ["fog", "snow"], per_level=20, batch_size=8)
    check_batches_partition(stream)
    ramp = [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert stream.domains == tuple(Domain(n, s) for n in ("fog", "snow") for s in ramp)
    assert np.bincount(stream.domain).tolist() == [20] * 18
    assert stream.resets == (0,)
    assert len({tuple(part) for part in stream.index.reshape(18, 20)}) == 18
    by_name = build("gradual", LABELS, domains=["fog"], severity=3)
    assert [d.severity for d in by_name.domains] == [1, 2, 3, 2, 1]
    assert [d.severity for d in build("gradual", LABELS, domains=["fog"]).domains] == ramp


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_by_name_is_a_pure_function(scenario: str) -> None:
    streams = [build(scenario, LABELS, domains=THREE, severity=5, seed=s) for s in (1, 1, 2)]
    for stream in streams:
        assert stream.scenario == scenario
        check_batches_partition(stream)
    assert np.array_equal(streams[0].index, streams[1].index)
    assert np.array_equal(streams[0].domain, streams[1].domain)
    assert np.array_equal(streams[0].index, streams[2].index) == (scenario == "stored")


def test_a_shift_comes_and_goes() -> None:
    stream = build("comes_and_goes", np.repeat(np.arange(10), 60), domains=["fog", "snow"], severity=4, every=100)
    assert stream.domains == (Domain("clean"), Domain("fog", 4), Domain("snow", 4))
    assert stream.domain.tolist() == [0] * 100 + [1] * 100 + [0] * 100 + [2] * 100 + [0] * 100 + [1] * 100
    assert sorted(stream.index) == list(range(600))
    assert stream.resets == (0,)
    with pytest.raises(ValueError, match="other than 'clean'"):
        build("comes_and_goes", LABELS)


@pytest.mark.parametrize("scenario", sorted(set(SCENARIOS) - {"runs", "one_class", "comes_and_goes"}))
def test_limit_takes_images_of_all_classes_and_all_domains(scenario: str) -> None:
    stream = build(scenario, LABELS, domains=THREE, severity=2, limit=20)
    for number in range(len(stream.domains)):
        seen = stream.index[stream.domain == number]
        assert set(seen) <= set((np.arange(10)[:, None] * 7 + [0, 1]).ravel())
        assert set(LABELS[seen]) == set(range(10))


def test_options_reach_their_order() -> None:
    assert np.array_equal(
        build("dirichlet", LABELS, gamma=0.5, slots=4, seed=6).index, dirichlet(LABELS, 0.5, slots=4, seed=6)
    )
    stream = build("mixed", LABELS, domains=THREE, within="label_shift", ratio="inf", draws=4)
    assert len(stream) == 40
    assert build("single", LABELS).batch_size == 1
    assert build("mild", LABELS).batch_size == 64


def test_wrong_requests_name_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown scenario 'wild'; known: mild, label_shift"):
        build("wild", LABELS)
    with pytest.raises(ValueError, match=r"'mild' has no option ratio; it takes: reshuffle"):
        build("mild", LABELS, ratio=3)
    with pytest.raises(ValueError, match=r"order 'mild' has no option ratio; set within="):
        build("mixed", LABELS, domains=THREE, ratio=3)
    with pytest.raises(ValueError, match="batches of one, got batch_size=64"):
        build("single", LABELS, batch_size=64)
    with pytest.raises(TypeError, match=r"write \['fog'\]"):
        build("mild", LABELS, domains="fog")
    with pytest.raises(ValueError, match="at least one domain"):
        build("mild", LABELS, domains=[])
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        build("mild", LABELS, batch_size=0)
    assert scenario_options("label_shift") == ["draws", "order", "ratio", "reshuffle"]


def test_first_cuts_the_stream() -> None:
    stream = separate(LABELS, THREE, batch_size=16).first(100)
    check_batches_partition(stream)
    assert len(stream) == 100
    assert stream.resets == (0, 70)
