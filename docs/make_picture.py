"""Make docs/images/stream.svg, the picture of the README: `python docs/make_picture.py`.

It runs the ViT's label-shift cells of `wildtta demo` and draws accuracy along the stream beside a few of the
images. The cells are the same, so a journal of `make demo` saves the time: `--journal
wildtta-report/demo.jsonl`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from wildtta.bench import Cell, launch
from wildtta.cli.demo import METHODS, SEVERITY, demo_cells
from wildtta.data import corrupt
from wildtta.glyphs import Glyphs

matplotlib.use("svg")
from matplotlib import pyplot as plt

PICTURE = Path(__file__).parent / "images" / "stream.svg"
COLOURS = dict(zip(METHODS, ("#8a8f98", "#d1495b", "#edae49", "#00798c"), strict=True))
WINDOW = 10
"""Recorded points (of 100) that a drawn point averages over."""
SHOWN = 5
NETWORK = "glyphs:vit"
SHIFTS = {"gaussian_noise": SEVERITY, "contrast": SEVERITY}


def stretches(running: list[list[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy over the last tenth of the stream before each point, from the accuracy so far."""
    seen, so_far = np.array([[0.0, 0.0], *running]).T
    correct = seen * so_far
    return seen[WINDOW:], (correct[WINDOW:] - correct[:-WINDOW]) / (seen[WINDOW:] - seen[:-WINDOW])


def draw(rows: dict[tuple[str, str], dict[str, Any]]) -> plt.Figure:
    """Images on the left, one panel per shift on the right."""
    figure = plt.figure(figsize=(9.6, 3.1), layout="constrained", facecolor="white")
    left, *panels = figure.subplots(1, 1 + len(SHIFTS), width_ratios=[0.75, 1.4, 1.4])
    clean = Glyphs(SHOWN * 8).images(range(SHOWN))
    damaged = [corrupt(clean, shift, severity) for shift, severity in SHIFTS.items()]
    left.imshow(np.concatenate([_column(images) for images in (clean, *damaged)], axis=1), interpolation="nearest")
    left.set_title("clean, noise, contrast", fontsize=9)
    left.axis("off")
    for panel, (shift, severity) in zip(panels, SHIFTS.items(), strict=True):
        for method, title in METHODS.items():
            x, y = stretches(rows[shift, method]["metrics"]["running"])
            panel.plot(x, y, color=COLOURS[method], lw=2, label=title, ls="--" if method == "none" else "-")
        panel.set_title(f"ViT, {shift.replace('_', ' ')} (severity {severity})", fontsize=10)
        panel.set_xlabel("images seen, class after class")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    highest = max(panel.get_ylim()[1] for panel in panels)
    for panel in panels:
        panel.set_ylim(0, highest)
    panels[0].set_ylabel("accuracy, %\n(last tenth of the stream)")
    panels[-1].legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _column(images: Any) -> np.ndarray:
    return np.concatenate(
        [np.pad(image.permute(1, 2, 0).numpy(), ((1, 1), (1, 1), (0, 0)), constant_values=255) for image in images]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, help="take cells from this journal, and append what it lacks")
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    cells: list[Cell] = [cell for cell in demo_cells() if cell.scenario == "label_shift" and cell.model == NETWORK]
    outcome = launch(cells, journal=arguments.journal)
    failed = [row["reason"] for row in outcome.rows if row["status"] != "ok"]
    if failed:
        raise SystemExit(f"a cell failed: {failed[0]}")
    rows = {(row["cell"]["corruptions"][0], row["cell"]["method"]): row for row in outcome.rows}
    # Without a date and with fixed ids the same numbers give the same file.
    plt.rcParams["svg.hashsalt"] = "wildtta"
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    draw(rows).savefig(arguments.out, metadata={"Date": None})
    print(f"wrote {arguments.out} ({arguments.out.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
