"""A few numbers from the host to the device and back, without waiting for the work that the device is still doing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on ``device``. From ordinary memory a GPU would be waited for; from pinned memory the copy takes its turn."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


class Reading:
    """Integers that are read from the device: asked for now, waited for when they are needed.

    What is asked of the device in between runs meanwhile, and is not waited for.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values.to("cpu", non_blocking=True)
        self._arrival: Any = None
        if values.is_cuda:
            self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrival.record(torch.cuda.current_stream(values.device))

    def numbers(self) -> list[int]:
        if self._arrival is not None:
            self._arrival.synchronize()
        return [int(number) for number in self._values.tolist()]
