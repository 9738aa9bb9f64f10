"""SAR: reliable samples, sharpness-aware entropy, recovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wildtta.methods.gradient import GradientMethod, help_text
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope


@register
@dataclass(frozen=True, kw_only=True)
class SAR(GradientMethod):
    """Sharpness-aware and reliable entropy minimisation (Niu et al., ICLR 2023).

        min over norm parameters of  S(x) · max_{‖ε‖₂ ≤ ρ} E(x; Θ + ε),  S(x) = 1[E(x) < E₀]

    with ε̂ = ρ ∇E/‖∇E‖ in first order, E₀ = 0.4 ln C, ρ = 0.05; samples unreliable at Θ + ε̂ are dropped from the second
    loss, whose moving average (0.9) brings everything back to the first day when it falls below e₀ = 0.2. The top of
    the network does not learn. Paper: https://arxiv.org/abs/2302.12400. Code of its authors: https://github.com/mr-eggplant/SAR.
    """

    name: ClassVar[str] = "sar"
    title: ClassVar[str] = "SAR"
    paper: ClassVar[str] = "Niu et al., ICLR 2023, https://arxiv.org/abs/2302.12400"
    updates: ClassVar[str] = "affine parameters of the norms below the top"
    passes: ClassVar[str] = "1 + s / 2s (s: share of reliable samples)"
    scope: ClassVar[Scope] = "norms below the top"
    capturable: ClassVar[bool] = True
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = {
        "convolutional": (2.5e-4 / 16, 2.5e-4),
        "transformer": (1e-3 / 32, 1e-3),
    }

    reliable: float | None = help_text("E₀ in units of ln C; None: all samples teach", 0.4)
    sharpness: float | None = help_text("radius ρ; None: a plain step", 0.05)
    recovery: float | None = help_text("e₀; None: no recovery", 0.2)
