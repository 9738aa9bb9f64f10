"""Rules for BatchNorm's statistics, tried side by side on the part to choose on. No gradient, one pass per rule.

    python batch_norm.py <folder with data and weights/> bn64 "memory=1000" "memory=1000 forget=1" "forget=1 seen=1"

A rule is a line of ``name=value``: ``memory`` in samples; ``forget``: e² at which half of the stream's samples are
forgotten (0: never); ``seen``: 1 where the share falls with depth only as far as classes are missing, 0 where it always
falls; ``choose``: least advantage in entropy.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
from grid import PER_CORRUPTION, core_streams, domains_for
from networks import load
from torch import Tensor
from train import normalised

from streams import Pool, Stream, load_pool, make
from wildtta.methods.losses import entropy
from wildtta.methods.steady.evidence import classes_trusted
from wildtta.network.statistics import Moments, NormStatistics


@dataclass(frozen=True)
class Rule:
    memory: float = 1000.0
    forget: float = 0.0
    seen: float = 0.0
    choose: float = 0.01

    @classmethod
    def parse(cls, text: str) -> Rule:
        return cls(**{name: float(value) for name, _, value in (part.partition("=") for part in text.split())})


@dataclass
class Bare:
    """What the network without adaptation makes of every image of a pool."""

    logits: Tensor
    first: Tensor
    """Mean and log variance of what enters the first BatchNorm layer."""


@torch.no_grad()
def bare_answers(network: torch.nn.Module, norms: NormStatistics, pool: Pool) -> Bare:
    logits, first = [], []
    for layer in pool.pixels:
        with norms.first_inputs() as seen:
            logits.append(torch.cat([network(normalised(part)) for part in layer.split(500)]))
        first.append(torch.cat(seen))
    return Bare(torch.stack(logits), torch.stack(first))


@torch.no_grad()
def gain(network: torch.nn.Module, norms: NormStatistics, rule: Rule, pool: Pool, bare: Bare, stream: Stream) -> float:
    """Points over the unadapted network on one stream."""
    device = pool.pixels.device
    source, depth = norms.source(), norms.depths()
    classes = bare.logits.shape[-1]
    mean, square, samples = torch.zeros_like(source[0]), torch.zeros_like(source[0]), 0.0
    last, last_number = torch.zeros_like(bare.first[0, 0]), 0.0
    total, squares = torch.zeros_like(last), torch.zeros_like(last)
    answered, advantage = torch.zeros(classes, device=device), torch.zeros((), device=device)
    right = was_right = 0
    for at in range(0, len(stream.images), stream.batch):
        place = (torch.from_numpy(part[at : at + stream.batch]).to(device) for part in (stream.domains, stream.images))
        domains, images = place
        number, plain, first = len(images), bare.logits[domains, images], bare.first[domains, images]
        fading = math.exp(-number / 32)
        last, last_number = fading * last + first.sum(0), fading * last_number + number
        keep = math.exp(-number / rule.memory)
        if rule.forget and samples >= 32:
            centre = total / samples
            distance = (last / last_number - centre).square() / (squares / samples - centre.square()).clamp(min=1e-9)
            moved = max(0.0, float(distance.mean()) - 1 / last_number - 1 / samples)
            keep *= (1 + (moved / rule.forget) ** 2) ** -min(1.0, number / 64)
        samples = keep * samples + number
        total, squares = keep * total + first.sum(0), keep * squares + first.square().sum(0)
        mean, square = keep * mean, keep * square
        trust = rule.seen * classes_trusted(answered) * (answered.sum() >= 63.999)
        share = (1 - (1 - trust) * depth) * samples / (samples + 16)

        def chosen(part: slice, batch: Moments, count: int) -> Moments:
            mean[part] += number * batch[0]  # noqa: B023 (called before the next batch)
            square[part] += number * (batch[1] + batch[0].square())  # noqa: B023
            centre = mean[part] / samples  # noqa: B023
            spread = (square[part] / samples - centre.square()).clamp(min=0)  # noqa: B023
            own = source[0][part], source[1][part]
            return own[0] + share[part] * (centre - own[0]), own[1] + share[part] * (spread - own[1])  # noqa: B023

        with norms.chosen(chosen):
            adapted = network(normalised(pool.pixels[domains, images]))
        certain = (entropy(plain) - entropy(adapted)).mean() / math.log(classes)
        advantage = advantage.lerp(certain, 1 - math.exp(-number / 64))
        answers = torch.where(advantage > rule.choose, adapted, plain).argmax(1)
        answered = math.exp(-number / 1000) * answered + torch.bincount(answers, minlength=classes)
        truth = pool.labels.to(device)[images]
        right += int((answers == truth).sum())
        was_right += int((plain.argmax(1) == truth).sum())
    return 100 * (right - was_right) / len(stream.images)


def main(folder: str, name: str, *rules: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = load(name, Path(folder) / "weights").to(device).eval()
    pool = load_pool(name, "choose", Path(folder), domains_for("choose"), device)
    norms = NormStatistics(network)
    bare = bare_answers(network, norms, pool)
    streams = core_streams(pool.labels, pool.names, "choose", 4_000)
    on = PER_CORRUPTION["choose"]
    more = [("one-class", on[0]), ("one-class", on[2]), ("continual", "5"), ("continual-order", "5")]
    streams += [make(pool.labels, pool.names, scenario, where, seed=1) for scenario, where in more]
    for text in rules:
        gains: dict[str, list[float]] = defaultdict(list)
        for stream in streams:
            gains[stream.scenario].append(gain(network, norms, Rule.parse(text), pool, bare, stream))
        print(text, *(f"{key} {sum(v) / len(v):+.1f} ({min(v):+.1f})" for key, v in gains.items()), sep="\n    ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
