"""The battery's results as Markdown tables and pictures: gains over none, method by method and network by network.

    python studies/no-harm/page.py studies/no-harm/results/core.jsonl.gz [more journals …]      # prints the tables
    python studies/no-harm/page.py JOURNALS --page docs/results/no-harm.md --pictures docs/images

The second form also puts the tables into the page, between `<!-- NAME -->` and `<!-- end -->`, and draws the pictures.

A scenario's number is the mean over its corruptions and seeds; in brackets the worst single stream where it lies more than
half a point below none. Methods are compared on the streams that most of them have run (core.toml); Steady's own
tables are of everything that it has run.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from wildtta.bench import Cell, Row, read
from wildtta.methods.registry import config_classes
from wildtta.report.names import method_name

CLEAN = ("clean", "clean, runs", "clean, one class")
SCENARIOS = (
    *CLEAN, "shuffled", "runs of 16", "long runs", "mixture", "continual", "continual, runs", "comes and goes", "one class",
    "batch 16", "batch 16, runs", "batch 1", "batch 1, runs", "shuffled, severity 1", "long runs, severity 1",
)  # fmt: skip
NOTHING_TO_GAIN = (*CLEAN, "one class")
OURS = method_name("steady")
TICKS = (-80, -40, -20, -10, -5, -2, 0, 2, 5, 10, 20, 40)
ALLOWED = {"mean": 0.5, "stream": 2.0}
"""Points below none that count as harm: in a scenario's mean, in one stream."""
PRICES = ("forwards", "backwards")


class Score(NamedTuple):
    """One stream: accuracy of a method beside none's, in %, and what it cost."""

    network: str
    method: str
    scenario: str
    stream: tuple[object, ...]
    gain: float
    takes_over: bool
    """One class ends above twice its share among the labels, or a fifth, and above what none gives its own."""
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
        return name + (", severity 1" if cell.severity == 1 else "")
    return {"shuffled": "clean", "long runs": "clean, runs", "one class": "clean, one class"}[name]


def title_of(cell: Cell) -> str:
    without = cell.method == "steady" and not cell.options.get("evidence", True)
    return method_name(cell.method) + (
        " + ASR" if cell.options.get("recovery") == "asr" else ", 0.1's" if without else ""
    )


def stream_of(cell: Cell) -> tuple[object, ...]:
    options = tuple(sorted(cell.scenario_options.items()))
    return (cell.model_name, cell.scenario, options, cell.corruptions, cell.severity, cell.batch_size, cell.seed)


def of_one_network(rows: Iterable[Row]) -> list[Row]:
    """Rows that are ok; of a network that was trained twice those of the weights that most rows are of."""
    good = [row for row in rows if row["status"] == "ok"]
    made: dict[object, Counter[str]] = defaultdict(Counter)
    for row in good:
        made[row["cell"]["model_name"]][row["versions"].get("weights")] += 1
    usual = {network: weights.most_common(1)[0][0] for network, weights in made.items()}
    kept = [row for row in good if row["versions"].get("weights") == usual[row["cell"]["model_name"]]]
    if len(kept) < len(good):
        print(f"{len(good) - len(kept)} rows are of other weights of the same networks and left out\n")
    return kept


def scores(rows: Iterable[Row]) -> list[Score]:
    """Every stream that both a method and none have run."""
    good = [(Cell.from_row(row), row) for row in of_one_network(rows)]
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
    order = [method_name(name) for name in config_classes()]
    plain = {score.method: re.sub(r" \+ ASR|, 0\.1's", "", score.method) for score in found}
    return sorted(found, key=lambda score: (order.index(plain[score.method]), score.method))


def shared_by_methods(found: Sequence[Score]) -> list[Score]:
    """Scores on the streams that more than half of the methods have run, Steady among them; all where there is no other."""
    ran: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for score in found:
        ran[score.stream].add(score.method)
    number = len({score.method for score in found})
    return [score for score in found if OURS in ran[score.stream] and 2 * len(ran[score.stream]) > number]


def network_means(found: Iterable[Score]) -> dict[str, dict[tuple[str, str], float]]:
    """Per method, the mean gain on each network in each scenario."""
    groups: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in found:
        groups[score.method][score.network, score.scenario].append(score.gain)
    return {method: {key: mean(gains) for key, gains in own.items()} for method, own in groups.items()}


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
        price = [f"{mean(getattr(score, name) for score in own):.2f}" for name in PRICES]
        parts = [
            method, points(worst), f"`{place[0]}`, {place[1]}", points(min(score.gain for score in own)),
            f"{harmed} of {len(groups)}", f"{taken} of {len(own)}", points(mean(shifted)) if shifted else "–",
            points(mean(clean)) if clean else "–", *price,
        ]  # fmt: skip
        told.append((worst, "| " + " | ".join(parts) + " |"))
    return "\n".join(lines + [line for _, line in sorted(told, key=lambda entry: -entry[0])])


def comparison(found: Sequence[Score]) -> str:
    """Scenario by scenario: Steady beside the best other method of its cost, and the best of those that harm nobody.

    Each pair is compared on the networks that both have run.
    """
    means = network_means(found)
    price = {
        method: max(mean(getattr(score, name) for score in found if score.method == method) for name in PRICES)
        for method in means
    }
    harmless = {method for method, own in means.items() if min(own.values()) >= -ALLOWED["mean"]}
    lines = [
        "| scenario | networks | Steady | best other of at most one forward and one backward | best of those that harm nowhere |",
        "|---|---|---|---|---|",
    ]
    for scenario in (name for name in SCENARIOS if name not in NOTHING_TO_GAIN):
        ours = {network: gain for (network, at), gain in means.get(OURS, {}).items() if at == scenario}
        told = {}
        for method in means:
            shared = [network for network in ours if (network, scenario) in means[method]]
            if method == OURS or not shared or price[method] > 1:
                continue
            theirs, own = (mean(gains[n] for n in shared) for gains in (one_scenario(means[method], scenario), ours))
            told[method] = (theirs - own, f"{method} {points(theirs)} ({points(own)} on {len(shared)})")
        if ours:
            best = max(told.values(), default=(0.0, "–"))[1]
            kind = max((entry for method, entry in told.items() if method in harmless), default=(0.0, "none"))[1]
            lines.append(f"| {scenario} | {len(ours)} | {points(mean(ours.values()))} | {best} | {kind} |")
    return "\n".join(lines)


def one_scenario(means: dict[tuple[str, str], float], scenario: str) -> dict[str, float]:
    return {network: gain for (network, at), gain in means.items() if at == scenario}


def draw_scenarios(found: Sequence[Score], path: Path) -> None:
    """A panel per scenario: a line per method, a mark per network."""
    from matplotlib.figure import Figure

    means = network_means(found)
    methods = sorted(means, key=lambda method: min(means[method].values()))
    known = list(dict.fromkeys(score.network for score in found))
    shown = [name for name in SCENARIOS if any(score.scenario == name for score in found)]
    figure = Figure(figsize=(1.2 + 2.1 * len(shown), 1.2 + 0.22 * len(methods)), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for panel, scenario in zip(panels, shown, strict=True):
        panel.axvline(0, color="0.5", linewidth=0.8)
        for place, network in enumerate(known):
            at = [(means[m][network, scenario], y) for y, m in enumerate(methods) if (network, scenario) in means[m]]
            panel.plot(
                [x for x, _ in at], [y for _, y in at], linestyle="none", marker="osD^vP*"[place % 7], markersize=4,
                alpha=0.7, color=f"C{place}", label=network,
            )  # fmt: skip
        panel.set_title(scenario, fontsize=9)
        panel.set_xscale("symlog", linthresh=5, linscale=0.8)
        few = TICKS[::2] + (0,) * (0 not in TICKS[::2])
        panel.set_xticks(few, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in few], fontsize=6)
        panel.set_xticks([], minor=True)
        panel.grid(axis="x", linewidth=0.3)
    panels[0].set_yticks(range(len(methods)), methods, fontsize=8)
    for label in panels[0].get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == OURS else "normal")
    panels[0].set_ylim(-0.7, len(methods) - 0.3)
    named = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(named.values(), named.keys(), fontsize=8, loc="outside upper right", ncols=len(named))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw(found: Sequence[Score], path: Path) -> None:
    """A line per method, the least harmful on top: a mark per network and scenario, clean streams apart from shifted ones."""
    from matplotlib.figure import Figure

    means = network_means(found)
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


def blocks(found: Sequence[Score]) -> dict[str, str]:
    """The page's tables by name."""
    core, ours = shared_by_methods(found), [score for score in found if score.method == OURS]
    made = {}
    if len({score.method for score in core}) > 1:
        made["core"] = verdicts(core)
        made["comparison"] = comparison(core)
        shown = [name for name in SCENARIOS if any(score.scenario == name for score in core)]
        panels = (f"**{at}**\n\n{table([s for s in core if s.scenario == at], 'method', 'network')}" for at in shown)
        made["scenarios"] = "\n\n".join(panels)
    if ours:
        made["steady"] = table(ours, "network", "scenario", SCENARIOS)
        rest_of = {score.stream for score in ours} - {score.stream for score in core}
        rest = [score for score in found if score.stream in rest_of]
        if any(score.method != OURS for score in rest):
            made["further"] = verdicts(rest)
    return made


def filled(page: str, made: dict[str, str]) -> str:
    """A page with each block's table between its marks."""
    for name, text in made.items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, t=text: f"{m[1]}\n{t}\n\n{m[2]}", page, flags=re.S
        )
    return page


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--page", type=Path, help="put the tables into this file")
    parser.add_argument("--pictures", type=Path, help="draw into this folder")
    parser.add_argument("--short", action="store_true", help="without the tables of each scenario")
    asked = parser.parse_args()
    found = scores(read(asked.journals))
    core, made = shared_by_methods(found), blocks(found)
    print(f"Streams that most methods have run: {len({score.stream for score in core})}")
    for name, text in made.items():
        if not (asked.short and name == "scenarios"):
            print(f"\n## {name}\n\n{text}")
    if asked.page is not None:
        asked.page.write_text(filled(asked.page.read_text(encoding="utf-8"), made), encoding="utf-8")
    if asked.pictures is not None:
        draw(core, asked.pictures / "no-harm-core.png")
        draw_scenarios(core, asked.pictures / "no-harm-scenarios.png")


if __name__ == "__main__":
    main()
