"""Images per second from files to normalised batches: decode + preprocess, by number of workers.

    python benchmarks/loading.py                              # 2,000 JPEGs of 224 x 224, made for the purpose
    python benchmarks/loading.py --data val.zip --protocol native
    python benchmarks/loading.py --device cuda --decoder gpu --workers 0 4 8 16

`images/s per worker` is the figure to compare with what an adapter consumes (batch size / seconds per batch):
as many workers as their quotient keep up with it. Worker start-up is left out: the clock starts at the first
batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from wildtta.data import ImageSet, Loader, folder


def make_photographs(root: Path, count: int, size: int) -> None:
    """JPEGs (quality 85, as ImageNet-C's) with the spectrum of photographs: amplitude ~ 1/frequency."""
    from PIL import Image

    generator = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = np.inf
    (root / "class").mkdir()
    for number in range(count):
        spectrum = np.fft.rfft2(generator.standard_normal((3, size, size))) / frequency
        image = np.fft.irfft2(spectrum, s=(size, size))
        image = 127 + 50 * (image - image.mean()) / image.std()
        pixels = image.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(root / "class" / f"{number:05d}.jpg", quality=85, optimize=True)


def images_per_second(images: ImageSet, workers: int, arguments: argparse.Namespace) -> float:
    """Throughput over the whole set, from the arrival of the first batch on."""
    loader = Loader(
        images,
        batch_size=arguments.batch_size,
        protocol=arguments.protocol,
        device=arguments.device,
        workers=workers,
        decoder=arguments.decoder,
    )
    batches = iter(loader)
    next(batches)
    begin = time.perf_counter()
    count = sum(len(labels) for _, labels in batches)
    if torch.device(arguments.device).type == "cuda":
        torch.cuda.synchronize()
    return count / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder, zip or tar with one folder per class")
    parser.add_argument("--protocol", default="paper")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--decoder", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--count", type=int, default=2000, help="images to make where no --data is given")
    parser.add_argument("--size", type=int, default=224, help="their height and width")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        if arguments.data is None:
            print(f"making {arguments.count} JPEGs of {arguments.size} x {arguments.size} ...", flush=True)
            make_photographs(Path(temporary), arguments.count, arguments.size)
        images = folder(arguments.data or temporary)
        print(
            f"{len(images)} images, batch {arguments.batch_size}, protocol {arguments.protocol}, {arguments.device}, "
            f"{arguments.decoder} decoder, {os.cpu_count()} cores"
        )
        print(f"{'workers':>8}{'images/s':>12}{'images/s per worker':>22}")
        for workers in arguments.workers:
            rate = images_per_second(images, workers, arguments)
            print(f"{workers:>8}{rate:>12,.0f}{rate / max(1, workers):>22,.0f}", flush=True)


if __name__ == "__main__":
    main()
