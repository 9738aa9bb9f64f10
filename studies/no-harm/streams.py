"""The battery's data and streams: which image, under which corruption, comes when.

A domain is ``(corruption, severity)`` or ``clean``; a stream is two arrays of one length, the domain and the image of
each position. Streams are made from labels alone, so that every rule sees the same one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from networks import RECIPES, classes_of, limited_classes, split_name
from prepare import load_images
from torch import Tensor

Ints = npt.NDArray[np.int64]
CLEAN = "clean"
CHOOSE = (
    "gaussian_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "snow",
    "fog",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""Corruptions on which things are chosen."""
ASIDE = ("shot_noise", "motion_blur", "zoom_blur", "frost", "brightness", "speckle_noise", "spatter", "saturate")
"""Corruptions that are looked at only at the end (gaussian_blur is left for later)."""


@dataclass(frozen=True)
class Stream:
    """Positions of images, and the batch size they come in."""

    name: str
    scenario: str
    domains: Ints
    images: Ints
    batch: int = 64


@dataclass
class Pool:
    """Images of one part under some domains, on a device, with the labels of one network."""

    names: list[str]
    pixels: Tensor
    """[domains, N, 3, S, S] uint8."""
    labels: Tensor


def domain(corruption: str, severity: int) -> str:
    return f"{corruption}-{severity}"


def load_pool(network: str, part: str, folder: Path, domains: list[str], device: str) -> Pool:
    """The images of ``part`` (choose, aside) that belong to ``network``'s classes, corrupted as ``domains`` says."""
    from wildtta.corruptions import corrupt

    recipe = RECIPES[split_name(network)[0]]
    images, labels = load_images(folder / f"{'tiny' if recipe.testbed else 'cifar'}_{part}.npz")
    index, place = np.arange(len(images)), _inside(network, labels)
    images, index = images[place].to(device), index[place.numpy()]
    layers = []
    for name in domains:
        if name == CLEAN:
            layers.append(images)
        else:
            corruption, severity = name.rsplit("-", 1)
            layers.append(corrupt(images, corruption, int(severity), seed=SEEDS[part], index=index))
    return Pool(domains, torch.stack(layers), _labels_for(network, labels[place]))


def limited_pool(network: str, names: list[str], pixels: Tensor, labels: Tensor, device: str) -> Pool:
    """A pool of ``pixels`` [domains, N, 3, S, S], of the images whose classes ``network`` has."""
    place = _inside(network, labels)
    return Pool(names, pixels[:, place].to(device), _labels_for(network, labels[place]))


def _inside(network: str, labels: Tensor) -> Tensor:
    """Places of the images whose classes ``network`` has."""
    limit = split_name(network)[1]
    kept = labels if limit is None else torch.tensor(limited_classes(limit))
    return torch.isin(labels, kept).nonzero()[:, 0]


def _labels_for(network: str, labels: Tensor) -> Tensor:
    """The data set's labels as the network's."""
    base, limit = split_name(network)
    merged = RECIPES[base].classes
    labels = labels if merged is None else torch.tensor(merged)[labels]
    return labels if limit is None else torch.searchsorted(torch.tensor(limited_classes(limit)), labels)


SEEDS = {"choose": 0, "aside": 1}


def _shuffled(labels: Ints, length: int, rng: np.random.Generator) -> Ints:
    """Every image once before any comes again."""
    rounds = [rng.permutation(len(labels)) for _ in range(-(-length // len(labels)))]
    return np.concatenate(rounds)[:length]


def _runs(labels: Ints, length: int, run: int, rng: np.random.Generator) -> Ints:
    """Runs of ``run`` images of one class; the classes take turns in a random order that is drawn anew each round."""
    classes = np.unique(labels)
    places = {c: rng.permutation(np.flatnonzero(labels == c)) for c in classes}
    used = dict.fromkeys(classes.tolist(), 0)
    out: list[int] = []
    while len(out) < length:
        for c in rng.permutation(classes):
            own = places[c]
            start = used[int(c)]
            out.extend(int(own[(start + i) % len(own)]) for i in range(run))
            used[int(c)] += run
    return np.array(out[:length])


def make(
    labels: Tensor, names: list[str], scenario: str, on: str, *, length: int = 4_000, batch: int = 64, seed: int = 0
) -> Stream:
    """One stream. ``on`` is a domain, or a severity for scenarios that take all corruptions among ``names``."""
    all_labels = labels.numpy().astype(np.int64)
    rng = np.random.default_rng([seed, len(all_labels), sum(map(ord, scenario + on))])
    classes = len(np.unique(all_labels))
    length -= length % batch
    several = [index for index, name in enumerate(names) if name.endswith(f"-{on}")]
    place = names.index(on) if on in names else -1
    constant = np.full(length, place)
    long_run = max(64, length // classes) if classes <= 50 else 100
    if scenario in ("shuffled", "clean", "single", "four", "sixteen"):
        domains, images = constant, _shuffled(all_labels, length, rng)
    elif scenario in ("order", "clean-order"):
        domains, images = constant, _runs(all_labels, length, long_run, rng)
    elif scenario == "short-order":
        domains, images = constant, _runs(all_labels, length, 16, rng)
    elif scenario == "mixture":
        domains, images = rng.choice(several, length), _shuffled(all_labels, length, rng)
    elif scenario == "continual":
        domains = np.repeat(rng.permutation(several), -(-length // len(several)))[:length]
        images = _shuffled(all_labels, length, rng)
    elif scenario == "continual-order":
        piece = -(-length // len(several))
        domains = np.repeat(rng.permutation(several), piece)[:length]
        run = max(16, piece // min(classes, 20))
        images = np.concatenate([_runs(all_labels, piece, run, rng) for _ in several])[:length]
    elif scenario == "comes-and-goes":
        clean = names.index(CLEAN)
        domains = np.where((np.arange(length) // 512) % 2 == 0, clean, place)
        images = _shuffled(all_labels, length, rng)
    elif scenario in ("one-class", "clean-one-class"):
        chosen = rng.permutation(np.unique(all_labels))[0]
        own = np.flatnonzero(all_labels == chosen)
        domains, images = constant, np.concatenate([rng.permutation(own) for _ in range(-(-length // len(own)))])
        images = images[:length]
    else:
        raise ValueError(f"no scenario {scenario!r}")
    return Stream(f"{scenario}/{on}/{seed}", scenario, domains, images, batch)


def some_classes(pool: Pool, on: str, number: int, length: int, seed: int) -> Stream:
    """A stream of ``number`` classes for ever, drawn at random; ``on`` is a domain."""
    labels = pool.labels.numpy()
    rng = np.random.default_rng([seed, number, len(labels)])
    chosen = rng.permutation(np.unique(labels))[:number]
    own = np.flatnonzero(np.isin(labels, chosen))
    rounds = np.concatenate([rng.permutation(own) for _ in range(-(-length // len(own)))])
    length -= length % 64
    scenario = f"{'clean ' if on == CLEAN else ''}{number} of {len(np.unique(labels))}"
    return Stream(f"{scenario}/{on}/{seed}", scenario, np.full(length, pool.names.index(on)), rounds[:length])


def continual_runs(pool: Pool, severity: int, run: int, seed: int) -> Stream:
    """All corruptions one after another; in each every class once, in runs of ``run`` images."""
    labels = pool.labels.numpy().astype(np.int64)
    rng = np.random.default_rng([seed, run, len(labels)])
    places = rng.permutation([index for index, name in enumerate(pool.names) if name.endswith(f"-{severity}")])
    piece = run * len(np.unique(labels))
    images = np.concatenate([_runs(labels, piece, run, rng) for _ in places])
    length = len(images) - len(images) % 64
    return Stream(
        f"continual-order/{severity}/{seed}", "continual-order", np.repeat(places, piece)[:length], images[:length]
    )


def shortened(stream: Stream, length: int) -> Stream:
    return replace(stream, domains=stream.domains[:length], images=stream.images[:length])


def chance_share(network: str) -> float:
    return 1 / classes_of(network)
