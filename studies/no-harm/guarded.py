"""The default method with a guard on the battery's streams: how often is it alarmed, and how much of the gain is kept?

    python guarded.py <folder with data and weights/> <results.jsonl> --networks gn64,vit128 --seconds 90
    python guarded.py tables <results.jsonl>

Every stream of the battery is benign: an alarm is a false one unless the method does harm there. Without an alarm the guard
changes no number of any method but Steady, which asks its memory. So others run without it only where there was an alarm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from grid import core_streams, domains_for, one_process_each, small_batches
from scoring import Subject, accuracy, answers, prepared

import wildtta
from streams import Stream, load_pool
from wildtta.guard.audit import read_audit

Row = dict[str, Any]


def one_stream(subject: Subject, method: str, stream: Stream, seed: int) -> Row:
    """Accuracy without adaptation, with it, and with a guard, in percent; and what the guard did."""
    truth = subject.truth(stream)
    with tempfile.TemporaryDirectory() as folder:
        guard = wildtta.Guard(seed=seed, audit=Path(folder) / "audit.jsonl")
        adapter = wildtta.adapt(subject.network, method, batch_size=stream.batch, guard=guard)
        given = answers(adapter, subject.pool, stream)
        looks = [line for line in read_audit(Path(folder) / "audit.jsonl") if line["kind"] == "look"]
    raised = [d for d in adapter.guard.decisions if d.action > 0 and d.evidence >= 1 / guard.false_alarms]
    subject.network = adapter.unload()
    alone = given
    if raised or method == "steady":
        adapter = wildtta.adapt(subject.network, method, batch_size=stream.batch)
        alone = answers(adapter, subject.pool, stream)
        subject.network = adapter.unload()
    return {
        "stream": stream.name,
        "scenario": stream.scenario,
        "batch": stream.batch,
        "batches": -(-len(given) // stream.batch),
        "none": accuracy(subject.unadapted(stream), truth),
        "adapted": accuracy(alone, truth),
        "guarded": accuracy(given, truth),
        "most_evidence": max((line["evidence"] for line in looks), default=1.0),
        "alarms": [[d.images, d.action.name.lower(), d.because] for d in raised],
    }


def one_network(name: str, options: argparse.Namespace) -> None:
    started = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pool = load_pool(name, options.part, options.folder, domains_for(options.part), device)
    subject = prepared(name, pool, options.folder / "weights", device)
    streams = []
    for seed in options.seeds:
        streams += core_streams(pool.labels, pool.names, options.part, options.length, seed)
        streams += small_batches(pool.labels, pool.names, options.part, seed) if options.small else []
    print(f"{name}: {len(streams)} streams, ready after {time.time() - started:.1f} s", flush=True)
    with options.out.open("a") as file:
        for place, stream in enumerate(streams):
            if time.time() - started > options.seconds:
                print(f"{name}: out of time at {stream.name}", flush=True)
                return
            row = one_stream(subject, options.method, stream, place)
            file.write(json.dumps({"network": name, "part": options.part, "method": options.method, **row}) + "\n")
            file.flush()
    print(f"{name}: done after {time.time() - started:.1f} s", flush=True)


def table(rows: list[Row]) -> str:
    """Per network and scenario: gains without and with the guard, in points, and alarms."""
    lines = ["| network | scenario | streams | gain | with the guard | alarms | most evidence |", "|---" * 7 + "|"]
    for network, scenario in dict.fromkeys((row["network"], row["scenario"]) for row in rows):
        own = [row for row in rows if (row["network"], row["scenario"]) == (network, scenario)]
        gains = [statistics.fmean(row[key] - row["none"] for row in own) for key in ("adapted", "guarded")]
        alarms = sum(len(row["alarms"]) for row in own)
        most = max(row["most_evidence"] for row in own)
        lines.append(
            f"| {network} | {scenario} | {len(own)} | {gains[0]:+.2f} | {gains[1]:+.2f} | {alarms} | {most:.3g} |"
        )
    batches, alarms = sum(row["batches"] for row in rows), sum(len(row["alarms"]) for row in rows)
    return "\n".join([*lines, f"\n{len(rows)} streams, {batches:,} batches, {alarms} alarms"])


def main() -> None:
    if sys.argv[1:2] == ["tables"]:
        lines = [line for path in sys.argv[2:] for line in Path(path).read_text(encoding="utf-8").splitlines()]
        print(table([json.loads(line) for line in lines]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--networks", required=True, type=lambda text: text.split(","))
    parser.add_argument("--method", default="steady")
    parser.add_argument("--part", default="choose")
    parser.add_argument("--seeds", default=[0], type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--small", action="store_true", help="batches of 1, 4 and 16 too")
    parser.add_argument("--length", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    if len(options.networks) == 1:
        one_network(options.networks[0], options)
        return
    shared = ["--method", options.method, "--seeds", ",".join(map(str, options.seeds)), "--part", options.part]
    shared += ["--length", str(options.length), "--seconds", str(options.seconds), *["--small"] * options.small]
    one_process_each(__file__, options.folder, options.out, options.networks, shared)


if __name__ == "__main__":
    main()
