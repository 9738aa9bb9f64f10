"""The online state as it was before a step: what a step that fails goes back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

HOST_STATE = ("batch_size", "image_shape", "share", "host_steps", "gate_open", "calls", "doubtful")
"""The part of the online state that is no tensor: attributes of the engine."""


class Snapshot:
    """Copies of everything that a step may change, kept from step to step: taking them costs a few calls.

    Putting them back may be interrupted and done again.
    """

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}
        self._live: list[list[Tensor]] = []
        self._kept: list[list[Tensor]] = []
        """What belongs together in one call: tensors of one device and type."""
        self._host: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(Snapshot())

    def take(self, engine: Engine) -> None:
        """The state of ``engine`` as it is now."""
        if not self._fits(engine):
            groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
            parameters = engine.learnables.parameters if engine.learns else []
            for tensor in (*parameters, *engine.memory.values()):
                groups.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
            self._live = list(groups.values())
            self._kept = [[torch.empty_like(tensor) for tensor in group] for group in self._live]
            self._memory = dict(engine.memory)
        self._copy(self._live, self._kept)
        self._host = {name: getattr(engine, name) for name in HOST_STATE}

    def restore(self, engine: Engine) -> None:
        """The state of ``engine`` as it was, in place."""
        self._copy(self._kept, self._live)
        engine.memory = dict(self._memory)
        for name, value in self._host.items():
            setattr(engine, name, value)

    def _fits(self, engine: Engine) -> bool:
        """Whether the tensors of ``engine`` are those of the last time, where they were."""
        memory = engine.memory
        if len(memory) != len(self._memory) or any(memory[name] is not value for name, value in self._memory.items()):
            return False
        # A network that moves keeps its parameters and changes what they hold.
        return not engine.learns or engine.learnables.parameters[0].data_ptr() == self._live[0][0].data_ptr()

    @staticmethod
    def _copy(sources: list[list[Tensor]], places: list[list[Tensor]]) -> None:
        with torch.no_grad():
            for source, place in zip(sources, places, strict=True):
                torch._foreach_copy_(place, source)
