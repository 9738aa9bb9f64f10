"""Training TTT's rotation branch on source images, the trunk frozen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import nn
from torch.nn import functional as F

from wildtta.data import ImageSet, InputProtocol
from wildtta.methods.ttt.rotation import TURNS, Initial, RotationBranch, rotate, rotation_branch, training_views
from wildtta.network.families import family_of
from wildtta.network.stages import middle_stage, run_to
from wildtta.progress import shown
from wildtta.randomness import torch_generator
from wildtta.training.batches import TrainingPlan, gradient_step, shuffled_batches

RATES = {"convolutional": 0.1, "transformer": 0.005}
"""The paper's learning rates for ResNet50-GN and ViT-B."""


@dataclass(frozen=True, kw_only=True)
class BranchPlan(TrainingPlan):
    """How a branch is trained; the paper's defaults (SGD, momentum 0.9, ×0.1 after epochs 4 and 7 of 10)."""

    epochs: int = 10
    decay_after: tuple[int, ...] = (4, 7)
    lr: float | None = None
    """None: the paper's for the network's family."""
    momentum: float = 0.9
    initial: Initial = "random"
    """How the branch begins; the paper's is random, ``copied`` has the weights of the network's own stages."""
    clip: float | None = None
    """Largest norm of a gradient; None, as the paper says nothing of it: no limit. Copied stages need one."""
    mirror: bool = True
    """Whether images are mirrored too; not for things that have a reading direction."""
    batch_size: int = 128

    def __post_init__(self) -> None:
        self.require_at_least_one("epochs", "batch_size")
        if self.initial not in get_args(Initial):
            raise ValueError(f"initial must be one of {', '.join(get_args(Initial))}, got {self.initial!r}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive or None (no limit), got {self.clip}")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr must be positive or None (the paper's), got {self.lr}")


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
    branch = rotation_branch(network, initial=plan.initial, seed=plan.seed).train()
    device = next(network.parameters()).device
    parameters = list(branch.parameters())
    lr = RATES[family_of(network)] if plan.lr is None else plan.lr
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=plan.momentum)
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1 ** sum(epoch >= e for e in plan.decay_after))
    generator = torch_generator(plan.seed)
    began = time.monotonic()
    for epoch in range(plan.epochs):
        total_loss, hits, seen = torch.zeros((), device=device), torch.zeros((), device=device), 0
        for batch in shown(shuffled_batches(images, protocol, plan, epoch), f"epoch {epoch + 1}, batches"):
            # Random crops, mirrored (where asked for) and turned at random.
            turns = torch.randint(TURNS, (len(batch),), generator=generator).to(device)
            views = training_views(protocol.normalise(batch.to(device)), generator, mirror=plan.mirror)
            with torch.no_grad():
                features = run_to(network, stage, rotate(views, turns))
            logits = branch(features)
            loss = F.cross_entropy(logits, turns)
            gradient_step(loss, parameters, optimizer, clip=plan.clip)
            total_loss += loss.detach() * len(turns)
            hits += (logits.detach().argmax(1) == turns).sum()
            seen += len(turns)
        decay.step()
        report(
            f"epoch {epoch + 1}/{plan.epochs}: {seen} images, loss {float(total_loss) / seen:.3f}, "
            f"accuracy {100 * float(hits) / seen:.1f} %, {time.monotonic() - began:.0f} s"
        )
    return branch.eval(), stage
