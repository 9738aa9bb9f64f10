"""Training TTT's rotation branch on source images, the trunk frozen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.data import ImageSet, InputProtocol
from wildtta.methods.ttt.rotation import TURNS, RotationBranch, rotate, rotation_branch, training_views
from wildtta.network.inspection import family_of
from wildtta.network.stages import middle_stage, run_to
from wildtta.training.batches import shuffled_batches

RATES = {"convolutional": 0.1, "transformer": 0.005}
"""The paper's learning rates for ResNet50-GN and ViT-B."""
LARGEST_GRADIENT = 1.0
"""Copies of trained stages answer a new task with large gradients at first: at these rates the first steps would ruin them."""
_SECONDS_BETWEEN_LINES = 4.0


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """How a branch is trained; the defaults are the paper's (SGD, momentum 0.9, ×0.1 after epochs 4 and 7 of 10)."""

    epochs: int = 10
    decay_after: tuple[int, ...] = (4, 7)
    lr: float | None = None
    """None: the paper's for the network's family."""
    momentum: float = 0.9
    mirror: bool = True
    """Whether images are mirrored too; not for things that have a reading direction."""
    batch_size: int = 128
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr must be positive or None (the paper's), got {self.lr}")

    def rate(self, network: nn.Module, epoch: int) -> float:
        """The learning rate of an epoch (from 0)."""
        base = RATES[family_of(network)] if self.lr is None else self.lr
        return float(base * 0.1 ** sum(epoch >= boundary for boundary in self.decay_after))


def train_branch(
    network: nn.Module,
    images: ImageSet,
    protocol: InputProtocol,
    plan: BranchPlan,
    report: Callable[[str], None] = print,
) -> tuple[RotationBranch, str]:
    """A branch that tells by how many quarters an image was turned, and the stage that it goes on from."""
    stage, _ = middle_stage(network)
    network = network.eval()
    branch = rotation_branch(network).train()
    device = next(network.parameters()).device
    optimizer = torch.optim.SGD(branch.parameters(), lr=plan.rate(network, 0), momentum=plan.momentum)
    generator = torch.Generator().manual_seed(plan.seed)
    began = last_line = time.monotonic()
    for epoch in range(plan.epochs):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(network, epoch)
        figures = torch.zeros(3, device=device)
        batches = shuffled_batches(
            images, protocol, batch_size=plan.batch_size, epoch=epoch, seed=plan.seed, workers=plan.workers
        )
        for batch in batches:
            turned, turns = turned_views(protocol.normalise(batch.to(device)), generator, mirror=plan.mirror)
            with torch.no_grad():
                features = run_to(network, stage, turned)
            logits = branch(features)
            loss = F.cross_entropy(logits, turns)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(branch.parameters(), LARGEST_GRADIENT)
            optimizer.step()
            hits = (logits.detach().argmax(1) == turns).sum()
            figures += torch.stack([loss.detach() * len(turns), hits, torch.full_like(hits, len(turns))])
            if time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                report(_line(epoch, plan, figures, began))
        report(_line(epoch, plan, figures, began))
    return branch.eval(), stage


def turned_views(inputs: Tensor, generator: torch.Generator, *, mirror: bool) -> tuple[Tensor, Tensor]:
    """Random crops, mirrored (where asked for) and turned at random, and their turns."""
    turns = torch.randint(TURNS, (len(inputs),), generator=generator).to(inputs.device)
    return rotate(training_views(inputs, generator, mirror=mirror), turns), turns


def rotation_accuracy(network: nn.Module, branch: nn.Module, stage: str, inputs: Tensor) -> float:
    """Percent of all four turns of ``inputs`` that the branch names correctly."""
    hits = 0
    with torch.no_grad():
        for turn in range(TURNS):
            turns = torch.full((len(inputs),), turn, device=inputs.device)
            hits += int((branch(run_to(network, stage, rotate(inputs, turns))).argmax(1) == turns).sum())
    return 100 * hits / (TURNS * len(inputs))


def _line(epoch: int, plan: BranchPlan, figures: Tensor, began: float) -> str:
    loss, hits, seen = figures.tolist()
    seen = max(seen, 1.0)
    spent = time.monotonic() - began
    return (
        f"epoch {epoch + 1}/{plan.epochs}: {seen:.0f} images, loss {loss / seen:.3f}, "
        f"accuracy {100 * hits / seen:.1f} %, {spent:.0f} s"
    )
