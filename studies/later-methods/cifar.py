"""The continual table of CIFAR-10-C, on our own split and networks, through the reader of the published layout.

    python studies/later-methods/cifar.py run --images cifar_aside.npz --weights weights --source source/cifar-10.zip --out runs
    python studies/later-methods/cifar.py table --out runs

``cifar_aside.npz``, weights and source images are those of ``studies/no-harm`` (prepare.py, train.py): photographs of
CIFAR-10's training part that no network was trained on. The folder ``cifar-10-c`` is written in the layout of the published
set (``<corruption>.npy``, ``labels.npy``), with the constants of the script that made that one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from methods import methods_for
from wildtta.bench import Cell, Row, launch, read
from wildtta.data import CORRUPTIONS, corrupt
from wildtta.report.names import method_name

HERE = Path(__file__).resolve().parent
NETWORKS = ("bn64", "resnet18", "gn64", "wide2048", "vit128")
LEFT_OUT = {"memo"}
"""64 views of every image: hours for a table."""


def write_published_layout(pixels: Tensor, labels: Tensor, folder: Path) -> None:
    """Five severities one after the other in one array per corruption."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in CORRUPTIONS:
        levels = [corrupt(pixels, name, severity, constants="cifar") for severity in range(1, 6)]
        np.save(folder / f"{name}.npy", torch.cat(levels).permute(0, 2, 3, 1).contiguous().cpu().numpy())
    np.save(folder / "labels.npy", np.tile(labels.numpy(), 5).astype(np.uint8))


def cells(given: argparse.Namespace) -> list[Cell]:
    """All corruptions at severity 5, one after the other, never reset."""
    return [
        Cell(
            model=f"{HERE / 'battery.py'}:battery",
            model_options={"name": network, "folder": given.weights},
            model_name=network,
            method=method,
            options={"precision": "tf32"},
            scenario="continual",
            corruptions=CORRUPTIONS,
            severity=5,
            batch_size=given.batch,
            data="cifar-10-c",
            data_options={"source_images": 500},
            protocol="native",  # what the battery's networks were trained with
        )
        for network in given.networks
        for method in given.methods or methods_for(network)
        if method not in LEFT_OUT
    ]


def run(given: argparse.Namespace) -> None:
    from prepare import load_images  # of the battery; methods.py names its folder

    folder = given.out / "cifar-10-c"
    images, labels = load_images(Path(given.images))
    write_published_layout(images[: given.count].to(given.device), labels[: given.count], folder)
    launch(
        cells(given),
        journal=given.out / "cifar.jsonl",
        root=folder,
        source=given.source,
        device=given.device,
        per_device=given.per_device,
        seconds=given.seconds,
    )


def table(rows: list[Row]) -> str:
    """Methods by networks: accuracy in %, mean over the corruptions."""
    good = [(Cell.from_row(row), row["metrics"]) for row in rows if row["status"] == "ok"]
    networks = list(dict.fromkeys(cell.model_name for cell, _ in good))
    shown = {
        (cell.method, cell.model_name): f"{metrics['accuracy']:.1f}" + (" (collapsed)" if metrics["collapsed"] else "")
        for cell, metrics in good
    }
    lines = [
        f"| {method_name(method)} | " + " | ".join(shown.get((method, network), "–") for network in networks) + " |"
        for method in dict.fromkeys(cell.method for cell, _ in good)
    ]
    head = "| method | " + " | ".join(f"`{network}`" for network in networks) + " |"
    return "\n".join([head, "|---|" + "---|" * len(networks), *lines])


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description="CIFAR-10-C, continual, on our own split and networks.")
    parser.add_argument("part", choices=("run", "table"))
    parser.add_argument("--images", help="images of studies/no-harm/prepare.py")
    parser.add_argument("--weights", help="folder of the battery's weights")
    parser.add_argument("--source", help="zip of source images")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--device", default=device)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", help="all that mean something on a network unless named")
    parser.add_argument("--count", type=int, default=2000, help="images under each corruption")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--per-device", type=int, default=14)
    parser.add_argument("--seconds", type=float, help="no cell begins later")
    given = parser.parse_args()
    if given.part == "run":
        run(given)
    else:
        print(table(list(read(given.out / "cifar.jsonl"))))


if __name__ == "__main__":
    main()
