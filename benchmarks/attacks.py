"""What 2,000 hostile inputs cost a network that learns, with and without the guard.

    python benchmarks/attacks.py --networks resnet_gn vit --device cuda --processes 14 --json attacks.jsonl
    python benchmarks/attacks.py --networks testbed:rn26_gn --testbed FOLDER --methods steady tent
    python benchmarks/attacks.py --table attacks.jsonl

The protocol: noise of severity 4; the adapter first learns from 2,000 ordinary images, then one attacker (``poison.py``) sends
2,000 inputs. Scored is the accuracy on other ordinary images of the same kind, paused, right before and right after the
attack. Every attack starts from the same warmed-up state; the guard goes on from what it saw during the warm-up. With
``--json`` a finished row is not run again: break off and give the same command to go on.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import wildtta
from poison import ATTACKS, BATCH, Attacker
from pools import Pool, open_pool
from side_by_side import results

CORRUPTION, SEVERITY = "gaussian_noise", 4
WARM_UP = 2000
INPUTS = 2000
EPSILON = 8
FISHER_IMAGES = 500
METHODS = ("steady", "tent", "sar", "sar2", "eata")
Row = dict[str, Any]
Task = tuple[Row, list[str]]
"""Network, method, guard and seed, and the attacks to measure there."""


def accuracy(model: wildtta.Adapter, images: Tensor, labels: Tensor) -> float:
    with model.paused():
        right = [
            (model(batch).argmax(1) == own).sum()
            for batch, own in zip(images.split(256), labels.split(256), strict=True)
        ]
    return 100 * float(torch.stack(right).sum()) / len(labels)


def where(victim: wildtta.Adapter, warmed: wildtta.Adapter, images: Tensor, labels: Tensor) -> Row:
    """Where the harm lies: accuracy with the weights from before the attack, with the other state from before, at the source."""
    mixed, engine = copy.deepcopy(victim), warmed.engine
    after = mixed.engine.learnables.vector()
    mixed.engine.learnables.assign(engine.learnables.vector())
    weights_back = accuracy(mixed, images, labels)
    mixed.engine.learnables.assign(after)
    for name, value in engine.memory.items():
        mixed.engine.memory[name].copy_(value)
    state_back = accuracy(mixed, images, labels)
    mixed.reset()
    distances = {"distance_before": float(engine.distance()), "distance_after": float(victim.engine.distance())}
    return {
        "weights_back": weights_back,
        "state_back": state_back,
        "source": accuracy(mixed, images, labels),
        **distances,
    }


def measure(
    ordinary: Pool, scored: Pool, method: str, guarded: bool, seed: int, attacks: Iterable[str], *, parts: bool = False
) -> Iterable[Row]:
    """One row per attack. ``ordinary`` is what the adapter warms up on and what the attacker owns, halves of it.

    With ``parts`` a row also tells where the harm lies.
    """
    images = ordinary.prepare(ordinary.corrupted(CORRUPTION, SEVERITY, seed=seed))
    half = len(images) // 2
    test = scored.prepare(scored.corrupted(CORRUPTION, SEVERITY, seed=seed + 1))
    clean = ordinary.prepare(ordinary.images[:FISHER_IMAGES])
    options: dict[str, Any] = {"fisher_images": clean} if method == "eata" else {}
    warmed = wildtta.adapt(ordinary.build(), method, guard=wildtta.Guard(seed=seed) if guarded else None, **options)
    draws = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(half, generator=draws) for _ in range(-(-WARM_UP // half))])[:WARM_UP]
    for batch in images[order.to(images.device)].split(BATCH):
        warmed(batch)
    before = accuracy(warmed, test, scored.labels)
    low, high, epsilon = ordinary.limits(EPSILON)
    for name in attacks:
        began = time.perf_counter()
        victim = copy.deepcopy(warmed)
        attacker = Attacker(
            images=images[half:],
            labels=ordinary.labels[half:],
            low=low,
            high=high,
            epsilon=epsilon,
            source=ordinary.build(),
            victim=victim,
            inputs=INPUTS,
            generator=torch.Generator().manual_seed(seed),
        )
        for batch in ATTACKS[name](attacker):
            victim(batch)
        yield {
            "attack": name,
            "before": before,
            "after": accuracy(victim, test, scored.labels),
            "actions": [[d.images, d.action.name.lower(), d.because] for d in victim.guard.decisions]
            if guarded
            else [],
            **(where(victim, warmed, test, scored.labels) if parts else {}),
            "s": round(time.perf_counter() - began, 1),
        }


def table(rows: list[Row]) -> str:
    """Points lost per attack, the mean over seeds, a column per method and guard; the worst seed in brackets."""
    lines = []
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        columns = list(dict.fromkeys((row["method"], row["guard"]) for row in own))
        heads = [f"{method}{', guard' if guard else ''}" for method, guard in columns]
        lines += [f"| {network} | {' | '.join(heads)} |", f"|{'---|' * (len(columns) + 1)}"]
        for attack in dict.fromkeys(row["attack"] for row in own):
            cells = []
            for method, guard in columns:
                lost = [
                    r["before"] - r["after"]
                    for r in own
                    if (r["attack"], r["method"], r["guard"]) == (attack, method, guard)
                ]
                cells.append(f"{-statistics.fmean(lost):+.1f} ({-max(lost):+.1f})" if lost else "–")
            lines.append(f"| {attack} | {' | '.join(cells)} |")
        starts = [statistics.fmean(r["before"] for r in own if (r["method"], r["guard"]) == key) for key in columns]
        lines += [f"| *accuracy before, %* | {' | '.join(f'{start:.1f}' for start in starts)} |", ""]
    return "\n".join(lines)


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _find(rows: list[Row], wanted: Row) -> Row | None:
    return next((row for row in rows if all(row.get(key) == value for key, value in wanted.items())), None)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["resnet_gn"])
    parser.add_argument("--testbed", type=Path)
    parser.add_argument("--atlas", type=Path, help="masks of the glyphs, where no fonts are installed")
    parser.add_argument("--shared", type=Path, help="folder in which processes leave each other images: made once")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--guard", nargs="+", default=["no", "yes"], choices=["no", "yes"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--scored", type=int, default=5000, help="images that accuracy is measured on")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="cells at the same time")
    parser.add_argument("--parts", type=int, default=1, help="parts of the attacks of a cell, each a task of its own")
    parser.add_argument("--seconds", type=float, help="begin nothing after so long, and leave what is unfinished then")
    parser.add_argument("--guarded", nargs="+", help="methods that are measured with the guard too (default: all)")
    parser.add_argument("--where", action="store_true", help="tell whether weights or other state did the harm")
    parser.add_argument("--json", type=Path, help="append one line per row; what is in it is not run again")
    parser.add_argument("--table", type=Path, help="print the table of such a file and do nothing else")
    args = parser.parse_args(argv)
    if args.table is not None:
        print(table(read_rows(args.table)))
        return
    print(f"$ python benchmarks/attacks.py {shlex.join(argv or sys.argv[1:])}\ntorch {torch.__version__}", flush=True)
    rows = read_rows(args.json) if args.json is not None and args.json.exists() else []
    with contextlib.ExitStack() as stack:
        file = None if args.json is None else stack.enter_context(args.json.open("a", encoding="utf-8"))
        for found in results(
            _missing(args, rows), attack_runner, (args,), processes=args.processes, seconds=args.seconds
        ):
            for row in found:
                rows.append(row)
                print(json.dumps(row), flush=True)
                if file is not None:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
    print(table(rows))


def _missing(args: argparse.Namespace, rows: list[Row]) -> list[Task]:
    """What has no row yet, a few attacks at a time. Seeds last: what is broken off has all columns of the first seed."""
    tasks = []
    groups = [args.attacks[start :: args.parts] for start in range(args.parts)]
    for seed, group in itertools.product(args.seeds, groups):
        for network, method, guard in itertools.product(args.networks, args.methods, args.guard):
            if guard == "yes" and method not in (args.guarded or args.methods):
                continue
            cell = {"network": network, "method": method, "guard": guard == "yes", "seed": seed}
            missing = [name for name in group if not _find(rows, {**cell, "attack": name})]
            if missing:
                tasks.append((cell, missing))
    return tasks


def attack_runner(args: argparse.Namespace) -> Callable[[Task], list[Row]]:
    """Measures in one process: the rows of one method, network and seed."""
    pools: dict[str, tuple[Pool, Pool]] = {}

    def opened(network: str) -> tuple[Pool, Pool]:
        if network not in pools:
            given = {"testbed": args.testbed, "atlas": args.atlas, "shared": args.shared}
            ordinary = open_pool(network, 2 * WARM_UP, args.device, part="source", seed=1, **given)
            ordinary.shared = None  # its images come in another order
            mixed = torch.randperm(len(ordinary.labels), generator=torch.Generator().manual_seed(0)).to(args.device)
            ordinary.images, ordinary.labels = ordinary.images[mixed], ordinary.labels[mixed]
            scored = open_pool(network, args.scored, args.device, seed=2, **given)
            pools[network] = ordinary, scored
        return pools[network]

    def run(task: Task) -> list[Row]:
        cell, attacks = task
        own = opened(cell["network"])
        found = measure(*own, cell["method"], cell["guard"], cell["seed"], attacks, parts=args.where)
        return [{**cell, **row} for row in found]

    return run


if __name__ == "__main__":
    main()
