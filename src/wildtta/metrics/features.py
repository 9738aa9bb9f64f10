"""The features that a network feeds to its head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def tap(head: nn.Module) -> Iterator[list[Tensor]]:
    """Collects what ``head`` is given while the context lasts, detached, one entry per call."""
    collected: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        collected.append(inputs[0].detach())

    handle = head.register_forward_pre_hook(keep)
    try:
        yield collected
    finally:
        handle.remove()


def features(forward: Callable[[Tensor], Any], head: nn.Module, images: Tensor) -> Tensor:
    """``[batch, D]`` features of ``images``: what ``head`` is given in one pass of ``forward`` without gradient."""
    with torch.no_grad(), tap(head) as collected:
        forward(images)
    if not collected:
        raise RuntimeError("the head was not called in a forward pass, so the features could not be read")
    return collected[0]
