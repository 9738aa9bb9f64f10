"""The battery's results as Markdown tables and one picture: gains over none, network by network.

    python studies/no-harm/page.py runs/no-harm.jsonl [docs/images/no-harm.png]

A scenario's number is the mean over its corruptions and seeds; in brackets the worst single stream where it lies more than
half a point below none.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from wildtta.bench import Cell, read
from wildtta.report.names import method_name

CLEAN = ("clean", "clean, runs", "clean, one class")
SCENARIOS = (
    *CLEAN, "shuffled", "runs of 16", "long runs", "mixture", "continual", "continual, runs", "comes and goes", "one class",
    "batch 16", "batch 16, runs", "batch 1", "batch 1, runs",
)  # fmt: skip
ALLOWED = {"mean": 0.5, "stream": 2.0}
"""Points below none that count as harm: in a scenario's mean, in one stream."""


class Score(NamedTuple):
    """One stream: accuracy of a method beside none's, in %."""

    network: str
    method: str
    scenario: str
    gain: float
    takes_over: bool
    """One class ends above twice its share among the labels, or a fifth, and none's does not."""


def scenario_of(cell: Cell) -> str:
    run = int(cell.scenario_options.get("run", 1))
    if cell.batch_size < 64:
        return f"batch {cell.batch_size}" + (", runs" if run > 1 else "")
    names = {"one_class": "one class", "mixed": "mixture", "comes_and_goes": "comes and goes", "continual": "continual"}
    if cell.scenario in names:
        name = names[cell.scenario] + (", runs" if cell.scenario == "continual" and run > 1 else "")
    else:
        name = "shuffled" if run == 1 else "runs of 16" if run == 16 else "long runs"
    if cell.corruptions:
        return name
    return {"shuffled": "clean", "long runs": "clean, runs", "one class": "clean, one class"}[name]


def scores(rows: Iterable[dict[str, object]]) -> list[Score]:
    """Every stream that both a method and none have run."""
    cells = [(Cell.from_row(row), row["metrics"]) for row in rows if row["status"] == "ok"]

    def stream(cell: Cell) -> tuple[object, ...]:
        options = tuple(sorted(cell.scenario_options.items()))
        return (cell.model_name, cell.scenario, options, cell.corruptions, cell.severity, cell.batch_size, cell.seed)

    bare = {stream(cell): metrics for cell, metrics in cells if cell.method == "none"}
    found = []
    for cell, metrics in cells:
        none = bare.get(stream(cell))
        if cell.method != "none" and none is not None:
            gain = metrics["accuracy"] - none["accuracy"]
            taken = bool(metrics["collapsed"]) and metrics["top_class_share"] > none["top_class_share"]
            found.append(Score(cell.model_name, cell.method, scenario_of(cell), gain, taken))
    return found


def cell_text(gains: list[float]) -> str:
    if not gains:
        return "–"
    worst = min(gains)
    return f"{mean(gains):+.1f}".replace("-", "−") + (f" ({worst:+.1f})".replace("-", "−") if worst < -0.5 else "")


def table(found: list[Score], method: str) -> str:
    """Networks by scenarios for one method."""
    known = [name for name in SCENARIOS if any(score.scenario == name for score in found)]
    lines = ["| network | " + " | ".join(known) + " |", "| --- |" + " --- |" * len(known)]
    for network in dict.fromkeys(score.network for score in found):
        own = [score for score in found if score.network == network and score.method == method]
        gains = [[score.gain for score in own if score.scenario == name] for name in known]
        lines.append(f"| `{network}` | " + " | ".join(map(cell_text, gains)) + " |")
    return "\n".join(lines)


def verdicts(found: list[Score]) -> str:
    """Each method's worst: a network's mean in a scenario, a single stream, streams taken over by one class."""
    lines = ["| method | worst mean | where | worst stream | taken over |", "| --- | --- | --- | --- | --- |"]
    for method in dict.fromkeys(score.method for score in found):
        own = [score for score in found if score.method == method]
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for score in own:
            groups[score.network, score.scenario].append(score.gain)
        place = min(groups, key=lambda key: mean(groups[key]))
        worst, stream = mean(groups[place]), min(score.gain for score in own)
        taken = sum(score.takes_over for score in own)
        text = f"| {method_name(method)} | {worst:+.1f} | `{place[0]}`, {place[1]} | {stream:+.1f} | {taken} of {len(own)} |"
        lines.append(text.replace("-", "−").replace("−−−", "---"))
    return "\n".join(lines)


def draw(found: list[Score], path: Path) -> None:
    """A panel per scenario: gain over none, network by network, a mark per method."""
    from matplotlib.figure import Figure

    known = [name for name in SCENARIOS if any(score.scenario == name for score in found)]
    networks = list(dict.fromkeys(score.network for score in found))
    methods = list(dict.fromkeys(score.method for score in found))
    columns = 4
    height = -(-len(known) // columns)
    figure = Figure(figsize=(12, 2.6 * height), layout="constrained")
    panels = figure.subplots(height, columns, sharex=True, squeeze=False).ravel()
    for panel in panels[len(known) :]:
        panel.set_visible(False)
    for panel, scenario in zip(panels, known, strict=False):
        panel.axhline(0, color="0.5", linewidth=0.8)
        for place, method in enumerate(methods):
            points = [
                [s.gain for s in found if (s.network, s.method, s.scenario) == (network, method, scenario)]
                for network in networks
            ]
            heights = [mean(gains) if gains else float("nan") for gains in points]
            ours = method == "steady"
            panel.plot(
                range(len(networks)), heights, linestyle="none", marker="o" if ours else "x", markersize=6 if ours else 4,
                color="C3" if ours else f"C{place % 10}", label=method_name(method), zorder=3 if ours else 2,
            )  # fmt: skip
        panel.set_yscale("symlog", linthresh=5)
        panel.set_title(scenario, fontsize=9)
        panel.set_xticks(range(len(networks)), networks, rotation=90, fontsize=7)
        panel.tick_params(axis="y", labelsize=7)
    panels[0].legend(fontsize=6, ncols=2)
    figure.supylabel("points over none (linear up to 5)", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(journal: str, picture: str | None = None) -> None:
    found = scores(read(journal))
    for method in dict.fromkeys(score.method for score in found):
        print(f"\n**{method_name(method)}**\n\n{table(found, method)}")
    print(f"\n{verdicts(found)}")
    if picture is not None:
        draw(found, Path(picture))


if __name__ == "__main__":
    main(*sys.argv[1:])
