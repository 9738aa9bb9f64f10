"""The family that learns by gradients: every switch of the paper's ablations, and the hooks that a member overrides.

Tent, InfoMax, SAR and SAR² are settings of this one class; EATA, DeYO, ReCAP, ROID and others override a hook or two. The loop
itself is :func:`wildtta.step.loop.online_step`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from wildtta.methods.base import Method
from wildtta.methods.losses import diversity, masked_mean, smoothed_entropy
from wildtta.methods.sar2 import bank as centroid_bank
from wildtta.methods.sar2.redundancy import READINGS, Reading, inequity_of_logits, redundancy
from wildtta.parts.class_limit import followed_shares, limited_weights
from wildtta.parts.opinions import opinion_entropy
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

# SAR²'s learning rates: warm-start steps use them before any method.
SAR2_LEARNING_RATES = {"convolutional": (1e-3 / 16, 1e-3), "transformer": (5e-3 / 16, 5e-3)}


@dataclass
class Lesson:
    """Who may teach in a batch, and what is known of them. All tensors have the batch's length."""

    mask: Tensor | None
    """Which samples teach; None: all."""
    labels: Tensor
    """Pseudo labels of the first pass."""
    weights: Tensor | None = None
    """Per-sample weights of the loss, where a method has them."""
    extra: dict[str, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None
    """Positions that ``mask`` is limited to, where choosing had to ask the device how many there are: the passes that
    learn then run on them, under the mask, and nothing more is asked."""
    further_forwards: Tensor | int = 0
    """Samples that the method passes beside the two halves of the step (DeYO's destroyed objects, ROID's views)."""
    further_backwards: Tensor | int = 0

    def take(self, positions: Tensor, *, all_teach: bool = True) -> Lesson:
        """The lesson of the samples at ``positions``; all of them teach, or each as it did."""
        mask = None if all_teach or self.mask is None else self.mask[positions]
        weights = None if self.weights is None else self.weights[positions]
        extra = {name: value[positions] for name, value in self.extra.items()}
        return Lesson(mask, self.labels[positions], weights, extra)


@dataclass
class Terms:
    """The parts of a loss at one point of the weights."""

    entropy: Tensor
    """Weighted entropy part (what recovery watches, before its weight)."""
    teachers: Tensor
    """How many samples it averages over."""
    redundancy: Tensor | None = None
    inequity: Tensor | None = None
    parts: list[Tensor] = field(default_factory=list)
    """Everything that is minimised, each with its weight: their sum is the loss."""
    warm: Tensor | None = None
    """Whether the bank has rows enough (SAR²); None where there is no warm-up."""

    @property
    def total(self) -> Tensor:
        return torch.stack([part.reshape(()) for part in self.parts]).sum() if len(self.parts) > 1 else self.parts[0]


def help_text(text: str, default: Any) -> Any:
    """A dataclass field with its documentation."""
    return field(default=default, metadata={"help": text})


REDUNDANCY_HELP = "weight of R, in units of 1/D (1e3 means α = 10³/D); None: off"
INEQUITY_HELP = "weight β of I; None: off"
ENTROPY_HELP = "weight of the entropy term; 0: off"
CLIP_RATIO_HELP = "scale the gradient down to this times the norm of the source weights; None: as it is"
ENSEMBLING_HELP = "weight of the adapted weights after 64 samples, the rest is the source's; None: no pull to the source"
MOMENTUM_HELP = "SGD momentum"
CLASS_LIMIT_HELP = "most that one predicted class may weigh in the entropy term, in units of 1/C; None: no limit"


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """Entropy minimisation with everything that can be added to it. Fields are documented in their ``help`` metadata."""

    lr: float | None = help_text("learning rate; None: the paper's for the network's family and batch size", None)
    lr_scale: float = help_text("multiplies the learning rate, the paper's or the given one", 1.0)
    reliable: float | None = help_text("only samples with entropy below this times ln C teach; None: all", None)
    sharpness: float | None = help_text("radius ρ of the sharpness-aware step; None: a plain step", None)
    recovery: float | None = help_text("start again when the moving entropy falls below this; None: never", None)
    redundancy: float | None = help_text(REDUNDANCY_HELP, None)
    inequity: float | None = help_text(INEQUITY_HELP, None)
    diversity: float | None = help_text("weight of InfoMax's diversity term; None: off", None)
    entropy: float = help_text(ENTROPY_HELP, 1.0)
    class_limit: float | None = help_text(CLASS_LIMIT_HELP, None)
    objective: Literal["entropy", "conservative"] = help_text(
        "what is minimised and thresholded: the softmax's entropy, or COME's entropy of opinion", "entropy"
    )
    bank: bool = help_text("R and I on the class-centroid bank (else on the live batch)", False)
    momentum: float = help_text(MOMENTUM_HELP, 0.9)
    nesterov: bool = help_text("Nesterov momentum", False)
    clip_value: float | None = help_text("cut each gradient entry to ± this", None)
    clip_norm: float | None = help_text("scale the gradient down to this norm; None: as it is", None)
    clip_ratio: float | None = help_text(CLIP_RATIO_HELP, None)
    ensembling: float | None = help_text(ENSEMBLING_HELP, None)
    warm_start: int = help_text("first so many batches: steps on R + I of the live batch alone (table 9)", 0)
    steps: int = help_text("updates per batch", 1)
    episodic: bool = help_text("start every batch from the source weights", False)
    coast: bool = help_text(
        "a batch without teachers still moves the weights by momentum, as the authors' code does", True
    )
    second_filter: bool = help_text("drop samples that are unreliable at the perturbed weights", True)
    recovery_keep: float = help_text("weight of the old value in the moving entropy", 0.9)
    reading: Reading = help_text(
        "how features are normalised in R: columns, rows, rows_centred, rows_then_columns", "columns"
    )
    variance_floor: float = help_text("smallest column variance in R, relative to the mean column variance", 0.0)
    bank_rate: float = help_text("λ: weight of the new centroid in the bank", 0.9)
    warmup: int | None = help_text(
        "ζ: bank rows before learning starts; None: a tenth of the classes, at least 10, at most half of them", None
    )
    warmup_inclusive: bool = help_text("learn from ζ rows on (≥); False: from more than ζ", True)
    warmup_scope: Literal["all", "regularisers"] = help_text("what waits for the bank: all learning, or R and I", "all")
    perturbation: Literal["joint", "per_term"] = help_text("one ε from the whole loss, or one per term", "joint")
    second_labels: Literal["first", "second"] = help_text(
        "pseudo labels of the second pass: kept or made anew", "first"
    )
    bank_refresh: Literal["after", "before"] = help_text("refresh the bank after or before the step", "after")
    bank_features: Literal["first", "post"] = help_text("refresh it with first-pass or post-step features", "first")
    centroids: Literal["all", "reliable"] = help_text("samples that form centroids", "all")

    passes: ClassVar[str] = "1 / 1"
    capturable: ClassVar[bool] = False
    """Whether a step is the same sequence of kernels for every batch, so that a CUDA graph may replay it."""

    def __post_init__(self) -> None:
        """Refuse values that cannot be meant."""
        positive = (
            "lr",
            "lr_scale",
            "reliable",
            "sharpness",
            "recovery",
            "redundancy",
            "inequity",
            "diversity",
            "class_limit",
            "clip_value",
            "clip_norm",
            "clip_ratio",
        )
        for name in positive:
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a positive number or None (off), got {value!r}")
        for name in ("momentum", "bank_rate", "recovery_keep", "ensembling"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")
        for name, least in (("steps", 1), ("warm_start", 0), ("variance_floor", 0), ("entropy", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        choices: dict[str, tuple[str, ...]] = {
            "objective": ("entropy", "conservative"),
            "reading": READINGS,
            "warmup_scope": ("all", "regularisers"),
            "perturbation": ("joint", "per_term"),
            "second_labels": ("first", "second"),
            "bank_refresh": ("after", "before"),
            "bank_features": ("first", "post"),
            "centroids": ("all", "reliable"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.bank and self.redundancy is None and self.inequity is None:
            raise ValueError(
                "bank=True keeps centroids for R and I, but both are off; set redundancy or inequity, or bank=False"
            )
        if self.entropy == 0 and self.redundancy is None and self.inequity is None and self.diversity is None:
            raise ValueError("nothing to minimise: entropy=0 and redundancy, inequity and diversity are off")

    # -- what the loop asks ----------------------------------------------------------------------------------------------

    @property
    def regularised(self) -> bool:
        return self.redundancy is not None or self.inequity is not None

    @property
    def wants_whole_batch(self) -> bool:
        """Whether samples that do not teach are needed in the graph: R, I or diversity look at all of them."""
        if self.diversity is not None:
            return True
        return self.regularised and not (self.bank and self.centroids == "reliable")

    @property
    def selects(self) -> bool:
        """Whether some samples may be left out."""
        return self.reliable is not None

    def learning_rate(self, family: str, batch_size: int) -> float:
        """As for every method, times ``lr_scale``."""
        return self.lr_scale * super().learning_rate(family, batch_size)

    def warmup_rows(self, classes: int) -> int:
        """ζ: the paper's 100 for 1000 classes is a tenth of them; with few classes at least 10, but at most half."""
        return self.warmup if self.warmup is not None else min(max(10, classes // 10), classes // 2)

    def is_warm(self, rows: Any, classes: int) -> Any:
        """Whether ``rows`` (a number, or a tensor on the device) are enough to learn: at least ζ, or more than ζ."""
        needed = self.warmup_rows(classes)
        return rows >= needed if self.warmup_inclusive else rows > needed

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        device, learnables = engine.device, engine.learnables
        if self.clip_ratio is not None and engine.source_norm == 0:
            raise ValueError(
                f"clip_ratio={self.clip_ratio:g} measures the gradient by the weights that learn, but all {learnables.size} "
                "of them are zero at the start, so that nothing could be learned; give clip_ratio=None, or clip_norm="
            )
        state = {"momentum": torch.zeros(learnables.size, dtype=learnables.dtype, device=device)}
        if self.recovery is not None:
            state["e_m"] = torch.full((), math.nan, dtype=engine.dtype, device=device)
        network = engine.network
        if self.class_limit is not None:
            even = 1 / network.classes
            state["class_shares"] = torch.full((network.classes,), even, dtype=engine.dtype, device=device)
        if self.bank:
            state |= centroid_bank.empty_bank(network.classes, network.feature_width, dtype=engine.dtype, device=device)
        return state

    def gradient_bound(self, engine: Engine) -> float | None:
        """The longest gradient that a step follows: ``clip_norm`` or ``clip_ratio`` · ‖θ₀‖, the shorter of those given."""
        relative = None if self.clip_ratio is None else self.clip_ratio * engine.source_norm
        return min((bound for bound in (self.clip_norm, relative) if bound is not None), default=None)

    def step(self, engine: Engine, images: Tensor) -> Answer:
        from wildtta.step.loop import online_step

        return online_step(self, engine, images)

    # -- hooks -----------------------------------------------------------------------------------------------------------

    def threshold(self, engine: Engine) -> float:
        """E₀ in nats."""
        return (self.reliable or math.inf) * math.log(engine.network.classes)

    def uncertainty(self, output: Output) -> Tensor:
        """E(x) of each sample, [b]: what is thresholded and minimised."""
        return output.entropies if self.objective == "entropy" else opinion_entropy(output.logits)

    def waits(self, engine: Engine) -> bool:
        """Whether this batch can teach nothing yet, as far as the host knows: it is answered and remembered."""
        return False

    def select(self, engine: Engine, first: Output) -> Lesson:
        """Who may teach: samples with E(x) < E₀."""
        mask = None if self.reliable is None else self.uncertainty(first).detach() < self.threshold(engine)
        return Lesson(mask, first.labels)

    def reselect(self, engine: Engine, second: Output, lesson: Lesson) -> Lesson:
        """Who still teaches at the perturbed weights."""
        if self.second_labels == "second":
            lesson = replace(lesson, labels=second.labels)
        if self.reliable is None or not self.second_filter:
            return lesson
        reliable = self.uncertainty(second).detach() < self.threshold(engine)
        return replace(lesson, mask=reliable if lesson.mask is None else lesson.mask & reliable)

    def sample_losses(self, engine: Engine, output: Output, lesson: Lesson) -> Tensor:
        """What is minimised per sample, [b]: the entropy (with InfoMax's smoothing where diversity is on)."""
        smoothed = self.diversity is not None and self.objective == "entropy"
        losses = smoothed_entropy(output.logits) if smoothed else self.uncertainty(output)
        return losses if lesson.weights is None else losses * lesson.weights

    def remember(self, engine: Engine, first: Output, lesson: Lesson, allowed: Tensor) -> None:
        """What is kept for the next batch, where ``allowed`` (a boolean scalar on the device)."""
        self.refresh_bank(engine, first, lesson, allowed)
        if self.class_limit is not None:
            shares = engine.memory["class_shares"]
            shares.copy_(torch.where(allowed, followed_shares(shares, first.labels), shares))

    def refresh_bank(self, engine: Engine, first: Output, lesson: Lesson, allowed: Tensor) -> None:
        """The bank's rows of the classes in this batch, where ``allowed``."""
        if self.bank:
            live = self.live_centroids(engine, first, lesson)
            centroid_bank.refresh(engine.memory, live, rate=self.bank_rate, reading=self.reading, allowed=allowed)

    def penalty_gradient(self, engine: Engine, theta: Tensor) -> Tensor | None:
        """Gradient of a penalty on the weights themselves (EATA's Fisher term); None: there is none."""
        return None

    def settle(self, engine: Engine, theta: Tensor) -> Tensor:
        """A last word on the updated weights: θ ← w·θ + (1−w)·θ₀, so that what is not learned again fades.

        This is ROID's weight ensembling (https://arxiv.org/abs/2306.00650).
        """
        if self.ensembling is None:
            return theta
        assert engine.source is not None
        kept = self.kept_share(self.ensembling, engine.batch_size or 64)
        return kept * theta + (1 - kept) * engine.source

    def kept_share(self, ensembling: float, batch_size: int) -> float:
        """w of one step: as much is kept of 64 samples whether they come together or one by one."""
        return float(ensembling ** (batch_size / 64))

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        """State beside momentum and e_m that a recovery sets back, where ``trigger`` holds."""
        if self.bank:
            centroid_bank.clear(engine.memory, trigger)
        if self.class_limit is not None:
            engine.memory["class_shares"].masked_fill_(trigger, 1 / engine.network.classes)

    # -- the loss --------------------------------------------------------------------------------------------------------

    def live_centroids(self, engine: Engine, output: Output, lesson: Lesson) -> centroid_bank.Centroids:
        mask = lesson.mask if self.centroids == "reliable" else None
        wide = centroid_bank.accumulation_dtype(engine.device)
        return centroid_bank.live_centroids(output.features.to(wide), lesson.labels, mask, engine.network.classes)

    def terms(self, engine: Engine, output: Output, lesson: Lesson, forming: Lesson) -> Terms:
        """The loss at the present weights.

        ``lesson`` says who teaches by entropy, ``forming`` who may form centroids (the first pass's choice: a second
        filter does not remove a sample from its class's centroid).
        """
        losses = self.sample_losses(engine, output, lesson)
        mean = masked_mean(losses, lesson.mask)
        number = torch.full((), len(losses), device=losses.device) if lesson.mask is None else lesson.mask.sum()
        terms = Terms(entropy=mean, teachers=number)
        if self.class_limit is not None:
            weights = limited_weights(engine.memory["class_shares"], lesson.labels, self.class_limit)
            mean = masked_mean(losses * weights, lesson.mask)
        if self.entropy > 0:
            terms.parts.append(self.entropy * mean)
        if self.diversity is not None:
            terms.parts.append(-self.diversity * diversity(output.logits))
        if self.regularised:
            self._add_regularisers(terms, engine, output, forming)
        return terms

    def _add_regularisers(self, terms: Terms, engine: Engine, output: Output, forming: Lesson) -> None:
        weight: Tensor | float = 1.0
        if self.bank:
            live = self.live_centroids(engine, output, forming)
            sums = centroid_bank.moments(engine.memory, live, self.reading)
            terms.warm = self.is_warm(sums.count, engine.network.classes)
            assert terms.warm is not None
            if self.warmup_scope == "regularisers":
                weight = terms.warm.to(engine.dtype)
        if self.redundancy is not None:
            if self.bank:
                terms.redundancy = sums.redundancy(self.reading, self.variance_floor).to(engine.dtype)
            else:
                wide = output.features.to(centroid_bank.accumulation_dtype(engine.device))
                direct = redundancy(wide, reading=self.reading, variance_floor=self.variance_floor)
                terms.redundancy = direct.to(engine.dtype)
            terms.parts.append(weight * (self.redundancy / engine.network.feature_width) * terms.redundancy)
        if self.inequity is not None:
            mean = sums.mean().to(engine.dtype) if self.bank else output.features.mean(0)
            terms.inequity = inequity_of_logits(engine.head_logits(mean[None]))
            terms.parts.append(weight * self.inequity * terms.inequity)
