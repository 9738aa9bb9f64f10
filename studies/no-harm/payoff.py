"""What tells, without labels, whether a network that has learned is better than its source? Strangers' networks, on a CPU.

    python studies/no-harm/payoff.py rows.jsonl --classes 100,40 --seed 9    # five minutes
    python studies/no-harm/payoff.py rows.jsonl --tables                     # of what was run

Steady learns all the time here (``evidence=False``), so that there is harm to be told from gain. Every batch is answered by
the adapted network and by the source. A row is a stream: what was gained, and signs of it, means over pieces of 256 images.
Networks, corruptions and streams are those of ``strangers.py``.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from strangers import CORRUPTIONS, TESTED, digit_parts, normalised, numbers, run, streams, trained
from torch import Tensor

import wildtta
from wildtta.methods.losses import entropy
from wildtta.methods.steady.payoff import sized_as

PIECE, BATCH = 256, 64
SIGNS = (
    *("entropy", "centred entropy", "slope", "information", "information, one size"),
    *("spread", "certainty", "disagreement"),
)
CLEAR = 0.3
"""Points from which on a stream counts as gained, or as harmed."""


def signs(source: Tensor, adapted: Tensor) -> dict[str, float]:
    """Differences adapted − source over the logits [N, C] of one piece; entropies in units of ln C."""
    unit = math.log(source.shape[1])
    before, after = source.softmax(1), adapted.softmax(1)

    def mean_entropy(logits: Tensor) -> float:
        return float(entropy(logits).mean()) / unit

    def diversity(shares: Tensor) -> float:
        return float(entropy(shares.mean(0).clamp(min=1e-12).log()[None])) / unit

    def spread(shares: Tensor) -> float:
        return float(shares.square().sum(1).mean() - shares.mean(0).square().sum())

    def information(logits: Tensor) -> float:
        return diversity(logits.softmax(1)) - mean_entropy(logits)

    risen = mean_entropy(adapted) - mean_entropy(source)
    return {
        "entropy": risen,
        "centred entropy": mean_entropy(adapted - adapted.mean(0)) - mean_entropy(source - source.mean(0)),
        "information": information(adapted) - information(source),
        "information, one size": information(sized_as(source, adapted)) - information(source),
        "spread": spread(after) - spread(before),
        "certainty": float((after.amax(1) - before.amax(1)).mean()),
        "disagreement": float((after.argmax(1) != before.argmax(1)).float().mean()),
    }


def slope(adapter: wildtta.Adapter, images: Tensor) -> float:
    """⟨∇H_c(θ), θ − θ₀⟩: what the centred entropy has changed on the way, to first order, by one backward pass."""
    engine = adapter.engine
    assert engine.source is not None
    way = engine.learnables.vector() - engine.source
    logits = engine.forward(images, grad=True).logits
    centred = entropy(logits - logits.mean(0).detach()).mean() / math.log(logits.shape[1])
    return float(engine.learnables.gradient(centred) @ way)


def rows(name: str, classes: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    network = trained(name, classes, options.seed)
    rng = torch.Generator().manual_seed(100 + options.seed)
    images, labels = numbers(digit_parts()[1], classes, TESTED, rng)
    domains = ["clean", *(f"{corruption} 5" for corruption in options.corruptions)]
    pool = normalised(torch.stack([images, *(CORRUPTIONS[name](images, 5, rng) for name in options.corruptions)]))
    for scenario, corruption, where, which in streams(labels.numpy(), classes, domains, options.images, options.seed):
        places = torch.from_numpy(where), torch.from_numpy(which)
        truth, shown = labels[places[1]], pool[places]
        adapter = wildtta.adapt(copy.deepcopy(network), evidence=False)
        with torch.no_grad():
            source = torch.cat([network(part) for part in shown.split(BATCH)])
        answers, slopes = [], []
        for number, part in enumerate(shown.split(BATCH)):
            if number % (PIECE // BATCH) == PIECE // BATCH - 1:
                slopes.append(slope(adapter, part))
            answers.append(adapter(part).detach())
        adapted = torch.cat(answers)
        pieces = [signs(*both) for both in zip(source.split(PIECE), adapted.split(PIECE), strict=True)]
        right = (adapted.argmax(1) == truth).double() - (source.argmax(1) == truth).double()
        yield {
            "network": name, "classes": classes, "scenario": scenario, "corruption": corruption, "seed": options.seed,
            "gain": 100 * float(right.mean()), "slope": mean(slopes),
            **{sign: mean(piece[sign] for piece in pieces) for sign in pieces[0]},
        }  # fmt: skip


def told_apart(values: list[float], gains: list[float]) -> float:
    """Chance that a stream that gained has the larger value than one that was harmed."""
    gained = np.array([v for v, gain in zip(values, gains, strict=True) if gain > CLEAR])
    harmed = np.array([v for v, gain in zip(values, gains, strict=True) if gain < -CLEAR])
    return float((gained[:, None] > harmed).mean()) if len(gained) and len(harmed) else math.nan


def tables(found: list[dict[str, Any]]) -> None:
    """Per sign, how well it tells gain from harm: over all streams, and over the kinds of streams."""
    kinds = {
        "all": "", "shuffled": "shuffled", "runs of 16": "runs of 16", "class order": "class order",
        "long tail": "long tail", "few classes": "few classes", "one class": "one class", "clean": "clean",
    }  # fmt: skip
    print("| sign | " + " | ".join(kinds) + " |\n|" + "---|" * (len(kinds) + 1))
    for sign in SIGNS:
        cells = []
        for kind, word in kinds.items():
            own = [row for row in found if word in row["scenario"] and (kind != "shuffled" or row["scenario"] == kind)]
            cells.append(f"{told_apart([row[sign] for row in own], [row['gain'] for row in own]):.2f}")
        print(f"| {sign} | " + " | ".join(cells) + " |")
    print(f"{len(found)} streams, {sum(row['gain'] > CLEAR for row in found)} gained, "
          f"{sum(row['gain'] < -CLEAR for row in found)} harmed")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--classes", default="100,40")
    parser.add_argument("--networks", default="gn,gn-weak,ln,vit")
    parser.add_argument("--corruptions", default=["contrast", "noise", "rotation"], type=lambda t: t.split(","))
    parser.add_argument("--images", type=int, default=1536, help="per stream")
    parser.add_argument("--seed", type=int, default=3)
    run(parser.parse_args(), rows, tables)


if __name__ == "__main__":
    main()
