"""Steady as a stranger would try it: small networks with 2 to 100 classes of scikit-learn's digits, own corruptions, on a CPU.

    python studies/no-harm/strangers.py rows.jsonl --classes 2,3,5,7,10,26 --networks gn,ln,vit,bn       # about an hour
    python studies/no-harm/strangers.py rows.jsonl --classes 10 --networks gn --batches 1,4,16
    python studies/no-harm/strangers.py rows.jsonl --tables                                              # of what was run

Up to ten classes are the digits themselves; more are numbers of two digits. Images to train on and to test on are apart. A
row is a stream: accuracy without adaptation and with it, in %. Nothing of the battery is used. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from digits import Transformer, blurred, normalised
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta

SIZE, TESTED = 16, 2000
TRAINED_ON = {"": 900, "-weak": 120}
"""Digits that a network is trained from; a weak one knows few."""


# -- images ---------------------------------------------------------------------------------------------------------------


def digit_parts() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Digits [N, 1, 8, 8] in [0, 1] with labels: those to train on, and those to test on."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(found.target)[order]
    return (images[:900], labels[:900]), (images[900:], labels[900:])


def numbers(part: tuple[Tensor, Tensor], classes: int, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """``count`` images [N, 1, 16, 16] of the numbers 0 … classes − 1: one digit, or two side by side where they need two."""
    images, labels = part
    places = [torch.nonzero(labels == digit)[:, 0] for digit in range(10)]
    wanted = torch.randint(classes, (count,), generator=rng)

    def drawn(digits: Tensor) -> Tensor:
        chance = torch.rand(len(digits), generator=rng)
        return images[
            torch.stack([places[d][int(c * len(places[d]))] for d, c in zip(digits.tolist(), chance, strict=True)])
        ]

    if classes <= 10:
        shown = F.interpolate(drawn(wanted), size=(SIZE, SIZE), mode="bilinear")
    else:
        halves = [
            F.interpolate(drawn(digit), size=(SIZE, SIZE // 2), mode="bilinear")
            for digit in (wanted // 10, wanted % 10)
        ]
        shown = torch.cat(halves, 3)
    moved = torch.randint(-1, 2, (count, 2), generator=rng).tolist()
    return torch.stack([torch.roll(image, move, (1, 2)) for image, move in zip(shown, moved, strict=True)]), wanted


# -- corruptions ------------------------------------------------------------------------------------------------------------


def rotated(images: Tensor, degrees: float) -> Tensor:
    angle = torch.tensor(degrees).deg2rad()
    turn = torch.stack((torch.stack((angle.cos(), -angle.sin())), torch.stack((angle.sin(), angle.cos()))))
    grid = F.affine_grid(F.pad(turn, (0, 1))[None].expand(len(images), -1, -1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def peppered(images: Tensor, share: float, rng: torch.Generator) -> Tensor:
    chance = torch.rand(images.shape, generator=rng)
    return torch.where(chance < share / 2, torch.zeros_like(images), torch.where(chance > 1 - share / 2, 1.0, images))


def hidden(images: Tensor, side: int, rng: torch.Generator) -> Tensor:
    images = images.clone()
    for image, (top, left) in zip(
        images, torch.randint(0, SIZE - side, (len(images), 2), generator=rng).tolist(), strict=True
    ):
        image[:, top : top + side, left : left + side] = 0.5
    return images


def striped(images: Tensor, height: float) -> Tensor:
    return (images + height * (torch.arange(SIZE) % 4 < 2)).clamp(0, 1)


Corruption = Callable[[Tensor, int, torch.Generator], Tensor]
CORRUPTIONS: dict[str, Corruption] = {
    "noise": lambda x, s, rng: (x + 0.08 * (s + 1) * torch.randn(x.shape, generator=rng)).clamp(0, 1),
    "pepper": lambda x, s, rng: peppered(x, 0.06 * s, rng),
    "blur": lambda x, s, rng: (
        blurred(x) if s < 3 else blurred(blurred(x)) if s < 5 else blurred(blurred(blurred(blurred(x))))
    ),
    "contrast": lambda x, s, rng: (x - 0.3) * (0.8 - 0.1 * s) + 0.3,
    "bright": lambda x, s, rng: (x * (1 - 0.06 * s) + 0.07 * s).clamp(0, 1),
    "dark": lambda x, s, rng: x * (1 - 0.16 * s),
    "rotation": lambda x, s, rng: rotated(x, 7.0 * s),
    "patch": lambda x, s, rng: hidden(x, 3 + s, rng),
    "stripes": lambda x, s, rng: striped(x, 0.1 * s),
}


# -- networks -----------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


def residual(classes: int, norm: Callable[[int], nn.Module], width: int = 32) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False), norm(width), nn.ReLU(), nn.MaxPool2d(2), Residual(width, norm),
        nn.Conv2d(width, 2 * width, 3, 2, 1, bias=False), norm(2 * width), nn.ReLU(), Residual(2 * width, norm),
        nn.AdaptiveAvgPool2d((1, 1) if classes <= 10 else (1, 2)), nn.Flatten(),
        nn.Linear(2 * width * (1 if classes <= 10 else 2), classes),
    )  # fmt: skip


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "gn": lambda classes: residual(classes, lambda width: nn.GroupNorm(8, width)),
    "ln": lambda classes: residual(classes, lambda width: nn.GroupNorm(1, width), 24),
    "bn": lambda classes: residual(classes, nn.BatchNorm2d),
    "vit": partial(Transformer, blocks=3, norm_first=True),
}


def trained(name: str, classes: int, seed: int) -> nn.Module:
    """Trained on clean images alone; ``-weak``: on few of them."""
    base, _, weak = name.partition("-")
    torch.manual_seed(seed)
    network = NETWORKS[base](classes)
    (images, labels), _ = digit_parts()
    known = TRAINED_ON["-weak" if weak else ""]
    rng = torch.Generator().manual_seed(seed)
    steps = 150 if weak else 400 if classes <= 10 else 900
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        shown, wanted = numbers((images[:known], labels[:known]), classes, 64, rng)
        shown = shown + 0.05 * torch.randn(shown.shape, generator=rng)
        F.cross_entropy(network(normalised(shown)), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return network.eval()


# -- streams ------------------------------------------------------------------------------------------------------------------


Places = np.ndarray[Any, np.dtype[np.int64]]


def in_runs(labels: Places, classes: Iterable[int], run: int, length: int, rng: np.random.Generator) -> Places:
    own = {label: np.flatnonzero(labels == label) for label in classes}
    pieces: list[Places] = []
    while sum(map(len, pieces)) < length:
        pieces += [rng.choice(own[label], run) for label in rng.permutation(list(own)).tolist()]
    return np.concatenate(pieces)[:length]


def orders(labels: Places, classes: int, length: int, rng: np.random.Generator) -> Iterator[tuple[str, Places]]:
    """Which images a stream of one corruption shows."""
    everything = range(classes)
    yield "shuffled", rng.integers(len(labels), size=length)
    yield "class order", in_runs(labels, everything, max(64, length // classes), length, rng)
    yield "runs of 16", in_runs(labels, everything, 16, length, rng)
    yield "one class", in_runs(labels, [int(rng.integers(classes))], length, length, rng)
    if classes > 3:
        few = rng.choice(classes, max(2, classes // 4), replace=False).tolist()
        yield "few classes", in_runs(labels, few, 1, length, rng)
    shares = 0.5 ** (np.arange(classes) * 6 / classes)  # the most frequent class comes 64 times as often as the rarest
    weights = rng.permutation(shares)[labels]
    yield "long tail", rng.choice(len(labels), length, p=weights / weights.sum())


def streams(
    labels: Places, classes: int, domains: list[str], length: int, seed: int
) -> Iterator[tuple[str, str, Places, Places]]:
    """Scenario, corruption, and domain and image of each position."""
    rng = np.random.default_rng([seed, classes])
    severe = [index for index, name in enumerate(domains) if name.endswith(domains[1][-1])]
    for place, name in enumerate(domains):
        for scenario, images in orders(labels, classes, length, rng):
            kind = "clean, " if name == "clean" else "mild, " if name.endswith("1") else ""
            yield kind + scenario, name, np.full(length, place), images
    shuffled = rng.integers(len(labels), size=length)
    yield "mixture", "all", rng.choice(severe, length), shuffled
    piece = -(-length // len(severe))
    yield "continual", "all", np.repeat(rng.permutation(severe), piece)[:length], shuffled
    ordered = np.concatenate([in_runs(labels, range(classes), max(16, piece // classes), piece, rng) for _ in severe])[
        :length
    ]
    yield "continual, class order", "all", np.repeat(rng.permutation(severe), piece)[:length], ordered
    for place in severe[::3]:
        yield "comes and goes", domains[place], np.where((np.arange(length) // 512) % 2 == 0, 0, place), shuffled


def rows(name: str, classes: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    network = trained(name, classes, options.seed)
    rng = torch.Generator().manual_seed(100 + options.seed)
    images, labels = numbers(digit_parts()[1], classes, TESTED, rng)
    domains = [
        "clean",
        *(f"{corruption} {severity}" for severity in options.severities for corruption in options.corruptions),
    ]
    corrupted = [CORRUPTIONS[name.split()[0]](images, int(name.split()[1]), rng) for name in domains[1:]]
    pool = normalised(torch.stack([images, *corrupted]))
    yield from rows_of(name, network, pool, labels, domains, classes, options)


def rows_of(
    name: str,
    network: nn.Module,
    pool: Tensor,
    labels: Tensor,
    domains: list[str],
    classes: int,
    options: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """A row for each stream of a network; ``pool`` [domains, N, …] holds its images, clean ones first."""
    with torch.no_grad():
        bare = torch.stack([torch.cat([network(part).argmax(1) for part in layer.split(250)]) for layer in pool])
    for scenario, corruption, where, which in streams(labels.numpy(), classes, domains, options.images, options.seed):
        if options.only and not any(word in scenario for word in options.only):
            continue
        places = torch.from_numpy(where), torch.from_numpy(which)
        truth, without = labels[places[1]], bare[places]
        for batch in options.batches:
            length = min(len(where), 400 * batch)
            adapter = wildtta.adapt(copy.deepcopy(network), options.method, **options.settings)
            shown = pool[places][:length]
            strengths, given = [], []
            for part in shown.split(batch):
                given.append(adapter(part).argmax(1))
                strengths.append(adapter.last.strength)
            answers = torch.cat(given)
            right, was = (answers == truth[:length]).double(), (without == truth)[:length].double()
            known = [float(value) for value in strengths if value is not None]
            last = slice(length - length // 5, None)
            tops = [
                float(torch.bincount(said[:length][last], minlength=classes).max() / (length // 5))
                for said in (answers, without, truth)
            ]
            yield {
                "network": name, "classes": classes, "scenario": scenario, "corruption": corruption, "batch": batch,
                "images": length, "none": 100 * float(was.mean()), "gain": 100 * float((right - was).mean()),
                "error": 100 * float((right - was).std() / length**0.5), "strength": mean(known) if known else None,
                "top": tops, "fifths": [round(100 * float(d.mean()), 1) for d in (right - was).chunk(5)],
                "seed": options.seed,
            }  # fmt: skip


def tables(found: list[dict[str, Any]]) -> None:
    """Means per network and scenario, and the streams that lose most."""
    grouped: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in found:
        grouped[row["network"], row["classes"], row["scenario"], row["batch"]].append(row["gain"])
    low = sorted(grouped, key=lambda key: mean(grouped[key]))
    print(f"{len(found)} streams; {len(grouped)} means, worst of them:")
    for key in low[:15]:
        print("  ", *key, f"{mean(grouped[key]):+.2f} of {len(grouped[key])}")
    for row in sorted(found, key=lambda row: row["gain"])[:25]:
        print(
            "  ",
            *(row[k] for k in ("network", "classes", "scenario", "corruption", "batch", "seed")),
            f"{row['none']:.1f} {row['gain']:+.2f} ± {row['error']:.2f}",
            row["strength"] and round(row["strength"], 2),
            row["fifths"],
        )
    scenarios = list(dict.fromkeys(row["scenario"] for row in found))
    for scenario in scenarios:
        gains = [row["gain"] for row in found if row["scenario"] == scenario]
        print(f"{scenario:30s} {mean(gains):+6.2f}  worst {min(gains):+6.2f}  best {max(gains):+6.2f}  of {len(gains)}")


def main() -> None:
    run(arguments(__doc__ or "").parse_args(), rows, tables)


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--classes", default="10", help="how many, several with commas")
    parser.add_argument("--networks", default="gn,ln,vit,bn", help="also NAME-weak")
    parser.add_argument("--batches", default=[64], type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument(
        "--severities", default=[5, 3], type=lambda text: [int(severity) for severity in text.split(",")]
    )
    parser.add_argument("--corruptions", default=list(CORRUPTIONS), type=lambda text: text.split(","))
    parser.add_argument(
        "--only", default=[], type=lambda text: text.split(","), help="scenarios with one of these words"
    )
    parser.add_argument("--method", default="steady")
    parser.add_argument("--settings", default={}, type=json.loads, help="options for wildtta.adapt, as JSON")
    parser.add_argument("--images", type=int, default=4000, help="per stream")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def run(
    options: argparse.Namespace,
    rows: Callable[[str, int, argparse.Namespace], Iterator[dict[str, Any]]],
    tables: Callable[[list[dict[str, Any]]], None],
) -> None:
    """The rows of every network with every number of classes go to a file, one by one; or the tables of what is there."""
    torch.set_num_threads(1)
    if options.tables:
        tables([json.loads(line) for line in options.out.read_text().splitlines()])
        return
    with options.out.open("a") as file:
        for classes in map(int, options.classes.split(",")):
            for name in options.networks.split(","):
                for row in rows(name, classes, options):
                    file.write(json.dumps(row) + "\n")
                    file.flush()


if __name__ == "__main__":
    main()
