"""How much it matters whether corrupted images were stored as JPEG: the unadapted networks on both.

    python studies/later-methods/jpeg.py cifar_aside.npz weights runs/jpeg.json bn64,vit128 1000
    python studies/later-methods/jpeg.py tiny_aside.npz weights runs/jpeg.json rn26_gn,vit 600

Images and weights are those of ``studies/no-harm`` (prepare.py, train.py); the number at the end takes so many.
The published ImageNet-C is stored at quality 85 (Pillow's chroma subsampling).
"""

from __future__ import annotations

import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from battery import battery
from PIL import Image
from torch import Tensor, nn

from wildtta.data import CORRUPTIONS, corrupt, preprocess

QUALITIES = (95, 85)
SEVERITY = 5


def stored(images: Tensor, quality: int) -> Tensor:
    """uint8 images [N, 3, H, W] written as JPEG and read again."""

    def again(pixels: np.ndarray) -> np.ndarray:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, optimize=True)
        return np.asarray(Image.open(buffer).convert("RGB"))

    with ThreadPoolExecutor() as pool:
        rows = list(pool.map(again, images.permute(0, 2, 3, 1).cpu().numpy()))
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).to(images.device)


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    guesses = [network(preprocess(part, "native")).argmax(1) for part in images.split(512)]
    return 100 * float((torch.cat(guesses) == labels).float().mean())


def load(path: str, count: int | None) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, H, W], evenly spread over the set, and their labels."""
    from prepare import load_images  # of the battery; battery.py names its folder

    images, labels = load_images(Path(path))
    chosen = torch.from_numpy(np.linspace(0, len(labels) - 1, count or len(labels)).astype(np.int64))
    return images[chosen].contiguous(), labels[chosen]


def main(path: str, weights: str, out: str, names: str, count: str | None = None) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clean, labels = (part.to(device) for part in load(path, None if count is None else int(count)))
    networks = {name: battery(name, weights).to(device) for name in names.split(",")}
    rows = []
    for corruption in CORRUPTIONS:
        fresh = corrupt(clean, corruption, SEVERITY)
        versions = {"on the fly": fresh, **{f"JPEG {quality}": stored(fresh, quality) for quality in QUALITIES}}
        for name, network in networks.items():
            found = {kind: accuracy(network, images, labels) for kind, images in versions.items()}
            rows.append({"network": name, "corruption": corruption, **found})
            print(rows[-1], flush=True)
    Path(out).write_text(json.dumps(rows))
    for name in networks:
        own = [row for row in rows if row["network"] == name]
        means = {kind: round(sum(row[kind] for row in own) / len(own), 1) for kind in versions}
        losses = sorted((round(row["JPEG 85"] - row["on the fly"], 1), row["corruption"]) for row in own)
        print(name, means, "at 85:", losses[:4], losses[-2:])


if __name__ == "__main__":
    main(*sys.argv[1:])
