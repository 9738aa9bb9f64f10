"""How an image looks, whatever it shows: whether remembered images are of the same kind as the latest.

A corruption, another camera or another light changes the values of all images alike: their brightness, their contrast, how
rough they are. Other classes, or harder images of the same kind, hardly do. So a remembered image of the same kind still
speaks about the stream as it is now, and one of another kind does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wildtta.guard.samples import Call

_SAME, _OTHER = 2.0, 4.0
"""Squared distance up to which an image is of the kind of others, and from which on it is not (their own mean is 1)."""
_SMALLEST = 1e-6


def appearance(call: Call) -> Tensor:
    """Mean, log variance and log variance of the differences of neighbours, of each channel: [n, 3·channels].

    [n, 0] for what is no image.
    """
    if not isinstance(call, Tensor):
        return torch.zeros(len(call.sample_numbers), 0, device=call.sample_numbers.device)
    if call.dim() != 4 or not call.is_floating_point() or call.shape[-1] < 3:
        return torch.zeros(len(call), 0, device=call.device)
    values = call.float()
    rough = (values[..., 1:] - values[..., :-1]).flatten(2)
    variance, mean = torch.var_mean(values.flatten(2), dim=2)
    return torch.cat([mean, (variance + _SMALLEST).log(), (rough.var(dim=2) + _SMALLEST).log()], dim=1)


def alike(known: Tensor, latest: Tensor) -> Tensor:
    """How far each of the ``known`` [m, F] is of the kind of the ``latest`` [n, F], in [0, 1]; 0 without appearances.

    By e² = mean_f (x_f − x̄_f)² / s_f², with mean and variance of the latest.
    """
    if not latest.shape[1]:
        return known.new_zeros(len(known))
    variance, mean = torch.var_mean(latest, dim=0)
    distance = ((known - mean).square() / variance.clamp(min=_SMALLEST)).mean(1)
    return torch.nan_to_num((_OTHER - distance) / (_OTHER - _SAME)).clamp(0, 1)
