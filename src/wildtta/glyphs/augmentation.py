"""What training does to the glyphs: random degradations, each applied to half of the images.

They keep the evaluated corruptions readable at severity 5, and not more. None uses the code of those
corruptions. The closest relatives are noise (at most 0.11; Gaussian noise of severity 5 has a deviation of
0.18) and contrast (at least 0.15; 0.05 at severity 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from wildtta.glyphs.composition import smooth_noise


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How far each degradation may go; colours lie in [0, 1]."""

    warp: float
    """Largest displacement in pixels, along each axis a smooth field of 16 x 16 cells."""
    clouds: float
    """Largest amplitude of a smooth grey field of 8 x 8 cells."""
    contrast: float
    """Smallest factor (log-uniform up to 1) of the distance to the image's mean."""
    blur: float
    """Largest share of a copy that was blurred twice with binomial weights."""
    noise: float
    """Largest deviation of white noise, independent in each channel."""

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Degrade uint8 images with torch's global random numbers; uint8 again."""

        def strength() -> torch.Tensor:
            draws = torch.rand(2, len(images), 1, 1, 1, device=images.device)
            return draws[0] * (draws[1] < 0.5)

        def field(channels: int, cells: int) -> torch.Tensor:
            return smooth_noise(torch.rand(len(images), channels, cells, cells, device=images.device))

        x = warped(images.float() / 255, self.warp * strength() * field(2, 16))
        x = x + self.clouds * strength() * field(1, 8)
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        x = mean + (x - mean) * self.contrast ** strength()
        x = x + self.blur * strength() * (binomial_blur(binomial_blur(x)) - x)
        x = x + self.noise * strength() * torch.randn_like(x)
        return x.clamp(0, 1).mul(255).round().to(torch.uint8)


def warped(images: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Sample each pixel at a place ``moves`` (``[n, 2, H, W]``, pixels to the right and down) away."""
    still = F.affine_grid(torch.eye(2, 3, device=images.device)[None], list(images[:1].shape), align_corners=False)
    grid = still + moves.permute(0, 2, 3, 1) * (2 / images.shape[-1])
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def binomial_blur(images: torch.Tensor) -> torch.Tensor:
    """Weights (1, 2, 1) / 4 along both axes, borders repeated."""
    x = F.pad(images, (1, 1, 1, 1), mode="replicate")
    x = (x[..., :-2, :] + 2 * x[..., 1:-1, :] + x[..., 2:, :]) / 4
    return (x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]) / 4
