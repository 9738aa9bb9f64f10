"""Do Steady's signs tell a shifted stream of all classes from one of a single class? On a network of the battery, on a CPU.

    python signs.py data gn64 gaussian_noise-5,fog-5,clean            # 2,000 images each, windows of 64 and 180

Per domain and window: cost of recentring, κ, share of all classes about the mean, squared mean over squared spread. Shuffled:
mean and extremes of 12 draws; one class: of all classes. A sign separates where the extremes do not overlap.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from networks import load
from torch import Tensor
from train import normalised

from streams import load_pool
from wildtta.methods.losses import entropy
from wildtta.methods.steady.evidence import fixed_size, noise_entropy, recentring_cost

IMAGES, DRAWS, WINDOWS = 2000, 12, (64, 180)


def signs(logits: Tensor) -> list[float]:
    """The four measures of ``logits`` [N, C], by the formulas of evidence.py."""
    number, classes = logits.shape
    mean = logits.mean(0)
    about = logits - mean
    spread = about.square().sum(1).mean()
    clustering = 1 - entropy(about * (fixed_size(classes) * (classes / spread).sqrt())).mean() / noise_entropy(classes)
    counts = torch.bincount(about.argmax(1), minlength=classes).double()
    even = number * (number - 1) / (classes * (counts * (counts - 1)).sum())
    cost = recentring_cost(logits, torch.ones(number, dtype=torch.bool), logits.mean(0))
    return [float(value) for value in (cost, clustering, even, mean.square().sum() / spread)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("network")
    parser.add_argument("domains", type=lambda text: text.split(","))
    options = parser.parse_args()
    network = load(options.network, options.data / "weights")
    pool = load_pool(options.network, "choose", options.data, options.domains, "cpu")
    draws = np.random.default_rng(0)
    for domain, pixels in zip(pool.names, pool.pixels[:, :IMAGES], strict=True):
        with torch.no_grad():
            logits = torch.cat([network(normalised(piece)) for piece in pixels.split(100)])
        logits = logits - logits.mean(1, keepdim=True)
        labels = pool.labels[:IMAGES]
        for window in WINDOWS:
            shuffled = [logits[torch.from_numpy(draws.permutation(len(logits))[:window])] for _ in range(DRAWS)]
            single = [logits[labels == label][:window] for label in labels.unique()]
            for name, samples in (("shuffled", shuffled), ("one class", single)):
                found = np.array([signs(sample) for sample in samples])
                print(domain, window, name, *(part.round(2) for part in (found.mean(0), found.min(0), found.max(0))), flush=True)


if __name__ == "__main__":
    main()
