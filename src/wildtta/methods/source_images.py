"""Source images that a method reads once, before it adapts: a tensor or batches in, batches of one size out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from wildtta.progress import shown

SourceImages = Tensor | Iterable[Any]


def _tensors(source: SourceImages) -> Iterator[Tensor]:
    if isinstance(source, Tensor):
        yield source
        return
    for item in source:
        # A data loader gives (images, labels); labels are not needed.
        batch = item[0] if isinstance(item, tuple | list) else item
        if not isinstance(batch, Tensor):
            raise TypeError(
                f"source images must be a tensor or batches of tensors (or of (images, labels)), got {type(batch).__name__}"
            )
        yield batch


def source_batches(source: SourceImages, size: int, device: torch.device, purpose: str) -> Iterator[Tensor]:
    """``source`` in batches of ``size`` on ``device``, with progress under the name of the ``purpose``."""
    number = -(-len(source) // size) if isinstance(source, Tensor) and source.dim() else None
    return shown(in_batches(source, size, device), f"{purpose}, batches", number)


def in_batches(source: SourceImages, size: int, device: torch.device) -> Iterator[Tensor]:
    """``source`` in batches of ``size`` on ``device``, whatever the batches it came in; the last may be smaller."""
    waiting: list[Tensor] = []
    count = 0
    for images in _tensors(source):
        if images.dim() < 2:
            raise ValueError(
                f"source images must come in batches [number, …], got a tensor of shape {tuple(images.shape)}; for a list "
                "of single images give torch.stack(images)"
            )
        if not images.is_floating_point():
            raise TypeError(
                f"source images must be normalised like the test images (floating point), got {images.dtype}"
            )
        waiting.append(images)
        count += len(images)
        while count >= size:
            joined = torch.cat(waiting)
            yield joined[:size].to(device)
            waiting, count = [joined[size:]], count - size
    if count:
        yield torch.cat(waiting).to(device)
