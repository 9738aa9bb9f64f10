"""Trains the packaged glyph networks: fresh images at every step, rendered and learned from on one device.

``python -m wildtta.glyphs.training --help`` needs no more than torch, numpy and safetensors when it is given an
atlas file; ``wildtta train-glyphs`` is the same with the atlas rendered on the spot. The networks see clean glyphs of
the split ``train`` and nothing else: that corruptions hurt them is the point.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from wildtta.glyphs.atlas import glyph_atlas, load_atlas
from wildtta.glyphs.composition import Split, labels_of, render_glyphs
from wildtta.glyphs.networks import NETWORKS, load_weights, network, normalise, save_weights, weights_file

#: Peak learning rates of AdamW at batch size 1024; in proportion to the batch's square root otherwise.
PEAK_RATES = {"resnet_gn": 4e-3, "vit": 1.5e-3}
#: Steps at batch size 1024. Longer training makes networks that hardly mind a shift.
STEPS = {"resnet_gn": 500, "vit": 1400}
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

    def steps_of(self, name: str) -> int:
        """How long ``name`` is trained."""
        return self.steps or STEPS[name]


def train_networks(plan: TrainingPlan, atlas: torch.Tensor, out: Path, report: Callable[[str], None] = print) -> None:
    """Train each network, write ``out/<name>.safetensors`` and report the accuracy of what was written."""
    atlas = atlas.to(plan.device)
    for name in plan.names:
        facts = {"steps": str(plan.steps_of(name)), "batch": str(plan.batch_size), "seed": str(plan.seed)}
        began = time.monotonic()
        path = weights_file(name, out)
        save_weights(train(name, plan, atlas, report), path, {"network": name, **facts})
        clean = accuracy(_stored(name, out, plan.device), atlas, plan.test_images)
        report(f"{name}: wrote {path} ({path.stat().st_size:,} bytes) after {time.monotonic() - began:.0f} s")
        report(f"{name}: clean test accuracy {clean:.2f} % on {plan.test_images} images")
    # Last, because it is only for reading: whatever goes wrong here, the weights are written.
    for name in plan.names:
        for line in corrupted_accuracies(_stored(name, out, plan.device), atlas, plan.corrupted_images):
            report(f"{name}: {line}")


def _stored(name: str, folder: Path, device: str) -> nn.Module:
    model = network(name, pretrained=False).to(device)
    load_weights(model, weights_file(name, folder))
    return model


def train(name: str, plan: TrainingPlan, atlas: torch.Tensor, report: Callable[[str], None]) -> nn.Module:
    """One network from scratch: AdamW, linear warm-up, cosine to zero, bfloat16 on a GPU.

    Smoothed labels keep the head from growing without end: an overconfident head would make every mean feature a confident
    prediction of one class, which no network trained for use does.
    """
    steps = plan.steps_of(name)
    torch.manual_seed(plan.seed)
    model = network(name, pretrained=False).to(plan.device).train()
    optimizer = torch.optim.AdamW(_decay_groups(model), lr=_peak_rate(name, plan.batch_size), betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, steps))
    began = last_line = time.monotonic()
    # An average on the device: reading the loss at every step would make the GPU wait.
    running = torch.zeros(2, device=plan.device)
    for step in range(steps):
        indices = torch.arange(step * plan.batch_size, (step + 1) * plan.batch_size, device=plan.device)
        images, labels = render_glyphs(indices, seed=plan.seed, split="train", atlas=atlas), labels_of(indices)
        with _mixed_precision(plan.device):
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


def accuracy(
    model: nn.Module,
    atlas: torch.Tensor,
    count: int,
    *,
    split: Split = "test",
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = lambda images, indices: images,
) -> float:
    """Percent of the first ``count`` images of a split that are named correctly, after ``change(images, indices)``."""
    hits = torch.zeros((), dtype=torch.int64, device=atlas.device)
    with torch.inference_mode():
        for start in range(0, count, EVALUATION_BATCH):
            indices = torch.arange(start, min(start + EVALUATION_BATCH, count), device=atlas.device)
            images = change(render_glyphs(indices, seed=0, split=split, atlas=atlas), indices)
            hits += (model(normalise(images)).argmax(1) == labels_of(indices)).sum()
    return 100 * int(hits) / count


def corrupted_accuracies(model: nn.Module, atlas: torch.Tensor, count: int) -> Iterator[str]:
    """A line per corruption: accuracy at severities 3 and 5 (nothing when ``count`` is 0)."""
    if count < 1:
        return
    from wildtta.data import CORRUPTIONS, corrupt

    for corruption in CORRUPTIONS:

        def at(severity: int, corruption: str = corruption) -> float:
            return accuracy(
                model,
                atlas,
                count,
                change=lambda images, indices: corrupt(images, corruption, severity, index=indices.cpu().numpy()),
            )

        yield f"{corruption:<20} severity 3: {at(3):5.1f} %   severity 5: {at(5):5.1f} %"


def _decay_groups(model: nn.Module) -> list[dict[str, object]]:
    """Weight decay on matrices and kernels, not on norms, biases and embeddings."""
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and not name.endswith(("_token", "_embed"))]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]


def _peak_rate(name: str, batch_size: int) -> float:
    return PEAK_RATES[name] * math.sqrt(batch_size / 1024)


def _mixed_precision(device: str) -> AbstractContextManager[object]:
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")


def main() -> None:
    """The command line of this module."""
    defaults = TrainingPlan()
    parser = argparse.ArgumentParser(description="Train the packaged glyph networks.")
    parser.add_argument("--out", type=Path, required=True, help="folder for <network>.safetensors")
    parser.add_argument("--atlas", type=Path, help="atlas file; rendered from fonts if absent")
    parser.add_argument("--network", action="append", choices=NETWORKS, help="train only this one (may be repeated)")
    parser.add_argument("--device", default=defaults.device)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--label-smoothing", type=float, default=defaults.label_smoothing)
    parser.add_argument("--batch-size", type=int, default=defaults.batch_size)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--test-images", type=int, default=defaults.test_images)
    parser.add_argument("--corrupted-images", type=int, default=defaults.corrupted_images, help="0: do not measure")
    given = parser.parse_args()
    plan = TrainingPlan(
        names=tuple(given.network or NETWORKS),
        steps=given.steps,
        label_smoothing=given.label_smoothing,
        batch_size=given.batch_size,
        seed=given.seed,
        device=given.device,
        test_images=given.test_images,
        corrupted_images=given.corrupted_images,
    )
    atlas = load_atlas(given.atlas) if given.atlas else glyph_atlas()
    train_networks(plan, atlas, given.out, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
