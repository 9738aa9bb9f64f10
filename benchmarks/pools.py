"""Networks with images that the guard is measured on: the embedded glyphs, or a testbed folder as in studies/tiny-imagenet."""

from __future__ import annotations

import importlib.util
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.bench.streaming import split_positions
from wildtta.corruptions import corrupt
from wildtta.glyphs import NETWORKS, Glyphs, load_atlas, network
from wildtta.glyphs.networks import normalise

_AT_ONCE = 500
"""Images that are corrupted together."""


def kept_in(file: Path | None, make: Callable[[], Tensor], device: str | torch.device) -> Tensor:
    """The tensor of ``file``, or what ``make`` gives, which is then kept there for other processes."""
    if file is None:
        return make()
    if not file.exists():
        made = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        own = file.with_suffix(f".{os.getpid()}")  # a file that is there is whole
        torch.save(made.cpu(), own)
        own.replace(file)
        return made
    return torch.load(file, map_location=device, weights_only=True)


@dataclass
class Pool:
    """Clean uint8 images with labels, and how a network takes them."""

    build: Callable[[], nn.Module]
    images: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor]
    index: npt.NDArray[np.int64] | None = None
    """Positions in the whole set, where this is a part of it: an image is corrupted in the same way in every part."""
    shared: Path | None = None
    """Beginning of the names of files that hold corrupted images for all processes."""
    _known: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)

    def corrupted(self, corruption: str, severity: int, *, seed: int = 0) -> Tensor:
        """Every image, uint8; ``clean`` leaves it as it is."""
        if corruption == "clean":
            return self.images
        key = corruption, severity, seed
        if key not in self._known:
            index = np.arange(len(self.images)) if self.index is None else self.index
            parts = [slice(start, start + _AT_ONCE) for start in range(0, len(index), _AT_ONCE)]

            def made() -> Tensor:
                return torch.cat(
                    [corrupt(self.images[part], corruption, severity, seed=seed, index=index[part]) for part in parts]
                )

            self._known[key] = kept_in(_file(self.shared, f"{corruption}-{severity}-{seed}"), made, self.images.device)
        return self._known[key]

    def part(self, split: str) -> Pool:
        """The images of a part of the set (as ``wildtta bench`` cuts it)."""
        if split == "all":
            return self
        kept = split_positions(self.labels.cpu().numpy(), split)
        at = torch.from_numpy(kept).to(self.labels.device)
        shared = None if self.shared is None else self.shared.with_name(f"{self.shared.name}-{split}")
        return Pool(self.build, self.images[at], self.labels[at], self.prepare, kept, shared)

    def limits(self, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
        """Lowest and highest value of a pixel and ``epsilon`` (of 0 to 255) in the network's units, each [1, 3, 1, 1]."""
        black = torch.zeros((1, 3, 1, 1), dtype=torch.uint8, device=self.images.device)
        low, high = self.prepare(black), self.prepare(black + 255)
        return low, high, (high - low) * epsilon / 255


def open_pool(
    name: str,
    number: int,
    device: str,
    *,
    testbed: Path | None = None,
    part: str = "val",
    seed: int = 0,
    atlas: Path | None = None,
    shared: Path | None = None,
) -> Pool:
    """``number`` images for a network: ``resnet_gn`` and ``vit`` are the glyphs', ``testbed:NAME`` is one of the testbed.

    Args:
        name: of the network.
        number: of images; the glyphs have any number, the testbed's archives have as many as they have.
        device: where everything lies.
        testbed: a folder with ``load.py``, ``val.zip`` and ``source.zip``.
        part: the archive of the testbed, ``val`` or ``source``.
        seed: of the glyphs' images.
        atlas: file of the glyphs' masks (``wildtta train-glyphs --export-atlas``), where no fonts are installed.
        shared: a folder in which processes leave images for each other, clean and corrupted: they are made once.
    """
    if name in NETWORKS:
        glyphs = Glyphs(number, seed=seed, atlas=None if atlas is None else load_atlas(atlas))
        own = None if shared is None else shared / f"glyphs-{number}-{seed}"
        images = kept_in(_file(own, "clean"), lambda: glyphs.images(np.arange(number)), device).to(device)
        labels = torch.from_numpy(glyphs.labels).to(device)
        return Pool(lambda: network(name).to(device), images, labels, normalise, shared=own)
    if not name.startswith("testbed:") or testbed is None:
        known = ", ".join(NETWORKS)
        raise ValueError(f"expected a network of {known}, or testbed:NAME with --testbed FOLDER, got {name!r}")
    spec = importlib.util.spec_from_file_location("testbed_load", testbed / "load.py")
    assert spec is not None
    assert spec.loader is not None
    load = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(load)
    images, labels = _archive(testbed / f"{part}.zip", number)
    build = load.classifier
    return Pool(
        lambda: build(name.split(":", 1)[1]).to(device),
        images.to(device),
        labels.to(device),
        load.preprocess,
        shared=None if shared is None else shared / f"{part}-{number}",
    )


def _file(shared: Path | None, name: str) -> Path | None:
    return None if shared is None else shared.with_name(f"{shared.name}-{name}.pt")


def _archive(path: Path, number: int) -> tuple[Tensor, Tensor]:
    """``number`` images of ``part/class/file`` spread evenly over an archive, with their classes in sorted order."""
    from PIL import Image

    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.upper().endswith(".JPEG"))
        classes = sorted({name.split("/")[-2] for name in names})
        chosen = [names[place] for place in np.linspace(0, len(names) - 1, min(number, len(names))).astype(int)]
        pictures = [np.array(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in chosen]
    labels = torch.tensor([classes.index(name.split("/")[-2]) for name in chosen])
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), labels
