"""No sender moves the model by more than its share."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wildtta
from toy_networks import batches, build, images
from wildtta.guard.senders import WINDOW, Quotas


def test_a_sender_is_admitted_up_to_its_share_of_every_window() -> None:
    quotas = Quotas(0.25)
    admitted: list[bool] = []
    for start in range(0, 8 * WINDOW, 64):
        senders = ["flood"] * 60 + [f"guest {start + k}" for k in range(4)]
        places = set(quotas.admit(senders))
        admitted += [place in places for place in range(64)]
        assert places >= {60, 61, 62, 63}
    flood = torch.tensor(admitted).view(-1, 64)[:, :60].float()
    windows = flood.reshape(-1, WINDOW // 64, 60).sum((1, 2))
    assert windows.max() <= WINDOW / 4 + 60


def test_what_is_beyond_the_share_is_answered_and_not_learned_from() -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01, guard=wildtta.Guard(sender_share=16 / WINDOW))
    plain = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01)
    first, second, third = batches("gn_resnet", 3, 16)
    with model.senders(["one"] * 16):
        torch.testing.assert_close(model(first), plain(first))
        weights = model.engine.learnables.vector()
        with plain.paused():
            torch.testing.assert_close(model(second), plain(second))
    torch.testing.assert_close(model.engine.learnables.vector(), weights, rtol=0, atol=0)
    with model.senders(["one"] * 12 + ["two"] * 4), plain.paused():
        torch.testing.assert_close(model(third), plain(third))
    assert model.last.mask.tolist() == [False] * 12 + [True] * 4
    moved = model.engine.learnables.vector() - weights
    alone = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01)
    alone(first)
    before = alone.engine.learnables.vector()
    alone.engine.memory["momentum"].copy_(plain.engine.memory["momentum"])
    alone(third[12:])
    torch.testing.assert_close(moved, (alone.engine.learnables.vector() - before) / 4, rtol=1e-4, atol=1e-7)


def test_a_call_that_fails_uses_up_no_share() -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent", lr=0.01, guard=wildtta.Guard(sender_share=16 / WINDOW))
    batch = batches("gn_resnet", 1, 16)[0]

    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with model.senders(["one"] * 16):
        with model.network.register_forward_hook(broken), pytest.raises(RuntimeError, match="out of memory"):
            model(batch)
        model(batch)
        assert model.last.mask.all()
        model(batch)
        assert not model.last.mask.any()


def test_senders_belong_to_the_thread_that_names_them() -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent")
    batch = batches("gn_resnet", 1, 4)[0]
    errors: list[Exception] = []

    def other() -> None:
        try:
            model(batch)
        except Exception as error:
            errors.append(error)

    with model.senders(["only one"]):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="one sender for each of the 4 images, got 1"):
            model(batch)
    assert not errors


def test_with_batch_statistics_a_batch_is_answered_as_a_whole() -> None:
    """Sixty images of one sender are not learned from; the four others are not normalised by themselves for that."""
    model = wildtta.adapt(build("bn_resnet"), "tent", lr=0.01, guard=wildtta.Guard(sender_share=16 / WINDOW))
    plain = wildtta.adapt(build("bn_resnet"), "tent", lr=0.01)
    first, second = batches("bn_resnet", 2, 16)
    with model.senders(["one"] * 16):
        model(first)
    plain(first)
    weights = model.engine.learnables.vector()
    with model.senders(["one"] * 12 + ["two"] * 4), plain.paused():
        torch.testing.assert_close(model(second), plain(second))
    assert model.last.mask.tolist() == [False] * 12 + [True] * 4
    assert len(model.last.entropies) == int(model.last.seen) == 16
    assert not torch.equal(model.engine.learnables.vector(), weights)


def test_senders_who_are_gone_are_forgotten() -> None:
    quotas = Quotas(0.25)
    for start in range(0, 20 * WINDOW, 64):
        quotas.admit([f"guest {start + k}" for k in range(64)])
    assert len(quotas._learned) <= WINDOW


@pytest.mark.parametrize(
    "given",
    [
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda ids: list(torch.tensor(ids)),
        lambda ids: [str(one) for one in ids],
        lambda ids: np.array([str(one) for one in ids]),
    ],
)
def test_however_senders_are_given_the_same_images_are_learned_from(given: Callable[[list[int]], Any]) -> None:
    """A quarter of 1,024 images of one sender is four batches of 64; the other sender's images come on top."""
    model = wildtta.adapt(build("gn_resnet"), "tent")
    batch = batches("gn_resnet", 1, 64)[0]
    for _ in range(6):
        with model.senders(given([7] * 64)):
            model(batch)
    assert model.cost.learned == 4
    with model.senders(given([7] * 60 + [8] * 4)):
        model(batch)
    assert model.last.mask.tolist() == [False] * 60 + [True] * 4


@pytest.mark.parametrize("given", ["aaaa", b"aaaa", 5, None, [["a"]] * 4, torch.zeros(4, 1), np.zeros(()), torch.tensor(3)])
def test_what_names_no_sender_for_each_image_is_refused(given: Any) -> None:
    model = wildtta.adapt(build("gn_resnet"), "tent")
    with pytest.raises(TypeError, match="expected one sender for each image"), model.senders(given):
        pass


@pytest.mark.parametrize("given", [[("tenant", ["a"])], [{"a"}], [bytearray(b"a")]])
def test_senders_that_cannot_be_told_apart_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="expected one sender for each image"):
        wildtta.adapt(build("ln_mlp"), "tent").senders(given)


@pytest.mark.parametrize("given", [[1.0, math.nan], np.array([math.nan]), torch.tensor([math.nan])])
def test_nan_is_no_sender(given: Any) -> None:
    """As it comes of a table with gaps. It never equals itself, and was learned from without bound."""
    with pytest.raises(ValueError, match=r"NaN.*'unknown'"):
        wildtta.adapt(build("ln_mlp"), "tent").senders(given)


@pytest.mark.parametrize("kind", ["gn_resnet", "bn_resnet"])
def test_a_batch_that_is_learned_from_in_part_is_one_step(kind: str) -> None:
    adapter = wildtta.adapt(build(kind), "tent", lr=0.01, guard=wildtta.Guard(sender_share=0.01))
    steps = []
    for number in range(4):
        with adapter.senders(["often"] * 8 + [f"guest {number}"] * 8):
            adapter(images(kind, 16, seed=number))
        steps.append(adapter.last.step)
    with adapter.paused():
        adapter(images(kind, 16))
    assert [*steps, adapter.last.step] == [1, 2, 3, 4, 5]
