"""What an image looks like, whatever it shows: its kind, and whether it is anything new.

**Its kind.** A corruption, another camera or another light changes the values of all images alike: their brightness, their
contrast, how rough they are. Other classes, or harder images of the same kind, hardly do. So a remembered image of the same
kind still speaks about the stream as it is now, and one of another kind does not.

**Known.** The latest images are of a known kind where they have neighbours among earlier ones, as close as these are to each
other. Their own scatter does not count, so that images which are all alike seem no newer.

**New.** Images that repeat each other carry no information, however many they are: grey ones, or a camera that is stuck.
Coarse thumbnails show it, by how far they differ among each other.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from wildtta.guard.samples import Call

_SAME, _OTHER = 2.0, 4.0
"""Squared distance up to which an image is of the kind of others, and from which on it is not (their own mean is 1)."""
_NEIGHBOUR = 8
"""The neighbour that is measured to, the nearest being the first: a kind of which fewer were seen is new."""
KNOWN, UNKNOWN = 2.0, 4.0
"""Strangeness up to which a kind is known, and from which on it is not (that of the known ones is 1)."""
_REPEATED, _NEW = 0.01, 0.05
"""Variance of thumbnails, in units of that of remembered ones, up to which images only repeat each other."""
_THUMBNAIL = 4
_SMALLEST = 1e-6


def kind(call: Call) -> Tensor:
    """Mean, log variance and log variance of the differences of neighbours, of each channel: [n, 3·channels].

    [n, 0] for what is no image.
    """
    if not is_image(call):
        return _nothing(call)
    values = call.float()
    rough = (values[..., 1:] - values[..., :-1]).flatten(2)
    variance, mean = torch.var_mean(values.flatten(2), dim=2)
    return torch.cat([mean, (variance + _SMALLEST).log(), (rough.var(dim=2) + _SMALLEST).log()], dim=1)


def thumbnail(call: Call) -> Tensor:
    """Means over 4 × 4 fields, [n, 16·channels]; [n, 0] for what is no image."""
    if not is_image(call):
        return _nothing(call)
    return adaptive_avg_pool2d(call.float(), _THUMBNAIL).flatten(1)


def alike(known: Tensor, latest: Tensor) -> Tensor:
    """How far each of the ``known`` [m, F] is of the kind of the ``latest`` [n, F], in [0, 1]; 0 for what is no image.

    By e² = mean_f (x_f − x̄_f)² / s_f², with mean and variance of the latest.
    """
    if not latest.shape[1]:
        return known.new_zeros(len(known))
    variance, mean = torch.var_mean(latest, dim=0)
    distance = ((known - mean).square() / variance.clamp(min=_SMALLEST)).mean(1)
    return torch.nan_to_num((_OTHER - distance) / (_OTHER - _SAME)).clamp(0, 1)


class Neighbourhood:
    """Known kinds [m, F], ready to be compared with: how far they lie from each other is found once.

    Features are in units of the known ones' variance. Distances are squared, to the eighth neighbour, the median over all.
    """

    def __init__(self, known: Tensor) -> None:
        self._unit = known.var(dim=0).clamp(min=_SMALLEST).sqrt()
        self._known = known / self._unit
        self._neighbour = min(_NEIGHBOUR, len(known) - 1)
        # An image's nearest neighbour among the known is the image itself.
        self._own = _to_neighbour(self._known, self._known, self._neighbour).median().clamp(min=_SMALLEST)

    def strangeness(self, latest: Tensor) -> Tensor:
        """How far the ``latest`` [n, F] lie from the known: 1 for more of the same kind."""
        far = _to_neighbour(latest / self._unit, self._known, self._neighbour - 1).median()
        return torch.nan_to_num(far / self._own)


def familiar(known: Tensor, latest: Tensor) -> Tensor:
    """How far the ``latest`` [n, F] are of a kind that is among the ``known`` [m, F], in [0, 1]; 0 for what is no image."""
    if not latest.shape[1] or len(known) <= _NEIGHBOUR:
        return known.new_zeros(())
    strangeness = Neighbourhood(known).strangeness(latest)
    return ((UNKNOWN - strangeness) / (UNKNOWN - KNOWN)).clamp(0, 1)


def novelty(known: Tensor, latest: Tensor) -> Tensor:
    """How far the ``latest`` thumbnails [n, F] differ among each other, beside the ``known`` [m, F]: 0 where they repeat, else 1.

    1 for what is no image.
    """
    if not latest.shape[1]:
        return latest.new_ones(())
    share = latest.var(dim=0).sum() / known.var(dim=0).sum().clamp(min=_SMALLEST)
    return torch.nan_to_num((share - _REPEATED) / (_NEW - _REPEATED), nan=1.0).clamp(0, 1)


def _to_neighbour(samples: Tensor, known: Tensor, place: int) -> Tensor:
    """Squared distance of each of the ``samples`` [n, F] to its neighbour number ``place`` (from 0) among the ``known``, [n]."""
    # Not by a product of matrices: what lies close together far from 0 would lose its digits.
    distances = torch.cdist(samples, known, compute_mode="donot_use_mm_for_euclid_dist").square()
    return distances.kthvalue(place + 1, dim=1).values


def is_image(call: Call) -> TypeGuard[Tensor]:
    """Whether a call is one of images with neighbouring pixels."""
    return isinstance(call, Tensor) and call.dim() == 4 and call.is_floating_point() and call.shape[-1] > 2 and call.shape[-2] > 2


def _nothing(call: Call) -> Tensor:
    samples = call if isinstance(call, Tensor) else call.sample_numbers
    return torch.zeros(len(samples), 0, device=samples.device)
