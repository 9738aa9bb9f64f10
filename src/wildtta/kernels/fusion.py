"""What may be done at once with a norm's result: found by watching a pass on noise, and checked in another.

A GroupNorm takes along the ReLU that follows where nothing but the ReLU uses its result. Under autocast a norm writes the
narrow type where the next layer casts its result anyway. Neither may change a bit of the logits.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wildtta.kernels.dispatch import Dispatch, Fusion, Fusions
from wildtta.network.output import logits_of

_READS_NO_VALUES = frozenset(
    [getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad")]
    + [getattr(Tensor, name) for name in ("size", "dim", "numel", "__len__")]
)


def find_fusions(network: nn.Module, head: nn.Module, images: Tensor) -> Fusions:
    """The fusions that leave the logits of noise as they are, bit for bit, with autocast as it is now."""
    kind = images.device.type
    autocast = torch.is_autocast_enabled(kind)
    if not autocast and not any(isinstance(module, nn.GroupNorm) for module in network.modules()):
        return {}
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, *images.shape[1:], generator=generator).to(images.device, images.dtype)
    try:
        # One algorithm for one convolution, so that the same numbers give the same bits.
        repeatable = cudnn.flags(
            enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32
        )
        with torch.no_grad(), torch.random.fork_rng([images.device] if images.is_cuda else []), repeatable:
            watch = _Watch(network, head)
            expected = watch.logits(noise)
            for narrow in (True, False) if autocast else (False,):
                fusions = watch.fusions(narrow=narrow)
                with Dispatch(images.device, fusions, emulated=True):
                    if torch.equal(logits_of(network(noise)), expected):
                        return fusions
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # a network that does not run on noise
        pass
    return {}


class _Watch(TorchFunctionMode):
    """Follows the results of norms, as objects, through modules and through torch's functions.

    (The bits of the logits alone would not tell: what is done with a result may count for nothing while some weight is 0.)
    """

    def __init__(self, network: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self._network = network
        self._head_weight = getattr(head, "weight", None)
        self._followed: dict[int, tuple[Tensor, Tensor]] = {}
        """γ of a norm and a result, by the result's id; the results are kept, so that no id is given twice."""
        self._norms: dict[Tensor, list[Callable[..., Any]]] = defaultdict(list)
        """By γ the norms that ran; then what used their results, and the modules that these passed."""
        self._uses: dict[Tensor, list[str]] = defaultdict(list)
        self._modules: dict[Tensor, list[nn.Module]] = defaultdict(list)

    def logits(self, images: Tensor) -> Tensor:
        """The network's logits; what is seen on the way is kept."""
        with contextlib.ExitStack() as stack:
            for module in self._network.modules():
                stack.enter_context(module.register_forward_pre_hook(self._pass, with_kwargs=True))
                stack.enter_context(
                    module.register_forward_hook(lambda module, given, result: self._pass(module, result))
                )
            with self:
                result = self._network(images)
        for gamma in self._behind(result):
            self._uses[gamma].append("returned")
        return logits_of(result)

    def fusions(self, *, narrow: bool) -> Fusions:
        """What may be fused by what was seen; with ``narrow`` also in autocast's type."""
        found = {}
        for gamma, norms in self._norms.items():
            rectified = norms == [F.group_norm] and self._uses[gamma] == ["relu"]
            cast = norms.count(F.layer_norm) == len(norms) and set(self._uses[gamma]) == {"linear"}
            if rectified or (cast and narrow):
                found[gamma] = Fusion(self._modules[gamma], narrow)
        return found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [] if func in _READS_NO_VALUES else tree_leaves((args, kwargs))
        # The head's input is what the losses see as features, in float32.
        linear = func is F.linear and given[1] is not self._head_weight
        for place, value in enumerate(given):
            if id(value) in self._followed:
                use = "relu" if func is F.relu else "linear" if linear and place == 0 else "other"
                self._uses[self._followed[id(value)][0]].append(use)
        self._followed.pop(id(result), None)  # in place: later uses see the same with and without fusion
        gamma = kwargs.get("weight")
        if func in (F.group_norm, F.layer_norm) and isinstance(gamma, Tensor):
            self._norms[gamma].append(func)
            self._followed[id(result)] = (gamma, result)
        return result

    def _pass(self, module: nn.Module, *values: Any) -> None:
        for gamma in self._behind(values):
            self._modules[gamma].append(module)

    def _behind(self, values: Any) -> set[Tensor]:
        """γ of the norms whose results are among ``values``."""
        keys = {id(value) for value in tree_leaves(values)}
        return {self._followed[key][0] for key in keys if key in self._followed}
