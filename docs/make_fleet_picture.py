"""Make docs/images/fleet.svg, the picture of docs/fleet.md: `python docs/make_fleet_picture.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

PICTURE = Path(__file__).parent / "images" / "fleet.svg"
STREAMS = {"camera 1": "#00798c", "camera 2": "#edae49", "camera 3": "#d1495b"}
BATCH = ("camera 1", "camera 3", "camera 1", "camera 2", "camera 3", "camera 1")
SHARED = "#d9dce1"


def box(panel: Axes, x: float, y: float, width: float, height: float, colour: str, text: str = "") -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0.02", facecolor=colour, edgecolor="white")
    panel.add_patch(shape)
    dark = colour in (SHARED, STREAMS["camera 2"])
    panel.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8, color="#222" if dark else "white")


def arrow(panel: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = "#666") -> None:
    panel.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=10, color=colour, lw=1.2))


def draw() -> plt.Figure:
    figure, panel = plt.subplots(figsize=(9.6, 3.3), facecolor="white", layout="constrained")
    panel.set(xlim=(0, 12), ylim=(0, 4.4))
    panel.axis("off")
    panel.text(0.75, 4.15, "one batch", ha="center", fontsize=9)
    for place, stream in enumerate(BATCH):
        box(panel, 0.2, 3.4 - 0.62 * place, 1.1, 0.46, STREAMS[stream], stream)
    arrow(panel, (1.5, 2.0), (2.1, 2.0))
    panel.text(4.6, 4.15, "one pass: scale γ and shift β are each stream's own", ha="center", fontsize=9)
    for block in range(3):
        x = 2.2 + 1.95 * block
        box(panel, x, 0.35, 0.8, 3.5, SHARED, "conv" if block < 2 else "head")
        if block < 2:
            for place, stream in enumerate(BATCH):
                box(panel, x + 0.98, 3.4 - 0.62 * place, 0.6, 0.46, STREAMS[stream], "γ, β")
    arrow(panel, (7.0, 2.0), (7.6, 2.0))
    panel.text(8.25, 4.15, "answers", ha="center", fontsize=9)
    for place, stream in enumerate(BATCH):
        box(panel, 7.75, 3.4 - 0.62 * place, 1.0, 0.46, STREAMS[stream], "logits")
    arrow(panel, (8.95, 2.0), (9.55, 2.0))
    panel.text(10.75, 4.15, "each learns from its own", ha="center", fontsize=9)
    for place, (stream, colour) in enumerate(STREAMS.items()):
        box(panel, 9.7, 2.85 - 1.1 * place, 2.1, 0.8, colour, f"{stream}\nloss, bank, guard, state")
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "wildtta"
    draw().savefig(PICTURE, metadata={"Date": None})
    print(PICTURE)
