"""Runs a set of rules on the battery's streams: one process per network, results as one JSON line per cell.

    python grid.py <folder with data and weights/> <results.jsonl> --rules screen --networks gn64,vit128 --seconds 90

Sets of rules are in RULES. A process that runs out of time stops between groups of cells and keeps what it has.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from lab import BASELINES, INF, STEADY, TENT, ZEROSIAM, Cell, Copies, Rule, run, source_outputs
from networks import RECIPES, load, split_name

from streams import ASIDE, CHOOSE, CLEAN, Pool, Stream, domain, load_pool, make

PER_CORRUPTION = {"choose": ("gaussian_noise-3", "glass_blur-3", "fog-5", "pixelate-5")}
PER_CORRUPTION["aside"] = ("shot_noise-3", "motion_blur-3", "frost-5", "zoom_blur-5")
MOST_IMAGES = {"wide2048": 1_536, "resnet18": 4_096, "rn26_gn": 1_536, "rn26_bn": 1_536, "vit": 3_072}
"""Images in one pass: what a third of the GPU's memory holds."""

new = dataclasses.replace
GENTLE = Rule("gentle", (2.5e-3 / 64, 2.5e-3), (5e-3 / 64, 5e-3), entropy=1.0, momentum=0.0, below_top=True)
"""Entropy alone without momentum; rates linear in the batch size."""
SIAM_PULL = new(ZEROSIAM, name="siam+pull", pull=0.04)

SCREEN = (
    # What in 0.1 does the harm?
    new(STEADY, name="steady -R", redundancy=0.0),
    new(STEADY, name="steady -I", inequity=0.0),
    new(STEADY, name="steady -E", entropy=0.0),
    new(STEADY, name="steady -recovery", recovery=0.0),
    new(STEADY, name="steady bound/6", bound=0.3),
    # Other ideas.
    new(GENTLE, name="centred x4", entropy=4.0, centred=1.0, pull=0.02),
    new(GENTLE, name="entropy x4", entropy=4.0, pull=0.02),
    SIAM_PULL,
    new(GENTLE, name="recentre samples", entropy=0.0, recentre=1.0),
    new(GENTLE, name="recentre bank", entropy=0.0, recentre=1.0, recentre_bank=True),
    new(STEADY, name="rest", bound=INF, rest=4.0, step=0.004),
    new(STEADY, name="rest relative", bound=INF, rest=4.0, step=0.004, relative_terms=True, redundancy=1.0,
        inequity=1.0, entropy=1.0, recovery=0.0),
    new(STEADY, name="trust 0.02", trust=0.02, recovery=0.0),
    new(STEADY, name="spread", spread=1.0, recovery=0.0),
    new(STEADY, name="blend", blend=0.5),
    new(GENTLE, name="centred x16", entropy=16.0, centred=1.0, pull=0.02),
    new(STEADY, name="steady excess", excess=True),
)  # fmt: skip
BATCH_NORM = (
    new(GENTLE, name="bn 16", entropy=0.0, batch_statistics=False, bn_prior=16.0),
    new(GENTLE, name="bn 64", entropy=0.0, batch_statistics=False, bn_prior=64.0),
    new(GENTLE, name="bn 256", entropy=0.0, batch_statistics=False, bn_prior=256.0),
    new(GENTLE, name="bn 64, window 250", entropy=0.0, batch_statistics=False, bn_prior=64.0, bn_window=250.0),
    new(GENTLE, name="bn batch", entropy=0.0),
    new(TENT, name="tent source bn", batch_statistics=False),
    new(STEADY, name="steady source bn", batch_statistics=False),
    new(STEADY, name="steady bn 64", batch_statistics=False, bn_prior=64.0),
    new(ZEROSIAM, name="zerosiam source bn", batch_statistics=False),
    new(ZEROSIAM, name="zerosiam bn 64", batch_statistics=False, bn_prior=64.0),
)
CENTRED = new(GENTLE, name="centred x16", entropy=16.0, centred=1.0, pull=0.02)
EVIDENCE = {"gate": 0.08, "least_shift": 0.25, "recentre": 1.0}
REMEDIES = (
    CENTRED,
    new(CENTRED, name="centred gated", gate=0.08, gate_step=True),
    new(CENTRED, name="centred reliable", reliable=0.4, pull=0.04),
    new(CENTRED, name="centred x64", entropy=64.0),
    new(CENTRED, name="centred + recentre", **EVIDENCE),
    new(CENTRED, name="centred gated + recentre", gate_step=True, **EVIDENCE),
    new(STEADY, name="steady gated", gate=0.08, gate_step=True, recovery=0.0),
    new(STEADY, name="steady -R gated", gate=0.08, gate_step=True, recovery=0.0, redundancy=0.0),
    new(GENTLE, name="recentre evidence", entropy=0.0, **EVIDENCE),
)
BATCH_NORM_2 = (
    *(rule for rule in BATCH_NORM if not rule.learns),
    new(GENTLE, name="bn 16, choose", entropy=0.0, batch_statistics=False, bn_prior=16.0, choose=0.0),
    new(GENTLE, name="bn 16, choose 0.05", entropy=0.0, batch_statistics=False, bn_prior=16.0, choose=0.05),
    new(GENTLE, name="bn batch, choose", entropy=0.0, choose=0.0),
    new(
        GENTLE,
        name="bn 16, choose, recentre",
        entropy=0.0,
        batch_statistics=False,
        bn_prior=16.0,
        choose=0.0,
        **EVIDENCE,
    ),
    new(GENTLE, name="recentre evidence, source bn", entropy=0.0, batch_statistics=False, **EVIDENCE),
    new(CENTRED, name="centred x16, source bn", batch_statistics=False),
)
TESTBED = (STEADY, ZEROSIAM, CENTRED, new(STEADY, name="steady gated", gate=0.08, gate_step=True, recovery=0.0))
ON_SMALL_BATCHES = ("siam+pull", "centred x4", "recentre bank", "rest", "spread")
GATED = new(STEADY, name="steady 0.2", recovery=0.0, evidence=True, recentre=1.0, gate_step=True)
FIRST = {"error_limits": (0.15, 0.25), "error_weight": 2.0, "recentre_rows": 1.0, "boost": 1.0, "binary": True}
"""The evidence as it was first tried."""
TERMS = (
    new(GENTLE, name="recentring alone", entropy=0.0, evidence=True, recentre=1.0, **FIRST),
    new(GATED, name="E R I", **FIRST),
    new(GATED, name="R I", entropy=0.0, **FIRST),
    new(GATED, name="E I", redundancy=0.0, **FIRST),
    new(GATED, name="I", entropy=0.0, redundancy=0.0, **FIRST),
    new(GATED, name="centred E, I", redundancy=0.0, centred=1.0, **FIRST),
    new(GATED, name="E R/10 I", **FIRST | {"redundancy": 2e4}),
    new(GATED, name="E R I, no recentring", **FIRST | {"recentre": 0.0}),
    new(CENTRED, name="centred x16", evidence=True, recentre=1.0, gate_step=True, **FIRST),
    STEADY,
)
HALF = {"recentre_rows": 0.5, "binary": True}
VARIANTS = (
    GATED,
    new(GATED, name="rows 0.25", recentre_rows=0.25),
    new(GATED, name="rows 0.5, boost 1, two classes too", boost=1.0, **HALF),
    new(GATED, name="rows 0.5, boost 3, two classes too", boost=3.0, **HALF),
    new(GATED, name="rows 0.5, hold 1000, two classes too", boost=1.0, hold=1000.0, **HALF),
    new(GATED, name="pull 0.08, boost 3", pull=0.08, boost=3.0),
)


def by_stream(prior: float, window: float, choose: float, depth: float) -> Rule:
    """BatchNorm by the stream's statistics; ``choose`` = −1: always."""
    name = f"bn {prior:g}, {window:g}, choose {choose:g}, depth {depth:g}"
    statistics = {"bn_prior": prior, "bn_window": window, "bn_depth": depth}
    return new(GENTLE, name=name, entropy=0.0, batch_statistics=False, choose=choose, **statistics)


CHOICES = (
    *(by_stream(16, 1000, choose, 0.0) for choose in (0.0, 0.05, 0.1, 0.15, 0.2)),
    *(by_stream(16, 1000, choose, depth) for choose in (0.0, 0.02, 0.05) for depth in (0.5, 1.0, 2.0)),
    by_stream(16, 1000, 0.0, 4.0), by_stream(16, 1000, -1, 2.0), by_stream(16, 1000, -1, 4.0),
    by_stream(64, 1000, 0.1, 0.0), by_stream(4, 1000, 0.1, 0.0), by_stream(16, 300, 0.05, 0.0),
    new(GENTLE, name="bn batch", entropy=0.0),
)  # fmt: skip
ON_SMALL_BATCHES = (*ON_SMALL_BATCHES, GATED.name, by_stream(16, 1000, 0.0, 1.0).name)
RULES: dict[str, tuple[Rule, ...]] = {
    "screen": (*BASELINES, *SCREEN),
    "baselines": BASELINES,
    "rest": (TENT, STEADY, *SCREEN),
    "outputs": (),
    "remedies": REMEDIES,
    "batch-norm": BATCH_NORM_2,
    "testbed": TESTBED,
    "terms": TERMS,
    "variants": VARIANTS,
}


def domains_for(part: str) -> list[str]:
    """Every domain that the streams of a part need."""
    corruptions = CHOOSE if part == "choose" else ASIDE
    names = [CLEAN, *PER_CORRUPTION[part]]
    return names + [name for c in corruptions if (name := domain(c, 5)) not in names]


def core_streams(labels: torch.Tensor, names: list[str], part: str, length: int, seed: int = 0) -> list[Stream]:
    """Batches of 64: the core of the battery."""
    some = PER_CORRUPTION[part]

    def stream(scenario: str, on: str) -> Stream:
        return make(labels, names, scenario, on, length=length, seed=seed)

    streams = [stream(scenario, on) for on in some for scenario in ("shuffled", "order")]
    streams += [stream("short-order", on) for on in (some[0], some[2])]
    streams += [stream(scenario, "5") for scenario in ("mixture", "continual", "continual-order")]
    streams += [stream(scenario, CLEAN) for scenario in ("clean", "clean-order", "clean-one-class")]
    return streams + [stream(scenario, some[2]) for scenario in ("one-class", "comes-and-goes")]


def small_batches(labels: torch.Tensor, names: list[str], part: str, seed: int = 0) -> list[Stream]:
    """Batches of 1, 4 and 16, on shorter streams."""
    some = PER_CORRUPTION[part]
    asked = [("single", some[0], 1_024, 1), ("single", some[2], 1_024, 1), ("order", some[2], 1_024, 1)]
    asked += [(scenario, some[2], 2_048, 4) for scenario in ("four", "order")]
    asked += [(scenario, some[2], 4_000, 16) for scenario in ("sixteen", "order")]
    return [make(labels, names, s, on, length=length, batch=batch, seed=seed) for s, on, length, batch in asked]


def one_network(
    name: str, folder: Path, out: Path, rules: str, part: str, length: int, seconds: float, small: bool = True
) -> None:
    started = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    recipe = RECIPES[split_name(name)[0]]
    copies = Copies(load(name, folder / "weights"), recipe.transformer, device)
    pool = load_pool(name, part, folder, domains_for(part), device)
    chosen = list(RULES[rules])
    if copies.batch_norms and rules in ("screen", "rest"):
        chosen = [rule for rule in chosen if rule in BASELINES] + list(BATCH_NORM)
    if copies.batch_norms and rules in ("terms", "variants"):
        chosen = list(CHOICES)
    if rules in ("outputs", "rest"):
        save_outputs(copies, pool, out.with_name(f"{name}.outputs.pt"))
    streams = core_streams(pool.labels, pool.names, part, length)
    if recipe.testbed:
        few_names = (
            "shuffled/fog-5/0",
            "order/fog-5/0",
            "order/gaussian_noise-3/0",
            "mixture/5/0",
            "continual-order/5/0",
            "clean/clean/0",
            "clean-order/clean/0",
            "short-order/fog-5/0",
            "continual/5/0",
        )
        streams = [stream for stream in streams if stream.name in few_names]
    most = MOST_IMAGES.get(split_name(name)[0], 3_072)
    print(f"{name}: ready after {time.time() - started:.1f} s", flush=True)
    few = [rule for rule in chosen if rule in BASELINES or rule.name in ON_SMALL_BATCHES or rule in BATCH_NORM]
    if copies.batch_norms:
        streams += [
            make(pool.labels, pool.names, "one-class", on, seed=k) for k in (1, 2) for on in PER_CORRUPTION[part][::2]
        ]
    first = [Cell(rule, stream) for rule in chosen for stream in streams]
    second = [Cell(rule, s) for rule in few for s in small_batches(pool.labels, pool.names, part)]
    with out.open("w") as file:
        for cells, share in ((first, 0.7), (second, 1.0)) if small else ((first, 1.0),):
            for result in run(copies, name, pool, cells, most=most, deadline=started + share * seconds):
                file.write(json.dumps(dataclasses.asdict(result)) + "\n")
            file.flush()
    print(f"{name}: done after {time.time() - started:.1f} s", flush=True)


def save_outputs(copies: Copies, pool: Pool, path: Path) -> None:
    """The unadapted network's logits for every image of every domain: rules without gradients need nothing else."""
    logits = source_outputs(copies, pool).half().cpu()
    torch.save({"names": pool.names, "logits": logits, "labels": pool.labels}, path)


def one_process_each(script: str, folder: Path, out: Path, names: Sequence[str], options: Sequence[str]) -> None:
    """Run ``script`` once per network, all at once, and append what each wrote to ``out``."""
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    pieces = [out.with_suffix(f".{name}.part") for name in names]
    children = []
    for name, piece in zip(names, pieces, strict=True):
        command = [sys.executable, script, str(folder), str(piece), "--networks", name, *options]
        children.append(subprocess.Popen(command, env=environment))
    for child in children:
        child.wait()
    with out.open("a") as file:
        for piece in pieces:
            if piece.exists():
                file.write(piece.read_text())
                piece.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--networks", required=True)
    parser.add_argument("--rules", default="baselines")
    parser.add_argument("--part", default="choose")
    parser.add_argument("--length", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--no-small", action="store_true", help="batches of 64 alone")
    o = parser.parse_args()
    names = o.networks.split(",")
    if len(names) == 1:
        one_network(names[0], o.folder, o.out, o.rules, o.part, o.length, o.seconds, not o.no_small)
        return
    shared = ["--rules", o.rules, "--part", o.part, "--length", str(o.length), "--seconds", str(o.seconds)]
    shared += ["--no-small"] if o.no_small else []
    one_process_each(__file__, o.folder, o.out, names, shared)


if __name__ == "__main__":
    main()
