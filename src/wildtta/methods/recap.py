"""ReCAP: the confidence of a region around the feature in place of confidence at a point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.deyo import ShapeSensitive
from wildtta.methods.gradient import Recovery
from wildtta.methods.losses import mean_row
from wildtta.methods.options import NOT_NEGATIVE, POSITIVE, Range, option
from wildtta.methods.registry import register
from wildtta.methods.sar2.bank import accumulation_dtype
from wildtta.methods.source_images import SourceImages, source_batches
from wildtta.network.head import head_weights
from wildtta.step.loop import Loss, Selection
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
    Gaussian of variance τσ (:class:`Region`). λ = 0.5, τ = 1.2; τ_RE = L₀ = 0.8 ln C
    (convolutional) or ln C (transformer); w = 3 or 1.5, and 5 with batches of one. Recovery watches half the loss.

    σ, a variance per feature, is ``sigma`` where given; else ``sigma_share`` times the variance of the features of
    ``source_images``; else of the first ``measure`` images of the stream, which are answered and not learned from (best if
    they are clean). Once known it belongs to the saved state. Its authors ship σ as a file per network without its making;
    with the whole variance no sample of common networks has L_RE below their thresholds, with a share of 0.05 most have.
    Paper: https://arxiv.org/abs/2505.20704. Code of its authors: https://github.com/hzcar/ReCAP.
    """

    name: ClassVar[str] = "recap"
    title: ClassVar[str] = "ReCAP"
    paper: ClassVar[str] = "Hu et al., ICML 2025, https://arxiv.org/abs/2505.20704"
    order: ClassVar[int] = 60
    needs_source: ClassVar[str] = "images, for the feature variance; without them the stream's first images give it"
    passes: ClassVar[str] = "1 + c / s (c: share with small regional entropy, s: of these, share with large PLPD)"

    recovery: Recovery = option(
        "e₀: go back to the initial state when the moving average of half the loss falls below this; 'asr' or an ASR: "
        "selective reset; None: never",
        0.2,
        within=POSITIVE,
    )
    instability: float = option("λ, weight of the regional instability", 0.5, within=NOT_NEGATIVE)
    tau: float = option("τ, size of the region", 1.2, within=POSITIVE)
    region_reliable: float | None = option(
        "τ_RE in units of ln C; None: 0.8 (convolutional), 1 (transformer)", None, within=POSITIVE
    )
    margin: float | None = option(
        "L₀ in units of ln C; None: 0.8 (convolutional), 1 (transformer)", None, within=POSITIVE
    )
    largest_weight: float | None = option(
        "w; None: 3 (convolutional), 1.5 (transformer), 5 (batches of one)", None, within=POSITIVE
    )
    sigma_share: float = option("σ as a share of the measured feature variance", 0.05, within=POSITIVE)
    measure: int = option("images of the stream whose features give σ where there is no source", 256, within=Range(2))
    sigma: Tensor | None = option("σ itself, [D]", None, data=True)
    source_images: SourceImages | None = option(
        "source images for σ: a tensor, or an iterable of batches", None, data=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodic and self.sigma is None and self.source_images is None:
            raise ValueError(
                "episodic=True forgets the feature variance with every batch; give sigma= or source_images= for ReCAP"
            )

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        # A small region: heads that were never trained have classes far apart, and no sample would be selected.
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
        return -(-self.measure // (engine.batch_size or 64)) * self.steps

    def _measures(self, engine: Engine) -> bool:
        """Whether σ is still being measured. The flag lies on the host: asking it costs no synchronisation."""
        return engine.host_steps < self._measured_until(engine) and not bool(engine.memory["sigma_of_source"])

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if engine.host_steps == 0 and self.source_images is not None and self._measures(engine):
            variance = feature_moments(engine, self.source_images).variance
            engine.memory["sigma"].copy_(self.sigma_share * variance)
            engine.memory["sigma_of_source"].fill_(True)
        return super().step(engine, images)

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        if not self._measures(engine):
            return
        memory = engine.memory
        names = ("feature_count", "feature_mean", "feature_spread")
        moments = Moments(*(memory[name] for name in names)).with_rows(first.features.detach(), first.usable)
        engine.keep(allowed, dict(zip(names, (moments.count, moments.mean, moments.spread), strict=True)))
        if engine.host_steps + 1 >= self._measured_until(engine):
            known = Moments(*(memory[name] for name in names))
            memory["sigma"].copy_(self.sigma_share * known.variance)

    def region(self, engine: Engine) -> Region:
        """The closed forms for the present σ; made once, and anew when σ was written or moved."""
        sigma = engine.memory["sigma"]
        cached = engine.companions.get("region")
        if cached is None or cached[0] is not sigma or cached[1] != sigma._version:
            cached = (sigma, sigma._version, Region.of_head(head_weights(engine.network.head)[0], sigma, self.tau))
            engine.companions["region"] = cached
        region: Region = cached[2]
        return region

    # -- the loss ------------------------------------------------------------------------------------------------------------

    def gate(self, engine: Engine, first: Output, selection: Selection) -> Tensor | None:
        return torch.tensor(False) if self._measures(engine) else None

    def select(self, engine: Engine, first: Output) -> Selection:
        if self._measures(engine):
            return Selection(torch.zeros_like(first.labels, dtype=torch.bool), first.labels)
        family, scale = engine.network.family, math.log(engine.network.classes)
        entropy, _ = self.region(engine).losses(first.logits.detach())
        candidates = entropy < (self.region_reliable or _THRESHOLDS[family]) * scale
        selection = self.shape_sensitive(engine, first, candidates)
        usual = _LARGEST_WEIGHT_OF_ONE if engine.batch_size == 1 else _LARGEST_WEIGHTS[family]
        weights = ((self.margin or _THRESHOLDS[family]) * scale - entropy).exp()
        selection.weights = weights.clamp(max=self.largest_weight or usual)
        return selection

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        entropy, instability = self.region(engine).losses(output.logits)
        losses = entropy + self.instability * instability
        return losses if selection.weights is None else losses * selection.weights

    def loss(self, engine: Engine, output: Output, selection: Selection) -> Loss:
        loss = super().loss(engine, output, selection)
        loss.entropy = loss.parts[0] / 2
        return loss


# Constants of the authors' code.
_SCALE = 0.1
_SHIFT = 0.1 / 2 * _SCALE**2


@dataclass(frozen=True)
class Region:
    """The region around a feature z, a Gaussian with variances τσ: what its closed forms need of the head.

    They need, for each pair of classes, how far their weights are apart in the region. That is one C × C matrix, made
    once, and nothing larger than B × C per batch.

    ``spread`` [C, C] is A_ij = exp(½ Σ_d (w_id − w_jd)² τσ_d/0.1), each row divided by its largest entry e^``peak``;
    ``shift`` [C] is 0.0005 ‖w_i‖².
    """

    spread: Tensor
    peak: Tensor
    shift: Tensor

    @classmethod
    def of_head(cls, weight: Tensor, sigma: Tensor, tau: float) -> Region:
        """From the head's weight [C, D] and the variances σ [D]. Squared distances come from a Gram matrix: no C × C × D."""
        wide = accumulation_dtype(weight.device)
        rows = weight.detach().to(wide)
        shift = _SHIFT * rows.square().sum(1)
        rows = rows * (sigma.to(wide) * (tau / _SCALE)).sqrt()
        squares = rows.square().sum(1)
        exponents = torch.addmm(squares[:, None] + squares, rows, rows.T, alpha=-2).mul_(0.5).clamp_(min=0)
        exponents.fill_diagonal_(0)
        peak = exponents.amax(1)
        return cls(exponents.sub_(peak[:, None]).exp_(), peak, shift)

    def losses(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Regional entropy L_RE and regional instability L_RI of each sample, [B] and [B] (ReCAP).

        With p = softmax(x), q_i = Σ_j A_ij p_j and p̃ = softmax(x + shift):

            L_RE = Σ_i p̃_i (ln q_i − ln p_i),   L_RI = Σ_i p_i ln q_i
        """
        log_p = F.log_softmax(logits, dim=-1)
        p = log_p.exp()
        mixed = p.to(self.spread.dtype) @ self.spread.T
        log_q = self.peak + mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log()
        log_q = log_q.to(logits.dtype)
        shifted = (logits + self.shift.to(logits.dtype)).softmax(-1)
        return (shifted * (log_q - log_p)).sum(-1), (p * log_q).sum(-1)


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of rows, added batch by batch (Chan et al. 1979)."""

    count: Tensor
    mean: Tensor
    spread: Tensor

    def with_rows(self, rows: Tensor, mask: Tensor | None = None) -> Moments:
        """The moments with ``rows`` [n, D] added, or with those of them where ``mask`` holds."""
        added = self.count.new_full((), len(rows)) if mask is None else mask.sum().to(self.count.dtype)
        mean = mean_row(rows, mask)
        squares = (rows - mean).square()
        spread = (squares if mask is None else squares.masked_fill(~mask[:, None], 0.0)).sum(0)
        count = self.count + added
        gap, share = mean - self.mean, added / count.clamp(min=1)
        return Moments(count, self.mean + gap * share, self.spread + spread + gap.square() * (self.count * share))

    @property
    def variance(self) -> Tensor:
        """Biased variance per column; 0 from fewer than two rows."""
        return self.spread / self.count.clamp(min=1)


def feature_moments(engine: Engine, source: SourceImages, batch_size: int = 64) -> Moments:
    """Moments of the features of source images."""
    zeros = torch.zeros(engine.network.feature_width, dtype=engine.dtype, device=engine.device)
    moments = Moments(zeros.new_zeros(()), zeros, zeros)
    for images in source_batches(source, batch_size, engine.device, "feature variance of the source"):
        moments = moments.with_rows(engine.forward(images, grad=False).features)
    if not bool(torch.isfinite(moments.variance).all()) or int(moments.count) < 2:
        raise ValueError(
            f"the features of the {int(moments.count)} source images have no finite variance; give at least 2 images, "
            "normalised like the test images"
        )
    return moments
