"""Arrays from JSON: nested lists of numbers, looked through before numpy is given them.

numpy would make sense of anything. One text among numbers makes all of them texts of its length: a body of a megabyte
becomes gigabytes.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from wildtta.serve.npy import Array

_DEEPEST = 8


def shape_of(values: Any) -> tuple[int, ...]:
    """Lengths of nested lists, along the first of each level."""
    shape: list[int] = []
    while isinstance(values, list) and len(shape) < _DEEPEST:
        shape.append(len(values))
        values = values[0] if values else None
    return tuple(shape)


def array_of(values: Any, shape: tuple[int, ...]) -> Array:
    """Nested lists as an array of int64 or float64; a ValueError unless they are of that shape and hold numbers alone."""
    flat: list[Any] = values
    for length in shape[1:]:
        if any(type(part) is not list or len(part) != length for part in flat):
            raise ValueError("'images' is no regular array; expected [n][3][height][width]")
        flat = list(chain.from_iterable(flat))
    kinds = set(map(type, flat))
    if not kinds <= {int, float}:
        names = sorted(kind.__name__ for kind in kinds - {int, float})
        raise ValueError(f"expected numbers in 'images', got {', '.join(names)}")
    try:
        return np.array(flat, np.float64 if float in kinds else np.int64).reshape(shape)
    except OverflowError as error:
        raise ValueError("'images' holds a number that is beyond every type") from error
