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
RULES: dict[str, tuple[Rule, ...]] = {
    "screen": (*BASELINES, *SCREEN),
    "baselines": BASELINES,
    "rest": (TENT, STEADY, *SCREEN),
    "outputs": (),
    "remedies": REMEDIES,
    "batch-norm": BATCH_NORM_2,
    "testbed": TESTBED,
}


def domains_for(part: str) -> list[str]:
    """Every domain that the streams of a part need."""
    corruptions = CHOOSE if part == "choose" else ASIDE
    names = [CLEAN, *PER_CORRUPTION[part]]
    return names + [name for c in corruptions if (name := domain(c, 5)) not in names]


def core_streams(labels: torch.Tensor, names: list[str], part: str, length: int) -> list[Stream]:
    """Batches of 64: the core of the battery."""
    some = PER_CORRUPTION[part]
    streams = [make(labels, names, s, on, length=length) for on in some for s in ("shuffled", "order")]
    streams += [make(labels, names, "short-order", on, length=length) for on in (some[0], some[2])]
    streams += [make(labels, names, s, "5", length=length) for s in ("mixture", "continual", "continual-order")]
    streams += [make(labels, names, s, CLEAN, length=length) for s in ("clean", "clean-order", "clean-one-class")]
    streams += [make(labels, names, s, some[2], length=length) for s in ("one-class", "comes-and-goes")]
    return streams


def small_batches(labels: torch.Tensor, names: list[str], part: str) -> list[Stream]:
    """Batches of 1, 4 and 16, on shorter streams."""
    some = PER_CORRUPTION[part]
    singles = [make(labels, names, "single", on, length=1_024, batch=1) for on in (some[0], some[2])]
    singles += [make(labels, names, "order", some[2], length=1_024, batch=1)]
    fours = [make(labels, names, s, some[2], length=2_048, batch=4) for s in ("four", "order")]
    return singles + fours + [make(labels, names, s, some[2], length=4_000, batch=16) for s in ("sixteen", "order")]


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
        )
        streams = [stream for stream in streams if stream.name in few_names]
    most = MOST_IMAGES.get(split_name(name)[0], 3_072)
    print(f"{name}: ready after {time.time() - started:.1f} s", flush=True)
    few = [rule for rule in chosen if rule in BASELINES or rule.name in ON_SMALL_BATCHES or rule in BATCH_NORM]
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
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    pieces = [o.out.with_suffix(f".{name}.part") for name in names]
    children = []
    for name, piece in zip(names, pieces, strict=True):
        command = [sys.executable, __file__, str(o.folder), str(piece), "--networks", name, *shared]
        children.append(subprocess.Popen(command, env=environment))
    for child in children:
        child.wait()
    with o.out.open("a") as file:
        for piece in pieces:
            if piece.exists():
                file.write(piece.read_text())
                piece.unlink()


if __name__ == "__main__":
    main()
