"""A state for each kind of images: it is left, kept and found again with that kind."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import build
from wildtta.guard.appearance import Neighbourhood, kind
from wildtta.guard.audit import read_audit

NETWORK = "gn_resnet"


@pytest.fixture(scope="module")
def images() -> dict[str, Tensor]:
    """1,280 images in each of two kinds."""
    draws = torch.randn(2, 1280, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return {"full": draws[0], "pale": 0.3 * draws[1] + 0.5}


def learned(images: dict[str, Tensor], **options: object) -> wildtta.Adapter:
    """Steady after 1,280 images. (Without the evidence it learns from every batch; the guard is one that raises no alarm.)"""
    guard = wildtta.Guard(false_alarms=1e-12, **options)  # type: ignore[arg-type]
    model = wildtta.adapt(build(NETWORK), evidence=False, guard=guard)
    for batch in images["full"].split(64):
        model(batch)
    return model


def answers(model: wildtta.Adapter, batch: Tensor) -> Tensor:
    with model.paused():
        return model(batch)


def test_strangeness_is_that_of_numpy(images: dict[str, Tensor]) -> None:
    known, latest = kind(images["pale"][:40]).double(), kind(images["full"][:9]).double()
    unit = known.numpy().std(0, ddof=1)
    one, other = known.numpy() / unit, latest.numpy() / unit
    own = np.sort(((one[:, None] - one) ** 2).sum(2), axis=1)[:, 8]  # the nearest is the image itself
    far = np.sort(((other[:, None] - one) ** 2).sum(2), axis=1)[:, 7]
    expected = np.median(far) / np.sort(own)[(len(own) - 1) // 2]  # torch's median is the lower one
    np.testing.assert_allclose(float(Neighbourhood(known).strangeness(latest)), expected, rtol=1e-6)


def test_a_new_kind_begins_at_the_source_and_the_old_one_is_found_again(
    images: dict[str, Tensor], tmp_path: Path
) -> None:
    model = learned(images, audit=tmp_path / "audit.jsonl")
    assert len(model.guard.places) == 1
    before = answers(model, images["full"][:256])
    moved = float(model.engine.distance())
    pale = images["pale"].split(64)
    for batch in pale[:3]:
        model(batch)
    assert len(model.guard.places) == 2
    assert float(model.engine.distance()) < 0.3 * moved  # one step from the source
    for batch in pale[3:]:
        model(batch)
    source = build(NETWORK)(images["full"][:256]).detach()
    present = model.network(images["full"][:256]).detach()
    # Paused, the images are answered by their own place, where the other kind has left no trace.
    torch.testing.assert_close(answers(model, images["full"][:256]), before, rtol=0, atol=0)
    assert float((present - before).norm()) > 0.3 * float((before - source).norm())
    torch.testing.assert_close(model.network(images["full"][:256]).detach(), present, rtol=0, atol=0)
    for batch in images["full"].split(64)[:3]:
        model(batch)
    assert float(model.engine.distance()) > 0.7 * moved
    assert [line["place"] for line in read_audit(tmp_path / "audit.jsonl") if line["kind"] == "kind"] == ["new", "back"]


def test_nobody_takes_the_images_of_an_older_place_over(images: dict[str, Tensor]) -> None:
    """A new place takes in whatever comes. Images of the old kind among them still belong to the old place."""
    model = learned(images)
    full = images["full"]
    home = answers(model, full[:256])
    for pale, own in zip(images["pale"].split(64)[:10], full.split(32), strict=False):
        model(torch.cat([pale, own]))
    assert len(model.guard.places) == 2
    torch.testing.assert_close(answers(model, full[:256]), home, rtol=0, atol=0)
    away = float((model.network(full[:256]).detach() - home).norm())
    for batch in full.split(64)[:2]:
        model(batch)
    assert float((model.network(full[:256]).detach() - home).norm()) < 0.5 * away


def test_one_window_is_no_new_kind(images: dict[str, Tensor]) -> None:
    model = learned(images)
    for batch in (images["pale"][:64], *images["full"].split(64)[:4]):
        model(batch)
    assert len(model.guard.places) == 1


@pytest.mark.parametrize("size", [1, 20])
def test_small_batches_are_followed_too(images: dict[str, Tensor], size: int) -> None:
    model = learned(images)
    for batch in images["pale"][: 3 * 32 + 2 * size].split(size):
        model(batch)
    assert len(model.guard.places) == 2


def test_the_oldest_place_stays_when_there_are_too_many(images: dict[str, Tensor]) -> None:
    model = learned(images)
    home = answers(model, images["full"][:256])
    for scale in (1.0, 4.0, 0.2, 20.0, 0.05, 100.0):
        for batch in (scale * images["pale"] + scale).split(64):
            model(batch)
    assert len(model.guard.places) == 4
    torch.testing.assert_close(answers(model, images["full"][:256]), home, rtol=0, atol=0)


def test_an_answer_that_fails_leaves_the_present_state(images: dict[str, Tensor]) -> None:
    model = learned(images)
    for batch in images["pale"].split(64)[:6]:
        model(batch)
    weights = model.engine.learnables.vector()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    handle = model.network.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        answers(model, images["full"][:64])
    handle.remove()
    answers(model, images["pale"][:64])
    torch.testing.assert_close(model.engine.learnables.vector(), weights, rtol=0, atol=0)


def test_copies_and_pickles_keep_their_places(images: dict[str, Tensor]) -> None:
    model = learned(images)
    for batch in images["pale"].split(64)[:5]:
        model(batch)
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    rest = [*images["pale"].split(64)[5:8], *images["full"].split(64)[:5]]
    expected = [model(batch) for batch in rest]
    for twin in twins:
        assert len(twin.guard.places) == 2
        for batch, answer in zip(rest, expected, strict=True):
            torch.testing.assert_close(twin(batch), answer, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["tent", "sar2"])
def test_other_methods_have_one_state(images: dict[str, Tensor], method: str) -> None:
    model = wildtta.adapt(build(NETWORK), method, guard=wildtta.Guard(act=False))
    plain = wildtta.adapt(build(NETWORK), method)
    for batch in (*images["full"].split(128), *images["pale"].split(128)):
        torch.testing.assert_close(model(batch), plain(batch), rtol=0, atol=0)
    assert len(model.guard.places) == 1


def test_a_guard_that_only_watches_leaves_one_state(images: dict[str, Tensor], tmp_path: Path) -> None:
    model = learned(images, act=False, audit=tmp_path / "audit.jsonl")
    plain = wildtta.adapt(build(NETWORK), evidence=False)
    for batch in images["full"].split(64):
        plain(batch)
    for batch in images["pale"].split(64):
        torch.testing.assert_close(model(batch), plain(batch), rtol=0, atol=0)
    assert len(model.guard.places) == 1
    kinds = {line["kind"] for line in read_audit(tmp_path / "audit.jsonl")}
    assert "look" in kinds
    assert "kind" not in kinds


def test_a_reset_forgets_them(images: dict[str, Tensor]) -> None:
    model = learned(images)
    for batch in images["pale"].split(64)[:6]:
        model(batch)
    model.reset()
    assert len(model.guard.places) == 1
    source = build(NETWORK)(images["full"][:64]).detach()
    torch.testing.assert_close(answers(model, images["full"][:64]), source)
