"""What a step gives back: the answer to the caller and its report, ``model.last``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wildtta.methods.losses import entropy
from wildtta.methods.sar2.redundancy import inequity_of_logits, redundancy
from wildtta.network.output import logits_of, with_logits

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine


@dataclass
class Output:
    """One forward pass: what went in, the logits and features (float32 or wider), and what the network returned.

    ``images`` is the batch's tensor: images, or tokens, or vectors. Where the network was called with several arguments it
    holds the numbers of the samples in that call, which :meth:`Engine.forward` takes as well.
    """

    images: Tensor
    logits: Tensor
    features: Tensor
    raw: Any = None
    usable: Tensor | None = None
    """Which samples may be learned from, [B]; None: all. (One that is not finite may not; zeros took its place.)"""

    @cached_property
    def entropies(self) -> Tensor:
        """Entropy per sample (with graph where the logits have one)."""
        return entropy(self.logits)

    @cached_property
    def labels(self) -> Tensor:
        """Pseudo labels: the predicted classes."""
        return self.logits.detach().argmax(-1)

    def answering(self, logits: Tensor) -> Output:
        """The same pass with another answer: ``logits`` in place of the network's own."""
        logits = logits.detach()
        raw = with_logits(self.raw, logits.to(logits_of(self.raw).dtype))
        return Output(self.images, logits, self.features.detach(), raw, self.usable)

    @property
    def joins(self) -> bool:
        """Whether it can be joined with the passes over other parts of a batch: the network returned a row per image."""
        return isinstance(self.raw, Tensor) and len(self.raw) == len(self.images) == len(self.features)

    @classmethod
    def joined(cls, images: Tensor, parts: Sequence[Output]) -> Output:
        """One pass over ``images``, of passes over its parts."""
        columns = zip(*((part.logits, part.features, part.raw) for part in parts), strict=True)
        return cls(images, *(torch.cat(column) for column in columns))

    def take(self, positions: Tensor) -> Output:
        """The samples at ``positions``."""
        usable = None if self.usable is None else self.usable[positions]
        return Output(self.images[positions], self.logits[positions], self.features[positions], usable=usable)


@dataclass
class StepReport:
    """What happened in one step. Tensors stay on the device: reading one is what costs a synchronisation.

    ``forwards`` and ``backwards`` count samples as the paper's cost table does (a selected sample is passed once more);
    ``computed_forwards`` and ``computed_backwards`` count the samples that really went through the network.
    """

    seen: Tensor
    """Samples in the batch."""
    entropies: Tensor
    """Entropy of each prediction, [B]."""
    selected: Tensor
    """How many samples were selected."""
    mask: Tensor
    """Which ones, [B] bool."""
    selected_second: Tensor
    """Of these, how many passed the second filter (with sharpness)."""
    gradient_norm: Tensor
    """L2 norm of the first gradient."""
    gradient_norm_second: Tensor
    """L2 norm of the gradient at the perturbed weights (NaN without sharpness)."""
    e_m: Tensor
    """Moving average of the entropy loss that recovery watches (NaN before there is one)."""
    resets: Tensor
    """Recoveries so far."""
    bank_rows: Tensor
    """Classes in the centroid bank after the step."""
    forwards: Tensor
    backwards: Tensor
    computed_forwards: Tensor
    computed_backwards: Tensor
    learned: Tensor
    """Whether this batch changed anything (bool)."""
    skipped: Tensor
    """Batches so far that could not be learned from."""
    left_out: Tensor
    """Samples so far that were left out of their batch: not finite, or absurd in their stream (BatchNorm)."""
    loss: Tensor
    """The minimised loss at the first gradient (NaN where there was none)."""
    step: int = 0
    """The number of this call, paused ones included: an adapter answers one call at a time, in this order."""
    strength: Tensor | None = None
    """Steady: how clear it is that the stream has shifted, 0 (it rests) to 1."""
    used_redundancy: Tensor | None = None
    used_inequity: Tensor | None = None
    extra: dict[str, Tensor] = field(default_factory=dict)
    """What a single method adds."""
    disagreement: float = math.nan
    """Share of the images of the guard's last look that source and adapted network answer differently (NaN: no guard)."""
    _top_share: Callable[[], Tensor] | None = None
    _distance: Callable[[], Tensor] | None = None
    _features: Callable[[], tuple[Tensor, Network]] | None = None

    def with_more_forwards(self, samples: int) -> StepReport:
        """The same, with so many samples more that were passed."""
        counts = {name: getattr(self, name) + samples for name in ("forwards", "computed_forwards")}
        return dataclasses.replace(self, **counts)

    @property
    def entropy(self) -> Tensor:
        """Mean entropy of the batch's predictions."""
        return self.entropies.mean()

    @property
    def redundancy(self) -> Tensor:
        """R of the features used: the one in the loss, else of this batch's features (computed when it is read)."""
        if self.used_redundancy is not None:
            return self.used_redundancy
        assert self._features is not None
        return redundancy(self._features()[0])

    @property
    def inequity(self) -> Tensor:
        """I of the features used: the one in the loss, else of this batch's features (computed when it is read)."""
        if self.used_inequity is not None:
            return self.used_inequity
        return self.batch_inequity

    @property
    def batch_inequity(self) -> Tensor:
        """I of this batch's own features, whatever the loss used: it rises when one class floods the batch."""
        assert self._features is not None
        features, network = self._features()
        with torch.no_grad():
            return inequity_of_logits(network.logits(features.mean(0, keepdim=True)))

    @property
    def top_share(self) -> Tensor:
        """Share of the most predicted class over the last 1,000 images."""
        assert self._top_share is not None
        return self._top_share()

    @property
    def distance(self) -> Tensor:
        """‖θ − θ₀‖ / ‖θ₀‖ of what learns, with the weights as they are when this is read (NaN: nothing learns)."""
        assert self._distance is not None
        return self._distance()

    def __repr__(self) -> str:
        def shown(value: Tensor) -> str:
            number = value.item()
            return f"{number:.4g}" if isinstance(number, float) else str(number)

        return f"StepReport({', '.join(f'{name}={shown(getattr(self, name))}' for name in _SHOWN)})"

    @classmethod
    def of_prediction(cls, output: Output, engine: Engine) -> StepReport:
        """The report of a batch that was answered and not learned from; methods fill in what they did."""
        logits = output.logits.detach()
        features, network = output.features.detach(), engine.network
        number = logits.shape[0]
        entropies = output.entropies.detach()

        def count(value: int) -> Tensor:
            return torch.tensor(value)

        missing = torch.full((), float("nan"))
        shown: dict[str, Any] = {"e_m": missing, "bank_rows": count(0)}
        # Copies: the report is of this call, whatever later ones change.
        shown.update({name: value.clone() for name, value in engine.observed().items()})
        return cls(
            seen=count(number),
            entropies=entropies,
            selected=count(0),
            mask=torch.zeros_like(entropies, dtype=torch.bool),
            selected_second=count(0),
            gradient_norm=missing,
            gradient_norm_second=missing,
            forwards=count(number),
            backwards=count(0),
            computed_forwards=count(number),
            computed_backwards=count(0),
            learned=torch.tensor(False),
            loss=missing,
            **shown,
            _distance=engine.distance,
            _features=lambda: (features, network),
        )


_SHOWN = (
    *("seen", "selected", "selected_second", "entropy", "redundancy", "inequity", "gradient_norm", "e_m"),
    *("batch_inequity", "top_share", "distance", "resets", "bank_rows", "forwards", "backwards", "learned", "skipped"),
)
"""What ``print(model.last)`` shows."""


@dataclass
class Answer:
    """What a method gives back for a batch: the output whose logits the caller gets, and the report."""

    output: Output
    report: StepReport
