"""Images per second of every corruption, on tensors that are already on the device.

    python benchmarks/corruptions.py                                  # one CPU core, 224 x 224
    python benchmarks/corruptions.py --device cuda --batch 64 --json corruptions.json

One line per corruption: the rate over all severities asked for, that of the slowest severity, and the rate of
the official scripts on one core (recorded on another machine: orientation, not a contest). On a GPU the last
line counts the corruptions whose slowest severity exceeds 1,400 images/s, the official scripts' fastest.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt

OFFICIAL_FASTEST = 1400.0
OFFICIAL_RATES = {
    224: (160, 70, 167, 170, 0.7, 10, 8, 14, 128, 234, 34, 345, 18, 1219, 1398),
    64: (2125, 785, 2225, 1430, 13, 147, 60, 155, 134, 891, 353, 4180, 314, 7061, 3229),
}
"""Images/s of the official scripts on one core, in the order of ``CORRUPTIONS``."""


def pictures(count: int, size: int) -> Tensor:
    """uint8 images with the spectrum of photographs: amplitudes fall as 1/frequency."""
    generator = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = np.inf
    fields = np.fft.irfft2(np.fft.rfft2(generator.standard_normal((count, 3, size, size))) / frequency, s=(size, size))
    fields = 127 + 60 * fields / fields.std()
    return torch.from_numpy(fields.clip(0, 255).astype(np.uint8))


def seconds_per_batch(images: Tensor, corruption: str, severity: int, budget: float) -> float:
    """Median over repetitions that fill ``budget`` seconds, after one that warms up."""

    def once() -> float:
        if images.is_cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        corrupt(images, corruption, severity)
        if images.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    once()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 200):
        times.append(once())
    return float(np.median(times))


def measure(images: Tensor, corruption: str, severities: list[int], budget: float) -> dict[str, object]:
    per_severity = {
        severity: len(images) / seconds_per_batch(images, corruption, severity, budget) for severity in severities
    }
    rate = len(per_severity) / sum(1.0 / value for value in per_severity.values())
    return {
        "corruption": corruption,
        "images_per_second": rate,
        "slowest": min(per_severity.values()),
        "per_severity": per_severity,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--severities", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--corruption", nargs="+", default=list(CORRUPTIONS + EXTRA_CORRUPTIONS))
    parser.add_argument("--seconds", type=float, default=0.3, help="time to measure each severity for")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images = pictures(arguments.batch, arguments.size).to(arguments.device)
    on_gpu = images.is_cuda
    machine = (
        torch.cuda.get_device_name(images.device) if on_gpu else f"{platform.machine()}, {arguments.threads} thread(s)"
    )
    print(
        f"{machine}; torch {torch.__version__}; batch {arguments.batch}, {arguments.size} x {arguments.size}; images/s"
    )
    print(f"{'corruption':<18} {'all':>9} {'slowest':>9} {'official':>9}")
    official = dict(zip(CORRUPTIONS, OFFICIAL_RATES.get(arguments.size, ()), strict=False))
    rows = []
    for corruption in arguments.corruption:
        row = measure(images, corruption, arguments.severities, arguments.seconds)
        rows.append(row)
        reference = f"{official[corruption]:>9}" if corruption in official else f"{'-':>9}"
        print(f"{corruption:<18} {row['images_per_second']:>9.0f} {row['slowest']:>9.0f} {reference}", flush=True)
    if on_gpu:
        chosen = [row for row in rows if row["corruption"] in CORRUPTIONS]
        fast = [row for row in chosen if float(str(row["slowest"])) > OFFICIAL_FASTEST]
        memory = torch.cuda.max_memory_allocated() / 2**30
        print(f"{len(fast)} of {len(chosen)} above {OFFICIAL_FASTEST:.0f} images/s; peak memory {memory:.1f} GiB")
    if arguments.json is not None:
        settings = {key: getattr(arguments, key) for key in ("device", "size", "batch", "severities", "threads")}
        content = {"machine": machine, "torch": torch.__version__, **settings, "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
