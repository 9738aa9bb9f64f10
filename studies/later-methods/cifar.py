"""The continual table of CIFAR-10-C, on our own split and networks, through the reader of the published layout.

    python studies/later-methods/cifar.py images.npz weights source.zip cifar-10-c runs/cifar.jsonl

``images.npz``: ``images`` uint8 [N, 32, 32, 3] and ``labels`` of CIFAR-10, none of which a network was trained on;
``source.zip``: some that they were trained on, in class folders, for the methods that want them. The folder ``cifar-10-c``
is written in the layout of the published set (``<corruption>.npy``, ``labels.npy``), with the constants of the script
that made that one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from methods import methods_for
from wildtta.bench import Cell, launch
from wildtta.data import CORRUPTIONS, corrupt

HERE = Path(__file__).resolve().parent
NETWORKS = ("bn64", "vit128")
LEFT_OUT = {"memo"}
"""64 views of every image: hours for a table."""


def write_published_layout(images: np.ndarray, labels: np.ndarray, folder: Path, device: str) -> None:
    """Five severities one after the other in one array per corruption."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)
    for name in CORRUPTIONS:
        levels = [corrupt(pixels, name, severity, constants="cifar") for severity in range(1, 6)]
        np.save(folder / f"{name}.npy", torch.cat(levels).permute(0, 2, 3, 1).contiguous().cpu().numpy())
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))


def main(stored: str, weights: str, source: str, folder: str, journal: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with np.load(stored) as file:
        write_published_layout(file["images"], file["labels"], Path(folder), device)
    cells = [
        Cell(
            model=f"{HERE / 'battery.py'}:battery",
            model_options={"name": network, "folder": weights},
            model_name=network,
            method=method,
            options={"precision": "tf32"},
            scenario="continual",
            corruptions=CORRUPTIONS,
            severity=5,
            batch_size=200,
            data="cifar-10-c",
            data_options={"source_images": 500},
            protocol="native",  # what the battery's networks were trained with
        )
        for network in NETWORKS
        for method in methods_for(network)
        if method not in LEFT_OUT
    ]
    launch(cells, journal=journal, root=folder, source=source, device=device, per_device=8)



if __name__ == "__main__":
    main(*sys.argv[1:])
