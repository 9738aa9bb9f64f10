"""The family that learns by gradients: the options that all of them share, and the hooks in which they differ.

The loop that calls the hooks is :func:`wildtta.step.loop.online_step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from wildtta.methods.base import Method
from wildtta.methods.losses import masked_mean, opinion_entropy
from wildtta.methods.options import AT_LEAST_ONE, POSITIVE, SHARE, option
from wildtta.step.loop import Gradient, Loss, Selection, online_step
from wildtta.step.optimizers import clip_gradient
from wildtta.step.report import Answer, Output
from wildtta.step.selective_reset import ASR

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Recovery = float | ASR | Literal["asr", "relative"] | None
"""A threshold of SAR's recovery in nats or relative to the source's entropy, a selective reset, or none."""


_RELATIVE_RECOVERY = 0.2


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method):
    """One gradient step per batch on a loss over the batch. Passes, optimizer, recovery and counting are the loop's."""

    passes: ClassVar[str] = "1 / 1"
    updates: ClassVar[str] = "affine parameters of all norms"
    comparison: ClassVar[tuple[str, ...]] = ()
    """Names of the state that :meth:`compared` reads or writes, where the method declares it; empty: it compares nothing."""
    scrambling: ClassVar[tuple[str, ...]] = ()
    """The same for :meth:`scrambled`."""

    lr: float | None = option(
        "learning rate; None: the paper's for the network's family and batch size", None, within=POSITIVE
    )
    lr_scale: float = option("multiplies the learning rate, the paper's or the given one", 1.0, within=POSITIVE)
    momentum: float = option("SGD momentum", 0.9, within=SHARE)
    nesterov: bool = option("Nesterov momentum", False, needs="momentum")
    clip_value: float | None = option("cut each gradient entry to ± this", None, within=POSITIVE)
    clip_norm: float | None = option("scale the gradient down to this norm", None, within=POSITIVE)
    steps: int = option("updates per batch", 1, within=AT_LEAST_ONE)
    episodic: bool = option("start every batch from the source weights", False)
    recovery: Recovery = option(
        "e₀: go back to the initial state when the moving entropy falls below this; 'relative': below a fifth of the "
        "first batch's; 'asr' or an ASR: selective reset; None: never",
        None,
        within=POSITIVE,
    )
    recovery_keep: float = option("weight of the old value in the moving entropy", 0.9, within=SHARE, needs="recovery")

    def __post_init__(self) -> None:
        if not isinstance(self.recovery, int | float | None) and (
            not isinstance(self.recovery, str) or self.recovery != "relative"
        ):
            object.__setattr__(self, "recovery", ASR.of(self.recovery))
        super().__post_init__()
        if self.selective_reset is not None and self.recovery_keep != 0.9:
            raise ValueError(f"recovery_keep={self.recovery_keep} has no effect with a selective reset; leave it out")

    # -- what the loop asks ----------------------------------------------------------------------------------------------

    @property
    def watches_entropy(self) -> bool:
        """Whether SAR's recovery is on."""
        return self.recovery == "relative" or isinstance(self.recovery, int | float)

    def least_entropy(self, engine: Engine) -> Tensor | float:
        """e₀ of SAR's recovery: its nats, or a fifth of the entropy that the network began with.

        The paper's 0.2 nats were chosen with 1,000 classes. With few a healthy network is below it, and would be put back
        at every batch.
        """
        if isinstance(self.recovery, int | float):
            return float(self.recovery)
        return _RELATIVE_RECOVERY * engine.memory["e_first"]

    @property
    def selective_reset(self) -> ASR | None:
        """The selective reset, where that is the recovery."""
        return self.recovery if isinstance(self.recovery, ASR) else None

    @property
    def selects(self) -> bool:
        """Whether some samples may be left out."""
        return False

    @property
    def wants_whole_batch(self) -> bool:
        """Whether the loss also needs the samples that are not selected."""
        return False

    @property
    def needs_samples(self) -> bool:
        """Whether a batch without a selected sample changes nothing; else momentum still moves the weights."""
        return False

    @property
    def differentiates_first_pass(self) -> bool:
        """Whether the loss is differentiated through the pass that answers; else that pass keeps no graph."""
        return True

    @property
    def leaves_out(self) -> bool:
        """Whether the selection's mask alone keeps a sample that is not finite out of everything; else its batch is skipped."""
        return True

    def recordable(self, engine: Engine) -> bool:
        """Whether a step is the same sequence of kernels for every batch, so that a CUDA graph may replay it."""
        return False

    def at_rest(self, engine: Engine) -> Tensor | None:
        """Whether nothing is to be learned from the next batch (a boolean on the device); None: it always may be."""
        return None

    def resting(self, engine: Engine) -> bool:
        """The same, read: such a batch needs no backward pass."""
        rest = self.at_rest(engine)
        return rest is not None and bool(rest)

    def learning_rate(self, family: str, batch_size: int) -> float:
        """As for every method, times ``lr_scale``."""
        return self.lr_scale * super().learning_rate(family, batch_size)

    def why_silent(self, engine: Engine) -> str | None:
        if self.resting(engine):
            return None
        if not self.selects:
            return super().why_silent(engine)
        reliable = self.options().get("reliable")
        return (
            f"no sample was selected, or none had a gradient ({int(engine.memory['skipped'])} batches so far were skipped). "
            "Check that the network returns logits and that inputs are prepared as in training"
            + (f"; a higher reliable= (now {reliable:g}) selects more" if reliable else "")
        )

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        state = {"momentum": torch.zeros(engine.learnables.size, dtype=engine.learnables.dtype, device=engine.device)}
        if self.watches_entropy:
            state["e_m"] = torch.full((), math.nan, dtype=engine.dtype, device=engine.device)
        if self.recovery == "relative":
            state["e_first"] = state["e_m"].clone()
        return state if self.selective_reset is None else {**state, **self.selective_reset.declare(engine)}

    def observed(self, engine: Engine) -> dict[str, Tensor]:
        return {"e_m": engine.memory["e_m"]} if self.watches_entropy else {}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        return online_step(self, engine, images)

    def compared(
        self, memory: Mapping[str, Tensor], own: Tensor, source: Tensor, usable: Tensor
    ) -> dict[str, Tensor]:
        """What of the ``comparison`` state is new after some samples [k] that the source answered too, by logits [k, C]."""
        return {}

    def scrambled(
        self, memory: Mapping[str, Tensor], features: Tensor, beside: Tensor, usable: Tensor, rows: Tensor, number: Tensor
    ) -> dict[str, Tensor]:
        """What of the ``scrambling`` state is new after samples [k] with the source's ``features`` [k, D], and ``beside`` [k, D]
        when scrambled, by a head with these ``rows`` [C, D]. The first ``number`` are samples, others fill up the shape.
        """
        return {}

    # -- hooks, in the order of a step -------------------------------------------------------------------------------------

    def uncertainty(self, output: Output) -> Tensor:
        """E(x) of each sample, [b]: what is thresholded and minimised."""
        return output.entropies

    def select(self, engine: Engine, first: Output) -> Selection:
        """The samples to learn from."""
        return Selection(None, first.labels)

    def gate(self, engine: Engine, first: Output, selection: Selection) -> Tensor | None:
        """Whether the method may learn yet (a boolean on the device); while not, a batch is answered and remembered."""
        return None

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        """What is minimised per sample, [b]."""
        losses = self.uncertainty(output)
        return losses if selection.weights is None else losses * selection.weights

    def loss(self, engine: Engine, output: Output, selection: Selection) -> Loss:
        """The loss at the present weights: the mean over the selected samples. Recovery watches their plain entropy."""
        losses = self.sample_losses(engine, output, selection)
        watched = masked_mean(self.uncertainty(output).detach(), selection.mask)
        everything = torch.full((), len(losses), device=losses.device)
        selected = everything if selection.mask is None else selection.mask.sum()
        return Loss(watched, selected, [masked_mean(losses, selection.mask)])

    def gradient(self, engine: Engine, first: Output, selection: Selection) -> Gradient:
        """The gradient to follow: of the loss at the present weights."""
        loss = self.loss(engine, first, selection)
        gradient = engine.learnables.gradient(loss.total)
        return Gradient(gradient, loss, loss, gradient.norm(), backwards=1)

    def adjusted(self, engine: Engine, gradient: Tensor, theta: Tensor) -> Tensor:
        """The gradient as the optimizer gets it: clipped, or with a penalty on the weights added."""
        return clip_gradient(gradient, value=self.clip_value, norm=self.clip_norm)

    def updated(self, engine: Engine, theta: Tensor) -> Tensor:
        """The weights after the optimizer's step, where a method changes them once more."""
        return theta

    def answered(self, engine: Engine, output: Output) -> Output:
        """The answer to the caller, from the pass before the update."""
        return output

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        """Update the method's own state, where ``allowed`` (a boolean on the device)."""

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        """Set back the method's own state, where ``trigger`` (a boolean on the device). Momentum and e_m are the loop's."""

    upkeep_every: ClassVar[int | None] = None
    """Steps after which :meth:`maintain` is called; None: never."""

    def maintain(self, engine: Engine) -> None:
        """Upkeep on the host after every ``upkeep_every``-th step; it is not part of a recorded step."""


@dataclass(frozen=True, kw_only=True)
class EntropyMethod(GradientMethod):
    """Methods on the entropy of each prediction, which COME's entropy of opinion can replace."""

    objective: Literal["entropy", "conservative"] = option(
        "what is thresholded and minimised: the softmax's entropy, or COME's entropy of opinion", "entropy"
    )

    def uncertainty(self, output: Output) -> Tensor:
        return output.entropies if self.objective == "entropy" else opinion_entropy(output.logits)


def threshold(reliable: float | None, engine: Engine) -> float:
    """E₀ in nats from its value in units of ln C; infinite where it is off."""
    return (reliable or math.inf) * math.log(engine.network.classes)
