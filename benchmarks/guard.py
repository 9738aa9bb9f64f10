"""What the guard stops, what it costs, and how often it is wrong.

    python benchmarks/guard.py streams --network resnet_gn --method tent --lr-scale 12 --corruptions impulse_noise
    python benchmarks/guard.py streams --network testbed:vit --testbed FOLDER --method tent --corruptions glass_blur
    python benchmarks/guard.py cost --device cuda

``streams`` runs each stream three times: not adapted, adapted, adapted with a guard. It prints accuracies, the share of the most
predicted class over the last fifth, the guard's actions, and the deepest fall of a window of 1,000 images below no
adaptation before the first alarm. ``cost`` times a step of batch 64 without a guard, with one that never looks, and with the
default.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import wildtta
from pools import Pool, open_pool
from wildtta.corruptions import CORRUPTIONS
from wildtta.guard.judge import Decision, Look
from wildtta.metrics.collapse import collapsed
from wildtta.streams import Domain, Stream, build

WINDOW = 1000
PIECE = 400
SCENARIOS = ("mild", "label_shift", "continual", "continual_label_shift", "mixed")
Row = dict[str, Any]
Array = npt.NDArray[Any]


class StreamImages:
    """A stream's batches, from images that were corrupted once."""

    def __init__(self, pool: Pool, stream: Stream, corruptions: list[str], severity: int) -> None:
        self._pool = pool
        self._stream = stream
        self._layers = torch.stack([pool.corrupted(name, severity) for name in corruptions])
        self.labels = pool.labels.cpu().numpy()[stream.index]

    def __iter__(self) -> Iterator[Tensor]:
        size = self._stream.batch_size
        for start in range(0, len(self.labels), size):
            yield self._batch(self._stream.domain[start : start + size], self._stream.index[start : start + size])

    def _batch(self, domain: Array, index: Array) -> Tensor:
        return self._pool.prepare(self._layers[torch.from_numpy(domain), torch.from_numpy(index)])

    def not_adapted(self) -> Array:
        """The source network's answers along the stream; an image that comes again is answered once."""
        places = self._stream.domain * len(self._pool.labels) + self._stream.index
        kinds, back = np.unique(places, return_inverse=True)
        network = self._pool.build()
        found = []
        for part in np.array_split(kinds, -(-len(kinds) // 256)):
            with torch.no_grad():
                found.append(network(self._batch(*np.divmod(part, len(self._pool.labels)))).argmax(1).cpu().numpy())
        return np.concatenate(found)[back]


def answers(model: wildtta.Adapter, batches: StreamImages) -> Array:
    return np.concatenate([model(batch).argmax(1).cpu().numpy() for batch in batches])


def fall(adapted: Array, none: Array, until: int) -> float:
    """The deepest fall of accuracy over a window below no adaptation, in points, in windows that end by ``until``."""
    gap = np.concatenate([[0], np.cumsum(none.astype(int) - adapted.astype(int))])
    ends = np.arange(min(WINDOW, until), until + 1)
    return float(100 * (gap[ends] - gap[np.maximum(ends - WINDOW, 0)]).max() / WINDOW) if len(ends) else 0.0


def curve(right: Array) -> list[float]:
    """Accuracy of each piece of 400 images, in percent."""
    whole = len(right) // PIECE * PIECE
    return [round(100 * float(piece.mean()), 2) for piece in right[:whole].reshape(-1, PIECE)]


def draw_curves(row: Row, path: Path) -> None:
    """Accuracy along the stream, with a line where the guard first raised an alarm."""
    from wildtta.report.chart import Line, LineChart
    from wildtta.report.drawing import draw, standalone

    lines = [
        Line(label=label, x=[PIECE * (k + 1) for k in range(len(values))], y=values, dashed=label == "not adapted")
        for label, values in row["curves"].items()
    ]
    first = row["guarded"]["first_alarm"]
    if first is not None:
        top = max(max(values) for values in row["curves"].values())
        lines.append(Line(label=f"first alarm, after {first:,} images", x=[first, first], y=[0, top], dashed=True))
    chart = LineChart(
        title="A collapse, and the same with a guard", x_label="images", y_label="accuracy, %", lines=lines
    )
    path.write_text(standalone(draw(chart)), encoding="utf-8")


def run_stream(pool: Pool, scenario: str, corruptions: list[str], args: argparse.Namespace, seed: int) -> Row:
    options = {"draws": args.draws} if "label_shift" in scenario else {}
    domains = [Domain(name, args.severity) for name in corruptions]
    labels = pool.labels.cpu().numpy()
    stream = build(
        scenario,
        labels,
        domains=domains,
        severity=args.severity,
        batch_size=args.batch_size,
        seed=seed,
        limit=args.per_domain,
        **options,
    )
    stream = stream.first(min(args.images, len(stream)))
    batches = StreamImages(pool, stream, corruptions, args.severity)
    truth = batches.labels
    none = batches.not_adapted() == truth
    row: Row = {"scenario": scenario, "corruptions": corruptions, "seed": seed, "images": len(truth)}
    row["none"] = 100 * float(none.mean())
    row["curves"] = {"not adapted": curve(none)}
    for name, guard in (("plain", None), ("guarded", wildtta.Guard(audit=args.audit, seed=seed))):
        if name == "plain" and args.guarded_only:
            continue
        model = adapted_network(pool, args, guard)
        looks = recorded_looks(model) if guard is not None and args.looks is not None else []
        given = answers(model, batches)
        right = given == truth
        last = slice(-max(1, len(right) // 5), None)
        counts = np.bincount(given[last])
        top = float(counts.max() / counts.sum())
        true = float((truth[last] == counts.argmax()).mean())
        row["curves"][f"{args.method}{', guard' if guard else ''}"] = curve(right)
        row[name] = {
            "accuracy": 100 * float(right.mean()),
            "top_share": 100 * top,
            "collapsed": bool(collapsed(top, true, adapts=True)),
            "deepest_fall": fall(right, none, len(right)),
        }
        if guard is not None:
            up = [d for d in model.guard.decisions if d.action > 0 and d.evidence >= 1 / guard.false_alarms]
            first = min((d.images for d in up), default=None)
            row[name]["alarms"] = len(up)
            row[name]["looks"] = model.guard.judge.looks
            row[name]["first_alarm"] = first
            row[name]["fall_before_alarm"] = None if first is None else fall(right, none, first)
            row[name]["true_alarms"] = sum(fall(right, none, d.images) > 0 for d in up)
            if looks:
                write_looks(args.looks, row, looks)
            row[name]["actions"] = [[d.images, d.action.name.lower(), d.because] for d in model.guard.decisions]
    return row


def write_looks(path: Path, row: Row, looks: list[Look]) -> None:
    stream = f"{row['scenario']}/{'+'.join(row['corruptions'][:2])}/{row['seed']}"
    with path.open("a", encoding="utf-8") as file:
        for look in looks:
            lost = {name: [round(x, 3) for x in getattr(look, name)] for name in ("fresh", "remembered")}
            file.write(json.dumps({"stream": stream, "source": look.source, "adapted": look.adapted, **lost}) + "\n")


def recorded_looks(model: wildtta.Adapter) -> list[Look]:
    """Every look that the guard will judge, for judging them again in other ways."""
    judge, kept = model.guard.judge, []
    see = judge.see

    def seen(look: Look, *, can_return: bool) -> Decision | None:
        kept.append(look)
        return see(look, can_return=can_return)

    judge.see = seen  # type: ignore[method-assign]
    return kept


def adapted_network(pool: Pool, args: argparse.Namespace, guard: wildtta.Guard | None) -> wildtta.Adapter:
    options: dict[str, Any] = {"precision": args.precision} if args.precision else {}
    model = wildtta.adapt(pool.build(), args.method, batch_size=args.batch_size, guard=guard, **options)
    if args.lr_scale != 1:
        rate = model.learning_rate * args.lr_scale
        model = wildtta.adapt(model.unload(), args.method, lr=rate, batch_size=args.batch_size, guard=guard, **options)
    return model


def streams(args: argparse.Namespace, say: Callable[[Row], None]) -> None:
    pool = open_pool(args.network, args.pool, args.device, testbed=args.testbed, atlas=args.atlas)
    names = list(CORRUPTIONS)[:15] if args.corruptions == ["all"] else args.corruptions
    for scenario in args.scenarios:
        several = scenario in ("continual", "continual_label_shift", "mixed")
        for corruptions in [names] if several else [[name] for name in names]:
            for seed in args.seeds:
                began = time.perf_counter()
                row = run_stream(pool, scenario, corruptions, args, seed)
                if args.picture is not None:
                    draw_curves(row, args.picture)
                say({"network": args.network, "method": args.method, **row, "s": round(time.perf_counter() - began, 1)})


def cost(args: argparse.Namespace, say: Callable[[Row], None]) -> None:
    from torchvision.models import resnet50, vit_b_16

    networks = {"resnet50_gn": lambda: resnet50(norm_layer=lambda width: nn.GroupNorm(32, width)), "vit_b_16": vit_b_16}
    for name, build_network in networks.items():
        batches = [torch.randn(64, 3, 224, 224, device=args.device) for _ in range(4)]
        for label, guard in (
            ("no guard", None),
            ("no shadow", wildtta.Guard(shadow=1e-9)),
            ("guard", wildtta.Guard()),
            ("no guard again", None),
        ):
            network = build_network().to(args.device)
            model = wildtta.adapt(network, args.method, precision=args.precision or "tf32", lr=1e-9, guard=guard)
            times = [_timed(model, batches[step % 4]) for step in range(args.steps)][args.steps // 4 :]
            say({"network": name, "guard": label, "ms": statistics.fmean(times), "median_ms": statistics.median(times)})


def _timed(model: wildtta.Adapter, batch: Tensor) -> float:
    began = time.perf_counter()
    model(batch)
    if batch.is_cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("streams", "cost"))
    parser.add_argument("--network", default="resnet_gn")
    parser.add_argument("--testbed", type=Path)
    parser.add_argument("--atlas", type=Path, help="masks of the glyphs, where no fonts are installed")
    parser.add_argument("--pool", type=int, default=5000, help="images to draw streams from")
    parser.add_argument("--method", default="steady")
    parser.add_argument("--lr-scale", type=float, default=1.0)
    parser.add_argument("--scenarios", nargs="+", default=["label_shift"], choices=SCENARIOS)
    parser.add_argument("--corruptions", nargs="+", default=["all"])
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--per-domain", type=int, help="images of each corruption where several follow each other")
    parser.add_argument("--draws", type=int, default=100, help="images of a class in a row in class order")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="for cost")
    parser.add_argument("--precision")
    parser.add_argument("--guarded-only", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--picture", type=Path, help="draw accuracy along the last stream as an SVG")
    parser.add_argument("--looks", type=Path, help="append what every look saw, one line each")
    parser.add_argument("--json", type=Path, help="append one line per row")
    args = parser.parse_args(argv)
    print(f"$ python benchmarks/guard.py {shlex.join(argv or sys.argv[1:])}\ntorch {torch.__version__}", flush=True)

    def say(row: Row) -> None:
        print(json.dumps(row), flush=True)
        if args.json is not None:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    {"streams": streams, "cost": cost}[args.what](args, say)


if __name__ == "__main__":
    main()
