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
until there were so many batches. Where an alarm is raised the stream runs without the guard too; where none is, the guard
changes no number (a test says so), so what is gained is kept. ``--replays 20`` lets 20 more guards with other draws judge each
stream's answers, without the comparison on remembered images: the chance in the guard's promise is that of its draws.

``cost`` times a step of batch 64 without a guard, with one that never looks, and with the default, at the start of its life
(where it looks at every image, then at fewer and fewer) and after a million images.

With ``--journal`` a finished stream is not run again: break off and give the same command to go on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import wildtta
from guarded_streams import PIECE, SCENARIOS, SEVERAL, Row, Setting, run_stream
from pools import Pool, open_pool
from wildtta.bench.journal import Journal
from wildtta.corruptions import CORRUPTIONS

FIFTEEN = tuple(CORRUPTIONS)[:15]
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
                    batch_size=args.batch_size,
                    lr_scale=args.lr_scale,
                    precision=args.precision,
                )


class Pools:
    """The images of each network, opened once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._open: dict[str, Pool] = {}

    def __getitem__(self, network: str) -> Pool:
        args = self._args
        if network not in self._open:
            self._open[network] = open_pool(network, args.pool, args.device, testbed=args.testbed, atlas=args.atlas)
        return self._open[network]


def streams(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    pools = Pools(args)
    finished = set() if journal is None else journal.finished()
    for setting in settings(args):
        if setting.key in finished:
            continue
        began = time.perf_counter()
        guard = wildtta.Guard(audit=args.audit, seed=setting.seed)
        row = run_stream(pools[setting.network], setting, guard, plain=not args.guarded_only)
        if args.picture is not None:
            draw_curves(row, args.picture)
        say({**row, "s": round(time.perf_counter() - began, 1)})


def false_alarms(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    """Streams of all networks in an order of chance, the same one every time, until there were enough batches."""
    pools = Pools(args)
    known = {} if journal is None else {row["key"]: row for row in journal.rows}
    chosen = list(settings(args))
    random.Random(0).shuffle(chosen)
    batches = sum(judged(known[setting.key]) for setting in chosen if setting.key in known)
    for setting in chosen:
        if setting.key in known or batches >= args.batches:
            continue
        began = time.perf_counter()
        row = run_stream(
            pools[setting.network], setting, wildtta.Guard(seed=setting.seed), plain=None, replays=args.replays
        )
        batches += judged(row)
        say({**row, "s": round(time.perf_counter() - began, 1)})
    if batches < args.batches:
        print(f"only {batches:,} of {args.batches:,} batches; give more --seeds", flush=True)


def judged(row: Row) -> int:
    """Batches that a guard has judged, those of the replays included."""
    number: int = row["batches"] * (1 + row["replays"])
    return number


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
        gain = statistics.fmean(row["plain"]["accuracy"] - row["none"] for row in own)
        kept = statistics.fmean(row["guarded"]["accuracy"] - row["none"] for row in own)
        lines.append(
            f"| {network} | {scenario} | {len(own)} | {sum(row['batches'] for row in own):,} "
            f"| {sum(row['guarded']['looks'] for row in own):,} | {sum(row['guarded']['alarms'] for row in own)} "
            f"| {gain:+.2f} | {kept:+.2f} |"
        )
    batches, raised = sum(row["batches"] for row in rows), sum(row["guarded"]["alarms"] for row in rows)
    again, replayed = sum(map(judged, rows)) - batches, sum(row["replayed_alarms"] for row in rows)
    share = 1e4 * (raised + replayed) / (batches + again)
    lines.append(
        f"\n{len(rows)} streams: {batches:,} batches, {raised} alarms; judged again with other draws: {again:,} batches, "
        f"{replayed} alarms; together {share:.2f} in 10⁴ batches"
    )
    return "\n".join(lines)


def tables(args: argparse.Namespace, journal: Journal | None, say: Say) -> None:
    if journal is None:
        raise SystemExit("tables needs --journal FILE")
    rows = [row for row in journal.rows if "plain" in row]
    if any(map(harmed, rows)):
        print(stopped_table(rows))
    own = [row for row in rows if row["cell"]["method"] == args.method]
    print(benign_table(own) if own else f"no row of {args.method}")


def draw_curves(row: Row, path: Path) -> None:
    """Accuracy along the stream, with a line where the guard first raised an alarm."""
    from wildtta.report.chart import Line, LineChart
    from wildtta.report.drawing import draw, standalone

    order = sorted(row["curves"].items(), key=lambda item: (item[0] != "not adapted", len(item[0])))
    lines = [
        Line(label=label, x=[PIECE * (k + 1) for k in range(len(values))], y=values, dashed=label == "not adapted")
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
    from torchvision.models import resnet50, vit_b_16

    networks = {"resnet50_gn": lambda: resnet50(norm_layer=lambda width: nn.GroupNorm(32, width)), "vit_b_16": vit_b_16}
    for name, build_network in networks.items():
        batches = [torch.randn(64, 3, 224, 224, device=args.device) for _ in range(4)]
        for label, guard, age in (
            ("no guard", None, 0),
            ("no shadow", wildtta.Guard(shadow=1e-9), 0),
            ("guard, at the start", wildtta.Guard(), 0),
            ("guard", wildtta.Guard(), 1_000_000),
            ("no guard again", None, 0),
        ):
            network = build_network().to(args.device)
            model = wildtta.adapt(network, args.method, precision=args.precision or "tf32", lr=1e-9, guard=guard)
            if guard is not None:
                model.guard.judge.images = age
            times = [_timed(model, batches[step % 4]) for step in range(args.steps)][args.steps // 4 :]
            print(
                json.dumps(
                    {
                        "network": name,
                        "guard": label,
                        "ms": statistics.fmean(times),
                        "median_ms": statistics.median(times),
                    }
                ),
                flush=True,
            )


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
    parser.add_argument("--networks", nargs="+", default=["resnet_gn"], help="of the glyphs, or testbed:NAME")
    parser.add_argument("--testbed", type=Path)
    parser.add_argument("--atlas", type=Path, help="masks of the glyphs, where no fonts are installed")
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
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=100_000, help="for false-alarms: of all networks together")
    parser.add_argument("--replays", type=int, default=0, help="for false-alarms: more guards that judge each stream")
    parser.add_argument("--steps", type=int, default=200, help="for cost")
    parser.add_argument("--precision")
    parser.add_argument("--guarded-only", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--picture", type=Path, help="draw accuracy along the last stream as an SVG")
    parser.add_argument("--journal", type=Path, help="one line per finished stream; what is in it is not run again")
    args = parser.parse_args(argv)
    many = args.what == "false-alarms"
    args.pool = args.pool or (3000 if many else 5000)
    args.scenarios = args.scenarios or (SCENARIOS if many else ("label_shift",))
    args.severities = args.severities or ([3, 5] if many else [5])
    print(f"$ python benchmarks/guard.py {shlex.join(argv or sys.argv[1:])}\ntorch {torch.__version__}", flush=True)
    with contextlib.nullcontext() if args.journal is None else Journal(args.journal, say=print) as journal:

        def say(row: Row) -> None:
            print(json.dumps(row), flush=True)
            if journal is not None:
                journal.append(row)

        runs[args.what](args, journal, say)


if __name__ == "__main__":
    main()
