"""POEM: a bettor watches the entropies, and each entropy is drawn to where it would be if the source still held."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wildtta.methods.base import Rates
from wildtta.methods.gradient import GradientMethod, threshold
from wildtta.methods.losses import entropy
from wildtta.methods.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, option
from wildtta.methods.registry import register
from wildtta.methods.source_images import SourceImages, source_batches
from wildtta.methods.tent import TENT_LEARNING_RATES
from wildtta.network.parameters import Scope
from wildtta.step.loop import Selection
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_MOST_WEALTH = 1e200


@register
@dataclass(frozen=True, kw_only=True)
class POEM(GradientMethod):
    """Protected online entropy matching (Bar, Shaer and Romano, NeurIPS 2024).

        min over norm parameters of  ½ mean over S of  (w(x) (E(x) − Ẽ(x)))²,   S = { x : E(x) < E₀ },  w = e^{E₀ − E}
        u = F(E(x)),   ũ = ½ ε u² + (1 − ½ ε) u,   Ẽ = F⁻¹(ũ)

    F is the distribution of entropies on source images, so that u is uniform as long as nothing has shifted. ε is the
    stake of a bettor against that (:class:`Bettor`): while the source holds it stays near 0, Ẽ = E, and nothing is
    learned. E₀ = 0.4 ln C, γ = 1/(8√3), |ε| up to about 1.8; learning starts with the 100th sample. The state has the
    source entropies, so that an adapter that loads one needs no source images, and the bettor's ``wealth``: a test
    martingale, which says by its size how sure the shift is.
    Paper: https://arxiv.org/abs/2408.07511. Code of its authors: https://github.com/yarinbar/poem.
    """

    name: ClassVar[str] = "poem"
    title: ClassVar[str] = "POEM"
    order: ClassVar[int] = 185
    paper: ClassVar[str] = "Bar et al., NeurIPS 2024, https://arxiv.org/abs/2408.07511"
    updates: ClassVar[str] = "affine parameters of the norms below the top"
    needs_source: ClassVar[str] = "images, for the distribution of their entropies"
    passes: ClassVar[str] = "1 + s / s (s: share of reliable samples)"
    scope: ClassVar[Scope] = "norms below the top"
    learning_rates: ClassVar[Rates] = TENT_LEARNING_RATES

    reliable: float | None = option(
        "E₀ in units of ln C: samples with less entropy are selected; None: all, with weight 1", 0.4, within=POSITIVE
    )
    stake_rate: float = option("γ: how fast the stake follows", 1 / (8 * math.sqrt(3)), within=POSITIVE)
    largest_stake: float = option("beyond this |ε| the stake grows no further", 1.8, within=POSITIVE)
    delay: int = option("samples to watch before the first update", 100, within=NOT_NEGATIVE)
    temperature: float = option(
        "divides the logits in entropies (its authors: 0.9 for ResNet50-GN, 1.025 for ViT-B)", 1.0, within=POSITIVE
    )
    source_images: SourceImages | None = option(
        "source images: a tensor, or an iterable of batches (a data loader)", None, data=True
    )
    source_batch: int = option(
        "batch size of the source images; it matters with batch statistics alone", 64, within=AT_LEAST_ONE
    )
    source_kept: int = option(
        "source entropies in the state; of more images, evenly spaced quantiles", 20_000, within=AT_LEAST_ONE
    )

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        return {"source_images": images, "delay": 0, "source_kept": 64}

    @property
    def selects(self) -> bool:
        return True

    def uncertainty(self, output: Output) -> Tensor:
        return output.entropies if self.temperature == 1 else entropy(output.logits / self.temperature)

    # -- the source's entropies ------------------------------------------------------------------------------------------

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        known = engine.memory.get("source_entropies")
        unknown = torch.full((self.source_kept,), math.nan, dtype=torch.float64)
        return {
            **super().declare(engine),
            "source_entropies": unknown if known is None else known.clone(),
            **Bettor().state(),
            "watched": torch.zeros((), dtype=torch.int64),
        }

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if engine.host_steps == 0 and bool(engine.memory["source_entropies"].isnan().all()):
            self._measure_source(engine)
        return super().step(engine, images)

    def _measure_source(self, engine: Engine) -> None:
        if self.source_images is None:
            raise ValueError(
                "POEM compares entropies with those of source images, and there are none: give source_images= (a tensor, "
                "or an iterable of batches, normalised like the test images), or load a state of an adapter that had them"
            )
        batches = source_batches(self.source_images, self.source_batch, engine.device, "entropies of the source")
        found = [self.uncertainty(engine.forward(images, grad=False)).double().cpu() for images in batches]
        values = torch.cat([*found, torch.empty(0, dtype=torch.float64)]).sort().values
        if not len(values) or not bool(torch.isfinite(values).all()):
            raise ValueError(
                f"the entropies of the {len(values)} source images are no distribution; give at least one image, and none "
                "with NaN or infinite values"
            )
        if len(values) > self.source_kept:
            levels = (torch.arange(self.source_kept, dtype=torch.float64) + 0.5) / self.source_kept
            values = values[(levels * len(values)).long()]
        engine.memory["source_entropies"][: len(values)].copy_(values)

    def _source(self, engine: Engine) -> Distribution:
        """The source's distribution; made once, and anew when other entropies were loaded."""
        values = engine.memory["source_entropies"]
        cached = engine.companions.get("poem")
        if cached is None or cached[0] is not values or cached[1] != values._version:
            known = values[~values.isnan()].numpy()
            engine.companions["poem"] = cached = values, values._version, Distribution.of(known)
        distribution: Distribution = cached[2]
        return distribution

    # -- bets, selection, loss -------------------------------------------------------------------------------------------

    def select(self, engine: Engine, first: Output) -> Selection:
        """Bets on every sample, in their order. The entropies go to the host: the step's one read."""
        uncertainty = self.uncertainty(first).detach()
        assert first.usable is not None
        values, usable = np.array(engine.read(uncertainty, first.usable)).reshape(2, -1)
        bettor = Bettor(*(float(engine.memory[name]) for name in Bettor.NAMES))
        source = self._source(engine)
        levels = source.level(values)
        for place in usable.nonzero()[0]:
            level, levels[place] = levels[place], bettor.protected(levels[place])
            bettor = bettor.after(level, rate=self.stake_rate, largest=self.largest_stake)
        targets = source.quantile(levels)
        margin = threshold(self.reliable, engine)
        chosen = (values < margin) & (usable > 0)
        device, dtype = uncertainty.device, uncertainty.dtype
        weights = (margin - uncertainty).exp() if self.reliable is not None else torch.ones_like(uncertainty)
        return Bets(
            torch.from_numpy(chosen).to(device),
            first.labels,
            weights,
            extra={"target": torch.from_numpy(targets).to(device, dtype)},
            candidates=torch.from_numpy(chosen.nonzero()[0]).to(device),
            bettor=bettor,
        )

    def gate(self, engine: Engine, first: Output, selection: Selection) -> Tensor | None:
        return engine.memory["watched"] + len(first.logits) >= self.delay

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        assert selection.weights is not None
        return 0.5 * (selection.weights * (self.uncertainty(output) - selection.extra["target"])).square()

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        """The bets stand, whatever becomes of the step: they were about the entropies alone, and lie on the host."""
        assert isinstance(selection, Bets)
        for name, value in selection.bettor.state().items():
            engine.memory[name].copy_(value)
        engine.memory["watched"].add_(len(first.logits))


@dataclass
class Bets(Selection):
    """A selection, with the bettor as he is after the batch."""

    bettor: Bettor = dataclasses.field(default_factory=lambda: Bettor())


@dataclass(frozen=True)
class Distribution:
    """An empirical distribution, linear between its points, as a function of values and of levels."""

    values: NDArray[np.float64]
    levels: NDArray[np.float64]

    @classmethod
    def of(cls, sample: NDArray[np.float64]) -> Distribution:
        values, counts = np.unique(sample, return_counts=True)
        return cls(values, counts.cumsum() / len(sample))

    def level(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """F, between the share of the least value and 1."""
        return np.interp(values, self.values, self.levels)

    def quantile(self, levels: NDArray[np.float64]) -> NDArray[np.float64]:
        """F⁻¹."""
        return np.interp(levels, self.levels, self.values)


@dataclass(frozen=True)
class Bettor:
    """Bets that levels u are not uniform: he wins 1 + ε (u − ½) times what he has, and moves ε by online gradient steps.

    With g = (u − ½)/(1 + ε (u − ½)), the gradient of the logarithm of what he wins:

        ε ← ε + γ g/√(Σ g²)

    and g counts as 0 where it would push an ε that is beyond the limit further out (scale-free online gradient descent).
    The first level of all moves nothing.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("stake", "squares", "wealth", "bets")

    stake: float = 0.0
    squares: float = 0.0
    wealth: float = 1.0
    bets: float = 0.0

    def protected(self, level: float) -> float:
        """ũ: the level with the density that the bettor believes in taken out."""
        return 0.5 * self.stake * level**2 + (1 - 0.5 * self.stake) * level

    def after(self, level: float, *, rate: float, largest: float) -> Bettor:
        """The bettor after one more level."""
        centred = level - 0.5
        gain = 1 + self.stake * centred
        stake, squares = self.stake, self.squares
        outwards = np.sign(centred) * stake > 0 and abs(stake) > largest
        if self.bets and centred != 0 and not outwards:
            gradient = centred / gain
            squares += gradient**2
            stake += rate * gradient / math.sqrt(squares)
        return Bettor(stake, squares, min(self.wealth * gain, _MOST_WEALTH), self.bets + 1)

    def state(self) -> dict[str, Tensor]:
        """As declared state, on the host."""
        return {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in self.NAMES}
