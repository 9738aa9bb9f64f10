"""SAR and SAR² as the paper writes them: Algorithm 1, in its order and notation. Start reading here.

    model = SAR2Algorithm(network, network.fc, parameters)
    logits = model(images)

This file is plain torch and complete: it runs on any network with a linear head and without batch statistics. What
``wildtta.adapt(network, "sar2")`` runs is :mod:`wildtta.methods.sar2.method`, which gives the same numbers with less
work; a test holds the two together. Notation: x a sample, f = h∘g the network with features z = g(x) ∈ ℝᴰ and linear
head h, Θ̃ the trainable parameters, C classes, E entropy, R redundancy, I inequity, C̃ the feature bank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

Rows = dict[int, Tensor]
"""Class to its centroid, [D]."""


def entropy(logits: Tensor) -> Tensor:
    """E(x) = −Σ_c p_c ln p_c, per sample."""
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def redundancy(rows: Tensor, *, along_features: bool) -> Tensor:
    """R(Z) = 1/(D−1) Σ_{i≠j} 𝒞_ij² with 𝒞 = ẐᵀẐ/N, and Ẑ = (Z − μ)/σ over the rows of Z [N, D].

    ``along_features``: each row is standardised over its D entries instead, as the paper does for ResNet50-GN. A
    dimension (or row) that does not vary contributes nothing.
    """
    dim = 1 if along_features else 0
    centred = rows - rows.mean(dim, keepdim=True)
    variance = centred.square().mean(dim, keepdim=True)
    varies = variance > 1e-20
    z = torch.where(varies, centred / torch.where(varies, variance, 1.0).sqrt(), 0.0)
    correlation = z.T @ z / len(z)
    return (correlation.square().sum() - correlation.diagonal().square().sum()) / (rows.shape[1] - 1)


def inequity(rows: Tensor, h: nn.Linear) -> Tensor:
    """I(Z) = ln C − H(softmax(h(μ))) with μ the mean row."""
    return math.log(h.out_features) - entropy(h(rows.mean(0)))


class SAR2Algorithm:
    """Algorithm 1 for SAR²; with ``alpha = beta = None`` it is SAR.

    Args:
        network: f, in evaluation mode.
        h: its linear head.
        parameters: Θ̃, the affine parameters of the norm layers below the top.
        lr, momentum: of SGD.
        e0, rho: E₀ in units of ln C, and the radius ρ of the sharpness-aware step.
        alpha, beta: weights of R (in units of 1/D) and of I.
        rate, zeta: λ of the bank, and the warm-up ζ.
        recovery: e₀ of the model recovery.
        along_features: how R normalises.
    """

    def __init__(
        self, network: nn.Module, h: nn.Linear, parameters: Sequence[nn.Parameter], *, lr: float, momentum: float = 0.9,
        e0: float = 0.4, rho: float = 0.05, alpha: float | None = 1e3, beta: float | None = 50.0, rate: float = 0.9,
        zeta: int = 100, recovery: float = 0.2, along_features: bool = False,
    ) -> None:  # fmt: skip
        self.network, self.h, self.parameters = network, h, list(parameters)
        self.optimizer = torch.optim.SGD(self.parameters, lr=lr, momentum=momentum)
        self.threshold, self.rho = e0 * math.log(h.out_features), rho
        self.alpha, self.beta, self.rate, self.zeta = alpha, beta, rate, zeta
        self.recovery, self.along_features = recovery, along_features
        # Line 1: Θ̃₀ = Θ̃, C̃ = ∅.
        self.initial = [parameter.detach().clone() for parameter in self.parameters]
        self.bank: Rows = {}
        self.e_m: float | None = None
        self.resets = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Lines 3 to 11 for one batch: the predictions from before its update."""
        z, logits = self.forward(x)  # line 3
        y = logits.argmax(1)
        reliable = entropy(logits.detach()) < self.threshold  # S(x)
        centroids = self.centroids(z, y)
        regularised = self.alpha is not None or self.beta is not None
        if not regularised or len(self.bank | centroids) >= self.zeta:  # lines 4 and 5
            self.update(x, z, logits, y, reliable)  # lines 6 to 9
        for i, c in centroids.items():  # line 11: c̃_i ← (1 − λ) c̃_i + λ c_i
            c = c.detach()
            self.bank[i] = c if i not in self.bank else (1 - self.rate) * self.bank[i] + self.rate * c
        if self.e_m is not None and self.e_m < self.recovery:
            self.recover()
        return logits.detach()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z = g(x) and h(z)."""
        features: list[Tensor] = []
        handle = self.h.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
        try:
            logits = self.network(x)
        finally:
            handle.remove()
        return features[0], logits

    def centroids(self, z: Tensor, y: Tensor) -> Rows:
        """c_i: the mean feature of the samples predicted as class i."""
        return {i: z[y == i].mean(0) for i in set(y.tolist())}

    def loss(self, z: Tensor, logits: Tensor, y: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
        """S(x)·E + α·R(C^t) + β·I(C^t), and its entropy part."""
        e = entropy(logits)[selected].mean() if selected.any() else logits.sum() * 0
        total = e
        rows = torch.stack(list((self.bank | self.centroids(z, y)).values()))  # C^t: live centroids, else the bank's
        if self.alpha is not None:
            total = total + self.alpha / rows.shape[1] * redundancy(rows, along_features=self.along_features)
        if self.beta is not None:
            total = total + self.beta * inequity(rows, self.h)
        return total, e

    def update(self, x: Tensor, z: Tensor, logits: Tensor, y: Tensor, reliable: Tensor) -> None:
        """One sharpness-aware step: climb to Θ̃ + ε̂, ε̂ = ρ g/‖g‖, take the gradient there, apply it at Θ̃."""
        gradient = torch.autograd.grad(self.loss(z, logits, y, reliable)[0], self.parameters)
        norm = torch.stack([g.norm() for g in gradient]).norm()
        with torch.no_grad():
            before = [parameter.clone() for parameter in self.parameters]
            for parameter, g in zip(self.parameters, gradient, strict=True):
                parameter.add_(self.rho / (norm + 1e-12) * g)
        z, logits = self.forward(x)
        still = reliable & (entropy(logits.detach()) < self.threshold)
        total, e = self.loss(z, logits, y, still)
        gradient = torch.autograd.grad(total, self.parameters)
        with torch.no_grad():
            for parameter, value, g in zip(self.parameters, before, gradient, strict=True):
                parameter.copy_(value)
                parameter.grad = g
        self.optimizer.step()
        if still.any():
            self.e_m = float(e.detach()) if self.e_m is None else 0.9 * self.e_m + 0.1 * float(e.detach())

    def recover(self) -> None:
        """Model recovery: e_m below e₀ means collapse, so everything goes back to the initial state."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.initial, strict=True):
                parameter.copy_(value)
        self.optimizer.state.clear()
        self.bank, self.e_m, self.resets = {}, None, self.resets + 1
