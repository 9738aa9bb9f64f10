"""Which kernel runs where: within :class:`Dispatch`, calls of torch's functions go to our kernels where these can take them.

* ``F.scaled_dot_product_attention`` (``nn.MultiheadAttention`` calls it too): float32 where TF32 is allowed for matrix
  products, without mask, dropout or causality.
* ``F.layer_norm``: over the last dimension, with γ and β.
* ``F.group_norm``: contiguous images, with γ and β; with the ``F.relu`` behind it where :mod:`~wildtta.kernels.fusion`
  found that nothing else uses the result.

Under autocast torch's norms give float32, which the next layer casts. Where that is all that happens to the result, it is
written in the narrow type at once: the same numbers, one pass less over memory. Every other call goes to torch, and so does
every call once a kernel has failed.

Where every sample has a γ and β of its own (:class:`wildtta.fleet.norm_weights.NormWeights`, entered before), norms take them
here; what the kernels cannot take goes on to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wildtta.kernels import attention, group_norm, layer_norm

Native = Callable[[], Tensor]
OwnWeights = Callable[[Tensor], Tensor | None]
"""From a parameter of a norm to the samples' own values of it [B, ...]; None: they share it."""


@dataclass(eq=False)
class Fusion:
    """A GroupNorm with the ReLU behind it, or a LayerNorm with the cast behind it."""

    modules: list[nn.Module]
    """Modules that the norm's result passes. A hook on one of them must see what it would have seen."""
    narrow: bool
    """Whether under autocast the result may come in autocast's type."""


Fusions = dict[Tensor, Fusion]
"""By γ of the norm."""


class Dispatch(TorchFunctionMode):
    """Sends calls to our kernels for as long as the context lasts.

    ``smallest`` is the fewest values for which a GroupNorm is worth a launch. With ``emulated`` torch's own operations do
    what the kernels would, to find out whether a network allows it. ``own`` gives the samples' own γ and β.
    """

    def __init__(
        self,
        device: torch.device,
        fusions: Fusions,
        smallest: int = 0,
        *,
        emulated: bool = False,
        own: OwnWeights | None = None,
    ) -> None:
        super().__init__()
        self._own = own
        self._device = device.type
        self._fusions = fusions
        self._smallest = smallest
        self._emulated = emulated
        self._rectified: dict[int, Tensor] = {}
        """Results that have been through their ReLU and are on the way to it, by id."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        route = None if torch.compiler.is_compiling() else _ROUTES.get(func)  # the owner may have compiled a part
        if route is None:
            return func(*args, **kwargs)
        return route(self, functools.partial(func, *args, **kwargs), *args, **kwargs)

    def attention(
        self,
        native: Native,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *given: Any,
        scale: float | None = None,
        **options: Any,
    ) -> Tensor:
        # A mask, dropout, causality or grouped queries: whatever is not 0, False or None.
        plain = not any(isinstance(value, Tensor) or value for value in (*given, *options.values()))
        tf32 = torch.backends.cuda.matmul.allow_tf32 and not torch.is_autocast_enabled(self._device)
        usable = plain and tf32 and not self._emulated and (scale is None or scale > 0)
        if not usable or not self._takes(query, key, value) or not attention.suits(query, key, value):
            return native()
        return attention.Attention.attempt(lambda: attention.attention(query, key, value, scale), native)

    @functools.cached_property
    def multi_head_attention(self) -> Callable[..., Any]:
        """What ``nn.MultiheadAttention`` calls, with our attention: within a torch function no other is intercepted."""

        def attend(*args: Any, **kwargs: Any) -> Tensor:
            return self.attention(functools.partial(F.scaled_dot_product_attention, *args, **kwargs), *args, **kwargs)

        original = F.multi_head_attention_forward
        names = {**original.__globals__, "scaled_dot_product_attention": attend}
        twin = FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
        twin.__kwdefaults__ = original.__kwdefaults__
        return twin

    def layer_norm(
        self,
        native: Native,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        values = self._values(weight, bias)
        if values is None or weight is None or not self._takes(input, *values):
            return native()
        fusion, (weight, bias) = self._fusion_of(weight), values
        autocast = torch.is_autocast_enabled(self._device)
        known = layer_norm.suits(input, tuple(normalized_shape), weight, bias)
        if not known or (not autocast and not input.dtype == weight.dtype == bias.dtype):
            return native()
        dtype = self._type_of_result(input, fusion)
        if self._emulated:
            return native().to(dtype)
        return layer_norm.LayerNorm.attempt(lambda: layer_norm.layer_norm(input, weight, bias, eps, dtype), native)

    def group_norm(
        self,
        native: Native,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        values = self._values(weight, bias)
        if values is None or weight is None or input.numel() < self._smallest or not self._takes(input, *values):
            return native()
        fusion, (weight, bias) = self._fusion_of(weight), values
        if not group_norm.suits(input, num_groups, weight, bias):
            return native()
        relu, dtype = fusion is not None, self._type_of_result(input, fusion)
        if self._emulated:
            z = (torch.relu(native()) if relu else native()).to(dtype)
        else:
            given = (input, num_groups, weight, bias, eps)
            kernel = functools.partial(group_norm.group_norm, *given, relu=relu, dtype=dtype)
            z = group_norm.GroupNorm.attempt(kernel, native)
            relu = relu and not group_norm.GroupNorm.broken
        if relu:
            self._rectified[id(z)] = z
        return z

    def relu(self, native: Native, input: Tensor, inplace: bool = False) -> Tensor:
        return native() if self._rectified.pop(id(input), None) is None else input

    def _values(self, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """γ and β as they are, or the samples' own; None where only one of them is there, or is the samples' own."""
        if weight is None or bias is None:
            return None
        if self._own is None:
            return weight, bias
        gamma, beta = self._own(weight), self._own(bias)
        if gamma is None and beta is None:
            return weight, bias
        return None if gamma is None or beta is None else (gamma, beta)

    def _takes(self, *tensors: Tensor) -> bool:
        """Whether these are plain tensors of the device: no subclasses, none within a transform such as ``vmap``."""
        plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == self._device for tensor in tensors)
        if not plain or any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
            return False
        # Hooks on saved tensors may run this pass again in the backward pass (checkpointing): both must save the same.
        hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None)
        return not torch.is_grad_enabled() or hooks(False) is None

    def _fusion_of(self, gamma: Tensor) -> Fusion | None:
        """What is fused with the norm of this γ, unless a hook would see the norm's result."""
        fusion = self._fusions.get(gamma)
        for module in [] if fusion is None else fusion.modules:
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
                return None
        return fusion

    def _type_of_result(self, x: Tensor, fusion: Fusion | None) -> torch.dtype:
        if not torch.is_autocast_enabled(self._device):
            return x.dtype
        return torch.get_autocast_dtype(self._device) if fusion is not None and fusion.narrow else torch.float32


_ROUTES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: Dispatch.attention,
    F.multi_head_attention_forward: lambda self, native, *args, **kwargs: self.multi_head_attention(*args, **kwargs),
    F.layer_norm: Dispatch.layer_norm,
    F.group_norm: Dispatch.group_norm,
    F.relu: Dispatch.relu,
}
