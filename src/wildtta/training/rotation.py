"""Training TTT's rotation branch on source images, the trunk frozen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from wildtta.data import ImageSet, InputProtocol
from wildtta.methods.ttt.rotation import TURNS, RotationBranch, rotate, rotation_branch, training_views
from wildtta.network.inspection import family_of
from wildtta.network.stages import middle_stage, run_to
from wildtta.progress import shown
from wildtta.randomness import torch_generator
from wildtta.training.batches import gradient_step, require_at_least_one, shuffled_batches

RATES = {"convolutional": 0.1, "transformer": 0.005}
"""The paper's learning rates for ResNet50-GN and ViT-B."""


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """How a branch is trained; the paper's defaults (SGD, momentum 0.9, ×0.1 after epochs 4 and 7 of 10)."""

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
        require_at_least_one(self, "epochs", "batch_size")
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
    parameters = list(branch.parameters())
    optimizer = torch.optim.SGD(parameters, lr=plan.rate(network, 0), momentum=plan.momentum)
    generator = torch_generator(plan.seed)
    order = {"batch_size": plan.batch_size, "seed": plan.seed, "workers": plan.workers}
    began = time.monotonic()
    for epoch in range(plan.epochs):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(network, epoch)
        total_loss, hits, seen = torch.zeros((), device=device), torch.zeros((), device=device), 0
        batches = shuffled_batches(images, protocol, epoch=epoch, **order)
        for batch in shown(batches, f"epoch {epoch + 1}, batches"):
            # Random crops, mirrored (where asked for) and turned at random.
            turns = torch.randint(TURNS, (len(batch),), generator=generator).to(device)
            views = training_views(protocol.normalise(batch.to(device)), generator, mirror=plan.mirror)
            with torch.no_grad():
                features = run_to(network, stage, rotate(views, turns))
            logits = branch(features)
            loss = F.cross_entropy(logits, turns)
            gradient_step(loss, parameters, optimizer)
            total_loss += loss.detach() * len(turns)
            hits += (logits.detach().argmax(1) == turns).sum()
            seen += len(turns)
        report(
            f"epoch {epoch + 1}/{plan.epochs}: {seen} images, loss {float(total_loss) / seen:.3f}, "
            f"accuracy {100 * float(hits) / seen:.1f} %, {time.monotonic() - began:.0f} s"
        )
    return branch.eval(), stage
