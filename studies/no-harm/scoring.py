"""A network of the battery on its streams by the library's own adapters: what it answers, and what that is worth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lab import Result, share_of_top
from networks import load
from torch import Tensor, nn
from train import normalised

import wildtta
from streams import Pool, Stream

Watch = Callable[[int, wildtta.Adapter], None]
"""Told the number of images so far, and the adapter, after each batch."""


@dataclass
class Subject:
    """A network with the images of a part, and its own answers to all of them."""

    name: str
    network: nn.Module
    pool: Pool
    source: Tensor
    """Classes that the unadapted network answers, [domains, N]."""

    @property
    def classes(self) -> int:
        return int(self.pool.labels.max()) + 1

    def truth(self, stream: Stream) -> Tensor:
        return self.pool.labels[torch.from_numpy(stream.images)]

    def unadapted(self, stream: Stream) -> Tensor:
        """What the network answers without adaptation."""
        return self.source[torch.from_numpy(stream.domains), torch.from_numpy(stream.images)]


def prepared(name: str, pool: Pool, weights: Path, device: str) -> Subject:
    """The network ``name`` on ``device``, in full float32 but for matrix products in TF32."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    network = load(name, weights).to(device).eval()
    pool.labels = pool.labels.cpu()
    with torch.no_grad():
        bare = [[network(normalised(images)).argmax(1) for images in layer.split(250)] for layer in pool.pixels]
    return Subject(name, network, pool, torch.stack([torch.cat(pieces).cpu() for pieces in bare]))


def answers(adapter: wildtta.Adapter, pool: Pool, stream: Stream, watch: Watch | None = None) -> Tensor:
    """The classes that ``adapter`` answers along ``stream``."""
    given = []
    for at in range(0, len(stream.images), stream.batch):
        place = (torch.from_numpy(part[at : at + stream.batch]) for part in (stream.domains, stream.images))
        images = normalised(pool.pixels[tuple(part.to(pool.pixels.device) for part in place)])
        given.append(adapter(images).argmax(1))
        if watch is not None:
            watch(at, adapter)
    return torch.cat(given).cpu()


def accuracy(given: Tensor, truth: Tensor) -> float:
    """In percent."""
    return 100 * float((given == truth).float().mean())


def row(subject: Subject, stream: Stream, rule: str, given: Tensor, adapter: wildtta.Adapter) -> dict[str, Any]:
    """One stream's outcome as a JSON line; ``adapter`` has run nothing but this stream."""
    truth, before = subject.truth(stream), subject.unadapted(stream)
    last = slice(len(given) - len(given) // 5, None)
    scores = [accuracy(part[which], truth[which]) for which in (slice(None), last) for part in (given, before)]
    tops = [share_of_top(labels[last], subject.classes) for labels in (given, before, truth)]
    cost = adapter.cost
    resets = float(cost.resets)
    result = Result(
        subject.name, rule, stream.name, stream.scenario, stream.batch, len(given), *scores, *tops, 0.0, resets
    )
    passes = (cost.computed_forwards / len(given), cost.computed_backwards / len(given))
    named = dict(zip(("forwards", "backwards"), passes, strict=True))
    return {**dataclasses.asdict(result), **named, "version": wildtta.__version__}
