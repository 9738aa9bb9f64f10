"""The door to the kernels: the fastest way to run a network's passes on its device, the network itself unchanged."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wildtta.kernels.layout import MapLayout
from wildtta.kernels.operation import generation

if TYPE_CHECKING:
    from wildtta.kernels.dispatch import Fusions, OwnWeights

WORTH_A_LAUNCH = 1 << 20
"""Values below which launching a GroupNorm from Python costs more than it saves (in a recorded step it costs nothing)."""


def kernels_run_on(device: torch.device) -> bool:
    """Whether our kernels take tensors of ``device``: NVIDIA from Ampere on (before, there is neither TF32 nor bfloat16).

    Never with ``WILDTTA_KERNELS=torch`` in the environment, nor where Triton cannot be imported.
    """
    if os.environ.get("WILDTTA_KERNELS", "own") == "torch" or device.type != "cuda" or torch.version.hip is not None:
        return False
    return generation(device) >= 8 and _can_be_imported()


@functools.cache
def _can_be_imported() -> bool:
    try:
        importlib.import_module("wildtta.kernels.dispatch")
    except Exception as error:
        warnings.warn(
            f"GroupNorm, LayerNorm and attention run as torch's own, which is slower: no Triton ({error})", stacklevel=2
        )
        return False
    return True


class FastPasses:
    """Passes through one network whose logits come from ``head``."""

    def __init__(self, network: nn.Module, head: nn.Module) -> None:
        self.kernels: bool | None = None
        """Whether our kernels run on CUDA: None where they pay, True wherever they can, False never."""
        self.own_weights: OwnWeights | None = None
        """While every sample has its own γ and β: these, by parameter."""
        self.layout = MapLayout(network)
        self._network = network
        self._head = head
        self._fusions: dict[bool, Fusions] = {}

    def run(self, images: Tensor, *, is_part: bool = False) -> Any:
        """``network(images)``, in the memory layout that suits the device; ``is_part``: of a larger batch."""
        return self.layout.run(self._network, images, is_part=is_part)

    def parts(self, images: Tensor) -> tuple[Tensor, ...]:
        """The batch in the parts that a network which treats samples one by one is best given them in.

        One where every sample has its own weights, or a hook on the network would see parts of a batch.
        """
        parts = self.layout.parts(images) if self.own_weights is None else (images,)
        hooked = len(parts) > 1 and any(
            module._forward_hooks or module._forward_pre_hooks for module in self._network.modules()
        )
        return (images,) if hooked else parts

    def applied(self, images: Tensor, *, recording: bool = False) -> contextlib.AbstractContextManager[Any]:
        """Our kernels for one pass over ``images``; ``recording``: into a CUDA graph, where launching costs nothing."""
        if self.kernels is False or not kernels_run_on(images.device):
            return contextlib.nullcontext()
        from wildtta.kernels.dispatch import Dispatch

        smallest = 0 if self.kernels or recording else WORTH_A_LAUNCH
        return Dispatch(images.device, self._fusions_for(images), smallest, own=self.own_weights)

    def find_fusions(self, images: Tensor) -> None:
        """Look for what can be fused, ahead of a pass in which no other may run."""
        if self.kernels is not False and kernels_run_on(images.device):
            self._fusions_for(images)

    def forget(self) -> None:
        """Look again for what can be fused (the network moved)."""
        self._fusions.clear()

    def _fusions_for(self, images: Tensor) -> Fusions:
        """What can be fused with autocast as it is now: found in the first pass."""
        autocast = torch.is_autocast_enabled(images.device.type)
        if autocast not in self._fusions:
            if images.is_cuda and torch.cuda.is_current_stream_capturing():
                return {}  # no other pass may run within a recording
            from wildtta.kernels.fusion import find_fusions

            self._fusions[autocast] = find_fusions(self._network, self._head, images)
        return self._fusions[autocast]
