"""The battery's results as Markdown tables and one picture: gains over none, method by method and network by network.

    python studies/no-harm/page.py runs/no-harm.jsonl [docs/images/no-harm.png]

A scenario's number is the mean over its corruptions and seeds; in brackets the worst single stream where it lies more than
half a point below none. Methods are compared on the streams that all kinds of methods have run (core.toml); Steady's own
tables are of everything that it has run (battery.toml).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from wildtta.bench import Cell, Row, read
from wildtta.report.names import method_name

CLEAN = ("clean", "clean, runs", "clean, one class")
SCENARIOS = (
    *CLEAN, "shuffled", "runs of 16", "long runs", "mixture", "continual", "continual, runs", "comes and goes", "one class",
    "batch 16", "batch 16, runs", "batch 1", "batch 1, runs",
)  # fmt: skip
OURS = method_name("steady")
TICKS = (-80, -40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 40)
ALLOWED = {"mean": 0.5, "stream": 2.0}
"""Points below none that count as harm: in a scenario's mean, in one stream."""


class Score(NamedTuple):
    """One stream: accuracy of a method beside none's, in %, and what it cost."""

    network: str
    method: str
    scenario: str
    stream: tuple[object, ...]
    gain: float
    takes_over: bool
    """One class ends above twice its share among the labels, or a fifth, and none's does not."""
    forwards: float
    """Passes per image, as the paper counts them."""
    backwards: float


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


def title_of(cell: Cell) -> str:
    return method_name(cell.method) + (" + ASR" if cell.options.get("recovery") == "asr" else "")


def stream_of(cell: Cell) -> tuple[object, ...]:
    options = tuple(sorted(cell.scenario_options.items()))
    return (cell.model_name, cell.scenario, options, cell.corruptions, cell.severity, cell.batch_size, cell.seed)


def scores(rows: Iterable[Row]) -> list[Score]:
    """Every stream that both a method and none have run."""
    good = [(Cell.from_row(row), row) for row in rows if row["status"] == "ok"]
    bare = {stream_of(cell): row["metrics"] for cell, row in good if cell.method == "none"}
    found = []
    for cell, row in good:
        metrics, cost, none = row["metrics"], row["cost"], bare.get(stream_of(cell))
        if cell.method == "none" or none is None:
            continue
        found.append(
            Score(
                network=str(cell.model_name),
                method=title_of(cell),
                scenario=scenario_of(cell),
                stream=stream_of(cell),
                gain=metrics["accuracy"] - none["accuracy"],
                takes_over=bool(metrics["collapsed"]) and metrics["top_class_share"] > none["top_class_share"],
                forwards=cost["forwards"] / metrics["samples"],
                backwards=cost["backwards"] / metrics["samples"],
            )
        )
    return found


def shared_by_methods(found: Sequence[Score]) -> list[Score]:
    """Scores on the streams that others than Steady have run as well; all of them where there is no other."""
    core = {score.stream for score in found if score.method != OURS}
    return [score for score in found if not core or score.stream in core]


def points(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def cell_text(gains: Sequence[float]) -> str:
    if not gains:
        return "–"
    worst = min(gains)
    return points(mean(gains)) + (f" ({points(worst)})" if len(gains) > 1 and worst < -0.5 else "")


def table(found: Sequence[Score], rows: str, columns: str, order: Sequence[str] = ()) -> str:
    """Mean gains, by two fields of a score; ``order``: of the columns."""
    known = dict.fromkeys(str(getattr(score, columns)) for score in found)
    across = [name for name in order if name in known] or list(known)
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for score in found:
        groups[getattr(score, rows), getattr(score, columns)].append(score.gain)
    lines = [
        f"| {name} | " + " | ".join(cell_text(groups.get((name, at), [])) for at in across) + " |"
        for name in dict.fromkeys(str(getattr(score, rows)) for score in found)
    ]
    return "\n".join([f"| {rows} | " + " | ".join(across) + " |", "|---|" + "---|" * len(across), *lines])


def verdicts(found: Sequence[Score]) -> str:
    """Each method's worst (a network's mean in a scenario, a stream), its mean on clean and shifted streams, its price."""
    lines = [
        "| method | worst mean | where | worst stream | harmed | one class takes over | shifted | clean | forwards | backwards |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    told = []
    for method in dict.fromkeys(score.method for score in found):
        own = [score for score in found if score.method == method]
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for score in own:
            groups[score.network, score.scenario].append(score.gain)
        place = min(groups, key=lambda key: mean(groups[key]))
        worst = mean(groups[place])
        harmed = sum(mean(gains) < -ALLOWED["mean"] for gains in groups.values())
        clean = [score.gain for score in own if score.scenario in CLEAN]
        shifted = [score.gain for score in own if score.scenario not in CLEAN]
        taken = sum(score.takes_over for score in own)
        price = [f"{mean(getattr(score, name) for score in own):.2f}" for name in ("forwards", "backwards")]
        parts = [
            method, points(worst), f"`{place[0]}`, {place[1]}", points(min(score.gain for score in own)),
            f"{harmed} of {len(groups)}", f"{taken} of {len(own)}", points(mean(shifted)) if shifted else "–",
            points(mean(clean)) if clean else "–", *price,
        ]  # fmt: skip
        told.append((worst, "| " + " | ".join(parts) + " |"))
    return "\n".join(lines + [line for _, line in sorted(told, key=lambda entry: -entry[0])])


def draw(found: Sequence[Score], path: Path) -> None:
    """A line per method, the least harmful on top: a mark per network and scenario, clean streams apart from shifted ones."""
    from matplotlib.figure import Figure

    groups: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in found:
        groups[score.method][score.network, score.scenario].append(score.gain)
    means = {method: {key: mean(gains) for key, gains in own.items()} for method, own in groups.items()}
    methods = sorted(means, key=lambda method: min(means[method].values()))
    figure = Figure(figsize=(8, 1.2 + 0.24 * len(methods)), layout="constrained")
    panel = figure.subplots()
    panel.axvline(0, color="0.5", linewidth=0.8)
    kinds = (("shifted", "C0", "o", False), ("clean", "C3", "D", True))
    for name, colour, marker, clean in kinds:
        places, heights = [], []
        for height, method in enumerate(methods):
            own = [gain for (_, scenario), gain in means[method].items() if (scenario in CLEAN) == clean]
            places += own
            heights += [height + (0.16 if clean else -0.16)] * len(own)
        panel.plot(places, heights, linestyle="none", marker=marker, markersize=4, alpha=0.6, color=colour, label=name)
    panel.set_yticks(range(len(methods)), methods, fontsize=8)
    for label in panel.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")
    panel.set_xscale("symlog", linthresh=5, linscale=0.8)
    panel.set_xticks(TICKS, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in TICKS])
    panel.set_xticks([], minor=True)
    panel.set_ylim(-0.7, len(methods) - 0.3)
    panel.grid(axis="x", linewidth=0.3)
    panel.set_xlabel("points over no adaptation (linear up to 5); a mark per network and scenario", fontsize=8)
    panel.tick_params(axis="x", labelsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(journal: str, picture: str | None = None) -> None:
    found = scores(read(journal))
    core = shared_by_methods(found)
    if len({score.method for score in core}) > 1:
        print(f"Streams that all methods have run: {len({score.stream for score in core})}\n\n{verdicts(core)}")
        for scenario in (name for name in SCENARIOS if any(score.scenario == name for score in core)):
            print(f"\n**{scenario}**\n\n{table([s for s in core if s.scenario == scenario], 'method', 'network')}")
    ours = [score for score in found if score.method == OURS]
    if ours:
        print(f"\n{OURS}, all streams\n\n{table(ours, 'network', 'scenario', SCENARIOS)}\n\n{verdicts(ours)}")
    if picture is not None:
        draw(core, Path(picture))


if __name__ == "__main__":
    main(*sys.argv[1:])
