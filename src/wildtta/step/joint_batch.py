"""One batch that lies in several processes: each passes its own samples, and all see everyone's outputs.

A pass is the expensive part of a step, and its outputs are small. So a replica runs the network on its own samples alone,
and logits and features are gathered. What follows (selection, loss, bank, averages, recovery) every replica computes from
the same numbers, as one adapter on the joint batch would. Methods see no difference: their ``images`` are the numbers of the
samples in the joint batch, which :meth:`Engine.forward` takes.

Gradients. The loss is a function of everyone's rows, y = (y₁ … y_N), and of the parameters directly (a head that learns):

    dL/dθ = Σ_r (∂y_r/∂θ)ᵀ ∂L/∂y_r + ∂L/∂θ  =  mean over replicas of  [ N · (∂y_r/∂θ)ᵀ ∂L/∂y_r + ∂L/∂θ ]

A replica has the graph of its own rows y_r: it sends N times their gradient back, and the results are averaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wildtta.network.output import logits_of, with_logits
from wildtta.step.peers import Peers
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@dataclass
class _Part:
    """Some samples of the joint batch: which of them are this replica's, and how the gathered rows lie."""

    counts: Sequence[int]
    """How many of them each replica has."""
    own: Tensor
    """Places of this replica's among them."""
    positions: Tensor | slice
    """These samples' positions in this replica's own batch."""
    order: Tensor | None = None
    """Where each of them is among the gathered rows; None: in this order."""


class JointBatch:
    """The batch of one call. ``own`` is this replica's part as the engine passes it, ``counts`` the size of every part."""

    def __init__(self, peers: Peers, engine: Engine, own: Tensor, counts: Sequence[int]) -> None:
        self._peers, self._counts = peers, counts
        self._start, number = sum(counts[: peers.place]), counts[peers.place]
        self.numbers = torch.arange(sum(counts), device=own.device)
        """The samples' numbers: what methods take for the images."""
        levels = engine.levels(own)
        self.levels = peers.gather(levels.to(torch.float64), counts)
        """How large the inputs of each sample are."""
        self._own = engine.finite_images(own, torch.isfinite(levels))
        self._whole = _Part(counts, self.numbers[self._start : self._start + number], slice(None))

    @contextlib.contextmanager
    def used_by(self, engine: Engine) -> Iterator[None]:
        """Within, the engine's passes are over the joint batch, and gradients are everyone's."""
        with contextlib.ExitStack() as changed:
            changed.enter_context(engine.changes.set(engine, joint=self))
            if engine.learns:
                changed.enter_context(engine.changes.set(engine.learnables, averaged=self._peers.mean))
            yield

    def forward(self, run: Callable[..., Output], numbers: Tensor, *, grad: bool) -> Output:
        """One pass over the samples ``numbers``; ``run`` makes a pass over samples of this replica."""
        part = self._whole if numbers is self.numbers else self._part(numbers)
        return self._gathered(run(self._passed(part), grad=grad and len(part.own) > 0), part, numbers)

    def forward_placed(self, run: Callable[[Tensor, Tensor], Output], numbers: Tensor) -> Output:
        """The same without a graph, for a ``run`` that also takes the places of its samples among ``numbers``."""
        part = self._part(numbers)
        places = part.own if len(part.own) else part.own.new_zeros(1)
        return self._gathered(run(self._passed(part), places), part, numbers)

    @property
    def images(self) -> Tensor:
        """This replica's own part."""
        return self._own

    def _passed(self, part: _Part) -> Tensor:
        """This replica's samples of ``part``."""
        # Networks need not take an empty batch: one blank sample shows what an answer looks like.
        return self._own[part.positions] if len(part.own) else blank(self._own)

    def _gathered(self, passed: Output, part: _Part, numbers: Tensor) -> Output:
        rows = torch.cat((passed.logits, passed.features), 1)[: len(part.own)]
        rows = _Gathered.apply(rows, self._peers, part)
        logits, features = rows.split((passed.logits.shape[1], passed.features.shape[1]), 1)
        raw = with_logits(passed.raw, logits.detach().to(logits_of(passed.raw).dtype))
        return Output(numbers, logits, features, raw)

    def _part(self, numbers: Tensor) -> _Part:
        """Which of ``numbers`` are whose; how many each has is a small read."""
        place = self._peers.place
        ends = torch.tensor(self._counts, device=numbers.device).cumsum(0)
        owners = torch.bucketize(numbers, ends, right=True)
        counts: list[int] = torch.bincount(owners, minlength=len(self._counts)).tolist()
        by_owner = owners.argsort(stable=True)
        own = by_owner[sum(counts[:place]) :][: counts[place]]
        return _Part(counts, own, numbers[own] - self._start, by_owner.argsort())

    def own(self, answer: Answer) -> Answer:
        """What the caller of this replica gets: the answer to its own samples. All totals stay those of the joint batch."""
        return with_rows(answer, self._whole.own)


def blank(samples: Tensor) -> Tensor:
    """One sample that stands for none: any of ``samples``, or zeros where they are empty."""
    return samples[:1] if len(samples) else samples.new_zeros((1, *samples.shape[1:]))


def with_rows(answer: Answer, rows: Tensor | slice) -> Answer:
    """The part of an answer that is of the samples ``rows``."""
    output, report = answer.output, answer.report
    raw = with_logits(output.raw, logits_of(output.raw)[rows])
    report.entropies, report.mask = report.entropies[rows], report.mask[rows]
    return Answer(Output(output.images[rows], output.logits[rows], output.features[rows], raw), report)


class _Gathered(torch.autograd.Function):
    """Everyone's rows from one's own; backward, N times the gradient of one's own rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, peers: Peers, part: _Part) -> Tensor:
        ctx.own, ctx.replicas = part.own, len(part.counts)
        found = peers.gather(rows, part.counts)
        return found if part.order is None else found[part.order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.replicas * gradient[ctx.own], None, None
