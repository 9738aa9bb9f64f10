"""DeYO: samples teach where the object's shape decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from wildtta.methods.gradient import GradientMethod, Lesson, help_text
from wildtta.methods.registry import register
from wildtta.methods.sar import SAR
from wildtta.network.parameters import Scope
from wildtta.parts.destruction import Destroyer, Destruction, destroyer
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@dataclass(frozen=True, kw_only=True)
class ShapeSensitive(GradientMethod):
    """What DeYO and ReCAP share: a second filter by PLPD, the probability that the predicted class loses with the shape.

    PLPD(x) = p_ŷ(x) − p_ŷ(x′),   ŷ = argmax p(x),   x′: x with the object destroyed
    """

    plpd: float | None = help_text("only samples whose PLPD is above this teach; None: no such filter", 0.2)
    destruction: Destruction | Destroyer = help_text(
        "how objects are destroyed: patch, pixel, occlusion, or a function of (images, generator)", "patch"
    )
    grid: int = help_text("patches along each side", 4)
    seed: int = help_text("of the random permutations", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plpd is not None and not -1 <= self.plpd <= 1:
            raise ValueError(
                f"plpd must lie between -1 and 1 (a difference of probabilities) or be None, got {self.plpd!r}"
            )
        if not callable(self.destruction) and self.destruction not in ("patch", "pixel", "occlusion"):
            raise ValueError(
                f"destruction must be patch, pixel, occlusion or a function of (images, generator), got {self.destruction!r}"
            )
        if self.grid < 1:
            raise ValueError(f"grid must be at least 1, got {self.grid!r}")

    @property
    def selects(self) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        return {**super().declare(engine), **no_draws_yet()}

    def shape_sensitive(self, engine: Engine, first: Output, candidates: Tensor) -> Lesson:
        """The candidates (a mask) that also pass the PLPD filter; ``extra["plpd"]`` holds the values, 0 elsewhere."""
        positions = candidates.nonzero().squeeze(1)  # the step's one read: how many to destroy
        values = first.entropies.new_zeros(len(candidates))
        if len(positions):
            destroyed = self._destroy(engine, first.images[positions])
            after = engine.forward(destroyed, grad=False).logits.softmax(-1)
            before = first.logits.detach()[positions].softmax(-1)
            labels = first.labels[positions, None]
            values[positions] = (before.gather(1, labels) - after.gather(1, labels)).squeeze(1)
        mask = candidates if self.plpd is None else candidates & (values > self.plpd)
        return Lesson(
            mask,
            first.labels,
            extra={"plpd": values},
            candidates=positions,
            further_forwards=len(positions),
        )

    def _destroy(self, engine: Engine, images: Tensor) -> Tensor:
        transform = self.destruction if callable(self.destruction) else destroyer(self.destruction, self.grid)
        destroyed = transform(images, next_generator(engine.memory, self.seed, torch.device("cpu")))
        if destroyed.shape != images.shape:
            raise ValueError(
                f"destruction= must keep the images' shape {tuple(images.shape)}, gave {tuple(destroyed.shape)}"
            )
        return destroyed


@register
@dataclass(frozen=True, kw_only=True)
class DeYO(ShapeSensitive):
    """Destroy your object (Lee et al., ICLR 2024): confident samples teach if their confidence needs the shape.

        min over norm parameters of mean over S of  (e^{E₀ − E(x)} + e^{PLPD(x)}) · E(x),
        S = { x : E(x) < τ  and  PLPD(x) > 0.2 },   PLPD(x) = p_ŷ(x) − p_ŷ(x′)

    with τ = 0.5 ln C, E₀ = 0.4 ln C, and x′ the image with its patches shuffled (4 × 4), its pixels shuffled, or its middle
    occluded. The top of the network does not learn; a batch without a teacher changes nothing. Permutations come from a
    generator of the adapter's own; recorded ones go in as ``destruction=``, a function of (images, generator).
    Paper: https://arxiv.org/abs/2403.07366. Code of its authors: https://github.com/Jhyun17/DeYO.
    """

    name: ClassVar[str] = "deyo"
    title: ClassVar[str] = "DeYO"
    paper: ClassVar[str] = "Lee et al., ICLR 2024, https://arxiv.org/abs/2403.07366"
    updates: ClassVar[str] = "affine parameters of the norms below the top"
    passes: ClassVar[str] = "1 + c / s (c: share with small entropy, s: of these, share with large PLPD)"
    scope: ClassVar[Scope] = "norms below the top"
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = SAR.learning_rates

    reliable: float | None = help_text("τ in units of ln C; None: entropy does not filter", 0.5)
    margin: float | None = help_text("E₀ of the weight e^{E₀−E}, in units of ln C; None: no such weight", 0.4)
    weigh_plpd: bool = help_text("weight e^{PLPD}", True)
    coast: bool = help_text("a batch without teachers still moves the weights by momentum", False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin is not None and not self.margin > 0:
            raise ValueError(f"margin must be a positive number or None (no such weight), got {self.margin!r}")

    def select(self, engine: Engine, first: Output) -> Lesson:
        uncertainty = self.uncertainty(first).detach()
        lesson = self.shape_sensitive(engine, first, uncertainty < self.threshold(engine))
        if self.margin is None and not self.weigh_plpd:
            return lesson
        lesson.weights = torch.zeros_like(uncertainty)
        if self.margin is not None:
            lesson.weights += (self.margin * math.log(engine.network.classes) - uncertainty).exp()
        if self.weigh_plpd:
            lesson.weights += lesson.extra["plpd"].exp()
        return lesson
