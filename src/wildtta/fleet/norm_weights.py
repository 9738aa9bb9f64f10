"""One pass in which every sample has its own scale and shift in every norm layer.

A norm layer first normalises, then scales and shifts: y = x̂ ⊙ γ + β. Only γ and β learn, so streams of one network differ in
nothing else, and a batch of many streams is one pass: x̂ is computed as always, and sample b gets γ_b and β_b of its stream.
The parameters of the network itself are left alone: they stay the source's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wildtta.step.engine import Engine
from wildtta.step.learnables import Learnables
from wildtta.step.precision import pass_precision


class NormWeights(TorchFunctionMode):
    """Within, norm layers that learn take their parameters from ``values`` [B, P], one row per sample of the batch."""

    def __init__(self, learnables: Learnables, values: Tensor) -> None:
        super().__init__()
        self._samples = len(values)
        pieces = torch.split(values, [parameter.numel() for parameter in learnables.parameters], 1)
        self._own = {
            id(parameter): piece.reshape(-1, *parameter.shape).to(parameter.dtype)
            for parameter, piece in zip(learnables.parameters, pieces, strict=True)
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        route = _ROUTES.get(func)
        return func(*args, **kwargs) if route is None else route(self, func, *args, **kwargs)

    def own(self, parameter: Tensor) -> Tensor | None:
        """The samples' own values of ``parameter`` [B, ...]; None: they share it."""
        return self._own.get(id(parameter))

    def forget(self) -> None:
        """Share all parameters again: an interrupted end may leave this in force, for this thread."""
        self._own.clear()

    def _of(self, parameter: Any, like: Tensor, behind: int) -> Tensor | None:
        """The samples' own values of ``parameter``, to be broadcast against ``like`` with ``behind`` dimensions after them.

        ``like`` begins with the samples, or with several rows of each (windows, heads).
        """
        own = self._own.get(id(parameter))
        if own is None:
            return None
        if len(like) % self._samples:
            raise ValueError(
                f"{_REFUSED}: a norm took a tensor of shape {tuple(like.shape)} in a batch of {self._samples} samples, "
                f"expected samples first. {_ADVICE}"
            )
        own = own.repeat_interleave(len(like) // self._samples, 0) if len(like) != self._samples else own
        between = like.dim() - own.dim() - behind
        return own.reshape(len(own), *[1] * between, *own.shape[1:], *[1] * behind)

    def _affine(self, normalised: Tensor, weight: Any, bias: Any, behind: int) -> Tensor:
        scale, shift = self._of(weight, normalised, behind), self._of(bias, normalised, behind)
        if scale is None and weight is not None:
            scale = weight.reshape(*weight.shape, *[1] * behind)
        if shift is None and bias is not None:
            shift = bias.reshape(*bias.shape, *[1] * behind)
        if scale is None or shift is None:
            normalised = normalised if scale is None else normalised * scale
            return normalised if shift is None else normalised + shift
        return torch.addcmul(shift, normalised, scale)

    def _learns(self, *parameters: Any) -> bool:
        return any(id(parameter) in self._own for parameter in parameters)

    def group_norm(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *given: Any,
        **named: Any,
    ) -> Tensor:
        if not self._learns(weight, bias):
            return func(input, num_groups, weight, bias, *given, **named)
        scale, shift = self._of(weight, input, input.dim() - 2), self._of(bias, input, input.dim() - 2)
        if scale is not None and shift is not None and input.is_contiguous():
            # The groups of B samples are B times as many groups of one sample with B times as many channels: torch's own
            # layer then scales and shifts, in one pass over memory.
            as_one = input.view(1, -1, *input.shape[2:])
            result = func(as_one, len(input) * num_groups, scale.reshape(-1), shift.reshape(-1), *given, **named)
            return result.view(input.shape)
        return self._affine(func(input, num_groups, None, None, *given, **named), weight, bias, input.dim() - 2)

    def layer_norm(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *given: Any,
        **named: Any,
    ) -> Tensor:
        if not self._learns(weight, bias):
            return func(input, normalized_shape, weight, bias, *given, **named)
        return self._affine(func(input, normalized_shape, None, None, *given, **named), weight, bias, 0)

    def rms_norm(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        *given: Any,
        **named: Any,
    ) -> Tensor:
        if not self._learns(weight):
            return func(input, normalized_shape, weight, *given, **named)
        return self._affine(func(input, normalized_shape, None, *given, **named), weight, None, 0)

    def arithmetic(self, func: Callable[..., Tensor], left: Any, right: Any, *given: Any, **named: Any) -> Tensor:
        """A norm that is written out: ``weight * x + bias``."""
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            mine, other = (left, right) if id(left) in self._own else (right, left)
            own = self._of(mine, other, 0) if other.dim() > mine.dim() else None
            if own is not None:
                left, right = (own, other) if mine is left else (other, own)
        return func(left, right, *given, **named)


_ROUTES: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.group_norm: NormWeights.group_norm,
    torch.group_norm: NormWeights.group_norm,
    F.layer_norm: NormWeights.layer_norm,
    torch.layer_norm: NormWeights.layer_norm,
    F.rms_norm: NormWeights.rms_norm,
    torch.rms_norm: NormWeights.rms_norm,
    **dict.fromkeys(
        [torch.mul, torch.add, *(getattr(Tensor, name) for name in ("mul", "add", "__mul__", "__rmul__", "__add__", "__radd__"))],
        NormWeights.arithmetic,
    ),
}


@contextlib.contextmanager
def own_weights(engine: Engine, values: Tensor, images: Tensor) -> Iterator[None]:
    """Within, a pass of ``engine`` over ``images`` has its samples' own ``values`` [B, P]; our kernels take them too."""
    fast = engine.fast
    with pass_precision(engine.precision, images.device):
        fast.find_fusions(images)
    own = NormWeights(engine.learnables, values)
    with engine.changes.set(fast, own_weights=own.own), engine.changes.until_left(own.forget), own:
        yield


def refuse_unmapped(engine: Engine, images: Tensor) -> None:
    """An error where samples with weights of their own would not be answered, or learn, as networks with these weights.

    Two samples with two sets of weights go through one pass, and each through a pass of a network that has its weights.
    Logits are compared, and in every layer that learns the gradient of a random sum of them: a layer that hardly counts in
    the logits (one behind a layer scale of 1e-3, say) is told by it as well as any other.
    """
    learnables = engine.learnables
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator)
    if images.is_floating_point():
        probes = draw(2, *images.shape[1:]).to(images.device, engine.network.reference.dtype)
    else:
        probes = images[[0, -1]]  # tokens cannot be made up
    before = learnables.vector()
    values = before + 0.1 * draw(2, learnables.size).to(before.device, before.dtype) * before.abs().clamp(min=0.1)
    values.requires_grad_()
    with own_weights(engine, values, probes):
        mixed = engine.forward(probes, grad=True).logits
    sums = draw(*mixed.shape).to(mixed.device, mixed.dtype)
    (found,) = torch.autograd.grad((mixed * sums).sum(), values)
    alone, gradients = [], []
    for image, row, weights in zip(probes, values.detach(), sums.chunk(2), strict=True):
        with engine.at(row, before):
            logits = engine.forward(image[None], grad=True).logits
            gradients.append(learnables.gradient((logits * weights).sum()))
        alone.append(logits.detach())
    exact = mixed.dtype == torch.float64
    expected = torch.cat(alone).double()
    error = float((mixed.detach().double() - expected).abs().amax() / expected.std().clamp(min=1e-12))
    if not error <= (1e-8 if exact else 1e-2):
        raise ValueError(
            f"{_REFUSED}: logits differ by {error:.2g} of their spread from those of networks with these weights. {_WANTED}"
        )
    astray = _astray(learnables, torch.stack(gradients), found, exact=exact)
    if astray:
        raise ValueError(
            f"{_REFUSED}: {', '.join(astray[:4])} would not learn as in networks with these weights. {_WANTED}"
        )


def _astray(learnables: Learnables, expected: Tensor, found: Tensor, *, exact: bool) -> list[str]:
    """Layers whose gradients [samples, P] are not the ``expected`` ones, judged at each layer's own scale.

    By layer, not by parameter: a shift alone may have no gradient but rounding errors (that of keys before a softmax).
    """
    parts: dict[str, list[Tensor]] = {}
    pairs = torch.stack([expected, found]).double().nan_to_num()
    sizes = [parameter.numel() for parameter in learnables.parameters]
    for name, piece in zip(learnables.names, torch.split(pairs, sizes, 2), strict=True):
        parts.setdefault(name.rpartition(".")[0] or name, []).append(piece)
    layers = {name: torch.cat(pieces, 2) for name, pieces in parts.items()}
    norms = torch.stack([torch.stack((own.norm(), other.norm(), (own - other).norm())) for own, other in layers.values()])
    largest = float(norms[:, 0].max())
    relative, rounding = (1e-6, 1e-12 * largest) if exact else (1e-2, 1e-5 * largest)
    return [
        name
        for name, (own, other, difference) in zip(layers, norms.tolist(), strict=True)
        if own and (not other or difference > relative * own + rounding)
    ]


_REFUSED = (
    "a fleet gives every sample its own weights in norm layers, and this network uses them in a way that this does not reach"
)
_ADVICE = "Choose other layers with parameters=, or use one adapter per stream"
_WANTED = (
    "Expected layers that call torch's group_norm, layer_norm or rms_norm, or multiply by their weight, with samples first. "
    f"{_ADVICE}"
)
