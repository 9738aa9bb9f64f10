"""How much each learnable parameter matters on the source: the diagonal of the Fisher information (EATA)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.parts.source_images import SourceImages, batches_in, in_batches
from wildtta.progress import shown
from wildtta.step.precision import losses_in_full_precision

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


def fisher_diagonal(engine: Engine, source: SourceImages, batch_size: int) -> Tensor:
    """F_i = mean over batches of (∂/∂θ_i mean_b CE(f(x_b), argmax f(x_b)))² at the present weights (EATA, equation 9).

    The square is of a batch's mean gradient, so its scale depends on the batch size (D17: 64, and said so): with larger
    batches gradients cancel and F falls.
    """
    total = torch.zeros(engine.learnables.size, dtype=engine.learnables.dtype, device=engine.device)
    number = 0
    batches = in_batches(source, batch_size, engine.device)
    for images in shown(batches, "Fisher information of the source, batches", batches_in(source, batch_size)):
        output = engine.forward(images, grad=True)
        with losses_in_full_precision(engine.device):
            total += engine.learnables.gradient(F.cross_entropy(output.logits, output.labels)).square()
        number += 1
    if number == 0:
        raise ValueError("the source images for EATA's Fisher information are empty; give some (its authors take 2000)")
    if not bool(torch.isfinite(total).all()):
        raise ValueError(
            "the Fisher information of the source images is not finite: there are NaN or infinite values in the images "
            "or in the network's answers to them"
        )
    return total / number
