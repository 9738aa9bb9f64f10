"""The order in which images lie in memory on their way into a network, and how many go at once.

On the CPU, convolutions in float32 and bfloat16 are faster where a pixel's channels lie together (``channels_last``): the
library then need not reorder every feature map. The layout spreads from the images through all layers, so only the images
are converted. Results differ by rounding, so it is done only where it pays: small images and small batches stay as they
are, and with them the bits of a bare prediction.

There such a batch is also passed a few images at a time. The maps of 16 images of 224×224 in a ResNet-50 have 51 MB each.
C libraries give memory of that size back to the system at once, and the system hands out every page of it anew: a sixth of a
forward and backward pass was spent on that. Memory of smaller maps (up to 32 MB in glibc) is used again, and more of it is in
the caches. Too small parts cost more than they save: every one of them has the weights of all layers reordered. And with one
thread torch gives 1×1 convolutions of fewer than 16 images to another library, half as fast.
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
LARGEST_PART = 5 << 18
"""Values of the images that are passed at once where the batch is that large: 8 images of 3×224×224."""
SMALLEST_PART_OF_ONE_THREAD = 16
"""Images (``ConvParams::use_mkldnn`` in torch's Convolution.cpp)."""


class MapLayout:
    """Runs a network on images in the layout that suits the device."""

    def __init__(self, network: nn.Module) -> None:
        modules = list(network.modules())
        normalises_maps = any(isinstance(module, (nn.GroupNorm, nn.BatchNorm2d)) for module in modules)
        self.channels_last = normalises_maps and any(isinstance(module, nn.Conv2d) for module in modules)

    def parts(self, images: Tensor) -> tuple[Tensor, ...]:
        """The batch in as many parts as it is passed in: one, unless it is converted."""
        if not self.suits(images):
            return (images,)
        fewest = SMALLEST_PART_OF_ONE_THREAD if torch.get_num_threads() == 1 else 1
        return torch.split(images, max(fewest, LARGEST_PART // images[0].numel()))

    def run(self, network: Callable[[Tensor], T], images: Tensor, *, is_part: bool = False) -> T:
        """``network(images)``; ``is_part``: of a batch that is converted.

        A network that relies on the order of its maps (``view`` where ``reshape`` is meant) raises a RuntimeError; from then
        on it gets its images as they came.
        """
        if not self.channels_last or not (is_part or self.suits(images)):
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
