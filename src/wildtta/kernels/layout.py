"""The order in which images lie in memory on their way into a network.

On the CPU, convolutions in float32 and bfloat16 are faster where a pixel's channels lie together (``channels_last``): the
library then need not reorder every feature map. The layout spreads from the images through all layers, so only the images
are converted. Results differ by rounding, so it is done only where it pays: small images and small batches stay as they
are, and with them the bits of a bare prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
SMALLEST_BATCH = 8
SMALLEST_INPUT = 1 << 20
"""Values in a batch (16 images of 3×224×224 have 2.4 million)."""


class MapLayout:
    """Runs a network on images in the layout that suits the device."""

    def __init__(self, network: nn.Module) -> None:
        modules = list(network.modules())
        normalises_maps = any(isinstance(module, (nn.GroupNorm, nn.BatchNorm2d)) for module in modules)
        self.channels_last = normalises_maps and any(isinstance(module, nn.Conv2d) for module in modules)

    def run(self, network: Callable[[Tensor], T], images: Tensor) -> T:
        """``network(images)``.

        A network that relies on the order of its maps (``view`` where ``reshape`` is meant) raises a RuntimeError; from then
        on it gets its images as they came.
        """
        if not self.suits(images):
            return network(images)
        try:
            return network(images.contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            result = network(images)
            self.channels_last = False
            return result

    def suits(self, images: Tensor) -> bool:
        """Whether these images are converted."""
        return (
            self.channels_last
            and images.device.type == "cpu"
            and images.dim() == 4
            and images.dtype in (torch.float32, torch.bfloat16)
            and len(images) >= SMALLEST_BATCH
            and images.numel() >= SMALLEST_INPUT
        )
