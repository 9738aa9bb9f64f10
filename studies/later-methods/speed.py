"""Who still gains when time is charged: each method's time per batch on a quiet GPU, then streams that do not wait.

    python studies/later-methods/speed.py times   --images tiny-200.zip --weights weights --source tiny-source.zip --out runs
    python studies/later-methods/speed.py streams --images tiny-200.zip --weights weights --source tiny-source.zip --out runs
    python studies/later-methods/speed.py table   --out runs

Images, weights and source images are those of ``studies/no-harm/prepare.py``: Tiny-ImageNet's part that is kept aside from
every choice. ``times`` runs one method after the other and writes ``speed.times.json``; ``streams`` runs many cells side by
side and writes ``speed.jsonl``; ``table`` prints both as Markdown. Times of a machine without a GPU say little.

Images arrive as fast as the unadapted network can answer, its pass recorded as a CUDA graph (``wildtta.bench.pace``).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from methods import methods_for
from wildtta.bench import Cell, Conditions, Row, launch, read, recorded_milliseconds
from wildtta.bench.running import execute
from wildtta.report.names import method_name

HERE = Path(__file__).resolve().parent
NETWORKS = ("rn26_gn", "vit")
CORRUPTIONS = ("gaussian_noise", "fog", "contrast")
TOO_SLOW_TO_WAIT_FOR = {"memo"}
"""64 views of every image: its stream is run at its pace alone."""
FEW_BATCHES = {"memo": 2, "foa": 8, "cotta": 8}
"""Timed batches of the slowest methods; 20 of the others."""


def cell(network: str, method: str, weights: str, limit: int | None = None) -> Cell:
    """2,400 images under each of three corruptions, one after the other, never reset."""
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
        data_options={"source_images": 500},
        protocol="native",
        limit=limit,
    )


def time_methods(given: argparse.Namespace) -> None:
    """The median time of a batch of 64 of each method, one after the other; written down after each."""
    conditions = Conditions(root=given.images, source=given.source)
    until, found = time.monotonic() + given.seconds, []
    for network in given.networks:
        for method in given.methods or methods_for(network):
            if time.monotonic() > until:
                print(f"{network} {method}: no time left", flush=True)
                continue
            batches = min(FEW_BATCHES.get(method, 20), given.batches)
            whole = cell(network, method, given.weights)
            short = replace(whole, limit=64 * batches, scenario="mild", corruptions=CORRUPTIONS[:1])
            began = time.monotonic()
            row = execute(short, conditions, given.device)
            cost = row.get("cost", {})
            spent = cost.get("ms_per_batch_median")
            learned = cost.get("backwards", 0) / (64 * batches)
            found.append({"network": network, "method": method, "ms": spent, "batches": batches, "backwards": learned})
            if method == "none" and (recorded := recorded_milliseconds(short, conditions, given.device)) is not None:
                found[-1]["recorded_ms"] = recorded
                print(f"{network} recorded: {recorded:.2f} ms a batch", flush=True)
            took = time.monotonic() - began
            print(f"{network} {method}: {row['reason'] or f'{spent:.2f} ms a batch'} ({took:.1f} s)", flush=True)
            (given.out / "speed.times.json").write_text(json.dumps(found, indent=1))


def paces(times: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """The time of each method over the unadapted network's, recorded where it was."""
    known = {(entry["network"], entry["method"]): entry["ms"] for entry in times if entry["ms"] is not None}
    bare = {entry["network"]: entry.get("recorded_ms", entry["ms"]) for entry in times if entry["method"] == "none"}
    return {
        (network, method): round(ms / bare[network], 2) for (network, method), ms in known.items() if network in bare
    }


def run_streams(given: argparse.Namespace) -> None:
    """Each method on a stream that waits for it, and on one that does not; the longest first, so that none is waited for."""
    bare, others = [], []
    for (network, method), pace in paces(json.loads((given.out / "speed.times.json").read_text())).items():
        one = cell(network, method, given.weights, given.limit)
        if method == "none":
            bare.append(one)
            continue
        others.append((1.0, replace(one, pace=pace)))
        if method not in TOO_SLOW_TO_WAIT_FOR:
            others.append((pace, one))
    others.sort(key=lambda costed: -costed[0])
    launch(
        [*bare, *(one for _, one in others)],
        journal=given.out / "speed.jsonl",
        root=given.images,
        source=given.source,
        device=given.device,
        per_device=given.per_device,
        seconds=given.seconds,
    )


def table(times: list[dict[str, Any]], rows: list[Row]) -> str:
    """Per network: time, accuracy where the stream waits, and at the method's pace; gains over none in brackets."""
    pace_of = paces(times)
    spent = {(entry["network"], entry["method"]): entry["ms"] for entry in times}
    good = [(Cell.from_row(row), row) for row in rows if row["status"] == "ok"]
    by_key = {(one.model_name, one.method, one.pace > 0): row for one, row in good}
    lines = []
    for network in dict.fromkeys(name for name, _ in pace_of):
        none = by_key[network, "none", False]["metrics"]["accuracy"]

        def shown(row: Row | None, none: float = none) -> str:
            if row is None:
                return "–"
            accuracy, fallen = row["metrics"]["accuracy"], ", collapsed" if row["metrics"]["collapsed"] else ""
            return f"{accuracy:.1f} ({accuracy - none:+.1f}{fallen})".replace("-", "−")

        bare = next(entry for entry in times if (entry["network"], entry["method"]) == (network, "none"))
        told = f", {bare['recorded_ms']:.2f} ms recorded" if "recorded_ms" in bare else ""
        lines += [f"**`{network}`**: none {none:.1f} %, {bare['ms']:.2f} ms a batch of 64{told}", ""]
        lines += ["| method | ms | pace | the stream waits | learns from | at its pace |", "|---|---|---|---|---|---|"]
        for (name, method), pace in pace_of.items():
            if name != network or method == "none":
                continue
            late = by_key.get((network, method, True))
            turns = f"{late['cost']['learned_batches']} of {late['cost']['batches']}" if late else "–"
            waits = shown(by_key.get((network, method, False)))
            numbers = f"{spent[network, method]:.2f} | {pace:.2f} | {waits} | {turns} | {shown(late)}"
            lines.append(f"| {method_name(method)} | {numbers} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description="Who still gains when time is charged.")
    parser.add_argument("part", choices=("times", "streams", "table"))
    parser.add_argument("--images", help="zip of class folders")
    parser.add_argument("--weights", help="folder of the battery's weights")
    parser.add_argument("--source", help="zip of source images")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--device", default=device)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", help="all that mean something on a network unless named")
    parser.add_argument("--batches", type=int, default=20, help="timed batches at most")
    parser.add_argument("--limit", type=int, help="images of a stream at most")
    parser.add_argument("--per-device", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=1e9, help="no method, and no cell, begins later")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part == "times":
        time_methods(given)
    elif given.part == "streams":
        run_streams(given)
    else:
        times = json.loads((given.out / "speed.times.json").read_text())
        print(table(times, list(read(given.out / "speed.jsonl"))))


if __name__ == "__main__":
    main()
