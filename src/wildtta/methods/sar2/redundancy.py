"""R and I, the two regularisers of SAR², as pure functions of features.

Notation: C classes, D feature dimensions, N rows; natural logarithm throughout.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.losses import entropy

DEAD_VARIANCE = 1e-10
"""A column whose variance is below this share of the mean column variance carries rounding, not signal: it is dead. Without
such a margin a column that died out (ReLU) would come and go with the last digit of what is left of it."""

Reading = Literal["columns", "rows", "rows_centred", "rows_then_columns"]
READINGS: tuple[str, ...] = get_args(Reading)


def normalise_rows(rows: Tensor, reading: Reading) -> Tensor:
    """The part of a reading that looks at one row at a time: nothing, centring, or standardising over D.

    A constant row has no direction: standardised, it is 0.
    """
    if reading == "columns":
        return rows
    centred = rows - rows.mean(-1, keepdim=True)
    if reading != "rows":
        return centred
    variance = centred.square().mean(-1, keepdim=True)
    # Rounding leaves a constant row with a variance of about (value · machine epsilon)².
    noise = (torch.finfo(rows.dtype).eps * 8 * rows.detach().abs().amax(-1, keepdim=True)).square()
    constant = variance <= noise
    return (centred / variance.masked_fill(constant, 1.0).sqrt()).masked_fill(constant, 0.0)


def dead_columns(variance: Tensor, noise: Tensor) -> Tensor:
    """Columns without variance: what is there is rounding (``noise``), or nothing beside the others."""
    values = variance.detach()
    return values <= torch.maximum(noise, DEAD_VARIANCE * values.clamp(min=0).mean())


def redundancy_from_moments(
    count: Tensor | float, first: Tensor, second: Tensor, *, reading: Reading = "columns", variance_floor: float = 0.0
) -> Tensor:
    """R of N rows from their sums Σz [D] and Σzzᵀ [D, D] (rows already through :func:`normalise_rows`).

    With 𝒞 the normalised second-moment matrix, R = 1/(D−1) · Σ_{i≠j} 𝒞_ij². What 𝒞 is depends on the reading:

    - ``columns``: the correlation matrix, (Σzzᵀ/N − μμᵀ)_ij / σ_i σ_j (the paper's equation);
    - ``rows``, ``rows_centred``: Σzzᵀ/N of the normalised rows, as it is;
    - ``rows_then_columns``: Σzzᵀ/N divided by σ_i σ_j, columns not centred.

    σ² is replaced by max(σ², variance_floor · mean σ²). A column without variance (σ² ≤ 1e-10 · mean σ²) contributes 0
    with gradient 0 (``rows_then_columns`` divides by 1 there).
    """
    width = first.shape[-1]
    mean = first / count
    moments = second / count
    if reading in ("columns", "rows_then_columns"):
        squares = moments.diagonal()
        variance = squares - mean.square()
        # What subtracting two nearly equal numbers leaves of a constant column.
        noise = 64 * torch.finfo(second.dtype).eps * squares.detach().abs()
        dead = dead_columns(variance, noise)
        if variance_floor > 0:
            floor = variance_floor * variance.masked_fill(dead, 0.0).mean()
            variance = torch.maximum(variance, floor)
        inverse = variance.masked_fill(dead, 1.0).rsqrt()
        if reading == "columns":
            inverse = inverse.masked_fill(dead, 0.0)
            moments = moments - torch.outer(mean, mean)
        moments = moments * torch.outer(inverse, inverse)
    off_diagonal = moments.square().sum() - moments.diagonal().square().sum()
    return off_diagonal / max(1, width - 1)


def redundancy(rows: Tensor, *, reading: Reading = "columns", variance_floor: float = 0.0) -> Tensor:
    """Redundancy R(Z) of N rows of D features (SAR², equation of R; 0 = uncorrelated dimensions, D = all the same).

    The direct form: rows are normalised, then columns are centred about their mean before anything is squared, so
    that it can judge :func:`redundancy_from_moments`. Where N < D the N×N Gram matrix is used: it has the same
    Frobenius norm as the D×D matrix.
    """
    number, width = rows.shape
    normalised = normalise_rows(rows, reading)
    if reading in ("columns", "rows_then_columns"):
        mean = normalised.mean(0)
        centred = normalised - mean
        variance = centred.square().mean(0)
        noise = (torch.finfo(rows.dtype).eps * 8 * normalised.detach().abs().amax(0)).square()
        dead = dead_columns(variance, noise)
        if variance_floor > 0:
            variance = torch.maximum(variance, variance_floor * variance.masked_fill(dead, 0.0).mean())
        deviation = variance.masked_fill(dead, 1.0).sqrt()
        centred_columns = reading == "columns"
        normalised = (centred / deviation).masked_fill(dead, 0.0) if centred_columns else normalised / deviation
    small = normalised @ normalised.T if number < width else normalised.T @ normalised
    diagonal = normalised.square().mean(0)
    off_diagonal = (small / number).square().sum() - diagonal.square().sum()
    return off_diagonal / max(1, width - 1)


def inequity_of_logits(logits: Tensor) -> Tensor:
    """ln C − H(softmax(logits)) for the logits of one mean feature, [C] or [1, C]."""
    flat = logits.reshape(1, -1)
    return math.log(flat.shape[-1]) - entropy(flat).squeeze(0)


def inequity(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Inequity I(Z) = ln C − H(softmax(h(μ))) with μ the mean row and h the linear head (SAR²; 0 unbiased, ln C worst)."""
    return inequity_of_logits(F.linear(rows.mean(0, keepdim=True), weight, bias))
