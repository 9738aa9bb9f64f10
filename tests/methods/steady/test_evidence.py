"""The evidence on streams whose truth is known: logits = class patterns + noise + a shift, in plain numbers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from wildtta.methods.steady.evidence import (
    MOST_ROWS,
    classes_seen,
    fixed_size,
    idle_mean,
    no_evidence,
    noise_entropy,
    recentring_cost,
    rows_trusted,
    sampling_error,
    watched_classes,
    weighed,
)

SIZE = 64


class World:
    """Logits of C classes: class c has pattern c, samples scatter about it, and a shift may be added to all."""

    def __init__(self, classes: int, *, shift: float = 0.0, signal: float = 6.0, seed: int = 0) -> None:
        self.draws = torch.Generator().manual_seed(seed)
        self.classes, self.scale = classes, 1.0
        self.patterns = signal * torch.eye(classes)
        direction = torch.randn(classes, generator=self.draws)
        self.shift = shift * direction / direction.norm()

    def logits(self, labels: Tensor) -> Tensor:
        noise = torch.randn(len(labels), self.classes, generator=self.draws)
        return self.scale * (self.patterns[labels] + noise + self.shift)

    def shuffled(self, number: int) -> list[Tensor]:
        return [torch.randint(self.classes, (SIZE,), generator=self.draws) for _ in range(number)]

    def in_order(self, number: int, run: int) -> list[Tensor]:
        order = torch.randperm(self.classes, generator=self.draws)
        labels = order.repeat_interleave(run)
        return list(labels.repeat(1 + number * SIZE // len(labels))[: number * SIZE].split(SIZE))


def strengths(world: World, stream: list[Tensor], *, size: int = SIZE) -> tuple[list[float], dict[str, Tensor]]:
    state = no_evidence(world.classes, dtype=torch.float32, device=torch.device("cpu"))
    found = []
    for labels in stream:
        for part in world.logits(labels).split(size):
            state = weighed(state, part)
            found.append(float(state["strength"]))
    return found, state


@pytest.mark.parametrize(("classes", "shift"), [(10, 3.5), (50, 3.5), (200, 5.0)])
def test_a_shift_is_seen_in_a_shuffled_stream_and_its_direction_is_found(classes: int, shift: float) -> None:
    """(In this world no answer hangs on a short mean: with many classes it must be longer.)"""
    world = World(classes, shift=shift)
    found, state = strengths(world, world.shuffled(30))
    assert min(found[15:]) > 0.3
    expected = world.shift - world.shift.mean()
    if float(state["shift"].abs().sum()) > 0:
        cosine = torch.cosine_similarity(state["shift"], expected, dim=0)
        assert cosine > 0.9


@pytest.mark.parametrize("shift", [16.0, 24.0])
def test_a_shift_that_makes_nearly_all_answers_one_class_is_seen(shift: float) -> None:
    world = World(10, shift=shift)
    stream = world.shuffled(30)
    answers = torch.cat([world.logits(labels).argmax(1) for labels in stream]).bincount(minlength=10)
    assert answers.max() > 0.7 * answers.sum()  # to the first two signs, a stream of one class
    found, state = strengths(world, stream)
    assert min(found[15:]) > 0.5
    assert torch.cosine_similarity(state["shift"], world.shift - world.shift.mean(), dim=0) > 0.95


@pytest.mark.parametrize("present", [1, 2, 4])
@pytest.mark.parametrize("shift", [0.0, 8.0])
def test_a_few_of_the_classes_for_ever_are_no_shift(present: int, shift: float) -> None:
    world = World(10, shift=shift)
    labels = [torch.randint(present, (SIZE,), generator=world.draws) for _ in range(40)]
    assert max(strengths(world, labels)[0]) < 0.01


def test_clusters_are_told_from_noise_by_the_entropy_of_independent_logits() -> None:
    """H_C agrees with other draws, by the definition of the entropy."""
    for classes in (10, 200):
        draws = torch.randn(20_000, classes, dtype=torch.float64) * fixed_size(classes)
        probabilities = draws.softmax(1)
        by_hand = -(probabilities * probabilities.clamp(min=1e-300).log()).sum(1).mean()
        assert noise_entropy(classes) == pytest.approx(float(by_hand), rel=0.08)


@pytest.mark.parametrize("classes", [2, 3, 10, 200])
@pytest.mark.parametrize("run", [0, 400])
def test_a_clean_stream_leaves_it_at_rest(classes: int, run: int) -> None:
    world = World(classes)
    found, state = strengths(world, world.in_order(40, run) if run else world.shuffled(40))
    assert max(found) < 0.05
    assert float(state["shift"].abs().max()) < 0.05


@pytest.mark.parametrize("classes", [2, 10, 200])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_one_class_for_ever_leaves_it_at_rest(classes: int, shift: float) -> None:
    world = World(classes, shift=shift)
    found, state = strengths(world, [torch.ones(SIZE, dtype=torch.int64)] * 40)
    assert max(found) == 0
    assert not state["shift"].any()


@pytest.mark.parametrize("run", [1, 4, 16])
@pytest.mark.parametrize(("signal", "length"), [(15.0, 5.0), (20.0, 7.0)])
def test_a_mean_on_which_no_answer_hangs_is_a_habit(signal: float, length: float, run: int) -> None:
    """Clean images of a network that is sure of every answer: spread over all 100 classes, its mean changes none of them.

    In runs of one class taking off the mean of the last samples costs much: it holds these classes.
    """
    world = World(100, shift=length, signal=signal)
    logits = torch.cat([world.logits(labels) for labels in world.shuffled(40)])
    assert (logits.argmax(1) == (logits - world.shift).argmax(1)).double().mean() > 0.98
    everything = torch.ones(len(logits), dtype=torch.bool)
    assert float(recentring_cost(logits, everything, logits.mean(0))) < 0.005
    stream = world.shuffled(40) if run == 1 else world.in_order(40, run)
    found, state = strengths(world, stream)
    # In runs of 16 the first twenty batches show half of the classes: their mean is off, and not yet known to be idle.
    assert max(found) < 0.05 if run < 16 else sum(found[20:]) / 20 < 0.03
    assert float(state["highest_cost"]) < 0.001


@pytest.mark.parametrize(
    ("classes", "cost", "longer"),
    [(200, -0.01, 0.1), (40, 0.0, 0.1), (25, 0.0, 0.05), (10, 0.0, 0.0), (200, 0.006, 0.05), (200, 0.012, 0.0), (200, 0.3, 0.0)],
)
def test_the_less_hangs_on_a_mean_the_longer_it_must_be(classes: int, cost: float, longer: float) -> None:
    assert float(idle_mean(classes, torch.tensor(cost))) == pytest.approx(longer)


def test_up_to_five_classes_are_left_alone() -> None:
    world = World(5, shift=3.5)
    found, state = strengths(world, world.shuffled(30))
    assert max(found) == 0
    assert not state["shift"].any()


def test_with_many_classes_a_shift_is_also_seen_in_class_order() -> None:
    """Runs of 50 images: a batch holds two classes or three, and the rows of the classes seen so far tell."""
    world = World(200, shift=4.0)
    found, _ = strengths(world, world.in_order(80, 50))
    assert max(found[:3]) == 0
    assert min(found[60:]) > 0.05
    assert sum(found[60:]) / len(found[60:]) > 0.2


def test_with_many_classes_a_clear_shift_is_acted_on_within_a_few_hundred_images() -> None:
    """Runs of 13 images: after 640 about fifty of the 200 classes have been seen."""
    world = World(200, shift=4.0)
    found, _ = strengths(world, world.in_order(20, 13))
    assert found[10] > 0.5


def test_ten_of_two_hundred_classes_for_ever_leave_it_at_rest() -> None:
    """What such a stream's outputs share are the ten classes: their mean is as long as that of ten random ones."""
    world = World(200)
    generator = torch.Generator().manual_seed(3)
    few = [10 * torch.randint(10, (SIZE,), generator=generator) for _ in range(40)]
    found, state = strengths(world, few)
    assert max(found) < 0.05
    assert float(state["shift"].abs().max()) < 0.05


def test_with_many_classes_runs_of_a_hundred_without_errors_are_too_few_at_a_time() -> None:
    """The last 256 samples then show five classes, as many as errors on one class do: no step, whatever was seen before."""
    world = World(200, shift=4.0)
    found, _ = strengths(world, world.in_order(80, 100))
    assert max(found) < 0.05


def test_steps_in_long_runs_of_few_classes_are_held_back() -> None:
    """Ten classes, runs of 400: a step would push the class that is there, however many were seen before."""
    world = World(10, shift=3.5)
    found, _ = strengths(world, world.in_order(80, 400))
    assert max(found[40:]) < 0.3


@pytest.mark.parametrize(("classes", "least", "most"), [(10, 5, 9), (25, 6, 10), (40, 7, 11), (200, 7, 11)])
def test_classes_that_errors_on_one_class_show_are_not_enough_for_a_step(
    classes: int, least: float, most: float
) -> None:
    """A run of one of 200 classes shows 6.5 of them; that of the embedded ViT in low contrast 5.3 to 6.3."""
    seen = torch.tensor(float(classes))
    found = [float(rows_trusted(seen, torch.tensor(present), classes)) for present in (least, (least + most) / 2, most)]
    assert found == pytest.approx([0, 0.5, 1])


def test_batches_of_one_see_what_batches_of_sixty_four_see() -> None:
    whole = strengths(world := World(10, shift=3.5), world.shuffled(30))[0]
    singles = strengths(world := World(10, shift=3.5), world.shuffled(30), size=1)[0]
    assert singles[-1] == pytest.approx(whole[-1], abs=0.25)
    assert max(singles[:63]) == 0  # nothing is said before 64 samples


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_the_verdict_hardly_depends_on_the_logits_scale(scale: float) -> None:
    """Class order on an over- or underconfident network: as much at rest as on this one."""
    world = World(10)
    world.scale = scale
    found, _ = strengths(world, world.in_order(40, 400))
    assert max(found) < 0.05


def test_what_recentring_costs_is_known_in_two_cases() -> None:
    certain = 50.0 * torch.eye(10)[torch.arange(640) % 10]
    everything = torch.ones(640, dtype=torch.bool)
    flat = certain.mean(0)  # balanced classes
    assert float(recentring_cost(certain, everything, flat)) == pytest.approx(0, abs=1e-4)
    one = 50.0 * torch.eye(10)[torch.zeros(64, dtype=torch.int64)]
    cost = recentring_cost(one, everything[:64], one.mean(0))
    assert float(cost) == pytest.approx(1, abs=1e-4)  # one class: nothing is left


def test_classes_seen_and_the_error_of_their_mean() -> None:
    assert float(classes_seen(torch.tensor([1.0, 1.0, 1.0, 0.0]))) == pytest.approx(3)
    assert float(classes_seen(torch.tensor([0.5, 0.5, 0.0, 0.0]))) == pytest.approx(2)
    # The variance of the mean of m of C values, over all choices of m: (1 − m/C)/m of their (n − 1) variance.
    values, m = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64), 3
    means = torch.tensor([values[list(some)].mean() for some in itertools.combinations(range(5), m)])
    expected = math.sqrt(float(means.var(correction=0)) / float(values.var(correction=1)))
    assert float(sampling_error(torch.tensor(float(m)), 5)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("size", [8, 96])
def test_a_sample_that_is_not_finite_counts_for_nothing(size: int) -> None:
    world = World(10, shift=3.0)
    clean = bad = no_evidence(10, dtype=torch.float64, device=torch.device("cpu"))
    for number in range(30):
        logits = world.logits(torch.randint(10, (size,), generator=world.draws)).double()
        usable = torch.ones(size + 2, dtype=torch.bool)
        usable[[3, 5]] = False
        spoiled = torch.full((size + 2, 10), math.nan, dtype=torch.float64)
        spoiled[usable] = logits
        clean, bad = weighed(clean, logits), weighed(bad, spoiled, usable)
        if size == 8:  # a larger batch is its own window, and these two differ in size
            assert all(torch.allclose(clean[name], bad[name], atol=1e-12) for name in clean), number
        assert all(torch.isfinite(value).all() for value in bad.values())
    assert float(bad["strength"]) == pytest.approx(float(clean["strength"]), abs=1e-6)


def test_of_very_many_classes_every_nth_is_watched() -> None:
    assert len(watched_classes(1000, torch.device("cpu"))) == 1000
    watched = watched_classes(21_841, torch.device("cpu"))
    assert len(watched) <= MOST_ROWS
    assert watched.tolist() == list(range(0, 21_841, 22))
    state = no_evidence(21_841, dtype=torch.float32, device=torch.device("cpu"))
    after = weighed(state, torch.randn(8, 21_841))
    assert {name: value.shape for name, value in after.items()} == {name: value.shape for name, value in state.items()}
