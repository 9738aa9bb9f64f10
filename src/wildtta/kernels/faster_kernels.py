"""Faster attention and LayerNorm within the adapter's passes on CUDA, whatever network it is.

Networks call ``torch.nn.functional.scaled_dot_product_attention`` and ``torch.nn.functional.layer_norm``; within
:func:`faster_kernels` these calls go to the kernels of :mod:`~wildtta.kernels.attention_kernels` and
:mod:`~wildtta.kernels.layer_norm_kernels` where all conditions for them hold, and to torch everywhere else. Nothing of the
network is changed.

* Attention: float32 where TF32 is allowed for matrix products, without mask, dropout or causality.
* LayerNorm: over the last dimension, with γ and β. Under autocast torch gives float32, which linear layers then cast. Where
  linear layers alone use the output it is written in their type at once: the same numbers, one pass less over memory.
  Who uses it is seen in the first pass; a network that adds the output to something, or whose head it enters, keeps float32.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType, TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from wildtta.kernels.triton_support import runs_kernels


def faster_kernels(device: torch.device, head: Tensor) -> contextlib.AbstractContextManager[Any]:
    """The context of one pass through a network; ``head`` is the weight of its last linear layer."""
    return FasterKernels(head) if runs_kernels(device) else contextlib.nullcontext()


@functools.cache
def _kernels() -> tuple[ModuleType, ModuleType] | None:
    """Both modules of kernels; None, after a warning, where Triton is there but cannot be imported."""
    try:
        from wildtta.kernels import attention_kernels, layer_norm_kernels
    except Exception as error:
        warnings.warn(f"attention and LayerNorm run as torch's own: Triton cannot be imported ({error})", stacklevel=2)
        return None
    return attention_kernels, layer_norm_kernels


class FasterKernels(TorchFunctionMode):
    """Sends attention and LayerNorm to our kernels."""

    def __init__(self, head: Tensor) -> None:
        super().__init__()
        self._consumers = _Consumers(head)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # a part of the network that its owner compiled
            return func(*args, **kwargs)
        if self._consumers.watching:
            self._consumers.note(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return _multi_head()(*args, **kwargs)
        if func is F.layer_norm:
            return _layer_norm(self._consumers, *args, **kwargs)
        return func(*args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # a pass that was cut short has not shown everybody who uses an output
            self._consumers.conclude()
        cast(Any, super()).__exit__(kind, error, trace)


# -- attention -------------------------------------------------------------------------------------------------------------


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    def torchs() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)

    unknown = {name: given for name, given in options.items() if name != "scale" and given}
    if attn_mask is not None or dropout_p or is_causal or unknown or not _tf32_attention(query, key, value):
        return torchs()
    scale = options.get("scale")
    kernels = _kernels()
    if kernels is None or not kernels[0].suits(query, key, value) or (scale is not None and not scale > 0):
        return torchs()
    module = kernels[0]
    return cast(Tensor, module.kernels.attempt(lambda: module.attention(query, key, value, scale), torchs))


@functools.cache
def _multi_head() -> Callable[..., Any]:
    """What ``nn.MultiheadAttention`` calls, with our attention in it: within a torch function no other is intercepted."""
    original = F.multi_head_attention_forward
    names = {**original.__globals__, "scaled_dot_product_attention": _attention}
    twin = FunctionType(original.__code__, names, original.__name__, original.__defaults__, original.__closure__)
    twin.__kwdefaults__ = original.__kwdefaults__
    return twin


def _tf32_attention(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether this would be attention in float32 where TF32 is allowed."""
    if query.dtype != torch.float32 or not all(map(_is_plain, (query, key, value))):
        return False
    allowed = torch.backends.cuda.matmul.allow_tf32
    return allowed and runs_kernels(query.device) and not torch.is_autocast_enabled(query.device.type)


def _is_plain(tensor: Tensor) -> bool:
    """A tensor as it is: no subclass, and not within a transform such as ``vmap``."""
    return type(tensor) in (Tensor, nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


# -- LayerNorm -------------------------------------------------------------------------------------------------------------


def _layer_norm(
    consumers: _Consumers,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    def torchs() -> Tensor:
        return F.layer_norm(input, cast(list[int], normalized_shape), weight, bias, eps)

    if weight is None or bias is None or not runs_kernels(input.device):
        return torchs()
    autocast = torch.is_autocast_enabled(input.device.type)
    if not all(map(_is_plain, (input, weight, bias))) or (not autocast and not input.dtype == weight.dtype == bias.dtype):
        return torchs()
    kernels = _kernels()
    if kernels is None or not kernels[1].suits(input, tuple(normalized_shape), weight, bias):
        return torchs()
    module, dtype = kernels[1], input.dtype
    if autocast:
        linear = consumers.are_linear(weight)
        dtype = torch.get_autocast_dtype(input.device.type) if linear else torch.float32
    result = cast(Tensor, module.kernels.attempt(lambda: module.layer_norm(input, weight, bias, eps, dtype), torchs))
    if autocast:
        consumers.watch(result, weight)
    return result


_linear_consumers: Any = WeakIdKeyDictionary()
"""For γ of a LayerNorm: whether linear layers alone use its output. A fact of the network, seen in a pass through it."""

_LOOKS = frozenset(
    [getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad")]
    + [getattr(Tensor, name) for name in ("size", "dim", "numel", "__len__")]
)
"""What reads no values."""


class _Watched:
    """An output, as long as it lives, and what was done with it."""

    def __init__(self, output: Tensor, gamma: Tensor) -> None:
        self.output = weakref.ref(output)
        self.gamma = weakref.ref(gamma)
        self.linear = False
        self.other = False


class _Consumers:
    """Who uses the outputs of LayerNorms during one pass."""

    def __init__(self, head: Tensor) -> None:
        self._head = head
        self._watched: dict[int, _Watched] = {}

    @property
    def watching(self) -> bool:
        return bool(self._watched)

    def are_linear(self, gamma: Tensor) -> bool:
        """Whether an earlier pass showed that linear layers alone use this LayerNorm."""
        return bool(_linear_consumers.get(gamma, False))

    def watch(self, output: Tensor, gamma: Tensor) -> None:
        """Look at what is done with the output of a LayerNorm that was not seen so far."""
        if gamma not in _linear_consumers:
            self._watched[id(output)] = _Watched(output, gamma)

    def note(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function is about to be called."""
        if func in _LOOKS:
            return
        # The head's input is what the losses see as features, in float32.
        linear = func is F.linear and len(args) > 1 and args[1] is not self._head
        for place, value in enumerate(_tensors((args, tuple(kwargs.values())))):
            watched = self._watched.get(id(value))
            if watched is not None and watched.output() is value:
                watched.linear |= linear and place == 0
                watched.other |= not (linear and place == 0)

    def conclude(self) -> None:
        """Keep what this pass has shown."""
        for watched in self._watched.values():
            gamma = watched.gamma()
            if gamma is not None:
                alone = watched.linear and not watched.other
                _linear_consumers[gamma] = alone and _linear_consumers.get(gamma, True)
        self._watched.clear()


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
