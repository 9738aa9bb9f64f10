"""The library's own methods on the battery's streams: one process per network, one JSON line per cell.

    python battery.py <folder with data and weights/> <results.jsonl> --networks post128,bn64-five --part aside \
        --methods steady,tent,sar --seconds 90
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import warnings
from pathlib import Path

import torch
from grid import core_streams, domains_for, one_process_each, small_batches
from lab import Result, share_of_top
from networks import load
from torch import Tensor, nn
from train import normalised

import wildtta
from streams import Pool, Stream, load_pool

STREAMS = ("core", "small", "all")


def answers_of(network: nn.Module, method: str, pool: Pool, stream: Stream) -> tuple[Tensor, wildtta.Adapter]:
    """What ``method`` answers to each image of ``stream``."""
    adapter = wildtta.adapt(network, method, batch_size=stream.batch)
    given = []
    for at in range(0, len(stream.images), stream.batch):
        place = (torch.from_numpy(part[at : at + stream.batch]) for part in (stream.domains, stream.images))
        images = normalised(pool.pixels[tuple(part.to(pool.pixels.device) for part in place)])
        given.append(adapter(images).argmax(1))
    return torch.cat(given).cpu(), adapter


def one_network(name: str, options: argparse.Namespace) -> None:
    started = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    warnings.simplefilter("ignore")
    network = load(name, options.folder / "weights").to(device).eval()
    pool = load_pool(name, options.part, options.folder, domains_for(options.part), device)
    with torch.no_grad():
        bare = [[network(normalised(part)).argmax(1) for part in layer.split(500)] for layer in pool.pixels]
    source = torch.stack([torch.cat(parts).cpu() for parts in bare])
    classes = int(pool.labels.max()) + 1
    streams = []
    for seed in options.seeds:
        if options.streams in ("core", "all"):
            streams += core_streams(pool.labels, pool.names, options.part, options.length, seed)
        if options.streams in ("small", "all"):
            streams += small_batches(pool.labels, pool.names, options.part, seed)
    print(f"{name}: {len(streams)} streams, ready after {time.time() - started:.1f} s", flush=True)
    with options.out.open("a") as file:
        for stream in streams:
            for method in options.methods:
                if time.time() - started > options.seconds:
                    print(f"{name}: out of time at {stream.name}", flush=True)
                    return
                given, adapter = answers_of(network, method, pool, stream)
                network = adapter.unload()
                truth = pool.labels[torch.from_numpy(stream.images)]
                before = source[torch.from_numpy(stream.domains), torch.from_numpy(stream.images)]
                right, was = (given == truth).float() * 100, (before == truth).float() * 100
                fifth = len(given) - len(given) // 5
                tops = (share_of_top(labels[fifth:], classes) for labels in (given, before, truth))
                scores = (float(part.mean()) for part in (right, was, right[fifth:], was[fifth:]))
                cost = adapter.cost
                result = Result(
                    name,
                    method,
                    stream.name,
                    stream.scenario,
                    stream.batch,
                    len(given),
                    *scores,
                    *tops,
                    0.0,
                    cost.resets,
                )
                row = dataclasses.asdict(result) | {
                    "forwards": cost.computed_forwards / len(given),
                    "backwards": cost.computed_backwards / len(given),
                    "version": wildtta.__version__,
                }
                file.write(json.dumps(row) + "\n")
            file.flush()
    print(f"{name}: done after {time.time() - started:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--networks", required=True, type=lambda text: text.split(","))
    parser.add_argument("--methods", default=["steady", "tent", "sar"], type=lambda text: text.split(","))
    parser.add_argument("--part", default="choose")
    parser.add_argument("--seeds", default=[0], type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--streams", default="core", choices=STREAMS)
    parser.add_argument("--length", type=int, default=4_000)
    parser.add_argument("--seconds", type=float, default=90)
    options = parser.parse_args()
    if len(options.networks) == 1:
        one_network(options.networks[0], options)
        return
    shared = ["--methods", ",".join(options.methods), "--seeds", ",".join(map(str, options.seeds))]
    shared += ["--part", options.part, "--streams", options.streams]
    shared += ["--length", str(options.length), "--seconds", str(options.seconds)]
    one_process_each(__file__, options.folder, options.out, options.networks, shared)


if __name__ == "__main__":
    main()
