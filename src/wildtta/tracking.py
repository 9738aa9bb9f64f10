"""One hook that sends what happens in an adapter's steps to a logger: TensorBoard, Weights & Biases and those like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from wildtta.adapter import Adapter
from wildtta.step.report import StepReport

Write = Callable[[dict[str, float], int], Any]
"""Takes the values by name and the number of the step."""
_FIELDS = ("entropy", "selected", "gradient_norm", "loss", "e_m", "resets", "skipped", "learned")


def log_steps(model: Adapter, logger: Any, *, every: int = 100, prefix: str = "tta/") -> RemovableHandle:
    """Log every so many steps of ``model`` from now on; ``.remove()`` of what is returned ends it.

    Args:
        model: an adapter.
        logger: TensorBoard's ``SummaryWriter``, a run of Weights & Biases (or the module), a logger of Lightning, or a
            function of (values by name, step).
        every: steps between two entries. Reading a step makes the host wait for the device, so not every one is read.
        prefix: stands before each name.

    Example:
        >>> import torch, wildtta
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
        >>> model = wildtta.adapt(net, "tent")
        >>> handle = wildtta.log_steps(model, lambda values, step: print(step, sorted(values)[0]), every=2)
        >>> for _ in range(3):
        ...     _ = model(torch.randn(5, 8))
        1 tta/entropy
        3 tta/entropy
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    write = _writer(logger)
    steps = 0

    def after_step(module: Any, inputs: Any, output: Any) -> None:
        nonlocal steps
        if steps % every == 0:
            write({prefix + name: value for name, value in values_of(module.last).items()}, steps + 1)
        steps += 1

    return model.register_forward_hook(after_step)


def values_of(report: StepReport) -> dict[str, float]:
    """The numbers of a step that are worth following, without those that are undefined; one read from the device."""
    found = {name: getattr(report, name) for name in _FIELDS}
    device = report.entropies.device
    read = torch.stack([value.detach().to(device, torch.float64) for value in found.values()]).tolist()
    return {name: value for name, value in zip(found, read, strict=True) if value == value}


def _writer(logger: Any) -> Write:
    """How this kind of logger is written to, known by what it can do."""
    if hasattr(logger, "add_scalar"):
        return lambda values, step: [logger.add_scalar(name, value, step) for name, value in values.items()]
    if hasattr(logger, "log_metrics"):
        return lambda values, step: logger.log_metrics(values, step=step)
    if hasattr(logger, "log"):
        return lambda values, step: logger.log(values, step=step)
    if callable(logger):
        write: Write = logger
        return write
    raise TypeError(
        f"expected a logger with add_scalar, log_metrics or log, or a function of (values, step), got {type(logger).__name__}"
    )
