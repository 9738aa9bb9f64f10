"""From uint8 images to a network's input, by a named protocol that every result carries.

`paper`: ImageNet mean and std for every network, 224 pixels (the authors' choice, also for the ViT that was
trained with 0.5 and 0.5). `timm`: what the weights' own configuration says. `glyphs`: the embedded networks'
scaling. `native`: ImageNet mean and std at the images' own size. `unit`: x / 255 at the images' own size, for
networks that normalise themselves, as RobustBench's do. `custom:...`: anything else, written out.

Images that have a protocol's size already (ImageNet-C is stored at 224) are neither resized nor cropped; all
others are resized on their shorter side and cropped at the centre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.data.errors import DataError

Triple = tuple[float, float, float]

IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class InputProtocol:
    """How images become input: shorter side to `resize`, centre crop of `size`, (x / 255 - mean) / std."""

    name: str
    mean: Triple
    std: Triple
    size: int | None = None
    """Height and width of the input; None: images keep the size they have."""
    resize: int | None = None
    """Length of the shorter side before the crop; None: crop only."""
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if self.interpolation not in ("bilinear", "bicubic"):
            raise DataError(f"interpolation must be one of bilinear, bicubic, got {self.interpolation!r}")
        if min(self.std) <= 0:
            raise DataError(f"std must be positive, got {self.std}")
        if self.size is not None and self.size < 1:
            raise DataError(f"size must be a number of pixels, at least 1, got {self.size}")
        if self.resize is not None and (self.size is None or self.resize < self.size):
            raise DataError(f"resize ({self.resize}) must be at least size ({self.size}), from which the crop is taken")

    def __str__(self) -> str:
        return self.name

    def fit(self, images: Tensor) -> Tensor:
        """Images [..., 3, H, W] resized and cropped to the protocol's size; the dtype stays."""
        if self.size is None or images.shape[-2:] == (self.size, self.size):
            return images
        if self.resize is not None:
            images = _resize_shorter_side(images, self.resize, self.interpolation)
        height, width = images.shape[-2:]
        if min(height, width) < self.size:
            raise DataError(
                f"an image of {height}x{width} is smaller than the crop of {self.size}; use a protocol that resizes "
                "(paper, timm, custom:...,resize=...) or keeps the size (native)"
            )
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return images[..., top : top + self.size, left : left + self.size]

    def normalise(self, images: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """(x - mean) / std per channel, where uint8 is first divided by 255."""
        values = images.to(dtype).div_(255) if images.dtype == torch.uint8 else images.clone()
        mean, std = values.new_tensor([self.mean, self.std]).view(2, 3, 1, 1)
        return values.sub_(mean).div_(std)


PROTOCOLS: dict[str, InputProtocol] = {
    "paper": InputProtocol("paper", IMAGENET_MEAN, IMAGENET_STD, size=224, resize=256),
    "native": InputProtocol("native", IMAGENET_MEAN, IMAGENET_STD),
    "glyphs": InputProtocol("glyphs", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
    "unit": InputProtocol("unit", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
"""The protocols that need no network; `timm` is read from one."""


def input_protocol(protocol: str | InputProtocol, network: nn.Module | None = None) -> InputProtocol:
    """A protocol by name. "timm" needs the network whose configuration it is.

    "custom:size=96,resize=110,mean=0.5,std=0.25,interpolation=bicubic" writes one out: mean and std default
    to ImageNet's and may be one number or three with slashes (0.48/0.46/0.41); without size, images keep
    theirs.
    """
    if isinstance(protocol, InputProtocol):
        return protocol
    if protocol in PROTOCOLS:
        return PROTOCOLS[protocol]
    if protocol == "timm":
        return _timm_protocol(network)
    if protocol.startswith("custom:"):
        return _custom_protocol(protocol)
    known = ", ".join([*PROTOCOLS, "timm", "custom:size=...,mean=...,std=..."])
    raise DataError(f"unknown preprocessing protocol {protocol!r}; known: {known}")


def preprocess(
    images: Tensor,
    protocol: str | InputProtocol,
    *,
    network: nn.Module | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Images as a network's input: uint8, or floats in 0..1, of shape [N, 3, H, W] or [3, H, W]."""
    if images.ndim not in (3, 4) or images.shape[-3] != 3:
        raise DataError(f"expected images of shape [N, 3, H, W] or [3, H, W], got {list(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"expected uint8 images or floats in 0..1, got {images.dtype}")
    chosen = input_protocol(protocol, network)
    return chosen.normalise(chosen.fit(images), dtype=dtype)


def _timm_protocol(network: nn.Module | None) -> InputProtocol:
    """The network's `pretrained_cfg`: input size, crop share, interpolation, mean and std."""
    config: dict[str, Any] | None = getattr(network, "pretrained_cfg", None)
    if not config:
        raise DataError(
            "protocol 'timm' reads the configuration of a timm network (its pretrained_cfg), and "
            f"{'no network was given' if network is None else type(network).__name__ + ' has none'}; "
            "use 'paper', or 'custom:size=...,mean=...,std=...'"
        )
    channels, height, width = config["input_size"]
    if channels != 3 or height != width or config.get("crop_mode", "center") not in ("center", None):
        raise DataError(
            f"protocol 'timm' does centre crops of square RGB inputs; this network asks for {config['input_size']} and "
            f"crop mode {config.get('crop_mode')!r}. Use 'custom:size=...,mean=...,std=...'"
        )
    return InputProtocol(
        "timm",
        mean=_triple(config["mean"]),
        std=_triple(config["std"]),
        size=height,
        resize=math.floor(height / (config.get("crop_pct") or 1.0)),
        interpolation=config.get("interpolation") or "bicubic",
    )


def _custom_protocol(text: str) -> InputProtocol:
    fields: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    try:
        for part in filter(None, text.removeprefix("custom:").split(",")):
            name, _, value = part.partition("=")
            if name not in ("size", "resize", "mean", "std", "interpolation"):
                raise ValueError(f"no field {name}")
            if name in ("mean", "std"):
                fields[name] = _triple(value.split("/"))
            else:
                fields[name] = value if name == "interpolation" else int(value)
        return InputProtocol(text, **fields)
    except ValueError as error:
        raise DataError(
            f"protocol {text!r} cannot be read ({error}); "
            "expected e.g. custom:size=96,resize=110,mean=0.5,std=0.2/0.2/0.3,interpolation=bicubic"
        ) from error


def _triple(values: Sequence[float | str]) -> Triple:
    if len(values) not in (1, 3):
        raise DataError(f"expected one value or one per RGB channel, got {len(values)}")
    red, green, blue = [float(value) for value in values] * (3 // len(values))
    return red, green, blue


def _resize_shorter_side(images: Tensor, length: int, interpolation: str) -> Tensor:
    """Antialiased resize that keeps the aspect ratio; like Pillow's (and torchvision's) to a grey level."""
    height, width = images.shape[-2:]
    shorter, longer = min(height, width), max(height, width)
    if shorter == length:
        return images
    scaled = int(length * longer / shorter)
    target = (scaled, length) if height > width else (length, scaled)
    batch = images if images.ndim == 4 else images[None]
    # uint8 is resized as it is on the CPU only.
    values = batch.float() if batch.dtype == torch.uint8 and batch.device.type != "cpu" else batch
    resized = nn.functional.interpolate(values, target, mode=interpolation, antialias=True)
    if resized.dtype != images.dtype:
        resized = resized.round_().clamp_(0, 255).to(torch.uint8)
    return resized if images.ndim == 4 else resized[0]
