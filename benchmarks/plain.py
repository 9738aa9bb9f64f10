"""Straightforward eager versions of Tent, SAR, SAR² and Steady: what ``speed.py`` compares wildtta with.

Tent and SAR follow the sequence of operations of their authors' code: whole-batch passes with a graph, the
second forward over the whole batch, per-tensor loops over the parameters. There is no public code of SAR²'s
authors; here it is SAR's code with R and I computed directly over all C rows, by the formulas of Algorithm
1's file.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from wildtta.methods.sar2.algorithm import inequity, redundancy

EPSILON = 1e-12
Step = Callable[[Tensor], Tensor]


def _entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def prepare(network: nn.Module, names: list[str]) -> list[nn.Parameter]:
    """Gradients on for ``names`` alone; the parameters that learn."""
    network.eval()
    network.requires_grad_(False)
    chosen = dict(network.named_parameters())
    parameters = [chosen[name] for name in names]
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters


def tent(network: nn.Module, names: list[str], *, lr: float) -> Step:
    """One forward, one backward, one step."""
    parameters = prepare(network, names)
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, foreach=False)

    def step(images: Tensor) -> Tensor:
        logits = network(images)
        loss = _entropy(logits).mean(0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return logits.detach()

    return step


class Perturbation:
    """The climb to Θ + ε and back, a loop over tensors each way."""

    def __init__(self, parameters: list[nn.Parameter], radius: float) -> None:
        self.parameters, self.radius = parameters, radius
        self.saved: list[Tensor] = []

    @torch.no_grad()
    def climb(self) -> None:
        norms = [parameter.grad.norm(p=2) for parameter in self.parameters if parameter.grad is not None]
        scale = self.radius / (torch.norm(torch.stack(norms), p=2) + EPSILON)
        self.saved = []
        for parameter in self.parameters:
            self.saved.append(parameter.data.clone())
            if parameter.grad is not None:
                parameter.add_(parameter.grad * scale)
                parameter.grad = None

    @torch.no_grad()
    def descend(self) -> None:
        for parameter, value in zip(self.parameters, self.saved, strict=True):
            parameter.data = value


def sar(network: nn.Module, names: list[str], *, lr: float, threshold: float, radius: float = 0.05) -> Step:
    """Two whole-batch forwards with graphs, samples chosen by indexing; the entropy is read every step."""
    parameters = prepare(network, names)
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, foreach=False)
    around = Perturbation(parameters, radius)
    average: list[float] = []

    def step(images: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits = network(images)
        entropies = _entropy(logits)
        chosen = torch.where(entropies < threshold)[0]
        entropies[chosen].mean(0).backward()
        around.climb()
        again = _entropy(network(images))[chosen]
        kept = torch.where(again < threshold)[0]
        loss = again[kept].mean(0)
        loss.backward()
        around.descend()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()
        average[:] = [0.9 * average[0] + 0.1 * value] if average else [value]
        return logits.detach()

    return step


class Bank:
    """A centroid for each of the C classes; R and I take a class's live centroid where it is present."""

    def __init__(self, network: nn.Module, head: nn.Linear, rows: Tensor, *, along_features: bool) -> None:
        self.network, self.head, self.rows, self.along_features = network, head, rows, along_features
        self.seen: list[Tensor] = []
        head.register_forward_pre_hook(lambda module, inputs: self.seen.append(inputs[0]) if not self.seen else None)

    def passed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and features."""
        self.seen.clear()
        logits = self.network(images)
        return logits, self.seen[0]

    def regularisers(self, z: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
        """α/D · R + β · I over all C rows; ``z`` and ``labels`` are of the samples that form centroids."""
        rows = self.rows.clone()
        for label in labels.unique():
            rows[label] = z[labels == label].mean(0)
        unequal = inequity(rows, self.head)
        return alpha / z.shape[1] * redundancy(rows, along_features=self.along_features) + beta * unequal

    @torch.no_grad()
    def refresh(self, z: Tensor, labels: Tensor) -> None:
        for label in labels.unique():
            self.rows[label] = 0.1 * self.rows[label] + 0.9 * z[labels == label].mean(0)


def sar2(
    network: nn.Module,
    head: nn.Linear,
    names: list[str],
    *,
    lr: float,
    threshold: float,
    bank: Tensor,
    along_features: bool = False,
    reliable_centroids: bool = False,
    radius: float = 0.05,
) -> Step:
    """SAR² as its paper writes it, by SAR's two whole-batch passes; ``reliable_centroids``: SAR²†."""
    parameters = prepare(network, names)
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, foreach=False)
    around = Perturbation(parameters, radius)
    centroids = Bank(network, head, bank, along_features=along_features)

    def loss_of(logits: Tensor, z: Tensor, labels: Tensor, chosen: Tensor, members: Tensor) -> Tensor:
        """Entropy of the ``chosen``; R and I of the centroids of ``members``, the same at both points."""
        loss = centroids.regularisers(z[members], labels[members], 1e3, 50.0)
        return loss + _entropy(logits)[chosen].mean(0) if len(chosen) else loss

    def step(images: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits, z = centroids.passed(images)
        labels = logits.argmax(1)
        chosen = torch.where(_entropy(logits) < threshold)[0]
        members = chosen if reliable_centroids else torch.arange(len(labels), device=labels.device)
        loss_of(logits, z, labels, chosen, members).backward()
        around.climb()
        again, z_again = centroids.passed(images)
        kept = chosen[_entropy(again)[chosen] < threshold]
        loss_of(again, z_again, labels, kept, members).backward()
        around.descend()
        optimizer.step()
        optimizer.zero_grad()
        centroids.refresh(z[members], labels[members])
        return logits.detach()

    return step


def steady(
    network: nn.Module, head: nn.Linear, names: list[str], *, lr: float, threshold: float, bank: Tensor
) -> Step:
    """Steady, our own method, with its default options: one pass, gradient bound, source pull, class cap."""
    parameters = prepare(network, names)
    optimizer = torch.optim.SGD(parameters, lr=40 * lr, foreach=False)
    centroids = Bank(network, head, bank, along_features=False)
    source = [parameter.detach().clone() for parameter in parameters]
    longest = 0.045 * torch.norm(torch.stack([value.norm() for value in source]))
    classes = len(bank)
    shares = torch.full((classes,), 1 / classes, dtype=bank.dtype, device=bank.device)

    def step(images: Tensor) -> Tensor:
        logits, z = centroids.passed(images)
        labels = logits.argmax(1)
        entropies = _entropy(logits)
        chosen = torch.where(entropies < threshold)[0]
        loss = centroids.regularisers(z, labels, 5e3, 100.0)
        if len(chosen):
            weights = (min(0.3, 10 / classes) / shares[labels[chosen]]).clamp(max=1.0)
            loss = loss + (weights * entropies[chosen]).mean(0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, float(longest), foreach=False)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            kept = 0.96 ** (len(images) / 64)
            for parameter, value in zip(parameters, source, strict=True):
                parameter.copy_(kept * parameter + (1 - kept) * value)
            keep = math.exp(-len(images) / max(1000, 5 * classes))
            shares.mul_(keep).add_((1 - keep) * torch.bincount(labels, minlength=classes) / len(labels))
        centroids.refresh(z, labels)
        return logits.detach()

    return step
