"""The classifiers of docs/models.md, trained for seconds on a made-up task, and streams of it that have shifted.

A class is a pattern in noise, or a word among words. A shift adds one more pattern, or one more word, to every sample.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from any_classifier import BATCH, CLASSES, Batch, Entry, ask, build
from wildtta.network.norms import is_batch_norm
from wildtta.network.output import logits_of

_WORD_OF_CLASS_0 = 3
_SHARE_OF_WORDS, _STRUCK = 0.6, 0.12
_PATTERN = 0.7
"""A pattern's size beside noise of 1."""
SHIFTS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)


def pattern(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """A random tensor with something in common along each axis: networks that pool see it too."""
    total = torch.randn(shape, generator=generator)
    for axis in range(len(shape)):
        total = total + torch.randn(
            [size if place == axis else 1 for place, size in enumerate(shape)], generator=generator
        )
    return total


def _with_patterns(noise: Tensor, labels: Tensor, shift: float) -> Tensor:
    fixed = torch.Generator().manual_seed(7)
    classes = torch.stack([pattern(noise.shape[1:], fixed) for _ in range(CLASSES)])
    return noise + _PATTERN * classes[labels] + _PATTERN * shift * pattern(noise.shape[1:], fixed)


def _with_words(tokens: Tensor, labels: Tensor, shift: float, generator: torch.Generator) -> Tensor:
    """A class is a word among others, 3, 4 … (0, 1 … where there are no others). The shift: class 0's word everywhere."""
    others = int(tokens.max()) >= CLASSES
    first = _WORD_OF_CLASS_0 if others else 0
    free = tokens > 0 if others else torch.ones_like(tokens, dtype=torch.bool)  # padding stays
    own = (torch.rand(tokens.shape, generator=generator) < _SHARE_OF_WORDS) & free
    struck = (torch.rand(tokens.shape, generator=generator) < _STRUCK * shift) & free
    return torch.where(own, (first + labels)[:, None], tokens).masked_fill(struck, first)


def labelled(entry: Entry, count: int, generator: torch.Generator, shift: float = 0.0) -> tuple[Batch, Tensor]:
    """About ``count`` samples of the task with their labels."""
    drawn = [entry.batch(generator) for _ in range(-(-count // BATCH))]
    labels = torch.randint(0, CLASSES, (BATCH * len(drawn),), generator=generator)

    def made(name: str, values: Tensor) -> Tensor:
        if name == "attention_mask":
            return values
        if values.is_floating_point():
            return _with_patterns(values, labels, shift)
        return _with_words(values, labels, shift, generator)

    if isinstance(drawn[0], dict):
        return {name: made(name, torch.cat([one[name] for one in drawn])) for name in drawn[0]}, labels  # type: ignore[index]
    return made("", torch.cat(drawn)), labels  # type: ignore[arg-type]


def trained(entry: Entry, steps: int = 300) -> nn.Module:
    """The network of an entry, trained until it gets 97 % of ten batches right, or for so many steps. In evaluation mode but
    for BatchNorm: no dropout, nothing else that is random."""
    network = build(entry)
    for module in network.modules():
        if is_batch_norm(module):
            module.train()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    recent: list[float] = []
    for _ in range(steps):
        batch, labels = labelled(entry, 36, generator)
        logits = logits_of(ask(network, batch))
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        recent.append(float((logits.argmax(1) == labels).double().mean()))
        if len(recent) > 40 and sum(recent[-10:]) / 10 > 0.97:
            break
    optimizer.zero_grad()
    return network.eval()


def accuracy(model: nn.Module, entry: Entry, shift: float, batches: int = 12) -> float:
    """Online accuracy on a stream of about 60 samples a batch, in %."""
    generator = torch.Generator().manual_seed(2)
    right = []
    for _ in range(batches):
        batch, labels = labelled(entry, 60, generator, shift)
        with torch.no_grad():
            right.append((logits_of(ask(model, batch)).argmax(1) == labels).double())
    return 100 * float(torch.cat(right).mean())


def harmful_shift(network: nn.Module, entry: Entry, points: float = 8.0) -> float:
    """The first of ``SHIFTS`` that costs the bare network so many points of accuracy."""
    clean = accuracy(network, entry, 0.0, batches=4)
    for shift in SHIFTS:
        if accuracy(network, entry, shift, batches=4) < clean - points:
            return shift
    raise AssertionError(f"no shift hurts {entry.name}: {clean:.0f} % on clean inputs")
