"""Who still gains when time is charged: each method's time per batch on a quiet GPU, then streams that do not wait.

    python studies/later-methods/speed.py times   --images tiny-200.zip --weights weights --source tiny-source.zip --out runs
    python studies/later-methods/speed.py streams --images tiny-200.zip --weights weights --source tiny-source.zip --out runs
    python studies/later-methods/speed.py table   --out runs [--into docs/results/later-methods.md]

Images, weights and source images are those of ``studies/no-harm/prepare.py``: Tiny-ImageNet's part that is kept aside from
every choice. ``times`` runs one method after the other and writes ``speed.times.json``: nothing else may run meanwhile.
``streams`` runs many cells side by side, charged ones at exactly the paces of that file, and writes ``speed.jsonl``;
``table`` shows both as Markdown. Each goes on where it stopped. Times of a machine without a GPU say little.

Images arrive as fast as the unadapted network can answer, its pass recorded as a CUDA graph (``wildtta.bench.pace``).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cells import arguments, battery_cell, run_side_by_side, show

from methods import methods_for
from wildtta.bench import Cell, Conditions, Row, read, recorded_milliseconds
from wildtta.bench.running import execute
from wildtta.bench.unadapted import beside_unadapted
from wildtta.metrics import row_collapsed
from wildtta.report.names import method_name

NETWORKS = ("rn26_gn", "vit")
CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
BATCH = 64
TOO_SLOW_TO_WAIT_FOR = {"memo"}
"""64 views of every image: its stream is run at its pace alone."""
FEW_BATCHES = {"cotta": 8, "foa": 4, "memo": 2}
"""Timed batches of the slowest methods, which come last; 16 of the others. The first is not counted."""

Times = list[dict[str, Any]]
"""Per network and method: ``ms``, the median time of a batch (None: it failed); ``recorded_ms`` of none's recorded pass."""


def cell(network: str, method: str, weights: str, limit: int | None = None) -> Cell:
    """2,400 images under each of three corruptions, one after the other, never reset."""
    stream = {
        "scenario": "continual",
        "corruptions": CORRUPTIONS,
        "data": "folder",
        "batch_size": BATCH,
        "limit": limit,
    }
    return battery_cell(network, method, weights, **stream)


def times_path(given: argparse.Namespace) -> Path:
    path: Path = given.out / "speed.times.json"
    return path


def read_times(given: argparse.Namespace) -> Times:
    path = times_path(given)
    known: Times = json.loads(path.read_text()) if path.exists() else []
    return known


def time_methods(given: argparse.Namespace) -> None:
    """The median time of a batch of each method, one after the other; written down after each."""
    until, found = time.monotonic() + given.seconds, [entry for entry in read_times(given) if entry["ms"] is not None]
    known = {(entry["network"], entry["method"]) for entry in found}
    pairs = [(network, method) for network in given.networks for method in given.methods or methods_for(network)]
    slow = list(FEW_BATCHES)
    for network, method in sorted(pairs, key=lambda pair: slow.index(pair[1]) + 1 if pair[1] in slow else 0):
        if (network, method) in known:
            continue
        if time.monotonic() > until:
            print(f"{network} {method}: no time left", flush=True)
            continue
        began = time.monotonic()
        found.append(timed(network, method, given))
        times_path(given).write_text(json.dumps(found, indent=1))
        print(f"{found[-1]} ({time.monotonic() - began:.1f} s)", flush=True)


def timed(network: str, method: str, given: argparse.Namespace) -> dict[str, Any]:
    """An entry of the times, from the first batches under the first corruption."""
    conditions = Conditions(root=given.images, source=given.source)
    batches = min(FEW_BATCHES.get(method, given.batches), given.batches)
    whole = cell(network, method, given.weights)
    short = replace(whole, limit=BATCH * batches, scenario="mild", corruptions=CORRUPTIONS[:1])
    row = execute(short, conditions, given.device)
    entry = {"network": network, "method": method, "batches": batches, "device": row["device"]}
    if row["status"] != "ok":
        return {**entry, "ms": None, "reason": row["reason"]}
    cost = row["cost"]
    # Methods that rest or select may learn from few images: the share tells what was timed.
    entry |= {"ms": cost["ms_per_batch_median"], "backwards": round(cost["backwards"] / (BATCH * batches), 2)}
    recorded = recorded_milliseconds(short, conditions, given.device, passes=200) if method == "none" else None
    return entry if recorded is None else {**entry, "recorded_ms": recorded}


def unadapted(times: Times) -> dict[str, float]:
    """The time of each network's pass, recorded where that is faster."""
    return {entry["network"]: min(entry["ms"], entry.get("recorded_ms", entry["ms"])) for entry in bare_entries(times)}


def bare_entries(times: Times) -> Iterable[dict[str, Any]]:
    return (entry for entry in times if entry["method"] == "none" and entry["ms"] is not None)


def paces(times: Times) -> dict[tuple[str, str], float]:
    """The time of each method over the unadapted network's."""
    bare = unadapted(times)
    return {
        (entry["network"], entry["method"]): round(entry["ms"] / bare[entry["network"]], 2)
        for entry in times
        if entry["ms"] is not None and entry["network"] in bare and entry["method"] != "none"
    }


def run_streams(given: argparse.Namespace) -> None:
    """Each method on a stream that does not wait for it, then on one that does; of these the longest first."""
    pace_of = paces(read_times(given))
    asked = {key: pace for key, pace in pace_of.items() if key[0] in given.networks}
    if given.methods:
        asked = {key: pace for key, pace in asked.items() if key[1] in given.methods}
    whole = {key: cell(*key, given.weights, given.limit) for key in asked}
    bare = [cell(network, "none", given.weights, given.limit) for network in dict.fromkeys(key[0] for key in asked)]
    charged = [replace(whole[key], pace=pace) for key, pace in asked.items()]
    waited_for = [key for key in asked if key[1] not in TOO_SLOW_TO_WAIT_FOR]
    waiting = [whole[key] for key in sorted(waited_for, key=lambda key: -asked[key])]
    run_side_by_side([*bare, *charged, *waiting], "speed.jsonl", given.images, given)


def table(times: Times, rows: Iterable[Row]) -> str:
    """Per network: time, accuracy where the stream waits, and at the method's pace; gains over none in brackets."""
    pace_of, bare = paces(times), unadapted(times)
    spent = {(entry["network"], entry["method"]): entry["ms"] for entry in times}
    good = [(Cell.from_row(row), row) for row in beside_unadapted(rows) if row["status"] == "ok"]
    by_key = {(one.model_name, one.method, one.pace): row for one, row in good}
    lines = []
    for entry in bare_entries(times):
        network = entry["network"]
        if (network, "none", 0.0) not in by_key:
            continue
        none = by_key[network, "none", 0.0]["metrics"]["accuracy"]
        told = ", recorded as a CUDA graph" if bare[network] < entry["ms"] else ""
        lines += [
            f"**`{network}`**: {none:.1f} % without adaptation, {bare[network]:.2f} ms a batch of {BATCH}{told} "
            f"({entry['ms']:.2f} as it is called).",
            "",
            "| method | ms a batch | pace | the stream waits | time is charged | learned from |",
            "|---|---|---|---|---|---|",
        ]
        own = {method: pace for (name, method), pace in pace_of.items() if name == network}
        for method, pace in sorted(own.items(), key=lambda item: item[1]):
            waits, late = by_key.get((network, method, 0.0)), by_key.get((network, method, pace))
            turns = f"{late['cost']['learned_batches']} of {late['cost']['batches']}" if late else "–"
            numbers = f"{spent[network, method]:.1f} | {pace:.1f} | {told_gain(waits, none)} | {told_gain(late, none)} | {turns}"
            lines.append(f"| {method_name(method)} | {numbers} |")
        lines.append("")
    return "\n".join(lines)


def told_gain(row: Row | None, none: float) -> str:
    """Accuracy, and in brackets points over none."""
    if row is None:
        return "–"
    accuracy, fallen = row["metrics"]["accuracy"], ", collapsed" if row_collapsed(row["metrics"], adapts=True) else ""
    return f"{accuracy:.1f} ({accuracy - none:+.1f}{fallen})".replace("-", "−")


def main() -> None:
    parser = arguments("Who still gains when time is charged.", ("times", "streams", "table"), NETWORKS)
    parser.add_argument("--batches", type=int, default=16, help="timed batches at most")
    parser.add_argument("--limit", type=int, help="images of a stream at most")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part == "times":
        time_methods(given)
    elif given.part == "streams":
        run_streams(given)
    else:
        journals = sorted(given.out.glob("speed.jsonl*"))  # packed where it is kept: results/
        show(table(read_times(given), read(journals)), "constant speed", given.into)


if __name__ == "__main__":
    main()
