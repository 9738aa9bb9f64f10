"""What the guard stops, what it costs, and how often it is wrong.

    python benchmarks/guard.py streams --networks resnet_gn --method tent --lr-scale 12 --corruptions impulse_noise
    python benchmarks/guard.py streams --networks testbed:vit --testbed FOLDER --method tent --corruptions glass_blur
    python benchmarks/guard.py false-alarms --networks resnet_gn resnet_bn vit --batches 100000 --batch-size 16 \
        --journal false-alarms.jsonl
    python benchmarks/guard.py tables --journal false-alarms.jsonl
    python benchmarks/guard.py cost --device cuda

``streams`` runs each stream three times: not adapted, adapted, adapted with a guard. It prints accuracies, the share of the most
predicted class over the last fifth, the guard's actions, and the deepest fall of a window of 1,000 images below no
adaptation before the first alarm.

``false-alarms`` runs the default method with a guard along benign streams (every scenario and corruption, severities 3 and 5)
until there were so many batches. Streams of the first seed, and those with an alarm, run without the guard too: what is
gained with and without it is compared there.

``cost`` times a step of batch 64 of timm's networks that learns, without a guard, with one that never looks, and with the
default, over the first 12,800 images (where it looks at every image, then at fewer and fewer) and after a million.

``streams --study`` takes the streams of a study's journals in which the method ended in one class:

    J=docs/results/tiny-imagenet
    python benchmarks/guard.py streams --study $J/main.jsonl.gz --testbed FOLDER --device cuda --processes 14

With ``--journal`` a finished stream is not run again: break off and give the same command to go on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import wildtta
from guarded_streams import PIECE, SCENARIOS, SEVERAL, Row, Setting, run_stream
from pools import Pool, open_pool
from side_by_side import results
from study_collapses import collapses
from wildtta.bench.journal import Journal
from wildtta.corruptions import CORRUPTIONS
from wildtta.streams import Domain

FIFTEEN = tuple(CORRUPTIONS)[:15]
COSTED = ("resnet50_gn", "vit_base_patch16_224")
FULL_SHARE_UNTIL = 12_800
"""Images after which the shadow answers no more than its usual share."""
RECORDING = 6
"""First steps that are not counted: they record the step, and the guard's passes, as CUDA graphs."""
Say = Callable[[Row], None]


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    """Every stream that the options ask for."""
    names = FIFTEEN if args.corruptions == ["all"] else tuple(args.corruptions)
    for network, scenario in itertools.product(args.networks, args.scenarios):
        for corruptions in [names] if scenario in SEVERAL else [(name,) for name in names]:
            for severity, seed in itertools.product(args.severities, args.seeds):
                yield Setting(
                    network=network,
                    method=args.method,
                    scenario=scenario,
                    corruptions=corruptions,
                    severity=severity,
                    seed=seed,
                    images=args.images,
                    pool=args.pool,
                    per_domain=args.per_domain,
                    draws=args.draws,
                    split=args.split,
                    batch_size=args.batch_size,
                    lr_scale=args.lr_scale,
                    precision=args.precision,
                )


class Pools:
    """The images of each network, opened once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._open: dict[tuple[str, str], Pool] = {}

    def of(self, setting: Setting) -> Pool:
        args, key = self._args, (setting.network, setting.split)
        if key not in self._open:
            found = open_pool(
                setting.network, setting.pool, args.device, testbed=args.testbed, atlas=args.atlas, shared=args.shared
            )
            self._open[key] = found.part(setting.split)
        return self._open[key]


def stream_runner(args: argparse.Namespace) -> Callable[[tuple[Setting, Row | None]], Row]:
    """Runs streams in one process. Where a study's row is given, what the method did without a guard is taken from it."""
    pools = Pools(args)
    many = args.what == "false-alarms"

    def run(task: tuple[Setting, Row | None]) -> Row:
        setting, known = task
        began = time.perf_counter()
        guard = wildtta.Guard(audit=args.audit, seed=setting.seed)
        plain: bool | None = known is None and not args.guarded_only
        if many and setting.seed != args.seeds[0]:
            plain = None
        row = run_stream(pools.of(setting), setting, guard, plain=plain)
        if known is not None:
            metrics = known["metrics"]
            row["plain"] = {
                "accuracy": metrics["accuracy"],
                "top_share": metrics["top_class_share"],
                "collapsed": True,
                "from": "the study",
            }
        return {**row, "s": round(time.perf_counter() - began, 1)}

    return run


def image_maker(args: argparse.Namespace) -> Callable[[tuple[Setting, Domain]], None]:
    """Makes corrupted images in one process and leaves them in the shared folder."""
    pools = Pools(args)

    def make(task: tuple[Setting, Domain]) -> None:
        setting, domain = task
        pools.of(setting).corrupted(domain.name, domain.severity or 0)

    return make


def make_shared_images(args: argparse.Namespace, chosen: list[Setting]) -> None:
    """Every kind of image that the streams need, once, by all processes together."""
    wanted = {}
    for setting in chosen:
        folder = setting.network.startswith("testbed:")
        for name in setting.corruptions:
            key = (folder, setting.pool, setting.split, name, setting.severity)
            wanted[key] = (setting, Domain(name, setting.severity))
    made = results(list(wanted.values()), image_maker, (args,), processes=args.processes, seconds=args.seconds)
    print(f"{sum(1 for _ in made)} kinds of images", flush=True)


def streams(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    finished = set() if journal is None else journal.finished()
    wanted: list[tuple[Setting, Row | None]] = [(setting, None) for setting in settings(args)]
    if args.study is not None:
        wanted = [*collapses(args.study, args.study_methods)]
        if args.cut is not None:
            cut = args.cut
            wanted = [(dataclasses.replace(task[0], images=min(cut, task[0].images)), task[1]) for task in wanted]
    tasks = [task for task in wanted if task[0].key not in finished]
    print(f"{len(wanted)} streams, {len(tasks)} of them to run", flush=True)
    if args.shared is not None:
        make_shared_images(args, [setting for setting, _ in tasks])
    for row in results(tasks, stream_runner, (args,), processes=args.processes, seconds=args.seconds):
        if args.picture is not None:
            draw_curves(row, args.picture)
        say(row)


def false_alarms(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    """Streams of all networks in an order of chance, the same one every time, until there were enough batches."""
    known = {} if journal is None else {row["key"]: row for row in journal.rows}
    chosen = list(settings(args))
    random.Random(0).shuffle(chosen)
    batches = sum(known[setting.key]["batches"] for setting in chosen if setting.key in known)
    tasks = [(setting, None) for setting in chosen if setting.key not in known]
    if args.shared is not None:
        make_shared_images(args, chosen)
    found = results(tasks, stream_runner, (args,), processes=args.processes, seconds=args.seconds)
    while batches < args.batches and (row := next(found, None)) is not None:
        batches += row["batches"]
        say(row)
    if batches < args.batches:
        print(f"only {batches:,} of {args.batches:,} batches; give more --seeds or more time", flush=True)


def harmed(row: Row) -> bool:
    """Whether the method without a guard ends in one class, or five points below no adaptation."""
    collapsed: bool = row["plain"]["collapsed"]
    return collapsed or row["plain"]["accuracy"] < row["none"] - 5


def stopped_table(rows: list[Row]) -> str:
    """The streams in which the method ends in one class or far below no adaptation, and what the guard makes of them."""
    heads = ("stream", "none", "adapted", "guarded", "− none", "alarm after", "fall before, points")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cell, plain, guarded = row["cell"], row.get("plain"), row["guarded"]
        if plain is None or not harmed(row):
            continue
        rate = "" if cell["lr_scale"] == 1 else f" × {cell['lr_scale']:g}"
        which = "+".join(cell["corruptions"][:2])
        name = f"{cell['network']}, {cell['method']}{rate}, {cell['scenario']}, {which}, {cell['seed']}"
        lines.append(
            f"| {name} | {row['none']:.1f} | {plain['accuracy']:.1f} | {guarded['accuracy']:.1f}"
            f"{' collapsed' if guarded['collapsed'] else ''} | {guarded['accuracy'] - row['none']:+.1f} "
            f"| {guarded['first_alarm'] or '–'} | {_points(guarded['fall_before_alarm'])} |"
        )
    return "\n".join(lines)


def _points(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def benign_table(rows: list[Row]) -> str:
    """Batches, alarms and the gain kept, per network and scenario."""
    heads = ("network", "scenario", "streams", "batches", "looks", "alarms", "gain, points", "kept")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for network, scenario in sorted({(row["cell"]["network"], row["cell"]["scenario"]) for row in rows}):
        own = [row for row in rows if (row["cell"]["network"], row["cell"]["scenario"]) == (network, scenario)]
        both = [row for row in own if "plain" in row]
        gain, kept = (
            statistics.fmean(row[which]["accuracy"] - row["none"] for row in both) if both else math.nan
            for which in ("plain", "guarded")
        )
        lines.append(
            f"| {network} | {scenario} | {len(own)} | {sum(row['batches'] for row in own):,} "
            f"| {sum(row['guarded']['looks'] for row in own):,} | {sum(row['guarded']['alarms'] for row in own)} "
            f"| {gain:+.2f} | {kept:+.2f} |"
        )
    batches, raised = sum(row["batches"] for row in rows), sum(row["guarded"]["alarms"] for row in rows)
    share = 1e4 * raised / batches
    lines.append(f"\n{len(rows)} streams: {batches:,} batches, {raised} alarms, {share:.2f} in 10⁴ batches")
    return "\n".join(lines)


def tables(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    if journal is None:
        raise SystemExit("tables needs --journal FILE")
    rows = journal.rows
    if any("plain" in row and harmed(row) for row in rows):
        print(stopped_table(rows))
    own = [row for row in rows if row["cell"]["method"] == args.method]
    print(benign_table(own) if own else f"no row of {args.method}")


def draw_curves(row: Row, path: Path) -> None:
    """Accuracy along the stream, with a line where the guard first raised an alarm."""
    from wildtta.report.chart import Line, LineChart
    from wildtta.report.drawing import draw, standalone

    order = sorted(row["curves"].items(), key=lambda item: (item[0] != "not adapted", len(item[0])))
    # In class order pieces differ a lot: each point is the mean over the tenth of the stream that ends there.
    wide = max(1, len(row["curves"]["not adapted"]) // 10)
    lines = [
        Line(
            label=label,
            x=[PIECE * (k + 1) for k in range(wide - 1, len(values))],
            y=[statistics.fmean(values[k + 1 - wide : k + 1]) for k in range(wide - 1, len(values))],
            dashed=label == "not adapted",
        )
        for label, values in order
    ]
    first = row["guarded"]["first_alarm"]
    if first is not None:
        top = max(max(values) for values in row["curves"].values())
        lines.append(Line(label=f"first alarm, after {first:,} images", x=[first, first], y=[0, top], dashed=True))
    chart = LineChart(
        title="A collapse, and the same with a guard", x_label="images", y_label="accuracy, %", lines=lines
    )
    path.write_text(standalone(draw(chart)), encoding="utf-8")


def cost(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    import timm

    began = time.perf_counter()
    for network in args.networks:
        batches = [torch.randn(64, 3, 224, 224, device=args.device) for _ in range(4)]
        plain = math.nan
        for label, guard, age in (
            ("no guard", None, 0),
            ("guard that never looks", wildtta.Guard(shadow=1e-9), 0),
            (f"guard, first {FULL_SHARE_UNTIL:,} images", wildtta.Guard(), 0),
            ("guard, later", wildtta.Guard(), 1_000_000),
            ("no guard again", None, 0),
        ):
            if args.seconds is not None and time.perf_counter() - began > args.seconds:
                return
            # Steady without evidence learns from every batch: on random images it would rest.
            options = {"evidence": False} if args.method == "steady" else {}
            bare = timm.create_model(network).to(args.device).eval()
            _vary_answers(bare, torch.cat(batches))
            precision = args.precision or "tf32"
            model = wildtta.adapt(bare, args.method, precision=precision, guard=guard, lr=1e-9, **options)
            if guard is not None:
                model.guard.judge.images = age
            whole = guard is not None and age == 0 and guard.shadow > 1e-3
            number = FULL_SHARE_UNTIL // 64 if whole else args.steps
            times = [_timed(model, batches[step % 4]) for step in range(number)]
            times = times[RECORDING:] if whole else times[number // 4 :]
            mean = statistics.fmean(times)
            plain = mean if label == "no guard" else plain
            say(
                {
                    "network": network,
                    "guard": label,
                    "ms": mean,
                    "more_percent": 100 * (mean / plain - 1),
                    "median_ms": statistics.median(times),
                    "replayed": model.replayed,
                }
            )
            del model


@torch.no_grad()
def _vary_answers(network: Any, images: Tensor) -> None:
    """Take off the mean of the logits: a network without training gives one answer to all, which is a flood to a guard."""
    network.get_classifier().bias -= torch.cat([network(part) for part in images.split(64)]).mean(0)


def _timed(model: wildtta.Adapter, batch: Tensor) -> float:
    began = time.perf_counter()
    model(batch)
    if batch.is_cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = {"streams": streams, "false-alarms": false_alarms, "tables": tables, "cost": cost}
    parser.add_argument("what", choices=list(runs))
    parser.add_argument("--networks", nargs="+", help="of the glyphs, or testbed:NAME; of timm for cost")
    parser.add_argument("--testbed", type=Path)
    parser.add_argument("--atlas", type=Path, help="masks of the glyphs, where no fonts are installed")
    parser.add_argument("--shared", type=Path, help="folder in which processes leave each other images: made once")
    parser.add_argument("--pool", type=int, help="images to draw streams from (5,000; 3,000 for false-alarms)")
    parser.add_argument("--method", default="steady")
    parser.add_argument("--lr-scale", type=float, default=1.0)
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, help="(label_shift; all of them for false-alarms)")
    parser.add_argument("--corruptions", nargs="+", default=["all"])
    parser.add_argument("--severities", nargs="+", type=int, help="(5; 3 and 5 for false-alarms)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--images", type=int, default=20_000, help="of a stream, at most")
    parser.add_argument("--per-domain", type=int, help="images of each corruption where several follow each other")
    parser.add_argument("--draws", type=int, default=100, help="images of a class in a row in class order")
    parser.add_argument("--split", default="all", help="part of the images, as in wildtta bench")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=100_000, help="for false-alarms: of all networks together")
    parser.add_argument("--study", nargs="+", type=Path, help="journals: the streams that ended in one class")
    parser.add_argument("--study-methods", nargs="+", default=["tent", "sar"])
    parser.add_argument("--cut", type=int, help="with --study: cut streams off after so many images")
    parser.add_argument("--processes", type=int, default=1, help="streams at the same time")
    parser.add_argument("--seconds", type=float, help="begin nothing after so long, and leave what is unfinished then")
    parser.add_argument("--steps", type=int, default=120, help="for cost")
    parser.add_argument("--precision")
    parser.add_argument("--guarded-only", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--picture", type=Path, help="draw accuracy along the last stream as an SVG")
    parser.add_argument("--journal", type=Path, help="one line per finished stream; what is in it is not run again")
    args = parser.parse_args(argv)
    many = args.what == "false-alarms"
    args.networks = args.networks or (COSTED if args.what == "cost" else ["resnet_gn"])
    args.pool = args.pool or (3000 if many else 5000)
    args.scenarios = args.scenarios or (SCENARIOS if many else ("label_shift",))
    args.severities = args.severities or ([3, 5] if many else [5])
    print(f"$ python benchmarks/guard.py {shlex.join(argv or sys.argv[1:])}\ntorch {torch.__version__}", flush=True)
    with contextlib.nullcontext() if args.journal is None else Journal(args.journal, say=print) as journal:

        def say(row: Row) -> None:
            print(json.dumps(row), flush=True)
            if journal is not None and "key" in row:
                journal.append(row)

        runs[args.what](args, journal, say)


if __name__ == "__main__":
    main()
