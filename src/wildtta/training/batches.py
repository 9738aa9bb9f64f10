"""What both kinds of training share: shuffled batches of source images, a gradient step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wildtta.data import ImageSet, InputProtocol, StreamLoader, open_data
from wildtta.data.catalogue import Root
from wildtta.glyphs import Glyphs, load_atlas
from wildtta.randomness import torch_generator
from wildtta.streams import given


def source_images(
    name: str, root: Root | None = None, *, count: int = 20_000, seed: int = 0, atlas: Path | None = None
) -> ImageSet:
    """Training images by the data's name; of ``glyphs`` the first ``count`` of the training split."""
    if name == "glyphs":
        return Glyphs(count, seed=seed, split="train", atlas=None if atlas is None else load_atlas(atlas))
    return open_data(name, root)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What both plans say: which batches are read, and by how many processes."""

    batch_size: int
    seed: int = 0
    workers: int = 0

    def require_at_least_one(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def shuffled_batches(images: ImageSet, protocol: InputProtocol, plan: TrainingPlan, epoch: int) -> Iterator[Tensor]:
    """One epoch of uint8 batches [n, 3, H, W]; its order is a function of (seed, epoch).

    A last short batch is left out, unless it is the only one.
    """
    order = torch.randperm(len(images), generator=torch_generator(1_000_003 * plan.seed + epoch)).numpy()
    whole = len(order) - len(order) % plan.batch_size
    stream = given(order[: whole or None], plan.batch_size)
    loader = StreamLoader([images], stream, protocol=protocol, workers=plan.workers)
    return (batch.images for batch in loader.pixels())


def gradient_step(
    loss: Tensor, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, *, clip: float | None
) -> None:
    """One step of the optimizer, the gradient's norm cut at ``clip``."""
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    if clip is not None:
        nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()
