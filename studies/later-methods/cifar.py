"""The continual table of CIFAR-10-C, on our own split and networks, through the reader of the published layout.

    python studies/later-methods/cifar.py run --images cifar_aside.npz --weights weights --source source/cifar-10.zip --out runs
    python studies/later-methods/cifar.py table --out runs [--into docs/results/later-methods.md]

``cifar_aside.npz``, weights and source images are those of ``studies/no-harm`` (prepare.py, train.py): photographs of
CIFAR-10's training part that no network was trained on. The folder ``cifar-10-c`` is written in the layout of the published
set (``<corruption>.npy``, ``labels.npy``), with the constants of the script that made that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from cells import arguments, battery_cell, run_side_by_side, show
from torch import Tensor

from methods import methods_for
from wildtta.bench import Cell, Row, read
from wildtta.bench.unadapted import beside_unadapted
from wildtta.data import CORRUPTIONS, corrupt
from wildtta.metrics import row_collapsed
from wildtta.report.names import method_name

NETWORKS = ("resnet18", "vit128", "bn64", "gn64", "wide2048")
LEFT_OUT = {"memo"}
"""64 views of every image: hours for a table."""


def write_published_layout(pixels: Tensor, labels: Tensor, folder: Path) -> None:
    """Five severities one after the other in one array per corruption; the labels come last and say that all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in CORRUPTIONS:
        levels = [corrupt(pixels, name, severity, constants="cifar") for severity in range(1, 6)]
        np.save(folder / f"{name}.npy", torch.cat(levels).permute(0, 2, 3, 1).contiguous().cpu().numpy())
    np.save(folder / "labels.npy", np.tile(labels.numpy(), 5).astype(np.uint8))


def cell(network: str, method: str, given: argparse.Namespace) -> Cell:
    """All corruptions at severity 5, one after the other, never reset."""
    return battery_cell(
        network,
        method,
        given.weights,
        scenario="continual",
        corruptions=CORRUPTIONS,
        batch_size=given.batch,
        limit=given.count * len(CORRUPTIONS),  # all; so that rows of fewer images are told apart
        data="cifar-10-c",
    )


def run(given: argparse.Namespace) -> None:
    from prepare import load_images  # of the battery; methods.py names its folder

    folder = given.out / f"cifar-10-c-{given.count}"
    if not (folder / "labels.npy").exists():
        images, labels = load_images(Path(given.images))
        write_published_layout(images[: given.count].to(given.device), labels[: given.count], folder)
    asked = [(network, method) for network in given.networks for method in given.methods or methods_for(network)]
    cells = [cell(network, method, given) for network, method in asked if method not in LEFT_OUT]
    run_side_by_side(cells, "cifar.jsonl", folder, given)


def table(rows: Iterable[Row]) -> str:
    """Methods by networks: accuracy in %, mean over the corruptions."""
    good = [(Cell.from_row(row), row["metrics"]) for row in beside_unadapted(rows) if row["status"] == "ok"]
    networks = list(dict.fromkeys(str(cell.model_name) for cell, _ in good))
    shown = {
        (cell.method, cell.model_name): f"{metrics['accuracy']:.1f}"
        + (" (collapsed)" if row_collapsed(metrics, adapts=cell.method != "none") else "")
        for cell, metrics in good
    }
    known = {cell.method for cell, _ in good}
    lines = [
        f"| {method_name(method)} | " + " | ".join(shown.get((method, network), "–") for network in networks) + " |"
        for method in dict.fromkeys(method for network in networks for method in methods_for(network))
        if method in known
    ]
    head = "| method | " + " | ".join(f"`{network}`" for network in networks) + " |"
    return "\n".join([head, "|---|" + "---|" * len(networks), *lines])


def main() -> None:
    parser = arguments("CIFAR-10-C, continual, on our own split and networks.", ("run", "table"), NETWORKS)
    parser.add_argument("--count", type=int, default=2000, help="images under each corruption")
    parser.add_argument("--batch", type=int, default=200)
    given = parser.parse_args()
    if given.part == "run":
        run(given)
    else:
        journals = sorted(given.out.glob("cifar.jsonl*"))  # packed where it is kept: results/
        show(table(read(journals)), "cifar-10-c", given.into)


if __name__ == "__main__":
    main()
