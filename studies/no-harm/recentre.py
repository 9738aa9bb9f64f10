"""Recentring answers from stored logits, without a GPU: what the mean of the logits is worth, and when to trust it.

    python recentre.py gn64.outputs.pt vit128.outputs.pt        # files that ``grid.py --rules outputs`` writes
    python recentre.py --evidence gn64.outputs.pt        # what recentring costs in entropy

Every rule subtracts a running mean of the (unadapted) network's logits from its answers. A batch counts by trust:

    cost = (mean entropy of the last 64 samples less their mean − mean entropy as they are) / ln C,
    trust = 1 for cost ≤ low, 0 for cost ≥ high, linear between

and the mean is shrunk by 1 − τ² spread² / ‖mean‖² (not below 0).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streams import Stream, make

DOMAINS = ("gaussian_noise-3", "glass_blur-3", "fog-5", "pixelate-5", "gaussian_noise-5", "contrast-5")


@dataclass(frozen=True)
class Recentring:
    """``high`` = inf: every batch is trusted; ``prior``: samples that "no shift" is worth."""

    low: float = 0.0
    high: float = math.inf
    least: float = 0.0
    prior: float = 32.0
    window: float = 1_000.0


RULES = {
    "every batch (NEO)": Recentring(),
    "the same, prior 256": Recentring(prior=256),
    "cost 0.02 to 0.08": Recentring(0.02, 0.08),
    "cost 0.02 to 0.08, τ = 0.25": Recentring(0.02, 0.08, 0.25),
    "cost 0.05 to 0.12, τ = 0.25": Recentring(0.05, 0.12, 0.25),
    "cost 0.10 to 0.20, τ = 0.25": Recentring(0.10, 0.20, 0.25),
}


def entropy(logits: Tensor) -> Tensor:
    log = logits.log_softmax(-1)
    return -(log.exp() * log).sum(-1)


def cost_of(samples: Tensor) -> float:
    """What recentring costs these samples in entropy, in units of ln C."""
    cost = (entropy(samples - samples.mean(0)) - entropy(samples)).mean()
    return float(cost) / math.log(samples.shape[1])


def gain(rule: Recentring, logits: Tensor, labels: Tensor, stream: Stream) -> float:
    """Accuracy over that of no adaptation on one stream, in points."""
    z = logits[torch.from_numpy(stream.domains), torch.from_numpy(stream.images)]
    truth = labels[torch.from_numpy(stream.images)]
    batch, classes = stream.batch, z.shape[1]
    keep = math.exp(-batch / rule.window)
    total, spread, weight = torch.zeros(classes), 0.0, 0.0
    recent = z[:0]
    right = 0
    for start in range(0, len(z), batch):
        piece = z[start : start + batch]
        recent = torch.cat((recent, piece))[-max(64, batch) :]
        trust = 1.0
        if rule.high < math.inf:
            trust = min(1.0, max(0.0, (rule.high - cost_of(recent)) / (rule.high - rule.low)))
        trust *= len(recent) >= 16
        about = recent - recent.mean(0)
        total = keep * total + trust * piece.sum(0)
        spread = keep * spread + trust * batch * float(about.square().sum(1).mean())
        weight = keep * weight + trust * batch
        mean = total / max(weight, 1e-6)
        size = float(mean.square().sum()) + 1e-9
        shrink = max(0.0, 1 - rule.least**2 * spread / max(weight, 1e-6) / size) * weight / (weight + rule.prior)
        right += int(((piece - shrink * mean).argmax(1) == truth[start : start + batch]).sum())
    return 100 * (right / len(z) - float((z.argmax(1) == truth).float().mean()))


def battery(names: list[str], labels: Tensor) -> dict[str, list[Stream]]:
    """Streams by scenario."""
    found = {s: [make(labels, names, s, on) for on in DOMAINS] for s in ("shuffled", "order", "short-order")}
    found |= {s: [make(labels, names, s, "5")] for s in ("mixture", "continual", "continual-order")}
    found |= {s: [make(labels, names, s, "clean")] for s in ("clean", "clean-order")}
    found["comes-and-goes"] = [make(labels, names, "comes-and-goes", "fog-5")]
    found["one-class"] = [make(labels, names, "one-class", "fog-5", seed=seed) for seed in range(5)]
    found["one-class, clean"] = [make(labels, names, "one-class", "clean", seed=seed) for seed in range(5)]
    return found


def print_evidence(names: list[str], logits: Tensor, labels: Tensor) -> None:
    classes = logits.shape[-1]
    print("| domain | none | recentred | cost, shuffled | cost, one class: least, mean |\n|---|---|---|---|---|")
    for name, z in zip(names, logits, strict=True):
        accuracy = 100 * (z.argmax(1) == labels).float().mean()
        recentred = 100 * ((z - z.mean(0)).argmax(1) == labels).float().mean()
        some = range(0, classes, max(1, classes // 10))
        costs = [cost_of(z[labels == c][:64]) for c in some]
        print(
            f"| {name} | {accuracy:.1f} | {recentred:.1f} | {cost_of(z):.2f} "
            f"| {min(costs):.2f}, {sum(costs) / len(costs):.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("outputs", type=Path, nargs="+")
    parser.add_argument("--evidence", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for path in options.outputs:
        stored = torch.load(path)
        logits = stored["logits"].float()
        logits = logits - logits.mean(-1, keepdim=True)
        names, labels = stored["names"], stored["labels"]
        print(f"\n**{path.name.split('.')[0]}**\n")
        if options.evidence:
            print_evidence(names, logits, labels)
            continue
        streams = battery(names, labels)
        print("| | " + " | ".join(streams) + " |\n|---|" + "---|" * len(streams))
        for title, rule in RULES.items():
            cells = []
            for some in streams.values():
                gains = [gain(rule, logits, labels, stream) for stream in some]
                worst = f" ({min(gains):+.1f})" if min(gains) < -2 and len(gains) > 1 else ""
                cells.append(f"{sum(gains) / len(gains):+.1f}{worst}")
            print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
