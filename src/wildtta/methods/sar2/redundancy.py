"""R and I, the two regularisers of SAR², as pure functions of features.

Notation: C classes, D feature dimensions, N rows; natural logarithm throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.kernels.passes import kernels_run_on
from wildtta.methods.losses import entropy

DEAD_VARIANCE = 1e-10
"""A column whose variance is below this share of the mean column variance carries rounding, not signal: it is dead.
Without a margin a column that died out (ReLU) would come and go with its last digit."""

Normalisation = Literal["columns", "rows", "rows_centred", "rows_then_columns"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)


def normalise_rows(rows: Tensor, normalisation: Normalisation) -> Tensor:
    """The part of a normalisation that looks at one row at a time: nothing, centring, or standardising over D.

    A constant row has no direction: standardised, it is 0.
    """
    if normalisation == "columns":
        return rows
    centred = rows - rows.mean(-1, keepdim=True)
    if normalisation != "rows":
        return centred
    variance = centred.square().mean(-1, keepdim=True)
    # Rounding leaves a constant row with a variance of about (value · machine epsilon)².
    noise = (torch.finfo(rows.dtype).eps * 8 * rows.detach().abs().amax(-1, keepdim=True)).square()
    constant = variance <= noise
    return (centred / variance.masked_fill(constant, 1.0).sqrt()).masked_fill(constant, 0.0)


def dead_columns(variance: Tensor, noise: Tensor) -> Tensor:
    """Columns without variance: what is there is rounding (``noise``), or nothing beside the others."""
    values = variance.detach()
    return values <= torch.maximum(noise, DEAD_VARIANCE * values.clamp(min=0).mean(-1, keepdim=True))


def redundancy_from_moments(
    count: Tensor | float, first: Tensor, second: Tensor, *, normalisation: Normalisation = "columns", variance_floor: float = 0.0
) -> Tensor:
    """R of N rows from their sums Σz [D] and Σzzᵀ [D, D] (rows already through :func:`normalise_rows`).

    With 𝒞 the normalised second-moment matrix, R = 1/(D−1) · Σ_{i≠j} 𝒞_ij². What 𝒞 is depends on the normalisation:

    - ``columns``: the correlation matrix, (Σzzᵀ/N − μμᵀ)_ij / σ_i σ_j (the paper's equation);
    - ``rows``, ``rows_centred``: Σzzᵀ/N of the normalised rows, as it is;
    - ``rows_then_columns``: Σzzᵀ/N divided by σ_i σ_j, columns not centred.

    σ² is replaced by max(σ², variance_floor · mean σ²). A column without variance (σ² ≤ 1e-10 · mean σ²) contributes 0
    with gradient 0 (``rows_then_columns`` divides by 1 there).
    """
    width = first.shape[-1]
    mean = first / count
    moments = second / count
    if normalisation in ("columns", "rows_then_columns"):
        squares = moments.diagonal()
        variance = squares - mean.square()
        # What subtracting two nearly equal numbers leaves of a constant column.
        noise = 64 * torch.finfo(second.dtype).eps * squares.detach().abs()
        dead = dead_columns(variance, noise)
        if variance_floor > 0:
            floor = variance_floor * variance.masked_fill(dead, 0.0).mean()
            variance = torch.maximum(variance, floor)
        inverse = variance.masked_fill(dead, 1.0).rsqrt()
        if normalisation == "columns":
            inverse = inverse.masked_fill(dead, 0.0)
            moments = moments - torch.outer(mean, mean)
        moments = moments * torch.outer(inverse, inverse)
    off_diagonal = moments.square().sum() - moments.diagonal().square().sum()
    return off_diagonal / max(1, width - 1)


def redundancy(rows: Tensor, *, normalisation: Normalisation = "columns", variance_floor: float = 0.0) -> Tensor:
    """Redundancy R(Z) of N rows of D features (SAR², equation of R; 0 = uncorrelated dimensions, D = all the same).

    The direct form: rows are normalised, then columns are centred about their mean before anything is squared, so
    that it can judge :func:`redundancy_from_moments`. Where N < D the N×N Gram matrix is used: it has the same
    Frobenius norm as the D×D matrix.
    """
    number, width = rows.shape
    normalised = normalise_rows(rows, normalisation)
    if normalisation in ("columns", "rows_then_columns"):
        mean = normalised.mean(0)
        centred = normalised - mean
        variance = centred.square().mean(0)
        noise = (torch.finfo(rows.dtype).eps * 8 * normalised.detach().abs().amax(0)).square()
        dead = dead_columns(variance, noise)
        if variance_floor > 0:
            variance = torch.maximum(variance, variance_floor * variance.masked_fill(dead, 0.0).mean())
        deviation = variance.masked_fill(dead, 1.0).sqrt()
        centred_columns = normalisation == "columns"
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


def changed_products(
    stored: Tensor, arriving: Tensor, leaving: Tensor, weights: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    """q_i = Σ_j A_ij² w_j [..., D] and Y_b = A v_b [..., B, D] of A = ``stored`` + Σ aaᵀ − Σ llᵀ [..., D, D], off its diagonal.

    (Left in and taken off afterwards, a diagonal would leave its rounding behind, which is large beside the rest where a mean
    is far above its deviation.)
    """
    changes = torch.cat((arriving, leaving), -2)
    if kernels_run_on(stored.device):
        from wildtta.kernels import changed_products as kernel

        if kernel.suits(stored, changes):
            operation = kernel.ChangedProducts(arriving.shape[-2])

            def ours() -> tuple[Tensor, ...]:
                return operation.forward(stored, changes, weights, vectors)

            def torchs() -> tuple[Tensor, ...]:
                return _changed_products(stored, changes, arriving.shape[-2], weights, vectors)

            squares, products = operation.attempt(ours, torchs)
            return squares, products
    return _changed_products(stored, changes, arriving.shape[-2], weights, vectors)


def _changed_products(
    stored: Tensor, changes: Tensor, arriving: int, weights: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor]:
    signed = torch.cat((changes[..., :arriving, :], -changes[..., arriving:, :]), -2)
    added = torch.addmm if stored.dim() == 2 else torch.baddbmm
    matrix = added(stored, changes.mT, signed)
    matrix.diagonal(dim1=-2, dim2=-1).zero_()
    products = vectors @ matrix
    return (matrix.square_() @ weights[..., None]).squeeze(-1), products


class RowRedundancy(torch.autograd.Function):
    """R of rows that are normalised one by one, from the bank's sums and the rows that change, with its gradient written out.

    With A = Σzzᵀ over the N rows of C^t, changed by the arriving and leaving ones,

        R = 1/(D−1) · Σ_{i≠j} (A_ij/N)²,    ∂R/∂z_bi = 4/(N²(D−1)) · Σ_{j≠i} A_ij z_bj

    Sizes may have streams in front ([S, ...]): a fleet maps a step over its streams.
    """

    @staticmethod
    def forward(arriving: Tensor, leaving: Tensor, outer: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        width = arriving.shape[-1]
        squares, products = changed_products(outer, arriving, leaving, torch.ones_like(arriving[..., 0, :]), arriving)
        scale = 1 / (count.to(outer.dtype).square() * max(1, width - 1))
        return squares.sum(-1) * scale, products, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        products, scale = ctx.saved_tensors
        return (4 * gradient * scale)[..., None, None] * products, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        found: tuple[Tensor, ...] = RowRedundancy.apply(*_streams_first(info, in_dims, inputs))
        return found, (0,) * len(found)


def _streams_first(info: Any, in_dims: Sequence[int | None], inputs: Sequence[Any]) -> list[Any]:
    """Mapped inputs with their mapped dimension in front, those that all streams share as often as there are streams."""
    return [
        value if not isinstance(value, Tensor)
        else value.expand(info.batch_size, *value.shape) if place is None
        else value.movedim(place, 0)
        for value, place in zip(inputs, in_dims, strict=True)
    ]  # fmt: skip


class ColumnRedundancy(torch.autograd.Function):
    """R of the column normalisation, from the bank's sums and the rows that change, with its gradient written out.

    With μ the mean of the N rows of C^t, A = Σzzᵀ − N·μμᵀ is N times their covariance matrix; with v = diag A, a = 1/v,

        R = 1/(D−1) · Σ_{i≠j} A_ij² a_i a_j            (N cancels: R looks at correlations alone)

    Only the arriving rows carry a gradient, and ∂R/∂z_b = 2 G (z_b − μ) with the symmetric

        G_ij = 2/(D−1) · a_i a_j A_ij  (i ≠ j),   G_ii = −a_i² · 2/(D−1) · Σ_{j≠i} A_ij² a_j  (+ the floor's share)

    so that R and its gradient take one product of A∘A with a vector and one of A with B vectors. Left to automatic
    differentiation, R took some forty passes over D×D numbers in float64, a fifth of a whole step of batch size 1.

    Sizes may have streams in front ([S, ...]): a fleet maps a step over its streams.
    """

    @staticmethod
    def forward(
        arriving: Tensor, leaving: Tensor, outer: Tensor, total: Tensor, count: Tensor, variance_floor: float
    ) -> tuple[Tensor, ...]:
        width = arriving.shape[-1]
        number = count.to(total.dtype)[..., None]
        mean = (total - leaving.sum(-2) + arriving.sum(-2)) / number
        less = torch.cat((leaving, (mean * number.sqrt())[..., None, :]), -2)
        spread = outer.diagonal(dim1=-2, dim2=-1) + arriving.square().sum(-2) - less.square().sum(-2)
        # What subtracting two nearly equal numbers leaves of a constant column.
        noise = 64 * torch.finfo(spread.dtype).eps * (spread + number * mean.square()).abs()
        dead = dead_columns(spread, noise)
        floor = variance_floor * spread.masked_fill(dead, 0.0).mean(-1, keepdim=True)
        floored = (spread < floor) & ~dead if variance_floor > 0 else torch.zeros_like(dead)
        inverse = torch.where(floored, floor, spread).masked_fill(dead, 1.0).reciprocal().masked_fill(dead, 0.0)
        away = arriving - mean[..., None, :]
        others, products = changed_products(outer, arriving, less, inverse, inverse[..., None, :] * away)
        value = (inverse * others).sum(-1) / max(1, width - 1)
        return value, away, products, inverse, others, dead, floored

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.variance_floor = inputs[-1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        away, products, inverse, others, dead, floored = ctx.saved_tensors
        width = away.shape[-1]
        scale = 2 / max(1, width - 1)
        towards = scale * inverse[..., None, :] * products
        of_spread = -scale * inverse.square() * others
        own = of_spread.masked_fill(floored, 0.0)
        if ctx.variance_floor > 0:
            shared = (of_spread * floored).sum(-1, keepdim=True) * ctx.variance_floor / width
            own = own + torch.zeros_like(own).masked_fill(~dead, 1.0) * shared
        rows = 2 * gradient[..., None, None] * (towards + own[..., None, :] * away)
        return rows, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        found: tuple[Tensor, ...] = ColumnRedundancy.apply(*_streams_first(info, in_dims, inputs))
        return found, (0,) * len(found)
