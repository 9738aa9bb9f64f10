"""BatchNorm layers that normalise by other moments than the source's or the batch's.

:class:`~wildtta.network.norms.BatchStatistics` switches between these two. Some methods want others (a source–test
mixture, an average over batches), with or without a gradient through them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.network.changes import Changes, take_off
from wildtta.network.norms import is_batch_norm

Moments = tuple[Tensor, Tensor]
"""Mean and variance per channel."""
Rule = Callable[[slice, Moments, int], Moments]
"""From a layer's place in the flat vectors, the batch's mean and (biased) variance and the number of values behind them,
to the moments that the layer normalises by."""

BatchMoments = Callable[[Tensor], Moments]
"""From what enters a layer, [B, C, …], to mean and (biased) variance of each channel."""


def mean_moments(values: Tensor) -> Moments:
    """The batch's mean and variance."""
    variance, mean = torch.var_mean(values, dim=[0, *range(2, values.dim())], correction=0)
    return mean, variance


def median_moments(values: Tensor) -> Moments:
    """The batch's median m and the mean squared distance from it, 1/n Σ (x − m)² (MedBN, arXiv 2403.19326).

    Up to half of the values of a channel may be anything before they move its centre at will.
    """
    flat = values.transpose(0, 1).flatten(1)
    median = flat.median(dim=1).values
    return median, (flat - median[:, None]).square().mean(dim=1)


class NormStatistics:
    """The moments of all BatchNorm layers of a network, seen as two flat vectors.

    A layer that keeps no running moments has no source's either; it always uses the batch's and is left alone.
    """

    def __init__(self, network: nn.Module, changes: Changes) -> None:
        self._changes = changes
        found = [module for module in network.modules() if is_batch_norm(module)]
        self._layers: list[Any] = [layer for layer in found if getattr(layer, "running_mean", None) is not None]
        ends = torch.tensor([0, *(layer.num_features for layer in self._layers)]).cumsum(0).tolist()
        self._places = [slice(start, end) for start, end in itertools.pairwise(ends)]

    def __bool__(self) -> bool:
        return bool(self._layers)

    def source(self) -> Moments:
        """Copies of the source's means and variances, [channels of all layers]."""
        if not self._layers:
            raise ValueError("this network has no BatchNorm layer with running statistics")
        means = torch.cat([layer.running_mean for layer in self._layers])
        return means, torch.cat([layer.running_var for layer in self._layers])

    @property
    def first_channels(self) -> int:
        """Channels of the first layer."""
        return int(self._layers[0].num_features)

    def depths(self) -> Tensor:
        """Each layer's place l/L among the L layers, from 0 for the first, per channel [channels of all layers]."""
        parts = [torch.full_like(layer.running_mean, at) for at, layer in enumerate(self._layers)]
        return torch.cat(parts) / len(self._layers)

    @contextlib.contextmanager
    def first_inputs(self) -> Iterator[list[Tensor]]:
        """Within, every pass adds one tensor [B, 2C]: each sample's mean and log variance in the first layer's input."""
        layer = self._layers[0]
        seen: list[Tensor] = []

        def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            values = inputs[0].detach()
            flat = values.to(torch.promote_types(values.dtype, torch.float32)).reshape(*values.shape[:2], -1)
            variance, mean = torch.var_mean(flat, dim=2, correction=0)
            # A constant sample has no variance: a millionth of the source's keeps its logarithm finite.
            seen.append(torch.cat((mean, (variance + 1e-6 * layer.running_var + layer.eps**2).log()), dim=1))

        with self._changes.hook(layer, look, before=True):
            yield seen

    @contextlib.contextmanager
    def chosen(self, rule: Rule, moments: BatchMoments = mean_moments) -> Iterator[None]:
        """Within, every layer normalises by what ``rule`` makes of the batch's ``moments``; gradients flow through both.

        The input of a layer is standardised before the layer sees it, and the layer itself is given the moments (0, 1):
        so whatever a subclass does after normalising (timm's layers activate) still happens. A batch with one value per
        channel has no variance: there the source's moments are used.
        """
        sources = [(layer.running_mean, layer.running_var) for layer in self._layers]
        hooks = [
            functools.partial(_standardised, place, source, rule, moments)
            for place, source in zip(self._places, sources, strict=True)
        ]

        def as_before() -> None:
            for layer, hook, source in zip(self._layers, hooks, sources, strict=True):
                take_off(layer._forward_pre_hooks, hook)
                layer.running_mean, layer.running_var = source

        with self._changes.until_left(as_before):
            for layer, hook in zip(self._layers, hooks, strict=True):
                layer.register_forward_pre_hook(hook)
                layer.running_mean = torch.zeros_like(layer.running_mean)
                layer.running_var = torch.full_like(layer.running_var, 1 - layer.eps)
            yield


def _standardised(
    place: slice, source: Moments, rule: Rule, moments: BatchMoments, layer: Any, inputs: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Forward pre-hook of ``layer``: what enters it, by the moments that ``rule`` gives."""
    values: Tensor = inputs[0]
    wide = values.to(torch.promote_types(values.dtype, torch.float32))
    count = wide.numel() // max(1, wide.shape[1])
    if count > 1:
        mean, variance = rule(place, moments(wide), count)
    else:
        mean, variance = source
    shape = [1, -1, *[1] * (wide.dim() - 2)]
    standard = (wide - mean.view(shape)) / (variance.view(shape) + layer.eps).sqrt()
    return standard.to(values.dtype), *inputs[1:]


def unbiased(variance: Tensor, count: int) -> Tensor:
    """The variance with n − 1 in the denominator, as BatchNorm keeps it in its running average."""
    return variance * (count / (count - 1))
