"""Hyper-parameters of methods: a field with its help text, its allowed values and the option that it depends on.

A method's config is a frozen dataclass. Every field is made by :func:`option`, and :func:`check_options` refuses what
cannot be meant: a wrong type, a value out of range, or a value without effect because the part that it belongs to is off.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Iterable, Sequence
from types import UnionType
from typing import Any, Literal

import numpy as np


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers between ``least`` and ``most``; ``open`` leaves ``least`` itself out."""

    least: float = -math.inf
    most: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.least if self.open else value >= self.least
        return math.isfinite(value) and above and value <= self.most

    def __str__(self) -> str:
        if self == FINITE:
            return "that is finite"
        if self.most < math.inf:
            return f"{'in (' if self.open else 'in ['}{self.least:g}, {self.most:g}]"
        return f"{'above' if self.open else 'at least'} {self.least:g}"


FINITE = Range()
POSITIVE = Range(0, open=True)
SHARE = Range(0, 1)
NOT_NEGATIVE = Range(0)
AT_LEAST_ONE = Range(1)


def option(
    help: str, default: Any, *, within: Range | None = None, needs: str | tuple[str, ...] = (), data: bool = False
) -> Any:
    """A field of a method's config.

    Args:
        help: what it does, for the documentation.
        default: the paper's value.
        within: allowed numbers, also those in a sequence.
        needs: options without which this one has no effect; changing it while one of them is off is an error.
        data: it holds data (images, a tensor), which neither comparisons nor ``repr`` look at.
    """
    metadata = {"help": help, "within": within, "needs": (needs,) if isinstance(needs, str) else needs}
    return dataclasses.field(default=default, metadata=metadata, compare=not data, repr=not data)


def check_options(config: Any) -> None:
    """Refuse wrong types, values out of range and options without effect, each with what was expected."""
    kinds = _kinds(type(config))
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        _check_type(item.name, value, kinds.get(item.name))
        within: Range | None = item.metadata.get("within")
        if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
            raise ValueError(f"{item.name} must be a number that fits into 64 bits, got {value!r}")
        if any(_LARGEST < abs(number) < math.inf for number in _numbers(value)):
            raise ValueError(f"{item.name} must be a number that fits into float32, got {value!r}")
        if within is not None and any(number not in within for number in _numbers(value)):
            off = " or None (off)" if type(None) in _members(kinds.get(item.name)) else ""
            raise ValueError(f"{item.name} must be a number {within}{off}, got {value!r}")
        for needed in item.metadata.get("needs", ()):
            if not getattr(config, needed) and value != item.default:
                raise ValueError(
                    f"{item.name}={value!r} has no effect while {needed}={getattr(config, needed)!r}; "
                    f"switch {needed} on or leave {item.name} out"
                )


_LARGEST_WHOLE = 2**63 - 1
_LARGEST = float(np.finfo(np.float32).max)


def _numbers(value: Any) -> list[float]:
    """The numbers that a value is or holds; NaN for what is none, and for nothing at all in a sequence."""
    if isinstance(value, int | float):
        return [value]
    if not _is_sequence(value):
        return []
    try:
        found = np.asarray(value.tolist() if hasattr(value, "tolist") else list(value)).reshape(-1)
    except (ValueError, NotImplementedError):  # rows of several lengths; a tensor without data
        return [math.nan]
    return list(found) if found.dtype.kind in "iuf" and len(found) else [math.nan]


def _is_sequence(value: Any) -> bool:
    """Whether a value holds numbers in an order that can be read again; a tensor or an array does too."""
    is_array = hasattr(value, "tolist") and isinstance(value, Iterable)
    return is_array or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


_KNOWN_KINDS: dict[Any, dict[str, Any]] = {}


def _kinds(cls: type[Any]) -> dict[str, Any]:
    """The types of a config's fields, found once per class."""
    if cls not in _KNOWN_KINDS:
        try:
            _KNOWN_KINDS[cls] = typing.get_type_hints(cls)
        except NameError:  # a type that only a type checker imports: nothing to check by
            _KNOWN_KINDS[cls] = {}
    return _KNOWN_KINDS[cls]


def _members(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else (kind,)


def _check_type(name: str, value: Any, kind: Any) -> None:
    """A value must be of one of the kinds that its field names; kinds that cannot be asked are left to the method."""
    members = _members(kind)
    if kind is None or any(_fits(value, member) is not False for member in members):
        return
    choices = [word for member in members if typing.get_origin(member) is Literal for word in typing.get_args(member)]
    named = [
        _word(member) for member in members if member is not type(None) and typing.get_origin(member) is not Literal
    ]
    words = [*named, *map(repr, choices), *(["None"] if type(None) in members else [])]
    error = ValueError if choices and isinstance(value, str) else TypeError
    raise error(f"{name} must be {' or '.join(dict.fromkeys(words))}, got {value!r}")


def _fits(value: Any, member: Any) -> bool | None:
    """Whether ``value`` is a ``member``; None where that cannot be told."""
    origin = typing.get_origin(member)
    if origin is Literal:
        return any(type(value) is type(word) and value == word for word in typing.get_args(member))
    if member in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole or (member is float and isinstance(value, float))
    if origin is Sequence:
        return _is_sequence(value)
    kind = origin or member
    if isinstance(value, str) and kind is not str:
        return False  # a text is iterable too, but not of what is meant
    return isinstance(value, kind) if isinstance(kind, type) else None


def _word(member: Any) -> str:
    if typing.get_origin(member) is Callable:
        return "a function"
    return str(getattr(typing.get_origin(member) or member, "__name__", member))
