"""Which GroupNorms of a network may run as one kernel, which of them with the ReLU behind: found by watching a pass on noise."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wildtta.kernels.fused_norms import DEVICES, FusedNorm, group_norm_of_torch, installed, is_watched, kernels
from wildtta.network.output import logits_of

WORTH_A_LAUNCH = 1 << 20
"""Values below which launching a kernel from Python costs more than it saves (in a recorded step it costs nothing)."""


class NormFusion:
    """The fused norms of one network: found in its first pass on CUDA, in place for as long as a pass lasts."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._layers: list[FusedNorm] | None = None

    def forget(self) -> None:
        """Look anew in the next pass (the network moved)."""
        self._layers = None

    @contextlib.contextmanager
    def applied(self, images: Tensor, *, always: bool) -> Iterator[None]:
        """Fused norms for a pass over ``images``; without ``always`` only those that are worth a launch from Python."""
        layers = self._found(images) if images.device.type in DEVICES else []
        module = kernels() if layers else None
        if module is None:
            yield
            return
        with installed(layers, module.group_norm, 0 if always else WORTH_A_LAUNCH):
            yield

    def _found(self, images: Tensor) -> list[FusedNorm]:
        if self._layers is None:
            if images.is_cuda and torch.cuda.is_current_stream_capturing():
                return []  # a recording has no room for a look around
            self._layers = find_fused_norms(self._network, images)
        return self._layers


def find_fused_norms(network: nn.Module, images: Tensor) -> list[FusedNorm]:
    """The GroupNorms that a kernel may replace; with their ReLUs, where the network's logits on noise stay the same bits."""
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm) and _may_be_replaced(module)]
    # DataParallel runs copies of the modules, which would take the originals' forward with them.
    unknown = torch.version.hip is not None or any(isinstance(module, nn.DataParallel) for module in network.modules())
    if not norms or unknown or kernels() is None:
        return []
    layers = _with_relus(network, norms, images) or []
    alone = set(norms) - {layer.norm for layer in layers}
    return layers + [FusedNorm(norm) for norm in norms if norm in alone]


# -- which norms ---------------------------------------------------------------------------------------------------------


def _may_be_replaced(module: nn.GroupNorm) -> bool:
    """Whether the layer has parameters, nobody else replaced its forward, and it computes ``F.group_norm`` of them."""
    if module.weight is None or module.bias is None or "forward" in module.__dict__:
        return False
    if type(module).forward is nn.GroupNorm.forward:
        return True
    return _behaves_like_group_norm(module)


def _behaves_like_group_norm(module: nn.GroupNorm) -> bool:
    """Whether a subclass gives what ``F.group_norm`` gives, values and type, with random parameters and with autocast too."""
    if is_watched(module) or next(module.children(), None) is not None:
        return False
    device, dtype = module.weight.device, module.weight.dtype
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    x, parameters = noise(2, module.num_channels, 3, 5), {n: noise(module.num_channels) for n in ("weight", "bias")}
    try:
        for autocast in (False, True):
            with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
                got = torch.func.functional_call(module, parameters, (x,))
                want = F.group_norm(x, module.num_groups, parameters["weight"], parameters["bias"], module.eps)
            if got.dtype != want.dtype or not torch.equal(got, want):
                return False
    except Exception:
        return False
    return True


# -- which ReLUs ---------------------------------------------------------------------------------------------------------


def _with_relus(network: nn.Module, norms: list[nn.GroupNorm], images: Tensor) -> list[FusedNorm] | None:
    """Norms with their ReLUs; None where the network does not allow one of them, or does not run on noise."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, *images.shape[1:], generator=generator).to(images.device, images.dtype)
    devices = [images.device] if images.is_cuda else []

    def logits() -> Tensor:
        return logits_of(network(noise))

    try:
        with torch.no_grad(), torch.random.fork_rng(devices), _repeatable():
            layers = _watch(network, norms, logits)
            if not layers or not _same_bits(layers, logits):
                return None
            with torch.autocast(images.device.type, dtype=torch.bfloat16, cache_enabled=False):
                _set_narrow(layers, True)
                if not _same_bits(layers, logits):
                    _set_narrow(layers, False)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:
        return None
    return layers


def _set_narrow(layers: list[FusedNorm], narrow: bool) -> None:
    for layer in layers:
        layer.narrow = narrow


def _same_bits(layers: list[FusedNorm], logits: Callable[[], Tensor]) -> bool:
    """Whether logits stay as they are when each norm gives what its ReLU would, and the ReLU passes it on."""
    before = logits()
    with installed(layers, group_norm_of_torch):
        after = logits()
    return torch.equal(before, after)


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """One algorithm for one convolution, so that the same numbers give the same bits."""
    cudnn = torch.backends.cudnn
    with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32):
        yield


def _watch(network: nn.Module, norms: list[nn.GroupNorm], logits: Callable[[], Tensor]) -> list[FusedNorm]:
    """Pairs seen in one pass: both modules ran once, and nothing but the ReLU was done with the norm's result.

    (The bits of the logits alone would not tell: what is done with it may count for nothing as long as some weight is 0.)
    """
    seen = _Watch(network, norms)
    handles = [module.register_forward_hook(seen.leave) for module in network.modules()]
    try:
        with seen:
            logits()
    finally:
        for handle in handles:
            handle.remove()
    return seen.pairs()


class _Watch(TorchFunctionMode):
    """Follows the results of norms, as objects, through modules and through torch's functions."""

    def __init__(self, network: nn.Module, norms: list[nn.GroupNorm]) -> None:
        super().__init__()
        self._network = network
        self._norms = set(norms)
        self._followed: dict[int, tuple[nn.GroupNorm, Tensor]] = {}
        """By id; the tensors are kept, so that no id is given twice."""
        self._runs: Counter[nn.Module] = Counter()
        self._uses: Counter[nn.GroupNorm] = Counter()
        self._relus: dict[nn.GroupNorm, nn.ReLU] = {}
        self._between: dict[nn.GroupNorm, list[nn.Module]] = {norm: [norm] for norm in norms}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for norm in self._norms_behind((args, kwargs)):
            self._uses[norm] += 1
        return func(*args, **(kwargs or {}))

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Forward hook of every module."""
        self._runs[module] += 1
        for norm in self._norms_behind((inputs, output)):
            self._between[norm].append(module)
            self._uses[norm] += module is self._network  # given to the caller
        if isinstance(module, nn.GroupNorm) and module in self._norms and isinstance(output, Tensor):
            self._followed[id(output)] = (module, output)
        elif type(module) is nn.ReLU and len(inputs) == 1 and id(inputs[0]) in self._followed:
            norm, _ = self._followed[id(inputs[0])]
            self._relus[norm] = module
            if output is inputs[0]:  # in place: whoever comes later sees the same with and without fusion
                del self._followed[id(output)]

    def _norms_behind(self, values: Any) -> list[nn.GroupNorm]:
        keys = {id(value) for value in tree_leaves(values) if isinstance(value, Tensor)}
        return [self._followed[key][0] for key in keys if key in self._followed]

    def pairs(self) -> list[FusedNorm]:
        """What may be fused. One use is the ReLU's own."""
        return [
            FusedNorm(norm, relu, self._between[norm])
            for norm, relu in self._relus.items()
            if self._runs[norm] == self._runs[relu] == self._uses[norm] == 1
        ]
