"""The whole checkup on real networks: one that gains, one that cannot, methods that harm, with and without labels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from toy_networks import snapshot
from wildtta.checkup import Checkup, Trial, check
from wildtta.data import PROTOCOLS, corrupt, restrict_classes
from wildtta.glyphs import Glyphs, network
from wildtta.streams import Domain

BLUR = Domain("defocus_blur", 5)
STEADY = (Trial("steady"), Trial("steady", "class order"))


def _glyphs(number: int, classes: int = 200) -> tuple[Tensor, np.ndarray]:
    """Images of the first classes, as many of each."""
    every = Glyphs(200 * -(-number // classes))
    chosen = np.flatnonzero(every.labels < classes)[:number]
    return every.images(chosen), every.labels[chosen]


@pytest.fixture(scope="module")
def batch_norm() -> tuple[Checkup, Checkup]:
    """The embedded BatchNorm network in a blur: with labels, and without."""
    images, labels = _glyphs(200)
    trials = (*STEADY, Trial("tent", batch_size=1))
    bare = network("resnet_bn")
    kept = snapshot(bare)
    labelled = check(bare, images, labels, protocol="glyphs", shifts=[BLUR], trials=trials)
    unlabelled = check(bare, images, protocol="glyphs", shifts=[BLUR], trials=STEADY)
    after = snapshot(bare)
    assert all(torch.equal(value, after[name]) for name, value in kept.items())
    return labelled, unlabelled


def test_a_batchnorm_network_gains_in_a_blur_and_is_told_to_use_it(batch_norm: tuple[Checkup, Checkup]) -> None:
    found, _ = batch_norm
    shuffled, ordered, _ = found.trials
    assert shuffled.shifted.low > 3
    assert ordered.shifted.low > 3
    assert found.advice.verdict == "use it"
    assert any("BatchNorm" in reason for reason in found.advice.reasons)
    assert found.network.batch_norm
    assert found.network.norms == {"BatchNorm2d": 17}
    assert found.network.learning_values == 0


def test_tent_one_by_one_ruins_it_and_that_is_said(batch_norm: tuple[Checkup, Checkup]) -> None:
    found, _ = batch_norm
    tent = found.trials[2]
    assert tent.shifted.high < -20
    assert tent.clean.high < -50
    assert any(reason.startswith("tent harms") for reason in found.advice.reasons)
    assert any("batches of 1 are too small" in warning for warning in tent.warnings)


def test_unlabelled_has_the_same_form_and_the_answers_on_clean_images_as_labels(
    batch_norm: tuple[Checkup, Checkup],
) -> None:
    labelled, unlabelled = batch_norm
    assert unlabelled.as_dict().keys() == labelled.as_dict().keys()
    assert [result.trial for result in unlabelled.trials] == [result.trial for result in labelled.trials[:2]]
    assert [each.agreement for each in unlabelled.inputs] == [each.agreement for each in labelled.inputs]
    assert unlabelled.inputs[0].score == 1
    assert all(each.score == each.agreement for each in unlabelled.inputs)
    # The network is right on nearly all clean images, so that its answers there are nearly as good as labels.
    assert labelled.inputs[0].score > 0.97
    assert unlabelled.trials[0].shifted.points == pytest.approx(labelled.trials[0].shifted.points, abs=2)
    assert unlabelled.advice.verdict == "use it"
    assert any("no labels" in reason for reason in unlabelled.advice.reasons)
    json.dumps(unlabelled.as_dict(), allow_nan=False)


def test_gains_and_answers_equal_those_of_plain_code(batch_norm: tuple[Checkup, Checkup]) -> None:
    found, _ = batch_norm
    images, labels = _glyphs(200)
    bare = network("resnet_bn").eval()
    blurred = corrupt(images, BLUR.name, 5, seed=0)
    with torch.no_grad():
        clean, shifted = (bare(PROTOCOLS["glyphs"].normalise(each)).argmax(1).numpy() for each in (images, blurred))
    assert [each.score for each in found.inputs] == pytest.approx(
        [(clean == labels).mean(), (shifted == labels).mean()]
    )
    assert found.inputs[1].agreement == pytest.approx((clean == shifted).mean())


def test_two_classes_cannot_gain_and_are_told_so() -> None:
    images, labels = _glyphs(160, classes=2)
    two = restrict_classes(network("resnet_gn"), np.arange(2))
    found = check(two, images, labels, protocol="glyphs", shifts=[BLUR], trials=STEADY)
    assert [result.changed for result in found.trials] == [0, 0]
    assert [result.shifted.points for result in found.trials] == [0, 0]
    assert found.advice.verdict == "leave it off"
    assert "two classes" in found.advice.headline


def test_a_network_without_norm_layers_is_told_so_and_still_looked_at() -> None:
    images, labels = _glyphs(64)
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 200)
    )
    found = check(plain, images, labels, shifts=[BLUR])
    assert found.trials == []
    assert len(found.inputs) == 2
    assert found.advice.verdict == "leave it off"
    assert "no norm layer" in found.text()


def test_few_images_tell_nothing_and_the_work_is_reported() -> None:
    images, labels = _glyphs(40)
    shares: list[float] = []
    bare = network("resnet_gn")
    kept = snapshot(bare)
    found = check(
        bare, images, labels, protocol="glyphs", shifts=[BLUR], trials=STEADY,
        report=lambda share, _: shares.append(share),
    )  # fmt: skip
    assert found.advice.verdict == "cannot tell"
    assert "40 images are too few" in found.advice.headline
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert all(torch.equal(value, snapshot(bare)[name]) for name, value in kept.items())  # timing it changed nothing


def test_labels_in_another_order_than_the_outputs_are_noticed() -> None:
    images, labels = _glyphs(120)
    found = check(network("resnet_gn"), images, (labels + 7) % 200, protocol="glyphs", shifts=[BLUR], trials=[])
    assert any("order of its outputs" in reason for reason in found.advice.reasons)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(8, 3, 32, 32), None, "expected uint8"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), None, "at least 2 images"),
        (torch.zeros(8, 3, 32, 32, dtype=torch.uint8), [0, 1], "expected 8, one for each image"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), [0, 200], "expected 0 to 199"),
    ],
)
def test_wrong_input_is_refused(images: Tensor, labels: list[int] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(network("resnet_gn"), images, labels, protocol="glyphs")
