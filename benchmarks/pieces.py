"""The work that SAR² adds to a step, cut out to be timed on its own: R, I and the bank's refresh.

Everything is the library's own code on an adapter's own state. A piece is a function without arguments that
does its work anew on every call (forward and backward to the features, where there is a gradient). On a GPU
it is recorded as a CUDA graph and replayed, as the adapter does with a whole step: run eagerly, most of its
time would be kernel launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import wildtta
from wildtta.methods.sar2 import bank
from wildtta.methods.sar2.algorithm import redundancy
from wildtta.methods.sar2.method import SAR2
from wildtta.methods.sar2.redundancy import inequity_of_logits
from wildtta.step.loop import Selection
from wildtta.step.report import Output

Work = Callable[[], object]
WARM_UP_RUNS = 3


class BankPieces:
    """Pieces of a SAR² step for a batch of ``features`` [B, D] with pseudo labels [B], on a warm adapter."""

    def __init__(self, adapter: wildtta.Adapter, features: Tensor, labels: Tensor) -> None:
        assert isinstance(adapter.method, SAR2)
        self.engine, self.method = adapter.engine, adapter.method
        self.rule = self.method.normalisation_of(self.engine.network)
        self.features = features.detach().clone().requires_grad_()
        logits = self.engine.head_logits(features.detach())
        self.output = Output(features, logits, self.features)
        self.selection = Selection(None, labels)
        self.mean = features.detach().mean(0, keepdim=True).requires_grad_()
        self.stored = self.engine.memory["bank_rows"][:-1].clone().requires_grad_()
        self.allowed = torch.ones((), dtype=torch.bool, device=features.device)

    def _sums(self) -> bank.Moments:
        wide = self.features.to(bank.accumulation_dtype(self.engine.device))
        live = bank.live_centroids(wide, self.selection.labels, None, self.engine.network.classes)
        return bank.moments(self.engine.memory, live, self.rule)

    def _redundancy(self, sums: bank.Moments) -> Tensor:
        return sums.redundancy(self.rule, self.method.variance_floor).to(self.engine.dtype)

    def redundancy(self) -> None:
        """R(C^t) from the bank's sums, and its gradient: O(B·D²), whatever C."""
        torch.autograd.grad(self._redundancy(self._sums()), self.features)

    def direct_redundancy(self) -> None:
        """R over all C rows, and its gradient: O(C·D²). What the sums replace; no part of our step."""
        torch.autograd.grad(redundancy(self.stored, along_features=self.rule == "rows"), self.stored)

    def inequity(self) -> None:
        """I of one mean row through the head, and its gradient: O(C·D)."""
        torch.autograd.grad(inequity_of_logits(self.engine.head_logits(self.mean)), self.mean)

    def refresh(self) -> None:
        """The bank's rows and sums after a batch: O(B·D²)."""
        with torch.no_grad():
            self.method.remember(self.engine, self.output, self.selection, self.allowed)

    def everything(self) -> None:
        """All of it in one step: R and I at both points of the sharpness-aware step, then the refresh."""
        alpha = (self.method.redundancy or 0.0) / self.engine.network.feature_width
        for _ in range(1 if self.method.sharpness is None else 2):
            sums = self._sums()
            mean = sums.mean().to(self.engine.dtype)
            unequal = inequity_of_logits(self.engine.head_logits(mean[None]))
            total = alpha * self._redundancy(sums) + (self.method.inequity or 0.0) * unequal
            torch.autograd.grad(total, self.features)
        self.refresh()


def repeatable(work: Work, device: str) -> Work:
    """``work`` itself on the CPU; on a GPU its recording as a CUDA graph."""
    if device != "cuda":
        return work
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_RUNS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
