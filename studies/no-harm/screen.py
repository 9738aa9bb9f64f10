"""Settings of the library's own methods on the battery's streams: many processes on one GPU, one JSON line per cell.

    python screen.py pools data /tmp/pools --part choose              # every domain corrupted once, one process each
    python screen.py run data /tmp/pools screen.jsonl --settings settings.toml --networks gn64,vit --workers 14
    python screen.py run data /tmp/pools battery.jsonl --methods steady,tent,sar --networks post128 --part aside

A setting is a table of options for `wildtta.adapt`, its `method` among them (`steady` where it has none), and
`evidence.NAME` for a constant of methods/steady/evidence.py that is to be tried with another value.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tomllib
import torch
from grid import core_streams, domains_for, small_batches
from networks import RECIPES, split_name
from prepare import load_images
from scoring import answers, prepared, row

import wildtta
from streams import CLEAN, SEEDS, Pool, Stream, continual_runs, limited_pool, make, some_classes
from wildtta.corruptions import corrupt
from wildtta.methods.steady import evidence

DATA = ("cifar", "tiny")


def write_pool(data: Path, pools: Path, source: str, part: str, name: str) -> None:
    """Images of one part under one domain, as an array on disk."""
    torch.set_num_threads(1)
    images, _ = load_images(data / f"{source}_{part}.npz")
    if name != CLEAN:
        corruption, severity = name.rsplit("-", 1)
        images = corrupt(images, corruption, int(severity), seed=SEEDS[part], index=np.arange(len(images)))
    np.save(pools / f"{source}-{part}-{name}.npy", images.numpy())


def write_pools(data: Path, pools: Path, part: str, workers: int) -> None:
    pools.mkdir(parents=True, exist_ok=True)
    known = [source for source in DATA if (data / f"{source}_{part}.npz").exists()]
    tasks = [(data, pools, source, part, name) for source in known for name in domains_for(part)]
    with multiprocessing.get_context("spawn").Pool(workers) as processes:
        processes.starmap(write_pool, tasks, chunksize=1)


def read_pool(network: str, data: Path, pools: Path, part: str, device: str) -> Pool:
    """What ``write_pools`` wrote, of the classes that ``network`` has."""
    recipe = RECIPES[split_name(network)[0]]
    source = "tiny" if recipe.testbed else "cifar"
    _, labels = load_images(data / f"{source}_{part}.npz")
    names = domains_for(part)
    pixels = np.stack([np.load(pools / f"{source}-{part}-{name}.npy", mmap_mode="r") for name in names])
    return limited_pool(network, names, torch.from_numpy(pixels), labels, device)


def streams_for(network: str, pool: Pool, part: str, seed: int) -> list[Stream]:
    """The core for few classes; for 200 longer streams, and streams of few of the classes."""
    if not RECIPES[split_name(network)[0]].testbed or "@" in network:
        return (
            core_streams(pool.labels, pool.names, part, 4_000, seed)
            + small_batches(pool.labels, pool.names, part, seed)[:2]
        )
    noise, fog = ("gaussian_noise-5", "fog-5") if part == "choose" else ("shot_noise-5", "frost-5")

    def stream(scenario: str, on: str, length: int, batch: int = 64) -> Stream:
        return make(pool.labels, pool.names, scenario, on, length=length, batch=batch, seed=seed)

    return [
        stream("clean-order", CLEAN, 8_000),
        stream("order", fog, 8_000),
        stream("order", noise, 8_000),
        stream("mixture", "5", 8_000),
        continual_runs(pool, 5, 13, seed),
        stream("shuffled", fog, 4_000),
        stream("shuffled", noise, 4_000),
        stream("clean", CLEAN, 4_000),
        *(some_classes(pool, on, 10, 4_000, 2 * seed + k) for k in range(2) for on in (CLEAN, fog, noise)),
        *(some_classes(pool, on, 1, 2_560, 2 * seed + k) for k in range(2) for on in (CLEAN, fog)),
        stream("single", fog, 1_000, 1),
        stream("single", noise, 1_000, 1),
    ]


def adapted_with(setting: dict[str, Any], network: torch.nn.Module, batch: int) -> wildtta.Adapter:
    options = {key: value for key, value in setting.items() if not key.startswith("evidence.")}
    for key, value in DEFAULTS.items():
        setattr(evidence, key, value)
    for key, value in setting.items():
        if key.startswith("evidence."):
            setattr(evidence, key.removeprefix("evidence."), tuple(value) if isinstance(value, list) else value)
    options = {key: None if value == "null" else value for key, value in options.items()}
    return wildtta.adapt(network, options.pop("method", "steady"), batch_size=batch, **options)


DEFAULTS = {key: value for key, value in vars(evidence).items() if key.startswith("_") and key[1:].isupper()}


def cells(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One network with one setting on all of its streams."""
    name, part = task["network"], task["part"]
    pool = read_pool(name, task["data"], task["pools"], part, task["device"])
    subject = prepared(name, pool, task["data"] / "weights", task["device"])
    adapter, size = None, 0
    for stream in (s for seed in task["seeds"] for s in streams_for(name, pool, part, seed)):
        if time.time() > task["until"]:
            return
        strengths: list[float] = []

        def watch(at: int, adapter: wildtta.Adapter, into: list[float] = strengths) -> None:
            if at % 512 == 0 and (strength := adapter.last.strength) is not None:
                into.append(round(float(strength), 2))

        if adapter is not None and size == stream.batch:  # a new one would be compiled and recorded again
            adapter.reset()
        else:
            network = subject.network if adapter is None else adapter.unload()
            adapter, size = adapted_with(task["setting"], network, stream.batch), stream.batch
        given = answers(adapter, pool, stream, watch)
        yield row(subject, stream, task["name"], given, adapter) | {"strengths": strengths}


def work(tasks: Any, out: Path, place: int) -> None:
    """A process: takes tasks until there are none."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with out.with_suffix(f".{place}.part").open("w") as file:
        while (task := tasks.get()) is not None:
            started = time.time()
            try:
                for cell in cells(task):
                    file.write(json.dumps(cell) + "\n")
                    file.flush()
            except Exception as error:  # one setting that fails must not stop the others
                print(f"{task['network']}, {task['name']}: {type(error).__name__}: {error}", flush=True)
            print(f"{task['network']}, {task['name']}: {time.time() - started:.0f} s", flush=True)


def run_all(options: argparse.Namespace) -> None:
    settings: dict[str, Any] = {name: {"method": name} for name in options.methods}
    if options.settings is not None:
        settings |= tomllib.loads(options.settings.read_text())
    chosen = options.names.split(",") if options.names else list(settings)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    until = time.time() + options.seconds
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for network in options.networks.split(","):
        for name in chosen:
            queue.put(
                {"network": network, "name": name, "setting": settings[name], "part": options.part, "until": until,
                 "data": options.data, "pools": options.pools, "device": device, "seeds": options.seeds}
            )  # fmt: skip
    for _ in range(options.workers):
        queue.put(None)
    processes = [context.Process(target=work, args=(queue, options.out, place)) for place in range(options.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with options.out.open("a") as file:
        for place in range(options.workers):
            piece = options.out.with_suffix(f".{place}.part")
            file.write(piece.read_text())
            piece.unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("pools", "run"))
    parser.add_argument("data", type=Path)
    parser.add_argument("pools", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--settings", type=Path)
    parser.add_argument("--methods", default=[], type=lambda text: text.split(","), help="methods as they are")
    parser.add_argument("--names")
    parser.add_argument("--networks")
    parser.add_argument("--part", default="choose")
    parser.add_argument("--seeds", default=[0], type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=150)
    options = parser.parse_args()
    if options.what == "pools":
        write_pools(options.data, options.pools, options.part, options.workers)
    else:
        run_all(options)


if __name__ == "__main__":
    main()
