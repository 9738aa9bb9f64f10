"""ReCAP: confidence of a region in place of confidence at a point."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from wildtta.methods.deyo import ShapeSensitive
from wildtta.methods.gradient import Lesson, Terms, help_text
from wildtta.methods.registry import register
from wildtta.methods.sar import SAR
from wildtta.network.parameters import Scope
from wildtta.parts.regions import Moments, Region, feature_moments
from wildtta.parts.source_images import SourceImages
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

# Of the paper, by family: τ_RE and L₀ in units of ln C, and the largest weight.
_THRESHOLDS = {"convolutional": 0.8, "transformer": 1.0}
_LARGEST_WEIGHTS = {"convolutional": 3.0, "transformer": 1.5}
_LARGEST_WEIGHT_OF_ONE = 5.0


@register
@dataclass(frozen=True, kw_only=True)
class ReCAP(ShapeSensitive):
    """Region confidence adaptive proxy (Hu et al., ICML 2025): minimise entropy and instability over a region of features.

        min over norm parameters of mean over S of  min(e^{L₀ − L_RE(x)}, w) · (L_RE(x) + λ L_RI(x)),
        S = { x : L_RE(x) < τ_RE  and  PLPD(x) > 0.2 }

    L_RE and L_RI are closed forms of the mean entropy and of the spread of predictions when the feature varies as a
    Gaussian of variance τσ (:class:`wildtta.parts.regions.Region`). λ = 0.5, τ = 1.2; τ_RE = L₀ = 0.8 ln C
    (convolutional) or ln C (transformer); w = 3 or 1.5, and 5 with batches of one. Recovery watches half the loss.

    σ, a variance per feature, is ``sigma`` where given; else ``sigma_share`` times the variance of the features of
    ``source_images``; else of the first ``measure`` images of the stream, which are answered and teach nothing (best if
    they are clean). Once known it belongs to the saved state. Its authors ship σ as a file per network without its making;
    with the whole variance no sample of common networks has L_RE below their thresholds, with a share of 0.05 most have.
    Paper: https://arxiv.org/abs/2505.20704. Code of its authors: https://github.com/hzcar/ReCAP.
    """

    name: ClassVar[str] = "recap"
    title: ClassVar[str] = "ReCAP"
    paper: ClassVar[str] = "Hu et al., ICML 2025, https://arxiv.org/abs/2505.20704"
    updates: ClassVar[str] = "affine parameters of the norms below the top"
    needs_source: ClassVar[str] = "images, for the feature variance; without them the stream's first images give it"
    passes: ClassVar[str] = "1 + c / s (c: share with small regional entropy, s: of these, share with large PLPD)"
    scope: ClassVar[Scope] = "norms below the top"
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = SAR.learning_rates

    recovery: float | None = help_text("start again when the moving average of half the loss falls below this", 0.2)
    instability: float = help_text("λ, weight of the regional instability", 0.5)
    tau: float = help_text("τ, size of the region", 1.2)
    region_reliable: float | None = help_text("τ_RE in units of ln C; None: 0.8 (convolutional), 1 (transformer)", None)
    margin: float | None = help_text("L₀ in units of ln C; None: 0.8 (convolutional), 1 (transformer)", None)
    largest_weight: float | None = help_text("w; None: 3 (convolutional), 1.5 (transformer), 5 (batches of one)", None)
    sigma_share: float = help_text("σ as a share of the measured feature variance", 0.05)
    measure: int = help_text("images of the stream whose features give σ where there is no source", 256)
    sigma: Tensor | None = field(default=None, compare=False, repr=False, metadata={"help": "σ itself, [D]"})
    source_images: SourceImages | None = field(
        default=None,
        compare=False,
        repr=False,
        metadata={"help": "source images for σ: a tensor, or an iterable of batches"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau", "sigma_share", "region_reliable", "margin", "largest_weight"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        if self.measure < 2:
            raise ValueError(f"measure must be at least 2 images, got {self.measure!r}")
        if self.episodic and self.sigma is None and self.source_images is None:
            raise ValueError(
                "episodic=True forgets the feature variance with every batch; give sigma= or source_images= for ReCAP"
            )

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        # A small region: heads that were never trained have classes far apart, and no sample would teach.
        return {"source_images": images, "sigma_share": 0.001}

    # -- σ ----------------------------------------------------------------------------------------------------------------

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        width, device, dtype = engine.network.feature_width, engine.device, engine.dtype
        given = None if self.sigma is None else torch.as_tensor(self.sigma)
        if given is not None and given.shape != (width,):
            raise ValueError(f"sigma must hold one variance per feature, shape ({width},), got {tuple(given.shape)}")
        if given is None and "sigma" in engine.memory and bool(engine.memory["sigma_of_source"]):
            given = engine.memory["sigma"]  # it tells of the source, which does not change
        zeros = torch.zeros(width, dtype=dtype, device=device)
        return {
            **super().declare(engine),
            "sigma": torch.full_like(zeros, math.nan) if given is None else given.to(device, dtype, copy=True),
            "sigma_of_source": torch.tensor(given is not None),
            "feature_count": zeros.new_zeros(()),
            "feature_mean": zeros.clone(),
            "feature_spread": zeros.clone(),
        }

    def _measured_until(self, engine: Engine) -> int:
        """The update at which σ must be known: after ``measure`` images in batches of the usual size."""
        return self.warm_start + -(-self.measure // (engine.batch_size or 64)) * self.steps

    def waits(self, engine: Engine) -> bool:
        # The flag lies on the host: asking it costs no synchronisation.
        return engine.host_steps < self._measured_until(engine) and not bool(engine.memory["sigma_of_source"])

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if engine.host_steps == 0 and self.source_images is not None and self.waits(engine):
            variance = feature_moments(engine, self.source_images).variance
            engine.memory["sigma"].copy_(self.sigma_share * variance)
            engine.memory["sigma_of_source"].fill_(True)
        return super().step(engine, images)

    def remember(self, engine: Engine, first: Output, lesson: Lesson, allowed: Tensor) -> None:
        super().remember(engine, first, lesson, allowed)
        if not self.waits(engine):
            return
        memory = engine.memory
        names = ("feature_count", "feature_mean", "feature_spread")
        moments = Moments(*(memory[name] for name in names)).with_rows(first.features.detach())
        for name, value in zip(names, (moments.count, moments.mean, moments.spread), strict=True):
            memory[name].copy_(torch.where(allowed, value, memory[name]))
        if engine.host_steps + 1 >= self._measured_until(engine):
            known = Moments(*(memory[name] for name in names))
            memory["sigma"].copy_(self.sigma_share * known.variance)

    def region(self, engine: Engine) -> Region:
        """The closed forms for the present σ; made once, and anew when σ was written or moved."""
        sigma = engine.memory["sigma"]
        cached = engine.companions.get("region")
        if cached is None or cached[0] is not sigma or cached[1] != sigma._version:
            cached = (sigma, sigma._version, Region.of_head(engine.network.head.weight, sigma, self.tau))
            engine.companions["region"] = cached
        region: Region = cached[2]
        return region

    # -- the loss ------------------------------------------------------------------------------------------------------------

    def select(self, engine: Engine, first: Output) -> Lesson:
        if self.waits(engine):
            return Lesson(torch.zeros_like(first.labels, dtype=torch.bool), first.labels)
        family, scale = engine.network.family, math.log(engine.network.classes)
        entropy, _ = self.region(engine).losses(first.logits.detach())
        candidates = entropy < (self.region_reliable or _THRESHOLDS[family]) * scale
        if self.reliable is not None:
            candidates = candidates & (self.uncertainty(first).detach() < self.threshold(engine))
        lesson = self.shape_sensitive(engine, first, candidates)
        usual = _LARGEST_WEIGHT_OF_ONE if engine.batch_size == 1 else _LARGEST_WEIGHTS[family]
        weights = ((self.margin or _THRESHOLDS[family]) * scale - entropy).exp()
        lesson.weights = weights.clamp(max=self.largest_weight or usual)
        return lesson

    def sample_losses(self, engine: Engine, output: Output, lesson: Lesson) -> Tensor:
        entropy, instability = self.region(engine).losses(output.logits)
        losses = entropy + self.instability * instability
        return losses if lesson.weights is None else losses * lesson.weights

    def terms(self, engine: Engine, output: Output, lesson: Lesson, forming: Lesson) -> Terms:
        terms = super().terms(engine, output, lesson, forming)
        terms.entropy = terms.entropy / 2
        return terms
