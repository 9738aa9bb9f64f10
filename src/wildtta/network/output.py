"""What a network returns: a tensor of logits, or an object that holds them (Hugging Face's outputs, a dict, a named tuple)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor


class NoLogits(TypeError):
    """A network returned something in which no logits were found."""


def logits_of(output: Any) -> Tensor:
    """The logits in what a network returned: the tensor itself, ``output.logits``, or ``output["logits"]``."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if logits is None and isinstance(output, Mapping):
        logits = output.get("logits")
    if isinstance(logits, Tensor):
        return logits
    raise NoLogits(
        f"the network returned {type(output).__name__}; expected a tensor of logits [batch, classes] or an object with a "
        f".logits tensor. Wrap the network in a module that returns its logits.{_way(output)}"
    )


def _way(output: Any) -> str:
    """Where networks of other kinds go: by what they return."""
    if hasattr(output, "logits_per_image"):
        return " For CLIP, build a classifier with wildtta.zero_shot(encoder, embeddings)."
    if any(isinstance(value, Tensor) and value.dim() == 4 for value in _fields(output).values()):
        return " For segmentation there is wildtta.segmentation.adapt_segmentation."
    return ""


def with_logits(raw: Any, logits: Tensor) -> Any:
    """What a network returned, with other logits: the tensor itself, or a shallow copy of the object."""
    return logits if isinstance(raw, Tensor) else _with_fields(raw, {"logits": logits})


def without_graph(raw: Any) -> Any:
    """The same kind of object, every tensor in it without a graph; objects without tensors are passed on as they are."""
    if isinstance(raw, Tensor):
        return raw.detach()
    fields = _fields(raw)
    detached = {name: without_graph(value) for name, value in fields.items()}
    if all(detached[name] is value for name, value in fields.items()):
        return raw
    return _with_fields(raw, detached)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _fields(value: Any) -> dict[Any, Any]:
    """Names (or positions) and values of what ``value`` is made of; nothing for plain values."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if _is_named_tuple(value):
        return dict(value._asdict())
    if type(value) in (tuple, list):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if hasattr(value, "logits") and hasattr(value, "__dict__"):
        return dict(vars(value))
    return {}


def _with_fields(value: Any, changed: dict[Any, Any]) -> Any:
    """A shallow copy of ``value`` in which the fields ``changed`` have other values."""
    if _is_named_tuple(value):
        return value._replace(**changed)
    if type(value) in (tuple, list):
        return type(value)(changed.get(position, item) for position, item in enumerate(value))
    twin = copy.copy(value)
    for name, item in changed.items():
        if isinstance(twin, Mapping):
            twin[name] = item  # type: ignore[index]
        else:
            object.__setattr__(twin, name, item)  # a frozen dataclass may be copied with another field too
    return twin
