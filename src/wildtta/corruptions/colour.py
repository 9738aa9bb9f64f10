"""Hue, saturation and value, as scikit-image converts them (float64, channels first)."""

from __future__ import annotations

import torch
from torch import Tensor


def rgb_to_hsv(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue in [0, 1), saturation and value of unit RGB ``[N, 3, H, W]``; grey has hue and saturation 0."""
    red, green, blue = rgb.unbind(1)
    value = rgb.amax(dim=1)
    spread = value - rgb.amin(dim=1)
    flat = spread == 0
    divisor = torch.where(flat, 1.0, spread)
    saturation = torch.where(flat, 0.0, spread / torch.where(flat, 1.0, value))
    hue = torch.where(
        blue == value,
        4.0 + (red - green) / divisor,
        torch.where(green == value, 2.0 + (blue - red) / divisor, (green - blue) / divisor),
    )
    hue = torch.where(flat, 0.0, (hue / 6.0).remainder(1.0))
    return hue, saturation, value


def hsv_to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse: six sectors of the hue circle."""
    sector = torch.floor(hue * 6.0)
    fraction = hue * 6.0 - sector
    low = value * (1.0 - saturation)
    falling = value * (1.0 - fraction * saturation)
    rising = value * (1.0 - (1.0 - fraction) * saturation)
    which = sector.to(torch.int64).remainder_(6).unsqueeze(1)
    candidates = torch.stack((value, rising, falling, low), dim=1)
    # Per channel, which of (value, rising, falling, low) holds in sectors 0 to 5.
    order = torch.tensor([[0, 2, 3, 3, 1, 0], [1, 0, 0, 2, 3, 3], [3, 3, 1, 0, 0, 2]], device=hue.device)
    return torch.cat([candidates.gather(1, channel[which]) for channel in order], dim=1)
