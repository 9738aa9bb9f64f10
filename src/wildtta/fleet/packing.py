"""The state of a stream that is not active, as small as it can be without losing a bit that counts.

What a method derives from the rest is left out (the sums of SAR²'s bank: 34 of 42 MB on a ResNet-50), and of every table
the rows that are all zero (classes that were never seen).
"""

from __future__ import annotations

import torch
from torch import Tensor

from wildtta.fleet.stream_engine import StreamEngine

Packed = dict[str, Tensor]
_ROWS = "rows of "


def pack(engine: StreamEngine) -> Packed:
    """The stream's weights and state in host memory."""
    left_out = set(engine.method.derived())
    packed = {"weights": engine.learnables.vector().cpu()}
    for name, value in engine.memory.items():
        if name in left_out:
            continue
        held = value.detach().cpu()
        if held.dim() >= 2:
            rows = held.flatten(1).ne(0).any(1).nonzero().squeeze(1)
            if 2 * len(rows) < len(held):
                packed[_ROWS + name] = rows
                held = held[rows]
        packed[f"memory/{name}"] = held.clone() if held.data_ptr() == value.data_ptr() else held
    return packed


def unpack(packed: Packed, engine: StreamEngine) -> None:
    """The inverse of :func:`pack`, into a stream's engine; what is derived is computed again."""
    left_out = set(engine.method.derived())
    expected = {f"memory/{name}" for name in engine.memory if name not in left_out} | {"weights"}
    given = {name for name in packed if not name.startswith(_ROWS)}
    if expected != given:
        odd = sorted(expected ^ given)
        raise ValueError(f"the stored state does not fit the fleet's options: {', '.join(odd[:4])} differ")
    engine.learnables.assign(packed["weights"].to(engine.device))
    for name, value in engine.memory.items():
        if name in left_out:
            continue
        stored = packed[f"memory/{name}"].to(value.device, value.dtype)
        rows = packed.get(_ROWS + name)
        if rows is None:
            _check(name, stored.shape, value.shape)
            value.copy_(stored)
        else:
            _check(name, stored.shape[1:], value.shape[1:])
            value.zero_()
            value[rows.to(value.device)] = stored
    engine.method.derive(engine)


def _check(name: str, came: torch.Size, expected: torch.Size) -> None:
    if came != expected:
        raise ValueError(
            f"the stored state does not fit the fleet's network: {name} is {tuple(came)}, expected {tuple(expected)}"
        )


def size_of(packed: Packed) -> int:
    """Bytes."""
    return sum(value.numel() * value.element_size() for value in packed.values())
