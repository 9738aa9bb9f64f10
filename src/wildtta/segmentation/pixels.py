"""A segmentation network as adaptation sees it: a classifier whose samples are pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.adapter import Adapter
from wildtta.methods.base import Method
from wildtta.methods.registry import get_method
from wildtta.network.probe import undisturbed
from wildtta.segmentation.defaults import options_for_pixels

PIXELS_PER_IMAGE = 256
"""Pixels of an image that are learned from."""


@dataclass
class Segmentation:
    """What an adapted segmentation network returns."""

    maps: Tensor
    """The network's own logits [B, C, H, W]: what a caller wants."""
    logits: Tensor
    """Those of the pixels that are learned from, [B · pixels, C]."""


class Pixels(nn.Module):
    """``network`` (images to logits [B, C, H, W]) with the pixels of a regular grid as its samples.

    Features are what enters the network's last 1×1 convolution, at its resolution: in a SegFormer a quarter of the
    image's, in a DeepLab an eighth. The grid is the same in every pass, so that a teacher's pixels are the student's.
    """

    def __init__(self, network: nn.Module, example: Tensor, *, pixels: int = PIXELS_PER_IMAGE) -> None:
        super().__init__()
        if pixels < 1:
            raise ValueError(f"pixels must be at least 1 per image, got {pixels}")
        self.network = network
        self.pixels = pixels
        self.head = PixelHead(pixel_classifier(network, example))
        with undisturbed(network):
            self.rows_per_sample = len(self(example[:1]).logits)
        """How many samples an image gives; the loop must not look for an image behind each."""

    def forward(self, images: Tensor) -> Segmentation:
        taken: list[Tensor] = []
        with self.head.convolution.register_forward_pre_hook(lambda module, inputs: taken.append(inputs[0])):
            maps = maps_of(self.network(images))
        return Segmentation(maps, self.head(on_grid(taken[-1], self.pixels)))


class PixelHead(nn.Linear):
    """A 1×1 convolution as a linear layer over pixels. It has no weights of its own: it looks at the convolution's."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = convolution.in_channels, convolution.out_channels
        self._held = [convolution]  # in a list, so that its parameters are listed once, under the network's name

    @property
    def convolution(self) -> nn.Conv2d:
        return self._held[0]

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.convolution.weight.flatten(1)

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        return self.convolution.bias


def maps_of(output: Any) -> Tensor:
    """Logits [B, C, H, W] in what a network returned: a tensor, ``.logits`` (Hugging Face) or ``["out"]`` (torchvision)."""
    if isinstance(output, Mapping) and "out" in output:
        output = output["out"]
    maps = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(maps, Tensor) or maps.dim() != 4:
        shape = tuple(maps.shape) if isinstance(maps, Tensor) else type(output).__name__
        raise TypeError(f"expected logits [batch, classes, height, width] (or .logits, or ['out']), got {shape}")
    return maps


def pixel_classifier(network: nn.Module, example: Tensor) -> nn.Conv2d:
    """The last 1×1 convolution that makes as many channels as there are classes."""
    ran: list[nn.Conv2d] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: ran.append(module))
        for module in network.modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)
    ]
    try:
        with undisturbed(network):
            classes = maps_of(network(example[:1])).shape[1]
    finally:
        for hook in hooks:
            hook.remove()
    fitting = [module for module in ran if module.out_channels == classes]
    if not fitting:
        raise ValueError(
            f"{type(network).__name__} makes {classes} classes, and no 1×1 convolution of it has so many channels; a "
            "segmentation network is adapted through its last one"
        )
    main = [module for module in fitting if not _is_auxiliary(network, module)]
    return (main or fitting)[-1]


def _is_auxiliary(network: nn.Module, layer: nn.Module) -> bool:
    """Whether it belongs to a head for training alone (torchvision's ``aux_classifier``, which runs last)."""
    return any("aux" in name for name, module in network.named_modules() if module is layer)


def on_grid(features: Tensor, pixels: int) -> Tensor:
    """Rows [B · n, D] of features [B, D, h, w] at n ≤ ``pixels`` places of a regular grid, image after image."""
    height, width = features.shape[-2:]
    stride = max(1, math.ceil(math.sqrt(height * width / pixels)))
    rows = torch.arange(stride // 2, height, stride, device=features.device)
    columns = torch.arange(stride // 2, width, stride, device=features.device)
    return features[:, :, rows][:, :, :, columns].permute(0, 2, 3, 1).flatten(0, 2)


def adapt_segmentation(
    network: nn.Module,
    method: str | Method = "steady",
    *,
    example: Tensor,
    pixels: int = PIXELS_PER_IMAGE,
    batch_size: int = 64,
    **options: Any,
) -> Adapter:
    """:func:`wildtta.adapt` for a network that gives logits [B, C, H, W]; calling it gives a :class:`Segmentation`.

    Args:
        network: a SegFormer, a DeepLab, an FCN …: its last layer of classes is a 1×1 convolution.
        method: a name or a config, as for :func:`wildtta.adapt`. By name, recovery (SAR, SAR² …) is off unless
            ``recovery=`` asks for it: it watches for a mean entropy below 0.2, which was chosen for 1000 classes and
            whole images. Most pixels of a good network are surer than that. Steady's evidence, which is about whole
            images and corrects their answers, is off too: it learns at full strength, and its entropy term weighs as
            much as R (:func:`~wildtta.segmentation.defaults.entropy_weight`).
        example: images as the network takes them, [B, C, H, W]: the network is run on one, to see its head.
        pixels: pixels of an image to learn from.
        batch_size: for the learning rate's rule; a single image already has many samples, so the papers' 64.
        options: as for :func:`wildtta.adapt`.
    """
    from wildtta.adapt import adapt

    wrapped = Pixels(network, example, pixels=pixels)
    if isinstance(method, str):
        options = options_for_pixels(get_method(method), wrapped.head.out_features) | options
    return adapt(wrapped, method, batch_size=batch_size, example=example, **options)


def photometric(images: Tensor, generator: torch.Generator) -> Tensor:
    """Views that leave every pixel where it is, for CoTTA's ``augment=``: brightness, contrast and a little noise."""
    contrast, brightness = torch.rand(2, len(images), 1, 1, 1, generator=generator, device=images.device).to(images.dtype)
    noise = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    middle, spread = images.mean((1, 2, 3), keepdim=True), images.std()
    changed = (images - middle) * (0.8 + 0.4 * contrast) + middle
    view: Tensor = changed + spread * (0.4 * brightness - 0.2 + 0.02 * noise)
    return view


def resized(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Logits at the labels' size (bilinear, as SegFormer's and DeepLab's own code does)."""
    return maps if maps.shape[-2:] == size else F.interpolate(maps, size=size, mode="bilinear", align_corners=False)
