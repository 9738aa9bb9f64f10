"""Shuffled batches of source images, epoch after epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from wildtta.data import ImageSet, InputProtocol, open_data
from wildtta.glyphs import Glyphs, load_atlas


def source_images(
    name: str, root: str | os.PathLike[str] | None = None, *, count: int = 20_000, seed: int = 0, atlas: Path | None = None
) -> ImageSet:
    """Training images by the data's name; of ``glyphs`` the first ``count`` of the split that networks train on."""
    if name == "glyphs":
        return Glyphs(count, seed=seed, split="train", atlas=None if atlas is None else load_atlas(atlas))
    return open_data(name, root)


class _Fitted(Dataset[Tensor]):
    """Positions in, uint8 images of the protocol's size out."""

    def __init__(self, images: ImageSet, protocol: InputProtocol) -> None:
        self._images = images
        self._protocol = protocol

    def __getitem__(self, positions: list[int]) -> Tensor:
        if self._protocol.size is None:
            return self._images.images(positions)
        return torch.stack([self._protocol.fit(self._images[position][0]) for position in positions])


def shuffled_batches(
    images: ImageSet, protocol: InputProtocol, *, batch_size: int, epoch: int, seed: int = 0, workers: int = 0
) -> Iterator[Tensor]:
    """One epoch of uint8 batches [n, 3, H, W]; its order is a function of (seed, epoch). A last short batch is left out,

    unless it is the only one.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
    order = torch.randperm(len(images), generator=generator).tolist()
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if len(batches) > 1 and len(batches[-1]) < batch_size:
        batches.pop()
    yield from DataLoader(_Fitted(images, protocol), batch_size=None, sampler=batches, num_workers=workers)
