"""One function for all corruptions: :func:`corrupt`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.corruptions import blur, digital, jpeg, noise, spatter, weather
from wildtta.corruptions.constants import CORRUPTIONS, EXTRA_CORRUPTIONS, Constants, level
from wildtta.corruptions.draws import DeviceDraws, Draws, OfficialDraws, high_bits, image_keys
from wildtta.corruptions.frost_textures import find_folder, textures_for

DrawKind = Literal["device", "official"]

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(module, name)
    for module in (noise, blur, weather, digital, jpeg, spatter)
    for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
    if hasattr(module, name)
}
"""A corruption is the function of its name in one of these modules."""

_VALUES_PER_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Values in one pass: what the CPU's caches hold, or what keeps a GPU's memory below a few GB."""


def corrupt(
    images: Tensor,
    corruption: str,
    severity: int,
    *,
    seed: int | Sequence[int] = 0,
    index: Sequence[int] | npt.NDArray[np.int64] | Tensor | None = None,
    constants: Constants = "auto",
    draws: DrawKind = "device",
    frost_dir: str | os.PathLike[str] | None = None,
) -> Tensor:
    """Corrupt uint8 images ``[N, 3, H, W]`` as ImageNet-C does; uint8 of the same shape and device.

    Args:
        images: uint8 RGB images.
        corruption: a name of ``CORRUPTIONS`` or ``EXTRA_CORRUPTIONS``.
        severity: 1 to 5.
        seed: of the random numbers; with ``draws="official"`` a sequence has a seed for each image.
        index: the images' positions in their data set (default 0 ... N-1). An image's result depends on its
            pixels, the seed and its position only, not on the batch that it came in.
        constants: ``imagenet`` (made for 224 x 224), ``tiny`` (made for 64 x 64), ``cifar`` (made for 32 x 32), or
            ``auto``: ``imagenet`` or ``tiny`` by size.
        draws: ``device`` computes random numbers where the images are, ``official`` takes them from numpy's
            legacy generator in the order of the official scripts.
        frost_dir: folder with the original frost photographs (see ``frost_textures``).
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images: expected uint8 [N, 3, H, W], got {images.dtype} {list(images.shape)}; "
            "corruptions apply before normalisation, to 8-bit RGB images"
        )
    if images.device.type not in _VALUES_PER_CHUNK:
        raise ValueError(
            f"images: corruptions compute in float64 on the CPU or a CUDA device, got {images.device}; "
            "pass images.cpu() and move the result"
        )
    if min(images.shape[2:]) < 16:
        raise ValueError(f"images: expected sides of at least 16 pixels, got {list(images.shape[2:])}")
    device, (count, _, height, width) = images.device, images.shape
    parameters = level(corruption, severity, height, width, constants)
    host_index = index.cpu().numpy() if isinstance(index, Tensor) else index
    positions = np.arange(count) if host_index is None else np.asarray(host_index, dtype=np.int64)
    if positions.shape != (count,):
        raise ValueError(f"index: expected {count} positions (one per image), got shape {list(positions.shape)}")
    seed_array = np.asarray(seed, dtype=np.int64)
    if seed_array.shape not in ((), (count,)):
        raise ValueError(f"seed: expected one number or {count} (one per image), got shape {list(seed_array.shape)}")
    if draws not in ("device", "official"):
        raise ValueError(f'draws must be "device" or "official", got {draws!r}')
    keys = image_keys(seed_array, positions, corruption, severity)
    seeds = seed_array.tolist() if seed_array.ndim else high_bits(keys).tolist()
    function = _FUNCTIONS[corruption]
    if corruption == "frost":
        textures = textures_for(height, width, parameters[2], find_folder(frost_dir), device)
        function = functools.partial(function, textures=textures)

    result = torch.empty_like(images, memory_format=torch.contiguous_format)
    step = max(_VALUES_PER_CHUNK[device.type] // (3 * height * width), 1)
    for start in range(0, count, step):
        chunk = slice(start, start + step)
        source: Draws = DeviceDraws(keys[chunk], device) if draws == "device" else OfficialDraws(seeds[chunk], device)
        # The conversion truncates, as the official scripts' does.
        result[chunk] = function(images[chunk].contiguous(), source, *parameters).to(torch.uint8)
    return result
