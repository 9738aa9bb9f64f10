"""SAR² and SAR²† as methods of the package: the fast form of :mod:`wildtta.methods.sar2.algorithm`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from wildtta.methods.base import Rates
from wildtta.methods.options import NOT_NEGATIVE, POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.sar import SAR, worst_step
from wildtta.methods.sar2 import bank as centroid_bank
from wildtta.methods.sar2.redundancy import Normalisation, inequity_of_logits, redundancy
from wildtta.step.loop import Gradient, Loss, Selection
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine

@register
@dataclass(frozen=True, kw_only=True)
class SAR2(SAR):
    """SAR with two regularisers that keep features from collapsing (Niu et al., "Adapt in the Wild").

        min over norm parameters of  S(x)·E^SA + α·R^SA(C^t) + β·I^SA(C^t)

    C^t holds the centroids of the classes predicted in this batch and the bank's rows of all other classes seen so far.
    R(Z) = 1/(D−1) Σ_{i≠j} 𝒞_ij² with 𝒞 the correlation matrix of the rows; I(Z) = ln C − H(softmax(h(mean row))).
    α = 10³/D, β = 50. One ε̂ from the whole loss; nothing learns until C^t has ζ = 100 rows (half of the classes where
    there are fewer than 200). After the step the bank's rows follow the first pass: c̃_i ← (1−λ) c̃_i + λ c_i, λ = 0.9.
    R and I act also where no sample is reliable.

    Where the features come from GroupNorm and ReLU (ResNet50-GN) the paper normalises rows of Z instead of columns,
    because such features have dimensions that are zero everywhere; ``normalisation="auto"`` follows it.
    Paper: "Adapt in the Wild", the extension of https://arxiv.org/abs/2302.12400. There is no public code of its authors.
    """

    name: ClassVar[str] = "sar2"
    title: ClassVar[str] = "SAR²"
    order: ClassVar[int] = 210
    paper: ClassVar[str] = "Niu et al., Adapt in the Wild (SAR²), extension of https://arxiv.org/abs/2302.12400"
    passes: ClassVar[str] = "2 / 2"
    learning_rates: ClassVar[Rates] = {"convolutional": (1e-3 / 16, 1e-3), "transformer": (5e-3 / 16, 5e-3)}
    upkeep_every: ClassVar[int | None] = 256
    """The bank's sums are computed anew, so that rounding does not add up over an endless run."""

    entropy: float = option("weight of the entropy term; 0: off", 1.0, within=NOT_NEGATIVE)
    redundancy: float | None = option(
        "weight of R in units of 1/D: 1e3 means α = 10³/D; None: off", 1e3, within=POSITIVE
    )
    inequity: float | None = option("weight β of I; None: off", 50.0, within=POSITIVE)
    normalisation: Literal["auto", "columns", "rows", "rows_centred", "rows_then_columns"] = option(
        "of the features in R; auto: rows where they come from GroupNorm and ReLU, else columns",
        "auto",
        needs="redundancy",
    )
    variance_floor: float = option(
        "smallest column variance in R, relative to the mean column variance",
        0.0,
        within=NOT_NEGATIVE,
        needs="redundancy",
    )
    bank: bool = option("R and I on the class-centroid bank; False: on the live batch", True)
    bank_rate: float = option("λ: weight of the new centroid in the bank", 0.9, within=SHARE, needs="bank")
    warmup: int | None = option(
        "ζ: rows of C^t before learning starts; None: 100, at most half of the classes", None, within=NOT_NEGATIVE,
        needs="bank",
    )  # fmt: skip
    warmup_inclusive: bool = option("learn from ζ rows on (≥); False: from more than ζ", True, needs="bank")
    warmup_scope: Literal["all", "regularisers"] = option(
        "what waits for ζ: all learning, or R and I", "all", needs="bank"
    )
    centroids: Literal["all", "reliable"] = option("samples that form centroids", "all", needs=("bank", "reliable"))
    perturbation: Literal["joint", "per_term"] = option(
        "one ε̂ from the whole loss, or one per term", "joint", needs="sharpness"
    )
    second_labels: Literal["first", "second"] = option(
        "pseudo labels of the second pass: kept or made anew", "first", needs=("sharpness", "bank")
    )
    bank_refresh: Literal["after", "before"] = option(
        "refresh the bank after or before the step", "after", needs="bank"
    )
    bank_features: Literal["first", "post"] = option(
        "refresh it with the features of the first pass, or of a pass after the step", "first", needs="bank"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.entropy == 0 and not self.regularised:
            raise ValueError("nothing to minimise: entropy=0, and redundancy and inequity are off")
        if self.bank and not self.regularised:
            raise ValueError(
                "bank=True keeps centroids for R and I, but both are off; set redundancy or inequity, or bank=False"
            )
        if not self.step_without_samples and (self.wants_whole_batch or self.entropy == 0):
            raise ValueError(
                "step_without_samples=False has no effect while R or I act on every sample of a batch; leave it out, "
                "or set centroids='reliable'"
            )
        if self.bank_refresh == "before" and self.second_labels == "first":
            raise ValueError(
                "bank_refresh='before' has no effect while second_labels='first': a step reads the bank only for classes "
                "that are not in the batch; leave it out, or set second_labels='second'"
            )

    # -- what depends on the network -------------------------------------------------------------------------------------

    def redundancy_weight(self, network: Network) -> float:
        """α, the weight of R: ``redundancy``/D."""
        return (self.redundancy or 0.0) / network.feature_width

    def normalisation_of(self, network: Network) -> Normalisation:
        """How features are normalised in R on ``network``."""
        if self.normalisation == "auto":
            return "rows" if network.sparse_features else "columns"
        return self.normalisation

    def warmup_rows(self, classes: int) -> int:
        """ζ: the paper's 100; with fewer than 200 classes, where the paper says nothing, half of them."""
        return self.warmup if self.warmup is not None else min(100, classes // 2)

    def why_silent(self, engine: Engine) -> str | None:
        needed = self.warmup_rows(engine.network.classes)
        rows = int(engine.memory["bank_count"]) if "bank_count" in engine.memory else needed
        if rows >= needed or self.resting(engine):
            return super().why_silent(engine)
        return (
            f"learning waits until {needed} classes have been predicted, and the stream has shown {rows}. "
            f"Give warmup={max(1, rows // 2)} or another number that this stream reaches"
        )

    def resolved(self, network: Network, batch_size: int) -> dict[str, Any]:
        found = super().resolved(network, batch_size)
        if self.redundancy is not None:
            found["normalisation"] = self.normalisation_of(network)
        if self.bank:
            found["warmup"] = self.warmup_rows(network.classes)
        return found

    # -- what the loop asks ----------------------------------------------------------------------------------------------

    @property
    def regularised(self) -> bool:
        return self.redundancy is not None or self.inequity is not None

    @property
    def wants_whole_batch(self) -> bool:
        return self.regularised and not (self.bank and self.centroids == "reliable")

    @property
    def needs_samples(self) -> bool:
        return super().needs_samples and self.entropy > 0 and not self.wants_whole_batch

    def recordable(self, engine: Engine) -> bool:
        return self.bank_refresh == "after" and self.bank_features == "first"

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        state = super().declare(engine)
        if self.bank:
            classes, width = engine.network.classes, engine.network.feature_width
            state |= centroid_bank.empty_bank(classes, width, dtype=engine.dtype, device=engine.device)
        return state

    def observed(self, engine: Engine) -> dict[str, Tensor]:
        return {**super().observed(engine), **({"bank_rows": engine.memory["bank_count"]} if self.bank else {})}

    # -- the step ----------------------------------------------------------------------------------------------------------

    def select(self, engine: Engine, first: Output) -> Selection:
        """As in SAR. Which samples form centroids is the first pass's choice: the second filter does not change it."""
        selection = super().select(engine, first)
        members = first.usable
        if self.centroids == "reliable" and selection.mask is not None:
            members = selection.mask if members is None else selection.mask & members
        if members is not None:
            selection.extra["members"] = members
        if self.bank and self.bank_refresh == "before":
            ahead = {name: value.clone() for name, value in engine.memory.items() if name.startswith("bank_")}
            live = self._live(engine, first, selection)
            centroid_bank.refresh(ahead, live, self._rule(engine), rate=self.bank_rate)
            return RefreshedSelection(**vars(selection), bank=ahead)
        return selection

    @property
    def leaves_out(self) -> bool:
        return self.bank or not self.regularised

    def gate(self, engine: Engine, first: Output, selection: Selection) -> Tensor | None:
        """Whether C^t has ζ rows."""
        if not self.bank or self.warmup_scope != "all":
            return None
        rows = centroid_bank.rows_with(engine.memory, selection.labels, selection.extra.get("members"))
        return self._is_warm(rows, engine)

    def _is_warm(self, rows: Tensor, engine: Engine) -> Tensor:
        needed = self.warmup_rows(engine.network.classes)
        return rows >= needed if self.warmup_inclusive else rows > needed

    def reselect(self, engine: Engine, second: Output, selection: Selection) -> Selection:
        selection = super().reselect(engine, second, selection)
        return replace(selection, labels=second.labels) if self.second_labels == "second" else selection

    def loss(self, engine: Engine, output: Output, selection: Selection) -> Loss:
        """S(x)·E + α·R(C^t) + β·I(C^t), or with R and I of the live batch."""
        loss = super().loss(engine, output, selection)
        loss.parts = [self.entropy * loss.parts[0]] if self.entropy > 0 else []
        if not self.regularised:
            return loss
        weight: Tensor | float = 1.0
        rule, wide = self._rule(engine), centroid_bank.accumulation_dtype(engine.device)
        if self.bank:
            state = selection.bank if isinstance(selection, RefreshedSelection) else engine.memory
            sums = centroid_bank.moments(state, self._live(engine, output, selection), rule)
            if self.warmup_scope == "regularisers":
                weight = self._is_warm(sums.count, engine).to(engine.dtype)
        if self.redundancy is not None:
            if self.bank:
                value = sums.redundancy(rule, self.variance_floor)
            else:
                value = redundancy(output.features.to(wide), normalisation=rule, variance_floor=self.variance_floor)
            loss.redundancy = value.to(engine.dtype)
            alpha = self.redundancy_weight(engine.network)
            loss.parts.append(weight * alpha * loss.redundancy)
        if self.inequity is not None:
            mean = sums.mean().to(engine.dtype) if self.bank else output.features.mean(0)
            loss.inequity = inequity_of_logits(engine.head_logits(mean[None]))
            loss.parts.append(weight * self.inequity * loss.inequity)
        return loss

    def _rule(self, engine: Engine) -> Normalisation:
        return self.normalisation_of(engine.network)

    def _live(self, engine: Engine, output: Output, selection: Selection) -> centroid_bank.Centroids:
        features = output.features.to(centroid_bank.accumulation_dtype(engine.device))
        members = selection.extra.get("members")
        return centroid_bank.live_centroids(features, selection.labels, members, engine.network.classes)

    def gradient(self, engine: Engine, first: Output, selection: Selection) -> Gradient:
        if self.sharpness is None or self.perturbation == "joint":
            return super().gradient(engine, first, selection)
        return self._per_term(engine, first, selection, self.sharpness)

    def _per_term(self, engine: Engine, first: Output, selection: Selection, radius: float) -> Gradient:
        """The paper's equations to the letter: each term has its own ε̂, so that there are as many second passes."""
        loss = self.loss(engine, first, selection)
        number = len(loss.parts)
        firsts = [
            engine.learnables.gradient(part, retain_graph=index + 1 < number) for index, part in enumerate(loss.parts)
        ]
        seconds, last = [], loss
        for index, gradient in enumerate(firsts):
            at, second = self.gradient_at(engine, first, selection, worst_step(gradient, radius), index)
            last = at if index == 0 else last
            seconds.append(second)
        total = torch.stack(seconds).sum(0)
        norm = torch.stack(firsts).sum(0).norm()
        return Gradient(total, loss, last, norm, total.norm(), forwards=number, backwards=2 * number)

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        """c̃_i ← (1−λ) c̃_i + λ c_i."""
        if not self.bank:
            return
        if self.bank_features == "post":
            first = engine.forward(first.images, grad=False)
            selection = replace(selection, labels=first.labels)
        live = self._live(engine, first, selection)
        centroid_bank.refresh(engine.memory, live, self._rule(engine), rate=self.bank_rate, allowed=allowed)

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        if self.bank:
            centroid_bank.clear(engine.memory, trigger)

    def maintain(self, engine: Engine) -> None:
        self.derive(engine)

    def derived(self) -> tuple[str, ...]:
        return ("bank_sum", "bank_outer") if self.bank else ()

    def derive(self, engine: Engine) -> None:
        if self.bank:
            centroid_bank.resum(engine.memory, self._rule(engine))


@dataclass(kw_only=True)
class RefreshedSelection(Selection):
    """A selection with the bank as it will be after the batch (``bank_refresh="before"``)."""

    bank: dict[str, Tensor]


@register
@dataclass(frozen=True, kw_only=True)
class SAR2Efficient(SAR2):
    """SAR²† of the paper: only reliable samples form centroids too, so that the second pass runs on them alone."""

    name: ClassVar[str] = "sar2-efficient"
    title: ClassVar[str] = "SAR²†"
    order: ClassVar[int] = 220
    passes: ClassVar[str] = "1 + s / 2s (s: share of reliable samples)"

    centroids: Literal["all", "reliable"] = option(
        "samples that form centroids", "reliable", needs=("bank", "reliable")
    )
