"""Straightforward eager versions of Tent, SAR and SAR², with the sequence of operations of the authors' code.

Whole-batch passes with a graph, the second forward over the whole batch, per-tensor loops over the parameters, R computed
directly over all C rows. They are what ``speed.py`` compares wildtta with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

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
    """Two whole-batch forwards with graphs; samples are chosen by indexing afterwards; the entropy is read every step."""
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


def redundancy(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(0)
    deviation = centred.square().mean(0).sqrt()
    normalised = centred / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    correlation = normalised.T @ normalised / len(rows)
    return (correlation.square().sum() - correlation.diagonal().square().sum()) / (rows.shape[1] - 1)


def _inequity(rows: Tensor, head: nn.Linear) -> Tensor:
    logits = head(rows.mean(0, keepdim=True))
    return torch.log(torch.tensor(float(logits.shape[1]))) - _entropy(logits)[0]


def sar2(
    network: nn.Module,
    head: nn.Linear,
    names: list[str],
    *,
    lr: float,
    threshold: float,
    bank: Tensor,
    radius: float | None = 0.05,
    reliable_centroids: bool = False,
) -> Step:
    """SAR's two whole-batch passes with R and I over all C rows: live centroids where a class is present, else the bank's."""
    parameters = prepare(network, names)
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, foreach=False)
    around = Perturbation(parameters, radius or 0.0)
    features: list[Tensor] = []
    head.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]) if len(features) == 0 else None)

    def passed(images: Tensor) -> tuple[Tensor, Tensor]:
        features.clear()
        logits = network(images)
        return logits, features[0]

    def loss_of(logits: Tensor, z: Tensor, labels: Tensor, chosen: Tensor, members: Tensor) -> Tensor:
        """``chosen`` teach by entropy; ``members``, the same at both points, form the centroids."""
        rows = bank.clone()
        for label in labels[members].unique():
            rows[label] = z[members][labels[members] == label].mean(0)
        loss = 1e3 / z.shape[1] * redundancy(rows) + 50.0 * _inequity(rows, head)
        return loss + _entropy(logits)[chosen].mean(0) if len(chosen) else loss

    def step(images: Tensor) -> Tensor:
        optimizer.zero_grad()
        logits, z = passed(images)
        labels = logits.argmax(1)
        chosen = torch.where(_entropy(logits) < threshold)[0]
        members = chosen if reliable_centroids else torch.arange(len(labels), device=labels.device)
        loss_of(logits, z, labels, chosen, members).backward()
        if radius is not None:
            around.climb()
            again, z_again = passed(images)
            kept = chosen[_entropy(again)[chosen] < threshold]
            loss_of(again, z_again, labels, kept, members).backward()
            around.descend()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for label in labels[members].unique():
                bank[label] = 0.1 * bank[label] + 0.9 * z[members][labels[members] == label].mean(0)
        return logits.detach()

    return step
