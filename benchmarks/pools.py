"""Networks with images that the guard is measured on: the embedded glyphs, or a testbed folder as in studies/tiny-imagenet."""

from __future__ import annotations

import importlib.util
import io
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


@dataclass
class Pool:
    """Clean uint8 images with labels, and how a network takes them."""

    build: Callable[[], nn.Module]
    images: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor]
    index: npt.NDArray[np.int64] | None = None
    """Positions in the whole set, where this is a part of it: an image is corrupted in the same way in every part."""
    _known: dict[tuple[str, int, int], Tensor] = field(default_factory=dict)

    def corrupted(self, corruption: str, severity: int, *, seed: int = 0) -> Tensor:
        """Every image, uint8; ``clean`` leaves it as it is."""
        if corruption == "clean":
            return self.images
        key = corruption, severity, seed
        if key not in self._known:
            index = np.arange(len(self.images)) if self.index is None else self.index
            parts = [slice(start, start + _AT_ONCE) for start in range(0, len(index), _AT_ONCE)]
            found = [corrupt(self.images[part], corruption, severity, seed=seed, index=index[part]) for part in parts]
            self._known[key] = torch.cat(found)
        return self._known[key]

    def part(self, split: str) -> Pool:
        """The images of a part of the set (as ``wildtta bench`` cuts it)."""
        if split == "all":
            return self
        kept = split_positions(self.labels.cpu().numpy(), split)
        at = torch.from_numpy(kept).to(self.labels.device)
        return Pool(self.build, self.images[at], self.labels[at], self.prepare, kept)

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
    """
    if name in NETWORKS:
        glyphs = Glyphs(number, seed=seed, atlas=None if atlas is None else load_atlas(atlas))
        images = glyphs.images(np.arange(number)).to(device)
        return Pool(lambda: network(name).to(device), images, torch.from_numpy(glyphs.labels).to(device), normalise)
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
    return Pool(lambda: build(name.split(":", 1)[1]).to(device), images.to(device), labels.to(device), load.preprocess)


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
