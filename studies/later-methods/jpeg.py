"""How much it matters whether corrupted images were stored as JPEG: the unadapted networks on both.

    python studies/later-methods/jpeg.py val.zip weights runs/jpeg.json

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

from wildtta.data import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt, folder, preprocess

NETWORKS = ("rn26_gn", "vit")
QUALITIES = (95, 85, 75)
EVERY = 2
"""One image in two."""


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


def main(path: str, weights: str, out: str) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = folder(path)
    chosen = np.arange(0, len(data), EVERY)
    clean, labels = data.images(chosen).to(device), torch.from_numpy(data.labels[chosen]).to(device)
    networks = {name: battery(name, weights).to(device) for name in NETWORKS}
    rows = []
    for corruption in (*CORRUPTIONS, *EXTRA_CORRUPTIONS):
        for severity in (3, 5):
            fresh = corrupt(clean, corruption, severity, index=chosen)
            versions = {"on the fly": fresh, **{f"JPEG {quality}": stored(fresh, quality) for quality in QUALITIES}}
            for name, network in networks.items():
                found = {kind: accuracy(network, images, labels) for kind, images in versions.items()}
                rows.append({"network": name, "corruption": corruption, "severity": severity, **found})
    Path(out).write_text(json.dumps(rows))
    for name in NETWORKS:
        for severity in (3, 5):
            of = [row for row in rows if row["network"] == name and row["severity"] == severity]
            means = {kind: float(np.mean([row[kind] for row in of])) for kind in list(of[0])[3:]}
            print(name, severity, {kind: round(value, 1) for kind, value in means.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
