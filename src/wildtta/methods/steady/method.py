"""Steady, wildtta's own method and the default of :func:`wildtta.adapt`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from wildtta.methods.base import BatchStatistics, Review, answer_with
from wildtta.methods.gradient import Recovery
from wildtta.methods.losses import mean_row
from wildtta.methods.options import POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.sar2.method import SAR2
from wildtta.methods.sar2.redundancy import Normalisation
from wildtta.methods.steady.contents import NAMES as OF_CONTENTS
from wildtta.methods.steady.contents import asked, contents, followed, nothing_compared
from wildtta.methods.steady.evidence import classes_seen, identifiable, no_evidence, rising, weighed
from wildtta.methods.steady.payoff import EVIDENCE, NAMES, compared, forgotten, no_comparison, way_back
from wildtta.methods.steady.settling import followed_way, no_way, settledness
from wildtta.methods.steady.stream_statistics import answer_of, no_statistics
from wildtta.methods.steady.support import faded, supported
from wildtta.network.head import head_rows
from wildtta.network.output import logits_of
from wildtta.step.loop import Selection
from wildtta.step.report import Answer, Output
from wildtta.step.scrambling import ARRANGEMENT

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine

_LARGEST_CAP = 0.3
_WINDOW_PER_CLASS, _SMALLEST_WINDOW = 5, 1000
_FLOOD = (2.0, 4.0)
"""Classes among the last 256 samples up to which they say nothing about a shift, and from which on they do."""
_REVIEWED = ("support", "novelty", "pace")
"""What follows from a guard's memory; 1 without a guard."""
_OF_A_KIND = ("momentum", "way", "payoff", *_REVIEWED)
"""Beginnings of the names of what belongs to one kind of samples."""
_EPSILON = 2.5e-8
"""Keeps the bounded gradient finite where it is 0."""


def capped_weights(shares: Tensor, labels: Tensor, multiple: float) -> Tensor:
    """w = min(1, cap / p_i) of each sample, [B], from the classes' shares p [C] and its predicted class i.

    cap = ``multiple``/C, at most 0.3: together the samples of one class never weigh more than the cap.
    """
    cap = min(_LARGEST_CAP, multiple / len(shares))
    return (cap / shares[labels]).clamp(max=1.0)


def above_chance(classes: int) -> float:
    """1 − 9/(C − 1), at least 0: how far R over the centroids of C classes can tell redundancy from chance.

    The squared correlation of two columns of C independent rows is 1/(C − 1) in the mean. With ten rows that is most of
    R, and following it harms; with 200 it is little.
    """
    return max(0.0, 1 - 9 / max(1, classes - 1))


def followed_shares(shares: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """p ← k·p + (1−k)·(this batch's shares), k = exp(−B/window), with a window of 5·C samples, at least 1000.

    Only samples where ``mask`` holds count. In a class-ordered stream such a window spans many classes.
    """
    classes = torch.arange(len(shares), device=shares.device)
    present = mean_row((labels[:, None] == classes).to(shares.dtype), mask)
    number = shares.new_full((), len(labels)) if mask is None else mask.sum().to(shares.dtype)
    keep = (-number / max(_SMALLEST_WINDOW, _WINDOW_PER_CLASS * len(shares))).exp()
    return keep * shares + (1 - keep) * present


@register
@dataclass(frozen=True, kw_only=True)
class Steady(SAR2):
    """A default that helps where there is something to gain, and rests where there is not.

    It acts on evidence. From the outputs alone it judges how clear it is that the stream has shifted, and that what the
    outputs share is not just the classes now present: a strength a in [0, 1] (``model.last.strength``; the three signs are
    in ``methods/steady/evidence.py``). With 6 to 39 classes the source also sees scrambled images: beside theirs the features
    tell many classes from one (``methods/steady/contents.py``). On clean streams, on streams of one class, and with five classes
    or fewer a is 0, and the network answers as without adaptation. Elsewhere it takes SAR²'s loss in one pass:

        g = ∇[ S(x)·w(x)·E + α·R(C^t) + β·I(C^t) ],   g ← a·g·min(1, b‖θ₀‖/‖g‖),   θ ← (1−p)(θ − η g) + p θ₀

    and takes off its answers the mean of the logits that the evidence calls a shift.

    It looks whether that pays off. The source answers every eighth sample too. Where the answers that learning changed tell no
    more about the inputs than the source's, a falls, down to 0, and the weights go back (``methods/steady/payoff.py``).

    - α = 5·10³/D, less with few classes (none up to ten), β = 100, no sharpness, no momentum, 40 times SAR²'s
      learning rate. R is over columns on every network, and ζ is a tenth of the classes (at least 10, at
      most half of them).
    - The gradient is at most b = 0.045 times as long as the source weights (``gradient_bound``).
    - After every 64 samples the weights go p = 4 % of the way back to the source (``source_pull``), also at
      rest, but not while the samples are of one class. This is ROID's weight ensembling
      (https://arxiv.org/abs/2306.00650).
    - No class weighs more than ten times its even share in the entropy term (``class_cap``).
    - No recovery: its 0.2 nats are the normal entropy of a network with few classes.

    **BatchNorm networks** learn nothing by gradients. They are normalised by the stream's moments where those make their
    answers tell more, in the first layers most, and forget them when the inputs change
    (``methods/steady/stream_statistics.py``). The last layers follow where most classes are there; the answers by the first
    layers' moments tell that, or the features (``methods/steady/alignment.py``). It takes three passes, no backward.

    With a guard, what it remembers of the stream has a say: a is at most what remembered samples of the same kind
    agree with, and samples that only repeat each other change nothing (``methods/steady/support.py``). Where the weights have
    arrived, on samples of a known kind, steps and pull are cut down to a hundredth (``methods/steady/settling.py``). Each kind of
    images has a state of its own, which comes back with it (``guard/places.py``).

    The measurements are in docs/results/no-harm.md.
    """

    name: ClassVar[str] = "steady"
    title: ClassVar[str] = "Steady (ours)"
    order: ClassVar[int] = 300
    paper: ClassVar[str] = "this project, after SAR² and ROID"
    passes: ClassVar[str] = "1.125 / 1 (6 to 39 classes: 1.25 / 1; at rest no backward; BatchNorm: 3 / 0)"
    batch_statistics: ClassVar[BatchStatistics] = "source"
    comparison: ClassVar[tuple[str, ...]] = (*NAMES, *EVIDENCE)
    scrambling: ClassVar[tuple[str, ...]] = OF_CONTENTS

    evidence: bool = option("learn by the evidence that the stream has shifted; False: always, at full strength", True)
    lr_scale: float = option("multiplies SAR²'s learning rate, or the given one", 40.0, within=POSITIVE)
    momentum: float = option("SGD momentum", 0.0, within=SHARE)
    sharpness: float | None = option("radius ρ; None: one pass", None, within=POSITIVE)
    recovery: Recovery = option(
        "e₀: go back to the initial state when the moving entropy falls below this; 'asr' or an ASR: selective reset; "
        "None: never",
        None,
        within=POSITIVE,
    )
    redundancy: float | None = option("weight of R in units of 1/D; None: off", 5e3, within=POSITIVE)
    inequity: float | None = option("weight β of I; None: off", 100.0, within=POSITIVE)
    gradient_bound: float | None = option(
        "longest gradient, in units of the source weights' norm; None: no bound", 0.045, within=POSITIVE
    )
    source_pull: float | None = option(
        "share of the way back to the source per 64 samples; None: off", 0.04, within=SHARE
    )
    class_cap: float | None = option(
        "most that one predicted class may weigh in the entropy term, in units of 1/C; None: no cap",
        10.0,
        within=POSITIVE,
        needs="entropy",
    )

    def learning_rate(self, family: str, batch_size: int) -> float:
        """A straight line between batches of 1 and 64, as in the grids that its numbers are from."""
        if self.lr is not None:
            return super().learning_rate(family, batch_size)
        at_one, at_sixty_four = self.learning_rates[family]
        return self.lr_scale * (at_one + (at_sixty_four - at_one) * min(1.0, (batch_size - 1) / 63))

    def normalisation_of(self, network: Network) -> Normalisation:
        return "columns" if self.normalisation == "auto" else self.normalisation

    def redundancy_weight(self, network: Network) -> float:
        alpha = super().redundancy_weight(network)
        return alpha * above_chance(network.classes) if self.evidence else alpha

    def warmup_rows(self, classes: int) -> int:
        return self.warmup if self.warmup is not None else min(max(10, classes // 10), classes // 2)

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        if self.gradient_bound is not None and engine.source_norm == 0:
            raise ValueError(
                f"gradient_bound={self.gradient_bound:g} measures the gradient by the weights that learn, but all "
                f"{engine.learnables.size} of them are zero at the start, so that nothing could be learned; give "
                "gradient_bound=None, or clip_norm="
            )
        if engine.norms:
            return no_statistics(engine.norms, engine.network.classes, engine.network.feature_width)
        state = super().declare(engine)
        classes = engine.network.classes
        if self.evidence:
            state |= no_evidence(classes, dtype=engine.dtype, device=engine.device)
            state |= {name: torch.ones((), dtype=engine.dtype, device=engine.device) for name in _REVIEWED}
            assert engine.source is not None
            state |= no_way(engine.source, engine.dtype)
            pixels = getattr(engine.network.module, "rows_per_sample", 1) > 1  # those of an image are no samples of a stream
            if identifiable(classes) > 0 and not pixels:
                state |= no_comparison(classes, dtype=engine.dtype, device=engine.device)
                if asked(classes) and head_rows(engine.network.head) is not None:
                    width = engine.network.feature_width
                    state |= nothing_compared(classes, width, dtype=engine.dtype, device=engine.device)
        if self.class_cap is not None:
            state["class_shares"] = torch.full((classes,), 1 / classes, dtype=engine.dtype, device=engine.device)
        return state

    def observed(self, engine: Engine) -> dict[str, Tensor]:
        if engine.norms:
            return {}
        shown = super().observed(engine)
        return {**shown, "strength": self._strength(engine)} if self.evidence else shown

    # -- BatchNorm networks ------------------------------------------------------------------------------------------------

    def mixes_samples(self, engine: Engine) -> bool:
        return bool(engine.norms)

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if not engine.norms:
            return super().step(engine, images)
        output, state, forwards = answer_of(engine, images, learning=True)
        sound = torch.stack([torch.isfinite(value).all() for value in state.values()]).all()
        engine.keep(sound, state)
        return answer_with(engine, output, forwards=forwards, skipped=~sound, learned=sound)

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        if engine.norms:
            return answer_of(engine, images, learning=False)[0]
        return self.answered(engine, super().predicted(engine, images))

    # -- all others --------------------------------------------------------------------------------------------------------

    def recordable(self, engine: Engine) -> bool:
        return not engine.norms and super().recordable(engine)

    def at_rest(self, engine: Engine) -> Tensor | None:
        return ~(self._strength(engine) > 0) if self.evidence and not engine.norms else None

    def _strength(self, engine: Engine) -> Tensor:
        """That of the evidence, as far as a memory of the stream agrees, the samples are anything new and learning pays."""
        memory = engine.memory
        return torch.minimum(memory["strength"], memory["support"]) * memory["novelty"] * self._payoff(engine)

    def _payoff(self, engine: Engine) -> Tensor:
        """The payoff, as far as the weights have not settled: what has arrived was judged on its way.

        (Else hostile samples, whose answers tell less, would undo at once what was learned.)
        """
        memory = engine.memory
        return 1 - memory["pace"] * (1 - memory["payoff"]) if "payoff" in memory else torch.ones_like(memory["pace"])

    def compared(
        self, memory: Mapping[str, Tensor], own: Tensor, source: Tensor, usable: Tensor
    ) -> dict[str, Tensor]:
        return compared(memory, own, source, usable)

    def scrambled(
        self, memory: Mapping[str, Tensor], features: Tensor, beside: Tensor, usable: Tensor, rows: Tensor, number: Tensor
    ) -> dict[str, Tensor]:
        return followed(memory, features, beside, usable, rows, number)

    def reviewed(self, engine: Engine, review: Review) -> None:
        if self.evidence and not engine.norms:
            engine.memory["support"].copy_(supported(review.probabilities, review.alike))
            engine.memory["novelty"].copy_(review.novelty)
            way, pace = followed_way(engine.memory, engine.learnables.vector(), self._strength(engine), review)
            for name, value in (way | {"pace": pace}).items():
                engine.memory[name].copy_(value)

    def keeps_kinds(self, engine: Engine) -> bool:
        return not engine.norms

    def begin_kind(self, engine: Engine, left: Mapping[str, Tensor]) -> None:
        """Back to the source, as far as the weights had settled on the kind before; a new way begins.

        Weights that were still on their way hold what kinds share. So do the bank and the evidence, which take some hundred
        samples to gather: without them little was learned where a kind lasted for 400.
        """
        assert engine.source is not None
        settled = settledness(left["pace"]) if self.evidence else torch.ones_like(engine.source[0])
        engine.learnables.assign(torch.lerp(engine.learnables.vector(), engine.source, settled.to(engine.source.dtype)))
        for name, value in engine.initial_state().items():
            if name.startswith(_OF_A_KIND):
                engine.memory[name].copy_(value)

    def answered(self, engine: Engine, output: Output) -> Output:
        if not self.evidence:
            return output
        # What the network returned, not ``output.logits``: a sample that is not finite has none.
        agreed = (engine.memory["support"] / engine.memory["strength"].clamp(min=1e-9)).clamp(max=1)
        agreed = agreed * self._payoff(engine)
        return output.answering(logits_of(output.raw) - agreed * engine.memory["shift"])

    def sample_losses(self, engine: Engine, output: Output, selection: Selection) -> Tensor:
        losses = super().sample_losses(engine, output, selection)
        if self.class_cap is None:
            return losses
        return losses * capped_weights(engine.memory["class_shares"], selection.labels, self.class_cap)

    def adjusted(self, engine: Engine, gradient: Tensor, theta: Tensor) -> Tensor:
        gradient = super().adjusted(engine, gradient, theta)
        if self.gradient_bound is not None:
            longest = self.gradient_bound * engine.source_norm
            gradient = gradient * (longest / (gradient.norm() + _EPSILON)).clamp(max=1.0)
        return gradient * (self._strength(engine) * engine.memory["pace"]) if self.evidence else gradient

    def updated(self, engine: Engine, theta: Tensor) -> Tensor:
        if self.source_pull is None:
            return theta
        assert engine.source is not None
        # The same share per 64 samples, whether they come together or one by one.
        share = engine.batch_share * (self._telling(engine) * engine.memory["pace"] if self.evidence else 1.0)
        kept = (1 - self.source_pull) ** share
        if self.evidence:
            kept = kept * (1 - way_back(self._payoff(engine), engine.batch_share))
        return theta + (1 - kept) * (engine.source - theta)  # exactly the source where nothing was learned

    def _telling(self, engine: Engine) -> Tensor:
        """How far the last samples can tell whether there still is a shift, in [0, 1].

        Those of one class cannot: their mean is not trusted and they get one answer. (A stream that is clean again shows
        many classes.) Nor can those that repeat each other.
        """
        memory = engine.memory
        classes = rising(classes_seen(memory["present"]), _FLOOD)
        return torch.maximum(memory["recent_trust"], classes) * memory["novelty"]

    def remember(self, engine: Engine, first: Output, selection: Selection, allowed: Tensor) -> None:
        super().remember(engine, first, selection, allowed)
        if self.evidence:
            known = contents(engine.memory) if ARRANGEMENT in engine.memory else None
            evidence = weighed(engine.memory, first.logits.detach(), first.usable, known)
            review = {name: faded(engine.memory[name], len(first.logits)) for name in _REVIEWED}
            engine.keep(allowed, evidence | review)
            if "payoff" in engine.memory:
                assert first.usable is not None
                engine.keep(allowed, forgotten(engine.memory, first.usable.sum()))
        if self.class_cap is not None:
            fresh = followed_shares(engine.memory["class_shares"], first.labels, first.usable)
            engine.keep(allowed, {"class_shares": fresh})

    def recovered(self, engine: Engine, trigger: Tensor) -> None:
        super().recovered(engine, trigger)
        if self.class_cap is not None:
            engine.memory["class_shares"].masked_fill_(trigger, 1 / engine.network.classes)
