"""Gains over none from a grid's results, as Markdown: one table per network, rules by scenarios, mean over streams.

    python tables.py results.jsonl(.gz) [--networks gn64,vit128] [--rules a,b] [--share]

A number in brackets is the worst single stream of the scenario; --share prints the most predicted class instead.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

ORDER = (
    "clean clean-order shuffled order short-order mixture continual continual-order "
    "comes-and-goes one-class clean-one-class"
)
SHORT = {
    "continual": "contin.",
    "continual-order": "contin. order",
    "comes-and-goes": "comes, goes",
    "clean-one-class": "one-class, clean",
}


def lines_of(path: Path) -> list[str]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()


def scenario_of(row: dict[str, Any]) -> str:
    if row["batch"] == 64:
        return row["scenario"]
    return f"{row['batch']}: " + ("order" if row["scenario"] == "order" else "shuffled")


def cell(rows: list[dict[str, Any]], share: bool) -> str:
    if not rows:
        return "–"
    if share:
        return f"{max(row['top'] for row in rows):.0f}"
    gains = [row["accuracy"] - row["none"] for row in rows]
    mean = sum(gains) / len(gains)
    worst = min(gains)
    return f"{mean:+.1f}" + (f" ({worst:+.1f})" if len(gains) > 1 and worst < -2 else "")


def table(rows: list[dict[str, Any]], rules: list[str], share: bool) -> str:
    known = {scenario_of(row) for row in rows}
    listed = [s for s in ORDER.split() if s in known]
    scenarios = listed + sorted(known - set(listed))
    lines = ["| | " + " | ".join(SHORT.get(s, s) for s in scenarios) + " |", "|---|" + "---|" * len(scenarios)]
    first = [row for row in rows if row["rule"] == rules[0]]
    bare = []
    for s in scenarios:
        values = [row["none"] for row in first if scenario_of(row) == s]
        bare.append(f"{sum(values) / len(values):.1f}" if values else "–")
    lines.append("| *none, %* | " + " | ".join(bare) + " |")
    for rule in rules:
        own = [row for row in rows if row["rule"] == rule]
        lines.append(
            f"| {rule} | " + " | ".join(cell([r for r in own if scenario_of(r) == s], share) for s in scenarios) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--networks")
    parser.add_argument("--rules")
    parser.add_argument("--share", action="store_true")
    o = parser.parse_args()
    everything = [json.loads(line) for path in o.results for line in lines_of(path)]
    for network in o.networks.split(",") if o.networks else dict.fromkeys(row["network"] for row in everything):
        rows = [row for row in everything if row["network"] == network]
        rules = o.rules.split(",") if o.rules else list(dict.fromkeys(row["rule"] for row in rows))
        print(f"\n**{network}**\n\n{table(rows, rules, o.share)}")
