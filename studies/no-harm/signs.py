"""Do Steady's signs tell a shifted stream of all classes from one of a single class? On a CPU.

    python signs.py data gn64 gaussian_noise-5,fog-5,clean             # a network of the battery: 2,000 images of each domain
    python signs.py strangers gn,vit,gn-weak noise-5,contrast-5,clean  # networks of strangers.py, ten classes: a minute
    python signs.py strangers bn,bn-weak noise-5,patch-5,clean         # BatchNorm, each batch of 64 by its own moments

Per domain and window: cost of recentring, κ, share of all classes about the mean, squared mean over squared spread,
alignment with the head (which Steady asks on BatchNorm networks alone; there that of white noise is told beside clean images),
and the excess over scrambled images (which it asks on all others with 6 to 39 classes). Shuffled:
mean and extremes of 12 draws; one class: of all classes. A sign separates where the extremes do not overlap.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import strangers
import torch
from networks import load
from torch import Tensor, nn
from train import normalised

from streams import load_pool
from wildtta.methods.losses import entropy
from wildtta.methods.steady.alignment import cosines, noise_like
from wildtta.methods.steady.contents import excess, followed, nothing_compared
from wildtta.methods.steady.evidence import fixed_size, noise_entropy, recentring_cost
from wildtta.step.scrambling import ARRANGEMENT, next_arrangements, scrambled

IMAGES, DRAWS, WINDOWS, BATCH = 2000, 12, (64, 192), 64


def signs(logits: Tensor) -> list[float]:
    """Four measures of centred ``logits`` [N, C], by the formulas of evidence.py."""
    number, classes = logits.shape
    mean = logits.mean(0)
    about = logits - mean
    spread = about.square().sum(1).mean()
    clustering = 1 - entropy(about * (fixed_size(classes) * (classes / spread).sqrt())).mean() / noise_entropy(classes)
    counts = torch.bincount(about.argmax(1), minlength=classes).double()
    even = number * (number - 1) / (classes * (counts * (counts - 1)).sum())
    cost = recentring_cost(logits, torch.ones(number, dtype=torch.bool), logits.mean(0))
    return [float(value) for value in (cost, clustering, even, mean.square().sum() / spread)]


def alignment(features: Tensor, rows: Tensor) -> float:
    """How nearly ``features`` [N, D] point from their mean to the classes of a head with these ``rows`` [C, D]."""
    return float(cosines(features, features.mean(0), rows).mean())


def battery(data: Path, name: str, domains: list[str]) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Domain, network, images and labels."""
    pool = load_pool(name, "choose", data, domains, "cpu")
    network = load(name, data / "weights")
    for domain, pixels in zip(pool.names, pool.pixels[:, :IMAGES], strict=True):
        yield domain, network, torch.cat([normalised(piece) for piece in pixels.split(100)]), pool.labels[:IMAGES]


def of_strangers(name: str, domains: list[str]) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """The same for digits."""
    network, rng = strangers.trained(name, 10, 0), torch.Generator().manual_seed(100)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
            module.momentum = 0.0
    images, labels = strangers.numbers(strangers.digit_parts()[1], 10, IMAGES, rng)
    for domain in domains:
        corruption, _, severity = domain.partition("-")
        shown = strangers.CORRUPTIONS[corruption](images, int(severity), rng) if severity else images
        yield domain, network, strangers.normalised(shown), labels


def features_of(network: nn.Module, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the last linear layer reads [N, D], its weight [C, D], and the logits about their mean over the classes."""
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    read: list[Tensor] = []
    hook = head.register_forward_hook(lambda _, inputs, __: read.append(inputs[0]))
    with torch.no_grad():
        logits = torch.cat([network(piece) for piece in images.split(BATCH)])
    hook.remove()
    return torch.cat(read), head.weight.detach(), logits - logits.mean(1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the battery, or: strangers")
    parser.add_argument("networks", type=lambda text: text.split(","))
    parser.add_argument("domains", type=lambda text: text.split(","))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.networks:
        known = options.data.name == "strangers"
        show(name, of_strangers(name, options.domains) if known else battery(options.data, name, options.domains))


def show(name: str, domains: Iterator[tuple[str, nn.Module, Tensor, Tensor]]) -> None:
    draws = np.random.default_rng(0)
    for domain, network, images, labels in domains:
        if domain == "clean" and any(module.training for module in network.modules()):
            noise = noise_like(images.shape[1:], 256, dtype=images.dtype, device=images.device)
            print(f"{name}: alignment of white noise {alignment(*features_of(network, noise)[:2]):.3f}")
        logits = features_of(network, images)[2]
        right = [100 * float((found.argmax(1) == labels).double().mean()) for found in (logits, logits - logits.mean(0))]
        print(f"{name} {domain}: {right[0]:.1f} % right, without the mean of the logits {right[1]:.1f} %")
        for window in WINDOWS:
            shuffled = [torch.from_numpy(draws.permutation(len(images))[:window]) for _ in range(DRAWS)]
            single = [torch.nonzero(labels == label)[:window, 0] for label in labels.unique()]
            for kind, windows in (("shuffled", shuffled), ("one class", single)):
                found = np.array([measured(network, images[rows]) for rows in windows])
                columns = [part.round(2) for part in (found.mean(0), found.min(0), found.max(0))]
                print(f"  {window} {kind}", *columns, flush=True)


def measured(network: nn.Module, images: Tensor) -> list[float]:
    """All signs of a window of images."""
    features, rows, logits = features_of(network, images)
    return [*signs(logits), alignment(features, rows), over_scrambled(network, images, features, rows)]


def over_scrambled(network: nn.Module, images: Tensor, features: Tensor, rows: Tensor) -> float:
    """How much more the features' directions tell than those of scrambled images; NaN where there are too few of them."""
    state = nothing_compared(*rows.shape, dtype=features.dtype, device=features.device)
    usable = torch.ones(len(images), dtype=torch.bool)
    beside = features_of(network, scrambled(images, next_arrangements(state[ARRANGEMENT], len(images))))[0]
    state = followed(state, features, beside, usable, rows, torch.tensor(len(images)))
    return float(excess(state)) if state["measured_number"] > 0 else float("nan")


if __name__ == "__main__":
    main()
