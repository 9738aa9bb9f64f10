"""Trains the packaged glyph networks: fresh images at every step, rendered and learned from on one device.

The networks see glyphs of the split ``train``, clean or degraded by :mod:`wildtta.glyphs.augmentation`, and
none of the corruptions that they are evaluated on: that those hurt is the point.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from wildtta.corruptions import CORRUPTIONS, corrupt
from wildtta.glyphs.augmentation import Augmentation
from wildtta.glyphs.composition import labels_of, render_glyphs
from wildtta.glyphs.networks import NETWORKS, load_weights, network, normalise, save_weights, weights_file

#: Peak learning rates of AdamW at batch size 1024; in proportion to the batch's square root otherwise.
PEAK_RATES = {"resnet_gn": 4e-3, "vit": 1.5e-3, "resnet_bn": 4e-3}
#: Steps at batch size 1024. Longer training makes networks that hardly mind a shift.
STEPS = {"resnet_gn": 522, "vit": 2400, "resnet_bn": 340}
#: Found by search on test images of seed 1: severity 5 leaves at least 15 %, and 30 to 65 % in the mean.
AUGMENTATIONS = {
    "resnet_gn": Augmentation(warp=2.155, clouds=0.049, contrast=0.622, blur=0.561, noise=0.032),
    "vit": Augmentation(warp=2.0, clouds=0.1, contrast=0.15, blur=1.0, noise=0.11),
    "resnet_bn": Augmentation(warp=2.186, clouds=0.056, contrast=0.256, blur=0.548, noise=0.102),
}
WEIGHT_DECAY = 0.05
WARMUP_SHARE = 0.05
GRADIENT_NORM = 1.0
SECONDS_BETWEEN_LINES = 4.0
EVALUATION_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What to train and for how long; the defaults made the packaged weights."""

    names: tuple[str, ...] = NETWORKS
    steps: int | None = None
    """None: :data:`STEPS` of each network."""
    label_smoothing: float = 0.1
    batch_size: int = 1024
    seed: int = 0
    device: str = "cpu"
    test_images: int = 10_000
    corrupted_images: int = 2_000

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in NETWORKS]
        if unknown or not self.names:
            raise ValueError(f"networks: expected some of {', '.join(NETWORKS)}, got {', '.join(unknown) or 'none'}")
        for field in ("steps", "batch_size", "test_images"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}: expected at least 1, got {value}")


def train_networks(plan: TrainingPlan, atlas: torch.Tensor, out: Path, report: Callable[[str], None] = print) -> None:
    """Train each network, write ``out/<name>.safetensors`` and report the accuracy of what was written."""
    atlas = atlas.to(plan.device)
    models = {}
    for name in plan.names:
        facts = {"steps": str(plan.steps or STEPS[name]), "batch": str(plan.batch_size), "seed": str(plan.seed)}
        began = time.monotonic()
        path = weights_file(name, out)
        models[name] = model = train(name, plan, atlas, report)
        save_weights(model, path, {"network": name, **facts})
        load_weights(model, path)
        report(f"{name}: wrote {path} ({path.stat().st_size:,} bytes) after {time.monotonic() - began:.0f} s")
        clean = accuracy(model, atlas, plan.test_images)
        report(f"{name}: clean test accuracy {clean:.2f} % on {plan.test_images} images")
    # Last, because it is only for reading: whatever goes wrong here, the weights are written.
    for name, model in models.items():
        for corruption in CORRUPTIONS if plan.corrupted_images else ():
            third, fifth = (accuracy(model, atlas, plan.corrupted_images, corruption, severity) for severity in (3, 5))
            report(f"{name}: {corruption:<20} severity 3: {third:5.1f} %   severity 5: {fifth:5.1f} %")


def train(name: str, plan: TrainingPlan, atlas: torch.Tensor, report: Callable[[str], None]) -> nn.Module:
    """One network from scratch: AdamW, linear warm-up, cosine to zero, bfloat16 on a GPU.

    Smoothed labels keep the head from growing without end: an overconfident head would make every mean
    feature a confident prediction of one class, which no network trained for use does.
    """
    steps = plan.steps or STEPS[name]
    torch.manual_seed(plan.seed)
    model = network(name, pretrained=False, classes=len(atlas)).to(plan.device).train()
    peak_rate = PEAK_RATES[name] * math.sqrt(plan.batch_size / 1024)
    optimizer = torch.optim.AdamW(_decay_groups(model), lr=peak_rate, betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps))
    began = last_line = time.monotonic()
    # An average on the device: reading the loss at every step would make the GPU wait.
    running = torch.zeros(2, device=plan.device)
    for step in range(steps):
        indices = torch.arange(step * plan.batch_size, (step + 1) * plan.batch_size, device=plan.device)
        labels = labels_of(indices, len(atlas))
        images = AUGMENTATIONS[name](render_glyphs(indices, seed=plan.seed, split="train", atlas=atlas))
        with torch.autocast(atlas.device.type, dtype=torch.bfloat16, enabled=atlas.is_cuda):
            logits = model(normalise(images))
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=plan.label_smoothing)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimizer.step()
        schedule.step()
        hits = (logits.detach().argmax(1) == labels).float().mean()
        running.lerp_(torch.stack((loss.detach(), hits)), max(0.05, 1 / (step + 1)))
        now = time.monotonic()
        if now - last_line > SECONDS_BETWEEN_LINES or step + 1 == steps:
            last_line, (mean_loss, mean_hits) = now, running.tolist()
            speed = (step + 1) / (now - began)
            report(
                f"{name}: step {step + 1}/{steps}, loss {mean_loss:.3f}, accuracy {100 * mean_hits:.1f} %, "
                f"{speed * plan.batch_size:,.0f} images/s, {(steps - step - 1) / speed:.0f} s left"
            )
    return model.eval()


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up over the first twentieth, then half a cosine down to zero."""
    warmup = max(1, round(WARMUP_SHARE * steps))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def accuracy(model: nn.Module, atlas: torch.Tensor, count: int, corruption: str = "", severity: int = 5) -> float:
    """Percent of the first ``count`` test images that are classified correctly, clean or corrupted."""
    hits = torch.zeros((), dtype=torch.int64, device=atlas.device)
    with torch.inference_mode():
        for indices in torch.split(torch.arange(count, device=atlas.device), EVALUATION_BATCH):
            images = render_glyphs(indices, seed=0, split="test", atlas=atlas)
            if corruption:
                images = corrupt(images, corruption, severity, index=indices)
            hits += (model(normalise(images)).argmax(1) == labels_of(indices, len(atlas))).sum()
    return 100 * int(hits) / count


def _decay_groups(model: nn.Module) -> list[dict[str, object]]:
    """Weight decay on matrices and kernels, not on norms, biases and embeddings."""
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and not name.endswith(("_token", "_embed"))]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
