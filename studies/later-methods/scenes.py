"""mIoU on the embedded scenes: none, Tent, CoTTA, SAR, SAR² and Steady, shuffled and ordered, under corruptions.

python studies/later-methods/scenes.py runs/scenes.json [--into studies/later-methods/README.md]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from cells import show
from torch import Tensor, nn

from wildtta.data import corrupt
from wildtta.report.names import method_name
from wildtta.segmentation import Confusion, adapt_segmentation, photometric, resized
from wildtta.segmentation.scenes import CLASSES, inputs, network, scenes

METHODS = ("none", "tent", "cotta", "sar", "sar2", "steady")
CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
COUNT, BATCH, SEVERITY = 160, 4, 5


def options(method: str) -> dict[str, object]:
    """CoTTA's views must leave pixels where they are; 0.69 is its authors' confidence for segmentation."""
    return {"augment": photometric, "confidence": 0.69, "views": 6} if method == "cotta" else {}


def ordered(labels: Tensor) -> Tensor:
    """Scenes by how much of a vehicle they show: long stretches without any, then ever more."""
    return (labels == CLASSES.index("vehicle")).flatten(1).sum(1).argsort(stable=True)


def mean_iou(source: nn.Module, method: str, images: Tensor, labels: Tensor, **options: Any) -> float:
    """mIoU of a method that begins at the network ``source``, over a stream."""
    model = adapt_segmentation(source.to(images.device), method, example=inputs(images[:1]), **options)
    meter = Confusion(len(CLASSES), device=images.device)
    for batch, marks in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        meter.update(resized(model(inputs(batch)).maps, marks.shape[-2:]), marks)
    return meter.mean()


def shown(seed: int, corruption: str, device: str, count: int = COUNT) -> tuple[Tensor, Tensor]:
    """The scenes of a seed under a corruption, and their labels."""
    images, labels = (part.to(device) for part in scenes(count, seed=seed))
    return images if corruption == "clean" else corrupt(images, corruption, SEVERITY, seed=seed), labels


def table(rows: list[dict[str, Any]]) -> str:
    """Mean mIoU over the seeds; in brackets the mean difference to none, ± its standard error over the seeds."""
    lines = ["| corruption, order | " + " | ".join(map(method_name, METHODS)) + " |", "|---|" + "---|" * len(METHODS)]
    for place in dict.fromkeys((row["corruption"], row["order"]) for row in rows):
        own = [row for row in rows if (row["corruption"], row["order"]) == place]
        shown = [f"{mean(row['none'] for row in own):.2f}"]
        for method in METHODS[1:]:
            gains = [row[method] - row["none"] for row in own]
            error = f" ± {stdev(gains) / len(gains) ** 0.5:.2f}" if len(gains) > 1 else ""
            told = f"{mean(row[method] for row in own):.2f} ({mean(gains):+.2f}{error})"
            shown.append(told.replace("+0.00", "0.00").replace("-0.00", "0.00").replace("-", "−"))
        lines.append(f"| {place[0].replace('_', ' ')}, {place[1]} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def measure(seed: int, corruption: str, device: str) -> Iterator[dict[str, Any]]:
    """Every method on the scenes of a seed, shuffled and ordered."""
    images, labels = shown(seed, corruption, device)
    for order, positions in (("shuffled", torch.arange(COUNT, device=device)), ("ordered", ordered(labels))):
        stream = images[positions], labels[positions]
        found = {method: mean_iou(network(), method, *stream, **options(method)) for method in METHODS}
        yield {"seed": seed, "corruption": corruption, "order": order, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description="mIoU on the embedded scenes.")
    parser.add_argument("out", type=Path, help="JSON file of the measurements; those that it has are not made again")
    parser.add_argument("--seeds", type=int, default=10, help="so many sets of scenes, each with noise of its own")
    parser.add_argument("--into", type=Path, help="page that takes the table in place of its old one")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    known = {(row["seed"], row["corruption"]) for row in rows}
    for seed in range(given.seeds):
        for corruption in (*CORRUPTIONS, "clean"):
            if (seed, corruption) not in known:
                rows += measure(seed, corruption, device)
                given.out.write_text(json.dumps(rows))
    show(table(rows), "scenes", given.into)


if __name__ == "__main__":
    main()
