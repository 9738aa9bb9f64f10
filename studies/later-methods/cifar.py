"""The continual table of CIFAR-10-C, on our own split and networks, through the reader of the published layout.

    python studies/later-methods/cifar.py images.npz weights source.zip cifar-10-c runs/cifar.jsonl [images [batch]]

``images.npz``: ``images`` uint8 [N, 32, 32, 3] and ``labels`` of CIFAR-10, none of which a network was trained on;
``source.zip``: some that they were trained on, in class folders, for the methods that want them. The folder ``cifar-10-c``
is written in the layout of the published set (``<corruption>.npy``, ``labels.npy``), with the constants of the script
that made that one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from methods import methods_for
from wildtta.bench import Cell, Row, launch
from wildtta.data import CORRUPTIONS, corrupt

HERE = Path(__file__).resolve().parent
NETWORKS = ("bn64",)
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


def main(stored: str, weights: str, source: str, folder: str, journal: str, count: str = "4000", batch: str = "200") -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with np.load(stored) as file:
        write_published_layout(file["images"][: int(count)], file["labels"][: int(count)], Path(folder), device)
    cells = [
        Cell(
            model=f"{HERE / 'battery.py'}:battery",
            model_options={"name": network, "folder": weights},
            model_name=network,
            method=method,
            scenario="continual",
            corruptions=CORRUPTIONS,
            severity=5,
            batch_size=int(batch),
            data="cifar-10-c",
            data_options={"source_images": 500},
            protocol="native",  # what the battery's networks were trained with
        )
        for network in NETWORKS
        for method in methods_for(network)
        if method not in LEFT_OUT
    ]
    where = {"journal": journal, "root": folder, "source": source, "device": device}
    rows = launch(cells, per_device=8 if device == "cuda" else 1, **where).rows
    launch(at_their_pace(rows), per_device=8 if device == "cuda" else 1, **where)


def at_their_pace(rows: Sequence[Row]) -> list[Cell]:
    """The same cells on streams that do not wait, by the times that were just measured."""
    good = [(Cell.from_row(row), row["cost"]["ms_per_batch_median"]) for row in rows if row["status"] == "ok"]
    bare = {cell.model_name: time for cell, time in good if cell.method == "none"}
    return [
        replace(cell, pace=round(time / bare[cell.model_name], 2)) for cell, time in good if cell.method != "none"
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
