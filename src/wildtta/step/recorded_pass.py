"""A pass without a gradient, replayed as a CUDA graph where its shape comes again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wildtta.step.engine import Engine
from wildtta.step.graphs import MOST_SHAPES, Recording, record, setting_of


@dataclass
class RecordedPass:
    """Passes without a gradient, replayed from the second time on that a shape comes.

    Launching a network's kernels one by one costs more than they do where a pass has few images. Copies and pickles are
    made without the recordings, which belong to one process and one place in its memory.
    """

    _seen: dict[Hashable, tuple[Tensor, Recording] | None] = field(default_factory=dict)
    _failed: bool = False

    def __call__(self, engine: Engine, images: Tensor, run: Callable[[Tensor, bool], Tensor]) -> Tensor:
        """``run(images, recording)``: a tensor of its own, on the same device."""
        if self._failed or images.device.type != "cuda" or not engine.learns:
            return run(images, False)
        key = setting_of(engine, images)
        if key not in self._seen:
            if len(self._seen) < MOST_SHAPES:
                self._seen[key] = None
            return run(images, False)
        found = self._seen[key] or self._recorded(engine, images.clone(), run)
        if found is None:
            return run(images, False)
        self._seen[key] = found
        static, recording = found
        static.copy_(images)
        recording.graph.replay()
        result: Tensor = recording.result
        return result.clone()

    def _recorded(
        self, engine: Engine, static: Tensor, run: Callable[[Tensor, bool], Tensor]
    ) -> tuple[Tensor, Recording] | None:
        pool = torch.cuda.graph_pool_handle()
        try:
            (recording,) = record([lambda _: run(static, True)], pool, fastest=engine.fastest)
        except RuntimeError as error:
            self.forget()
            self._failed = True
            warnings.warn(f"the guard's passes are not recorded as CUDA graphs: {error}", stacklevel=2)
            return None
        return static, recording

    def forget(self) -> None:
        """Drop every recording (the network moved)."""
        self._seen.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedPass:
        return RecordedPass()

    def __getstate__(self) -> dict[str, Any]:
        return {"_seen": {}, "_failed": False}
