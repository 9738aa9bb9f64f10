"""mIoU on the embedded scenes: none, Tent, CoTTA, SAR, SAR² and Steady, shuffled and ordered, under corruptions.

    python studies/later-methods/scenes.py runs/scenes.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from wildtta.data import corrupt
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


def mean_iou(method: str, images: Tensor, labels: Tensor) -> float:
    device = images.device
    model = adapt_segmentation(network().to(device), method, example=inputs(images[:1]), **options(method))
    meter = Confusion(len(CLASSES), device=device)
    for batch, marks in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        meter.update(resized(model(inputs(batch)).maps, marks.shape[-2:]), marks)
    return meter.mean()


def main(out: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = (part.to(device) for part in scenes(COUNT, seed=0))
    rows = []
    for corruption in (*CORRUPTIONS, "clean"):
        shown = images if corruption == "clean" else corrupt(images, corruption, SEVERITY)
        for order, positions in (("shuffled", torch.arange(COUNT, device=device)), ("ordered", ordered(labels))):
            found = {method: mean_iou(method, shown[positions], labels[positions]) for method in METHODS}
            rows.append({"corruption": corruption, "order": order, **found})
            print(corruption, order, {method: round(value, 1) for method, value in found.items()}, flush=True)
    Path(out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
