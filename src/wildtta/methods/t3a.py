"""T3A: the head's templates are replaced by means of confident features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.methods.base import BatchStatistics, Method, answer_with
from wildtta.methods.losses import entropy
from wildtta.methods.options import AT_LEAST_ONE, option
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class T3A(Method):
    """Test-time template adjuster (Iwasawa and Matsuo, NeurIPS 2021).

        logits_c = z · t_c,   t_c ∝ Σ over S_c of z'/‖z'‖,   ‖t_c‖ = 1

    S_c holds the M features of least entropy among those that the head gives the class c: features of the stream, this
    batch's included, and at the start the rows of the head's weight. The network and its head stay as they are. M was
    chosen from 1, 5, 20, 50 and 100 on validation data by its authors; 20 is what FOA's authors use on ImageNet-C. A
    class without any support answers 0. The state holds C·M features.
    Paper: https://openreview.net/forum?id=e_yvNqkJKAW. Code of its authors: https://github.com/matsuolab/T3A.
    """

    name: ClassVar[str] = "t3a"
    title: ClassVar[str] = "T3A"
    order: ClassVar[int] = 164
    paper: ClassVar[str] = "Iwasawa and Matsuo, NeurIPS 2021, https://openreview.net/forum?id=e_yvNqkJKAW"
    updates: ClassVar[str] = "the head's templates"
    passes: ClassVar[str] = "1 / 0"
    prediction: ClassVar = "after the update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    supports: int = option("M: features kept per class", 20, within=AT_LEAST_ONE)

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    @torch.no_grad()
    def declare(self, engine: Engine) -> dict[str, Tensor]:
        head = engine.network.head
        if not isinstance(head, nn.Linear):
            raise ValueError(
                f"t3a starts from the rows of a linear head, and this one is a {type(head).__name__}; choose another "
                "method (lame, neo)"
            )
        rows = head.weight.detach().to(engine.dtype)
        empty = rows.new_zeros(engine.network.classes, self.supports, rows.shape[1])
        unsure = torch.full(empty.shape[:2], torch.nan, dtype=rows.dtype, device=rows.device)
        kept, entropies = most_certain(empty, unsure, rows, engine.head_logits(rows))
        return {"supports": kept, "support_entropies": entropies}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        output, memory = engine.forward(images, grad=False), engine.memory
        kept, entropies = most_certain(memory["supports"], memory["support_entropies"], output.features, output.logits)
        sound = torch.isfinite(output.logits).all() & torch.isfinite(output.features).all()
        engine.keep(sound, {"supports": kept, "support_entropies": entropies})
        answered = self._by_templates(engine, output)
        return answer_with(engine, answered, forwards=len(images), learned=sound, skipped=~sound)

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        return self._by_templates(engine, engine.forward(images, grad=False))

    def _by_templates(self, engine: Engine, output: Output) -> Output:
        templates = F.normalize(engine.memory["supports"].sum(1), dim=1)
        return output.answering(output.features @ templates.T)


def most_certain(kept: Tensor, entropies: Tensor, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The M features of least entropy per predicted class, among those kept and new ones.

    Args:
        kept: [C, M, D], features of length 1; 0 where a place is empty.
        entropies: [C, M], NaN where a place is empty; these come last.
        features: [B, D], new ones; their classes and entropies come from ``logits`` [B, C].

    Returns:
        The new ``kept`` and ``entropies``.
    """
    classes, places = entropies.shape
    labels = torch.cat([torch.arange(classes, device=logits.device).repeat_interleave(places), logits.argmax(1)])
    values = torch.cat([entropies.flatten(), entropy(logits)])
    by_entropy = values.argsort(stable=True)
    order = by_entropy[labels[by_entropy].argsort(stable=True)]
    # Every class has its own M places in the list, so that each has at least M rows and starts at a known one.
    numbers = torch.bincount(labels, minlength=classes)
    starts = numbers.cumsum(0) - numbers
    chosen = order[(starts[:, None] + torch.arange(places, device=order.device)).flatten()]
    rows = torch.cat([kept.flatten(0, 1), F.normalize(features, dim=1)])
    return rows[chosen].view_as(kept), values[chosen].view_as(entropies)
