"""A small folder of images in class folders, and cells over it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wildtta.bench import Cell

NETWORK = f"{Path(__file__).parent / 'small_network.py'}:network"


def write_images(root: Path, classes: int = 10, per_class: int = 12, side: int = 32) -> Path:
    """PNGs of coloured noise, a colour for each class."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class{label:03d}"
        folder.mkdir(parents=True)
        colour = generator.integers(0, 255, 3)
        for number in range(per_class):
            noise = generator.normal(0, 40, (side, side, 3))
            pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def small_cell(**changes: object) -> Cell:
    """A cell over such a folder that takes a fraction of a second."""
    values: dict[str, object] = {
        "model": NETWORK,
        "method": "tent",
        "data": "folder",
        "corruptions": ("gaussian_noise",),
        "batch_size": 16,
        "options": {},
    }
    return Cell(**{**values, **changes})  # type: ignore[arg-type]
