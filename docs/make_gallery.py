"""Make the figures of docs/gallery.md in docs/images: `python docs/make_gallery.py`.

They are drawn from the embedded glyphs and from the published journal of the Tiny-ImageNet study; nothing is run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from wildtta.bench import Cell, read
from wildtta.data import CORRUPTIONS, corrupt, open_data
from wildtta.report.names import SCENARIOS
from wildtta.streams import build

matplotlib.use("svg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
IMAGES = HERE / "images"
JOURNAL = HERE / "results" / "tiny-imagenet" / "main.jsonl.gz"
METHODS = {
    "none": "#8a8f98",
    "tent": "#d1495b",
    "sar": "#edae49",
    "eata": "#7b6d8d",
    "deyo": "#5fa55a",
    "roid": "#b5838d",
}
OURS, OUR_COLOUR = "Steady with sharpness", "#00798c"
STREAMS = ("mild", "label_shift", "single", "mixed")
NETWORKS = {"rn26_gn": "ResNet-26, GroupNorm", "vit": "ViT, LayerNorm"}


def corruptions() -> plt.Figure:
    """One glyph under the 15 corruptions at severities 1, 3 and 5."""
    data = open_data("glyphs", count=40)
    image = data.images(np.array([7]))
    names = ["clean", *CORRUPTIONS]
    figure, axes = plt.subplots(3, len(names), figsize=(14, 2.9), layout="constrained", facecolor="white")
    for row, severity in enumerate((1, 3, 5)):
        for panel, name in zip(axes[row], names, strict=True):
            shown = image if name == "clean" else corrupt(image, name, severity, seed=0, index=[7])
            panel.imshow(shown[0].permute(1, 2, 0).numpy(), interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            if row == 0:
                panel.set_title(name.replace("_", "\n"), fontsize=7)
        axes[row, 0].set_ylabel(f"severity {severity}", fontsize=7)
    return figure


def streams() -> plt.Figure:
    """Which class, and which corruption, comes when."""
    labels = open_data("glyphs", count=1000).labels
    domains = [("fog", 5), ("snow", 5), ("contrast", 5)]
    kinds: dict[str, dict[str, Any]] = {
        "mild": {},
        "label_shift": {"draws": 5},
        "mixed": {"domains": domains},
        "continual": {"domains": domains},
    }
    figure, panels = plt.subplots(
        1, len(kinds), figsize=(11, 2.6), layout="constrained", facecolor="white", sharey=True
    )
    for panel, (scenario, options) in zip(panels, kinds.items(), strict=True):
        given = {"domains": domains[:1], **options}
        stream = build(scenario, labels, batch_size=64, seed=0, **given)
        place = np.arange(len(stream.index))
        several = len(given["domains"]) > 1
        colours = [("#00798c", "#edae49", "#d1495b")[domain] for domain in stream.domain]
        panel.scatter(place, labels[stream.index], color=colours, s=1)
        panel.set_title(SCENARIOS.get(scenario, scenario) + (", colour: corruption" if several else ""), fontsize=9)
        panel.set_xlabel("place in the stream", fontsize=8)
    panels[0].set_ylabel("class", fontsize=8)
    return figure


def _method(cell: Cell) -> str | None:
    """What a run is shown as; None for variants that are not shown."""
    shown = OURS if cell.name == OURS else cell.method if cell.name is None else None
    return shown if shown in (*METHODS, OURS) else None


def _stream_of(cell: Cell) -> str:
    """Everything but the method and the seed: what must be equal for two runs to be compared."""
    told = cell.to_json()
    for name in ("method", "options", "name", "seed", "model_name", "measure", "measure_options", "regularise"):
        del told[name]
    return json.dumps(told, sort_keys=True)


def _gains() -> dict[tuple[str, str, str], float]:
    """Mean gain over no adaptation on the same streams at severity 5, by network, scenario and method."""
    runs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    places: dict[str, tuple[str, str]] = {}
    for row in read(JOURNAL):
        cell = Cell.from_row(row)
        method = _method(cell)
        if row["status"] == "ok" and method is not None and cell.severity == 5:
            runs[_stream_of(cell)][method].append(row["metrics"]["accuracy"])
            places[_stream_of(cell)] = str(cell.model_name), cell.scenario
    gains: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for stream, found in runs.items():
        if "none" in found:
            for method, values in found.items():
                gains[(*places[stream], method)].append(float(np.mean(values) - np.mean(found["none"])))
    return {place: float(np.mean(values)) for place, values in gains.items()}


def gains() -> plt.Figure:
    """Points over no adaptation, by stream."""
    gained = _gains()
    methods = [*list(METHODS)[1:], OURS]
    figure, panels = plt.subplots(1, 2, figsize=(11, 3), layout="constrained", facecolor="white", sharey=True)
    for panel, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        for number, method in enumerate(methods):
            places = [i for i, stream in enumerate(STREAMS) if (network, stream, method) in gained]
            gain = [gained[network, STREAMS[i], method] for i in places]
            offsets = np.array(places) + (number - len(methods) / 2) / (len(methods) + 2)
            panel.bar(offsets, gain, 1 / (len(methods) + 2), color=METHODS.get(method, OUR_COLOUR), label=method)
        panel.axhline(0, color="#8a8f98", lw=1)
        panel.set_xticks(range(len(STREAMS)), [SCENARIOS[stream] for stream in STREAMS])
        panel.set_title(title, fontsize=10)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy over none, points")
    panels[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def collapse() -> plt.Figure:
    """Every run in class order: accuracy against the share of the class that is predicted most at the end."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.2), layout="constrained", facecolor="white", sharey=True)
    for panel, (network, title) in zip(panels, NETWORKS.items(), strict=True):
        for row in read(JOURNAL):
            cell = Cell.from_row(row)
            method = _method(cell)
            if row["status"] != "ok" or cell.model_name != network or method is None:
                continue
            if cell.scenario == "label_shift" and cell.severity == 5:
                metrics, colour = row["metrics"], METHODS.get(method, OUR_COLOUR)
                panel.scatter(metrics["top_class_share"], metrics["accuracy"], s=14, color=colour, alpha=0.7)
        panel.set(xscale="log", xlabel="share of the class predicted most, last fifth, %", title=title)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("online accuracy, %")
    shown = {**METHODS, OURS: OUR_COLOUR}
    marks = [plt.Line2D([], [], marker="o", ls="", color=colour) for colour in shown.values()]
    panels[1].legend(marks, list(shown), frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


FIGURES = {"corruptions": corruptions, "streams": streams, "gains": gains, "collapse": collapse}


def main() -> None:
    # Without a date and with fixed ids the same numbers give the same file.
    plt.rcParams["svg.hashsalt"] = "wildtta"
    IMAGES.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        # Thousands of points are small as pixels and large as paths.
        pixels = name in ("corruptions", "streams")
        path = IMAGES / f"{name}.{'png' if pixels else 'svg'}"
        draw().savefig(path, dpi=110, metadata=None if pixels else {"Date": None})
        print(f"wrote {path.relative_to(HERE.parent)} ({path.stat().st_size / 1024:.0f} KiB)")


if __name__ == "__main__":
    main()
