"""Samples of many calls, kept one by one and passed together: images, tokens of any length, several arguments."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import batches, build
from wildtta.guard.memory import Queue
from wildtta.guard.samples import Call, answers, joined, taken
from wildtta.network.inputs import Inputs

CLASSES, WORDS = 4, 50


class Text(nn.Module):
    """Token embeddings, a mask over them, and a number that belongs to the whole call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, 16)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, temperature: Tensor | None = None) -> Tensor:
        words = self.second(torch.relu(self.first(self.embedding(input_ids))))
        weight = attention_mask.unsqueeze(-1).to(words.dtype)
        logits: Tensor = self.head((words * weight).sum(1) / weight.sum(1))
        return logits if temperature is None else logits / temperature


def sentences(number: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (number, length), generator=draws)
    mask = torch.ones(number, length, dtype=torch.int64)
    mask[:, length // 2 :] = torch.randint(0, 2, (number, length - length // 2), generator=draws)
    return {"input_ids": words, "attention_mask": mask, "temperature": torch.tensor([2.0])}


def test_samples_of_several_calls_are_answered_as_in_their_own_calls() -> None:
    network = Text()
    calls = [Inputs((), sentences(5, length, seed)) for seed, length in enumerate((7, 9, 7))]
    wanted, samples = [], []
    for call, places in zip(calls, ([4, 0], [2], [1, 3]), strict=True):
        samples += taken(call, places)
        wanted.append(network(**call.named)[places])

    def run(call: Call) -> Tensor:
        assert isinstance(call, Inputs)
        assert call.named["temperature"].shape == (1,)
        result: Tensor = network(**call.named)
        return result

    torch.testing.assert_close(answers(run, samples), torch.cat(wanted))


def test_images_of_one_shape_go_through_in_one_pass() -> None:
    images = torch.randn(6, 3, 4, 4)
    passes: list[int] = []

    def run(call: Call) -> Tensor:
        assert isinstance(call, Tensor)
        passes.append(len(call))
        return call.flatten(1)

    found = answers(run, taken(images, [5, 2, 0]))
    torch.testing.assert_close(found, images[[5, 2, 0]].flatten(1))
    assert passes == [3]
    together = joined(taken(images, [1, 4]))
    assert isinstance(together, Tensor)
    torch.testing.assert_close(together, images[[1, 4]])


def test_what_is_kept_is_a_copy() -> None:
    images = torch.zeros(4, 2)
    (sample,) = taken(images, [1])
    images.fill_(7)
    assert isinstance(sample.call, Tensor)
    assert float(sample.call.sum()) == 0


def test_those_that_are_not_taken_wait_on() -> None:
    queue = Queue(1.0, random.Random(0))
    queue.add(torch.arange(10.0)[:, None], torch.eye(10))
    first = queue.take(8)
    assert len(queue) == 2
    values = [float(one.sample.call.sum()) for one in first + queue.take(2) if isinstance(one.sample.call, Tensor)]
    assert sorted(values) == list(range(10))
    assert values != sorted(values)


@pytest.mark.parametrize("lengths", [(7,), (5, 6, 7, 8, 9)], ids=["one length", "many lengths"])
def test_a_network_with_named_inputs_is_watched(lengths: tuple[int, ...]) -> None:
    network = Text()
    source = copy.deepcopy(network)
    guard = wildtta.Guard(shadow=0.5, sample=8, memory=16)
    model = wildtta.adapt(network, "tent", lr=0.05, example=sentences(4, 7), guard=guard)
    for step in range(24):
        model(**sentences(16, lengths[step % len(lengths)], seed=step))
    look = model.guard.last_look
    assert model.guard.judge.looks >= 10
    assert look is not None
    assert len(look.remembered.source) > 0
    # The answers that the guard remembers are the source network's own.
    for one in model.guard._memory.draw(8):
        call = one.sample.call
        assert isinstance(call, Inputs)
        torch.testing.assert_close(one.probabilities[None], source(**call.named).softmax(1).detach())


def test_a_call_within_a_call_leaves_the_outer_one_as_it_was() -> None:
    engine = wildtta.adapt(Text(), "tent", example=sentences(4, 7)).engine
    with engine.calling(Inputs((), sentences(6, 7))) as outer:
        before: Any = engine.inputs
        with engine.calling(torch.randn(2, 3)) as images:
            assert engine.inputs is None
            assert images.shape == (2, 3)
        assert engine.inputs is before
        assert len(engine.forward(outer, grad=False).logits) == 6
    assert engine.inputs is None


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e5], ids=["NaN", "infinite", "absurd"])
def test_an_odd_image_is_not_remembered(odd: float) -> None:
    """With BatchNorm one of them would spoil the answers to all that are drawn with it, and raise a false alarm."""
    guard = wildtta.Guard(shadow=0.5, sample=8, memory=16)
    model = wildtta.adapt(build("bn_resnet"), "tent", lr=1e-9, guard=guard)
    for step, batch in enumerate(batches("bn_resnet", 40, 16)):
        if step >= 5:
            batch[:2] = odd
        model(batch)
    kept = [one.sample.call for one in model.guard._memory.draw(16)]
    assert all(float(call.abs().max()) < 100 for call in kept if isinstance(call, Tensor))
