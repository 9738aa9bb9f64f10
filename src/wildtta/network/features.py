"""The features that enter a network's head: the one way to read them, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from wildtta.network.inputs import Inputs, called
from wildtta.network.output import logits_of
from wildtta.network.probe import Convolution, undisturbed

_RELUS = frozenset([F.relu, F.relu6, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_])


HeadPasses = list[tuple[Tensor, Tensor]]
"""What entered and what left the head, for each time that it ran within one pass."""


class FeatureTap:
    """Keeps what enters and leaves a head, as long as :meth:`keep` is a forward hook of it."""

    def __init__(self) -> None:
        self._passes: HeadPasses = []

    def keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._passes.append((inputs[0], output))

    def take(self) -> HeadPasses:
        """The head's passes since the last time; empty where it did not run."""
        passes, self._passes = self._passes, []
        return passes


def features_of(head: nn.Module, passes: HeadPasses, logits: Tensor) -> Tensor:
    """The features [B, D] behind ``logits`` [B, C]; the logits themselves where the head did not run.

    A head that ran once over B vectors makes the logits of its input. One that ran over several vectors of each sample
    (frames, crops, tokens, pixels; or several times) is pooled: where the logits are those of one vector (the last token
    of a language model), it is the features; else their mean is, since the mean of a linear head's logits is the logits
    of the mean.
    """
    if not passes:
        return logits
    if len(passes) == 1 and passes[0][0].dim() == 2 and len(passes[0][0]) == len(logits):
        return passes[0][0]
    given = torch.cat([_per_sample(head, before, len(logits)) for before, _ in passes], 1)
    made = torch.cat([_per_sample(head, after, len(logits)) for _, after in passes], 1)
    if given.shape[1] == 1:
        return given[:, 0]
    chosen = (made == logits[:, None].to(made.dtype)).all(-1).to(given.dtype)
    counts = chosen.sum(1, keepdim=True)
    weights = torch.where(counts > 0, chosen / counts.clamp(min=1), 1 / given.shape[1])
    return torch.einsum("bn,bnd->bd", weights, given)


def _per_sample(head: nn.Module, values: Tensor, samples: int) -> Tensor:
    """What a head took or gave as [samples, vectors of each, width]; rows of one sample lie together."""
    if isinstance(head, Convolution):
        values = values.movedim(1, -1)
    if values.dim() < 2 or values.shape[0] % samples:
        raise ValueError(
            f"the head took a tensor of shape {tuple(values.shape)} for {samples} samples; expected one or several "
            "vectors of each sample. Name the classifier's last linear layer with head="
        )
    return values.reshape(samples, -1, values.shape[-1])


class _Rectified(TorchFunctionMode):
    """Whether a ReLU has run since the last GroupNorm."""

    value = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RELUS or func is F.group_norm:
            self.value = func in _RELUS
        return func(*args, **(kwargs or {}))


def are_rectified(network: nn.Module, head: nn.Module, call: Tensor | Inputs) -> bool:
    """Whether the features of ``call`` are at least 0, and a ReLU ran after the last GroupNorm.

    (Pooled over many pixels, what GELU or SiLU gives may be positive everywhere too.)
    """
    tap = FeatureTap()
    try:
        with undisturbed(network), head.register_forward_hook(tap.keep), _Rectified() as rectified:
            logits = logits_of(called(network, call))
        features = features_of(head, tap.take(), logits)
    except Exception:
        return False
    return rectified.value and bool((features >= 0).all()) and bool((features > 0).any())
