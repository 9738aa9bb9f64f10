"""What :func:`wildtta.adapt` takes as ``group=``, and what cannot be spread over replicas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch.distributed as dist
from torch import nn

from wildtta.randomness import COUNTER

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How replicas work together: ``wildtta.adapt(model, group=wildtta.Replicas(when_lost="continue"))``.

    ``group=True`` stands for the defaults, a process group for ``Replicas(group=…)``.
    """

    group: Any = None
    """A process group of :mod:`torch.distributed`; None: the default one."""
    timeout: float = 30.0
    """Seconds after which a replica that does not answer is lost. Each must be called at least that often."""
    when_lost: Literal["stop", "continue"] = "stop"
    """``"stop"``: the others raise :class:`ReplicaLost`. ``"continue"``: they go on without it, with a warning."""

    def __post_init__(self) -> None:
        if self.group is not None and not isinstance(self.group, dist.ProcessGroup):
            raise TypeError(f"group must be a process group of torch.distributed, got {self.group!r}")
        number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not number or not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")
        if self.when_lost not in ("stop", "continue"):
            raise ValueError(f"when_lost must be 'stop' or 'continue', got {self.when_lost!r}")

    @classmethod
    def of(cls, given: Any) -> Replicas | None:
        """From what :func:`wildtta.adapt` takes as ``group=``; None: no replicas."""
        if given is None:
            return None
        if not dist.is_available():
            raise RuntimeError("group= needs torch.distributed, which this build of torch does not have")
        if isinstance(given, Replicas):
            return given
        if given is True:
            return cls()
        if isinstance(given, dist.ProcessGroup):
            return cls(group=given)
        raise TypeError(
            "group must be True (the default process group), a process group of torch.distributed, a wildtta.Replicas, or "
            f"None, got {given!r}"
        )


def refuse_unshared(engine: Engine) -> None:
    """An error where replicas would not learn as one adapter does, with the reason."""
    method, module = engine.method, engine.network.module
    alone = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    reasons = {
        "samples are mixed within a pass (BatchNorm by the batch's or the stream's statistics), and each replica passes its "
        "own samples alone": engine.batch_statistics
        or engine.watches_levels
        or any(layer.running_mean is None for layer in alone),
        "it works on images themselves (views, kept or destroyed ones), and each replica has its own alone": method.needs_images,
        "it makes passes over source images of its own": method.needs_source != "no",
        "it draws random numbers": COUNTER in engine.memory,
        "pixels are samples, and images may differ in size": getattr(module, "rows_per_sample", 1) > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(
                f"{method.name} on {type(module).__name__} cannot be spread over replicas (group=): {reason}. Take a network "
                "with GroupNorm or LayerNorm and a method such as steady, sar2, sar, eta or tent; or adapt in one process"
            )
