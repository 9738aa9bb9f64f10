"""Names to methods. A module in this folder that defines a registered class is found by existing."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from wildtta.methods.base import Method

_REGISTRY: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def register(cls: M) -> M:
    """Class decorator: make a method known by its ``name``. A name that is taken is an error."""
    if cls.name in _REGISTRY:
        raise ValueError(
            f"a method named {cls.name!r} exists already ({_REGISTRY[cls.name].__name__}); choose another name"
        )
    _REGISTRY[cls.name] = cls
    return cls


@cache
def _discover() -> None:
    package = importlib.import_module("wildtta.methods")
    for module in sorted(pkgutil.walk_packages(package.__path__, "wildtta.methods."), key=lambda item: item.name):
        importlib.import_module(module.name)


def config_classes() -> dict[str, type[Method]]:
    """Every registered method: name to config class."""
    _discover()
    return dict(sorted(_REGISTRY.items()))


def methods() -> list[str]:
    """Names of all methods, for :func:`wildtta.adapt`."""
    return list(config_classes())


def nearest(word: str, choices: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` where something is near, else nothing."""
    near = difflib.get_close_matches(word.lower(), list(choices), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def get_method(method: str | Method, **options: Any) -> Method:
    """A config from a name (or a config) and options; what is unknown is answered with what is known."""
    if isinstance(method, str):
        known = config_classes()
        if method not in known:
            raise ValueError(f"unknown method {method!r}.{nearest(method, known)} Methods: {', '.join(known)}")
        cls = known[method]
    elif isinstance(method, Method):
        cls = type(method)
    else:
        raise TypeError(f"method must be a name or a config such as wildtta.SAR2(), got {type(method).__name__}")
    fields = [item.name for item in dataclasses.fields(cls)]
    unknown = [name for name in options if name not in fields]
    if unknown:
        raise TypeError(
            f"{cls.name} has no option {unknown[0]!r}.{nearest(unknown[0], fields)} Options: {', '.join(fields) or 'none'}"
        )
    return cls(**options) if isinstance(method, str) else dataclasses.replace(method, **options)
