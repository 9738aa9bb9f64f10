"""What pixels change in Steady's loss: by autograd on the written formula, by the gradients' lengths, and by what it gains."""

from __future__ import annotations

import math
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from wildtta.data import corrupt
from wildtta.segmentation import Confusion, Pixels, adapt_segmentation, resized
from wildtta.segmentation.scenes import CLASSES, inputs, network, scenes

VEHICLE = CLASSES.index("vehicle")


def in_fog(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Foggy scenes, those with the least of a vehicle first, and their labels."""
    images, labels = scenes(count, seed=seed)
    order = (labels == VEHICLE).flatten(1).sum(1).argsort(stable=True)
    return corrupt(images, "fog", 5, seed=seed)[order], labels[order]


def mean_iou(method: str, images: Tensor, labels: Tensor) -> float:
    model = adapt_segmentation(network(), method, example=inputs(images[:1]))
    meter = Confusion(len(CLASSES))
    for batch, marks in zip(images.split(4), labels.split(4), strict=True):
        meter.update(resized(model(inputs(batch)).maps, marks.shape[-2:]), marks)
    return meter.mean()


def test_a_step_follows_entropy_and_redundancy_in_units_of_their_largest_values() -> None:
    """θ − η ∇[ 5·10³ (E/ln C + R/D) + 100 I ], with E over the sure pixels and R, I over the classes' mean features."""
    images = inputs(in_fog(4, seed=30)[0]).double()
    free: dict[str, Any] = {"gradient_bound": None, "source_pull": None, "class_cap": None, "lr": 1e-6, "lr_scale": 1.0}
    adapted, twin = network().double(), network().double()
    model = adapt_segmentation(adapted, "steady", example=images, **free)
    names = [name.removeprefix("network.") for name in model.learned_parameters]
    model(images)

    wrapped, entering = Pixels(twin, images), []
    with wrapped.head.register_forward_pre_hook(lambda module, given: entering.append(given[0])):
        logits = wrapped(images).logits
    (features,), labels, classes = entering, logits.argmax(1), len(CLASSES)
    assert len(labels.unique()) == classes
    entropies = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    rows = torch.stack([features[labels == c].mean(0) for c in range(classes)])
    alive = rows.detach().std(0) > 1e-6 * rows.detach().std()
    width = rows.shape[1]
    redundancy = (torch.corrcoef(rows[:, alive].T).square().sum() - alive.sum()) / (width - 1)
    shares = wrapped.head(rows.mean(0)).softmax(0)
    inequity = math.log(classes) + (shares * shares.log()).sum()
    sure = entropies < 0.4 * math.log(classes)
    loss = 5e3 * (entropies[sure].mean() / math.log(classes) + redundancy / width) + 100 * inequity

    before, after = dict(twin.named_parameters()), dict(adapted.named_parameters())
    gradients = torch.autograd.grad(loss, [before[name] for name in names])
    for name, gradient in zip(names, gradients, strict=True):
        moved = (before[name] - after[name]).detach()
        torch.testing.assert_close(moved, 1e-6 * gradient, rtol=1e-5, atol=1e-9)


def test_neither_term_drowns_the_other() -> None:
    """At the source, in fog: their gradients are within a factor of five; with a weight of 1 for E it is a thousand."""
    images = inputs(in_fog(16, seed=31)[0])

    def length(**options: Any) -> float:
        model = adapt_segmentation(network(), "steady", example=images, lr_scale=1e-9, **options)
        lengths = []
        for batch in images.split(4):
            model(batch)
            lengths.append(float(model.last.gradient_norm))
        return mean(lengths)

    entropy_alone: dict[str, Any] = {"redundancy": None, "inequity": None, "bank": False}
    redundancy = length(entropy=0.0, inequity=None)
    assert 1 / 5 < redundancy / length(**entropy_alone) < 5
    assert redundancy / length(entropy=1.0, **entropy_alone) > 1000


def test_steady_gains_in_fog_in_order() -> None:
    """While its steps followed R alone it gained 0.02 in the mean of these sets, and lost on one of them."""
    gains = []
    for seed in (40, 41, 42):
        images, labels = in_fog(160, seed)
        gains.append(mean_iou("steady", images, labels) - mean_iou("none", images, labels))
    assert min(gains) > 0
    assert mean(gains) > 0.15


@pytest.mark.parametrize(("method", "weight"), [("sar2", 1.0), ("steady", 5e3 / math.log(6))])
def test_only_steady_is_changed_and_a_caller_has_the_last_word(method: str, weight: float) -> None:
    example = torch.zeros(1, 3, 64, 96)
    assert adapt_segmentation(network(), method, example=example).resolved["entropy"] == pytest.approx(weight)
    assert adapt_segmentation(network(), method, example=example, entropy=2.0).resolved["entropy"] == 2.0
