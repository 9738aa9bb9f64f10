"""Whether learning pays: what the adapted network tells, beside its source on every eighth sample."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

import wildtta
from toy_networks import build, images
from wildtta.methods.steady.payoff import NAMES, compared, forgotten, mixed, no_comparison, payoff_of, way_back

CLASSES = 20
ALL = torch.ones(64, dtype=torch.bool)


def nothing(*, present: int = CLASSES) -> dict[str, Tensor]:
    """Before the first comparison, in a stream of all classes of which so many are among the last samples."""
    latest = (torch.arange(CLASSES) < present).double()
    evidence = {"present": latest, "row_dominance": torch.ones(CLASSES, dtype=torch.float64)}
    return no_comparison(CLASSES, dtype=torch.float64, device=torch.device("cpu")) | evidence


def drawn(sharpness: float = 1.0, *, samples: int = 64, seed: int = 0) -> Tensor:
    numbers = torch.randn(samples, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return sharpness * numbers


def about_mean(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)


def information(logits: Tensor) -> Tensor:
    """Mutual information of samples and answers in units of ln C, as the mean divergence of p from the mean p."""
    answers = logits.softmax(1)
    divergence = (answers * (answers / answers.mean(0)).log()).sum(1)
    return divergence.mean() / math.log(CLASSES)


def test_the_payoff_is_the_information_gained_per_changed_answer() -> None:
    """Beside another formula of mutual information; between no payoff and a full one there is a straight line."""
    source = drawn()
    own = source + 0.35 * drawn(seed=1).abs()
    changed = int((own.argmax(1) != source.argmax(1)).sum())
    size = about_mean(source).square().sum().sqrt() / about_mean(own).square().sum().sqrt()
    gained = 64 * (information(own * size) - information(source))
    share = (gained + 4 * 0.1) / (changed + 4)
    state = compared(nothing(), own, source, ALL)
    assert 0 < share < 0.03, "else this says nothing"
    torch.testing.assert_close(state["payoff"], share / 0.03)
    assert float(state["payoff_changed"]) == changed


def test_comparisons_add_up() -> None:
    source = drawn()
    own = source.roll(1, 1)  # of one size sample by sample: no part is scaled
    half = nothing() | compared(nothing(), own[:32], source[:32], ALL[:32])
    half = compared(half, own[32:], source[32:], ALL[32:])
    whole = compared(nothing(), own, source, ALL)
    for name in NAMES[1:]:
        torch.testing.assert_close(half[name], whole[name])
    assert half["payoff"] <= payoff_of(half) == payoff_of(whole), "it falls at once and does not rise by a comparison"


@pytest.mark.parametrize(
    ("own", "pays"),
    [
        pytest.param(drawn(3.0), True, id="the same classes, more certain"),
        pytest.param(drawn(0.3), True, id="the same classes, less certain"),
        pytest.param(drawn() + 6 * torch.eye(CLASSES)[3], False, id="one class for all"),
        pytest.param(drawn() - 6 * (torch.arange(CLASSES) > 5), False, id="some classes for all"),
        pytest.param(drawn(1.0), True, id="nothing changed"),
    ],
)
def test_what_tells_more_pays_and_what_tells_less_does_not(own: Tensor, pays: bool) -> None:
    assert float(compared(nothing(), own, drawn(), ALL)["payoff"]) == float(pays)


@pytest.mark.parametrize(("present", "payoff"), [(20, 0.0), (17, 0.0), (10, 1.0), (3, 1.0)])
def test_in_class_order_it_says_nothing(present: int, payoff: float) -> None:
    """Fewer classes at a time than in the stream: from half of them down the payoff is not asked."""
    state = compared(nothing(present=present), drawn() + 6 * torch.eye(CLASSES)[3], drawn(), ALL)
    assert float(state["payoff"]) == pytest.approx(payoff)


@pytest.mark.parametrize("classes", [20, 200, 1000])
def test_a_shuffled_stream_is_not_in_class_order_with_any_number_of_classes(classes: int) -> None:
    """Of 1,000 classes 256 samples show few; drawn at random, they show as many as they should."""
    drawn_at_random = torch.Generator().manual_seed(0)
    latest = torch.zeros(classes, dtype=torch.float64)
    for _ in range(100):
        labels = torch.randint(classes, (64,), generator=drawn_at_random)
        latest = math.exp(-64 / 256) * latest + torch.bincount(labels, minlength=classes)
    evidence = {"present": latest, "row_dominance": torch.ones(classes, dtype=torch.float64)}
    assert float(mixed(evidence)) == 1
    evidence["present"] = latest * (torch.arange(classes) < classes // 4)
    assert float(mixed(evidence)) == 0


def test_samples_that_are_not_finite_do_not_count() -> None:
    own, source, usable = drawn(1.2, seed=1), drawn(), ALL.clone()
    usable[::5] = False
    expected = compared(nothing(), own[usable], source[usable], ALL[usable])
    own[::5], source[::10] = math.nan, math.inf
    state = compared(nothing(), own, source, usable)
    for name in NAMES:
        torch.testing.assert_close(state[name], expected[name])
    untouched = compared(nothing() | state | {"payoff": torch.ones((), dtype=torch.float64)}, own, source, ~ALL)
    assert float(untouched["payoff"]) == 1


def test_a_low_payoff_is_forgotten_over_2000_samples() -> None:
    state = nothing() | {"payoff": torch.tensor(0.25, dtype=torch.float64)}
    for _ in range(10):
        state |= forgotten(state, torch.tensor(100))
    assert float(state["payoff"]) == pytest.approx(1 - 0.75 * math.exp(-0.5))


def test_the_way_back_is_the_same_for_64_samples_together_or_one_by_one() -> None:
    payoff = torch.tensor(0.2, dtype=torch.float64)
    kept = (1 - way_back(payoff, 1 / 64)) ** 64
    torch.testing.assert_close(1 - kept, way_back(payoff, 1.0))
    assert float(way_back(torch.zeros(()), 1.0)) == 0.25
    assert float(way_back(torch.ones(()), 1.0)) == 0


def learning(net: str = "gn_resnet", **options: object) -> tuple[wildtta.Adapter, torch.nn.Module]:
    """With 40 classes: with fewer the source is shown scrambled images too (``test_contents.py``)."""
    network = build(net, dtype=torch.float64, classes=40)
    return wildtta.adapt(copy.deepcopy(network), "steady", warmup=1, **options), network


@pytest.mark.parametrize("net", ["gn_resnet", "ln_vit"])
def test_the_source_itself_answers_and_the_weights_are_those_of_the_step(net: str) -> None:
    """The sums hold the bare network's answers to every eighth image, and nothing but the step moves the weights."""
    model, network = learning(net)
    batches = [images(net, 64, seed=number).double() for number in range(4)]
    expected: Tensor = torch.zeros(())
    for number, batch in enumerate(batches):
        if number:  # evidence as if of a clear shift, so that the weights are not the source's
            model.engine.memory["strength"].fill_(1.0)
        model(batch)
        fading = math.exp(-64 / 2000)
        with torch.no_grad():
            expected = fading * expected + network(batch[::8]).softmax(1).sum(0)
    engine = model.engine
    assert float(engine.distance()) > 1e-3
    torch.testing.assert_close(engine.memory["payoff_source"], expected)
    assert float(engine.memory["payoff_number"]) == pytest.approx(sum(8 * fading**k for k in range(4)))
    assert not torch.allclose(engine.memory["payoff_own"], expected)


@pytest.mark.parametrize(("size", "steps"), [(64, 2), (1, 16), (4, 4)])
def test_what_it_costs(size: int, steps: int) -> None:
    model, _ = learning()
    told = 0
    for number in range(steps):
        model(images("gn_resnet", size, seed=number).double())
        told += int(model.last.forwards)
    assert model.cost.forwards == told == size * steps * 9 / 8


def test_where_learning_does_not_pay_the_source_answers_and_the_weights_go_back() -> None:
    """0.96 and 0.75 of the way are left per 64 samples, without a step, and nothing is taken off the answers."""
    model, network = learning()
    engine, batch = model.engine, images("gn_resnet", 64).double()
    assert engine.source is not None
    engine.memory["strength"].fill_(1.0)
    engine.memory["shift"].copy_(torch.linspace(-1, 1, engine.network.classes))
    engine.memory["payoff"].zero_()
    torch.testing.assert_close(model(batch), network(batch))
    engine.learnables.assign(engine.source + 0.01)
    for name, value in (("strength", 1.0), ("payoff", 0.0), ("present", 3.0)):
        engine.memory[name].fill_(value)
    model(batch)
    left = engine.learnables.vector() - engine.source
    torch.testing.assert_close(left, torch.full_like(left, 0.01 * 0.96 * 0.75))


def test_what_has_settled_is_not_undone() -> None:
    """At a hundredth of a pace a payoff of 0 counts 0.99: hostile samples of a known kind change as little as steps do."""
    model, _ = learning()
    engine = model.engine
    assert engine.source is not None
    engine.learnables.assign(engine.source + 0.01)
    for name, value in (("strength", 0.0), ("payoff", 0.0), ("present", 3.0), ("pace", 0.01)):
        engine.memory[name].fill_(value)
    model(images("gn_resnet", 64).double())
    left = engine.learnables.vector() - engine.source
    torch.testing.assert_close(left, torch.full_like(left, 0.01 * 0.96**0.01 * (1 - 0.25 * 0.01)))


def test_what_compares_nothing_passes_nothing_more() -> None:
    for net, options in (("gn_resnet", {"evidence": False}), ("bn_resnet", {})):
        model = wildtta.adapt(build(net), "steady", **options)
        assert not any(name in model.engine.memory for name in NAMES)
    model = wildtta.adapt(build("gn_resnet"), "steady", evidence=False)
    model(images("gn_resnet", 64))
    assert model.cost.forwards == 64
