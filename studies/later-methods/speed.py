"""Who still gains when time is charged: measures each method's time per image, then runs streams that do not wait.

    python studies/later-methods/speed.py val.zip weights source.zip runs/speed.jsonl

``val.zip``: Tiny-ImageNet's validation images in class folders; ``weights``: the battery's (studies/no-harm/prepare.py);
``source.zip``: clean training images, for the methods that want some. Without a GPU it takes hours.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from methods import methods_for
from wildtta.bench import Cell, Conditions, launch, run_cell

HERE = Path(__file__).resolve().parent
NETWORKS = ("rn26_gn", "vit")
CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
TOO_SLOW_TO_WAIT_FOR = {"memo"}


def cell(network: str, method: str, weights: str) -> Cell:
    """2,500 images under each of three corruptions, one after the other, never reset."""
    return Cell(
        model=f"{HERE / 'battery.py'}:battery",
        model_options={"name": network, "folder": weights},
        model_name=network,
        method=method,
        options={"precision": "tf32"},
        scenario="continual",
        corruptions=CORRUPTIONS,
        severity=5,
        data="folder",
        data_options={"split": "first-half", "source_images": 500},
    )


def milliseconds(one: Cell, conditions: Conditions, device: str) -> float:
    """Median time of a batch of 64, of a short stream."""
    batches = 4 if one.method in TOO_SLOW_TO_WAIT_FOR else 12
    short = replace(one, limit=64 * batches, scenario="mild", corruptions=CORRUPTIONS[:1])
    return float(run_cell(short, conditions, device)["cost"]["ms_per_batch_median"])


def main(images: str, weights: str, source: str, journal: str) -> None:
    device = "cuda"
    conditions = Conditions(root=images, source=source)
    cells, times = [], {}
    for network in NETWORKS:
        for method in methods_for(network):
            one = cell(network, method, weights)
            times[network, method] = spent = milliseconds(one, conditions, device)
            pace = round(spent / times[network, "none"], 2)
            print(f"{network} {method}: {spent:.2f} ms a batch, pace {pace}", flush=True)
            if method not in TOO_SLOW_TO_WAIT_FOR:
                cells.append(one)
            if method != "none":
                cells.append(replace(one, pace=pace))
    stored = [{"network": network, "method": method, "ms": ms} for (network, method), ms in times.items()]
    Path(journal).with_suffix(".times.json").write_text(json.dumps(stored))
    launch(cells, journal=journal, root=images, source=source, device=device, per_device=12)


if __name__ == "__main__":
    main(*sys.argv[1:])
