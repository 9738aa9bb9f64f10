"""Moving images to a diffusion model's domain while their coarse structure stays (DDA)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.glyphs.parts import DIFFUSIONS

_REFERENCE_PIXELS = 256 * 256


def diffusers_library() -> Any:
    """The ``diffusers`` package, or an error that says how to get it."""
    try:
        import diffusers
    except ImportError as error:
        raise ImportError("diffusion models need diffusers: pip install 'wildtta[diffusion]'") from error
    return diffusers


@dataclass(frozen=True)
class DiffusionModel:
    """An unconditional noise predictor over images in [−1, 1] and its schedule (both of ``diffusers``)."""

    unet: nn.Module
    scheduler: Any

    def to(self, device: torch.device) -> DiffusionModel:
        return DiffusionModel(self.unet.to(device), self.scheduler)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.unet.parameters()).dtype

    @property
    def multiple(self) -> int:
        """Sides of images must be multiples of this: the UNet halves them so often."""
        return int(2 ** (len(self.unet.config.block_out_channels) - 1))  # type: ignore[union-attr, arg-type]


def load_diffusion(folder: str | Path) -> DiffusionModel:
    """A model from a folder, or the packaged one by its name.

    The folder is a pipeline's (``unet/`` and ``scheduler/``), or a UNet's alone (then DDPM's usual schedule).
    """
    path = DIFFUSIONS.get(str(folder), Path(folder))
    if not path.is_dir():
        raise FileNotFoundError(
            f"no diffusion model at {path}; expected a folder written by diffusers' save_pretrained or by "
            "wildtta diffusion-train"
        )
    library = diffusers_library()
    nested = path / "unet" if (path / "unet").is_dir() else path
    unet = library.UNet2DModel.from_pretrained(str(nested), use_safetensors=True, low_cpu_mem_usage=False)
    schedule = path / "scheduler" if (path / "scheduler").is_dir() else path
    if (schedule / "scheduler_config.json").is_file():
        scheduler = library.DDPMScheduler.from_pretrained(str(schedule))
    else:
        scheduler = library.DDPMScheduler()
    return DiffusionModel(unet.eval().requires_grad_(False), scheduler)


def low_pass(images: Tensor, factor: int) -> Tensor:
    """φ_D: what is left after shrinking by ``factor`` and enlarging again."""
    height, width = images.shape[-2:]
    small = (max(1, height // factor), max(1, width // factor))
    shrunk = F.interpolate(images, small, mode="bicubic", antialias=True)
    return F.interpolate(shrunk, (height, width), mode="bicubic", antialias=True)


def guided_images(
    model: DiffusionModel,
    images: Tensor,
    generators: Sequence[torch.Generator],
    *,
    steps: int,
    depth: int,
    factor: int,
    guidance: float,
) -> Tensor:
    """Noise ``images`` [B, C, H, W] in [−1, 1] ``depth`` of ``steps`` steps deep, then denoise them under guidance:

        x_{t−1} ~ p(x_{t−1} | x_t) − w ∇_{x_t} ‖φ_D(images) − φ_D(x̂_0(x_t))‖₂

    with the norm taken per image (the authors take it over a batch of few images), and w = ``guidance`` at 256 × 256 pixels,
    in proportion to the square root of the number of pixels elsewhere: then a pixel moves equally far. Each image has
    a generator of its own, so that its noise does not depend on the others.
    """
    scheduler = copy.deepcopy(model.scheduler)
    scheduler.set_timesteps(steps, device=images.device)
    times = scheduler.timesteps[-depth:]
    weight = guidance * math.sqrt(images.shape[-1] * images.shape[-2] / _REFERENCE_PIXELS)
    structure = low_pass(images, factor)
    noise = torch.empty_like(images)
    for image, own in zip(noise, generators, strict=True):
        image.normal_(generator=own)
    current: Tensor = scheduler.add_noise(images, noise, times[:1].expand(len(images)))
    for time in times:
        current = current.detach().requires_grad_(True)
        with torch.enable_grad():
            predicted = model.unet(current, time).sample
            result = scheduler.step(predicted, time, current, generator=list(generators))
            distance = (structure - low_pass(result.pred_original_sample, factor)).flatten(1).norm(dim=1).sum()
            (pull,) = torch.autograd.grad(distance, current)
        current = (result.prev_sample - weight * pull).detach()
    return current.clamp(-1, 1)


def fitted(images: Tensor, multiple: int) -> Tensor:
    """Images enlarged to sides that the UNet can halve; unchanged where they fit."""
    height, width = images.shape[-2:]
    target = (-(-height // multiple) * multiple, -(-width // multiple) * multiple)
    return images if target == (height, width) else F.interpolate(images, target, mode="bicubic", antialias=True)
