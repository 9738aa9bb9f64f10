"""From logits to the answer that a caller asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wildtta.serve import npy
from wildtta.serve.npy import Array

OUTPUTS = ("classes", "probabilities", "logits")


def softmax(logits: Array) -> Array:
    """exp(x) / Σ exp(x) of each row, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: Array = exponentials / exponentials.sum(1, keepdims=True)
    return probabilities


def as_json(logits: Array, output: str, *, tenant: str, request_id: str, names: Sequence[str]) -> bytes:
    """The answer as JSON. A float32 is written with all its digits; what is not finite (an input beyond the network) is null."""
    with np.errstate(all="ignore"):
        probabilities = softmax(logits)
    classes = logits.argmax(1).tolist()
    told: dict[str, Any] = {
        "tenant": tenant,
        "id": request_id,
        "classes": classes,
        "confidence": _plain(probabilities.max(1).tolist()),
    }
    if names:
        told["names"] = [names[c] if c < len(names) else str(c) for c in classes]
    if output != "classes":
        told[output] = _plain((logits if output == "logits" else probabilities).tolist())
    return json.dumps(told, allow_nan=False).encode()


def as_npy(logits: Array, output: str) -> bytes:
    """The answer as one .npy array: classes [n], or probabilities or logits [n, classes]."""
    with np.errstate(all="ignore"):
        array = logits if output == "logits" else softmax(logits) if output == "probabilities" else logits.argmax(1)
    return npy.to_bytes(array)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if math.isfinite(value) else None
