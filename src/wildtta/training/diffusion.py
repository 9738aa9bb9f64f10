"""Training a small unconditional diffusion model on source images, for DDA."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from wildtta.data import ImageSet, InputProtocol
from wildtta.methods.dda.diffusion import DiffusionModel, diffusers_library
from wildtta.progress import shown
from wildtta.randomness import torch_generator
from wildtta.training.batches import TrainingPlan, gradient_step, shuffled_batches


@dataclass(frozen=True, kw_only=True)
class DiffusionPlan(TrainingPlan):
    """A UNet's size and how it is trained: noise prediction, AdamW, an average of the weights is kept."""

    steps: int = 4000
    batch_size: int = 64
    lr: float = 1e-3
    channels: tuple[int, ...] = (24, 48, 64)
    layers: int = 1
    average: float = 0.995
    """Weight of the old value in the average of the weights, which is what is kept."""

    def __post_init__(self) -> None:
        self.require_at_least_one("steps", "batch_size", "layers")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if len(self.channels) < 2 or any(width % 8 for width in self.channels):
            raise ValueError(f"channels must be at least two multiples of 8 (group norms), got {self.channels}")


def train_diffusion(
    images: ImageSet,
    protocol: InputProtocol,
    plan: DiffusionPlan,
    device: torch.device,
    report: Callable[[str], None] = print,
) -> DiffusionModel:
    """min over θ of E ‖ε − ε_θ(√ᾱ_t x + √(1 − ᾱ_t) ε, t)‖² on images in [−1, 1] (Ho et al. 2020)."""
    scheduler = diffusers_library().DDPMScheduler()
    generator = torch_generator(plan.seed, device)
    epochs = (shuffled_batches(images, protocol, plan, epoch) for epoch in itertools.count())
    batches = itertools.islice(itertools.chain.from_iterable(epochs), plan.steps)
    first = next(batches)
    with torch.random.fork_rng([]):
        torch.manual_seed(plan.seed)
        # Convolutions without attention: what a CPU can train and run on small images.
        unet: nn.Module = diffusers_library().UNet2DModel(
            sample_size=first.shape[-1],
            block_out_channels=plan.channels,
            layers_per_block=plan.layers,
            down_block_types=("DownBlock2D",) * len(plan.channels),
            up_block_types=("UpBlock2D",) * len(plan.channels),
            norm_num_groups=8,
            add_attention=False,
        )
    unet = unet.to(device).train()
    kept = copy.deepcopy(unet).eval().requires_grad_(False)
    parameters = list(unet.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=plan.lr, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.lr, total_steps=plan.steps + 1, pct_start=0.05)
    running = torch.zeros((), device=device)
    for step, batch in enumerate(shown(itertools.chain([first], batches), "training", plan.steps), 1):
        clean = batch.to(device).float() / 127.5 - 1
        times = torch.randint(1000, (len(clean),), generator=generator, device=device)
        noise = torch.randn(clean.shape, generator=generator, device=device)
        loss = F.mse_loss(unet(scheduler.add_noise(clean, noise, times), times).sample, noise)
        gradient_step(loss, parameters, optimizer, clip=1.0)
        schedule.step()
        keep = min(plan.average, step / (step + 9))
        with torch.no_grad():
            for old, new in zip(kept.parameters(), parameters, strict=True):
                old.lerp_(new, 1 - keep)
        running.lerp_(loss.detach(), max(0.02, 1 / step))
        if step % max(1, plan.steps // 20) == 0 or step == plan.steps:
            report(f"step {step}/{plan.steps}, loss {running.item():.4f}")
    return DiffusionModel(kept, scheduler)


def save_diffusion(model: DiffusionModel, folder: str | Path, *, half: bool = False) -> None:
    """Write the model as ``diffusers`` does (``unet/``, ``scheduler/``; safetensors); ``half``: as float16."""
    unet = copy.deepcopy(model.unet).half() if half else model.unet
    unet.save_pretrained(Path(folder) / "unet", safe_serialization=True)  # type: ignore[operator]
    model.scheduler.save_pretrained(Path(folder) / "scheduler")
