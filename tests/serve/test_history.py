"""The history of a tenant: exact totals, a bounded number of points, means that agree with numpy and torch."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from wildtta.serve.history import History, mean_entropy
from wildtta.serve.saving import Saver


def test_points_are_bounded_and_lose_nothing_in_sum() -> None:
    history = History()
    draw = np.random.default_rng(0)
    total = entropies = 0.0
    for second in range(2000):
        logits = draw.standard_normal((int(draw.integers(1, 5)), 10))
        history.answered(logits, requests=1, now=1e6 + second)
        total += len(logits)
        entropies += len(logits) * mean_entropy(logits)
    assert len(history.points) <= 300
    assert sum(point.images for point in history.points) == history.images == total
    assert sum(point.requests for point in history.points) == 2000
    assert sum(point.images * point.entropy for point in history.points) == pytest.approx(entropies)
    times = [point.time for point in history.points]
    assert times == sorted(times)
    told = history.told(since=1e6 + 1990)
    assert 0 < len(told["points"]) < 20
    assert told["requests"] == 2000


def test_entropy_and_the_share_of_the_top_class() -> None:
    logits = torch.randn(50, 7, dtype=torch.float64)
    expected = torch.distributions.Categorical(logits=logits).entropy().mean()
    assert mean_entropy(logits.numpy()) == pytest.approx(float(expected))
    history = History()
    answers = np.random.default_rng(1).integers(0, 3, 2500)
    history.answered(np.eye(3)[answers], requests=1)
    last = answers[-1000:]
    assert history.top_share == pytest.approx(np.bincount(last).max() / 1000)
    assert history.top_class == np.bincount(last).argmax()


def test_infinite_answers_have_a_finite_entropy() -> None:
    """JSON has no NaN: one of them would keep the whole status from being told."""
    infinite = np.array([[np.inf, -np.inf, 0.0], [np.nan, np.nan, np.nan]], np.float32)
    assert mean_entropy(infinite[:1]) == 0
    assert mean_entropy(infinite[1:]) == pytest.approx(np.log(3))


class Disk:
    """Something to save to, which may be full."""

    def __init__(self) -> None:
        self.full = False
        self.saved: list[str | None] = []

    def save(self, tenant: str | None) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.saved.append(tenant)


def test_no_more_steps_than_stated_are_unsaved() -> None:
    disk = Disk()
    saver = Saver(disk.save, steps=10, seconds=1e9)
    for _ in range(200):
        for tenant in "abcdefgh":
            saver.changed(tenant)
            assert saver.unsaved(tenant) < 10
    assert len(disk.saved) == pytest.approx(8 * 200 / 10, abs=8)


def test_changed_states_are_saved_after_some_time() -> None:
    disk = Disk()
    saver = Saver(disk.save, steps=1000, seconds=0.05)
    saver.tick()
    assert disk.saved == []
    saver.changed("late")
    assert disk.saved == []
    saver.tick()
    assert disk.saved == []
    time.sleep(0.06)
    saver.tick()
    assert disk.saved == ["late"]
    assert saver.unsaved("late") == 0


def test_a_full_disk_is_an_alarm_until_everything_is_saved() -> None:
    disk = Disk()
    saver = Saver(disk.save, steps=1, seconds=1e9)
    disk.full = True
    saver.changed("a")
    assert saver.alarm is not None
    assert "No space left" in saver.alarm
    assert saver.unsaved("a") == 1
    disk.full = False
    assert saver.now(None)
    assert saver.alarm is None
    assert saver.unsaved("a") == 0
