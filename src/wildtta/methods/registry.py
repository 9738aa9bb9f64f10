"""Names to methods. A module in this folder that defines a registered class is found by existing."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from functools import cache
from typing import Any, TypeVar

from wildtta.methods.base import Method
from wildtta.methods.hints import method_hint, option_hint
from wildtta.own_code import defined_in, own_module, own_object

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


def method_class(method: str) -> type[Method]:
    """The config class of a method: a registered name, or ``path/to/file.py:Class`` (``package.module:Class``)."""
    known = config_classes()
    if method in known:
        return known[method]
    place, _, name = method.rpartition(":")
    if not place:
        if method.endswith(".py"):
            raise ValueError(f"name the class in the file too: {_classes_in(method)}")
        hint = method_hint(method, known)
        own = "; a method of your own is path/to/file.py:Class"
        raise ValueError(f"unknown method {method!r}.{hint} Methods: {', '.join(known)}{own}")
    cls = own_object(place, name)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise ValueError(
            f"{method} is no method: expected a class that extends wildtta.Method, such as wildtta.Tent, "
            f"got {cls.__name__ if isinstance(cls, type) else type(cls).__name__}"
        )
    if not dataclasses.is_dataclass(cls) or "__dataclass_params__" not in vars(cls):
        raise ValueError(f"{method} must be a dataclass of its own: put @dataclass(frozen=True, kw_only=True) above it")
    return cls


def _classes_in(place: str) -> str:
    """How the methods in a file are named: ``file.py:Class or file.py:Other``."""
    module = own_module(place)
    found = [word for word in defined_in(module) if isinstance(getattr(module, word), type)]
    named = [f"{place}:{word}" for word in found if issubclass(getattr(module, word), Method)]
    return " or ".join(named) or f"{place}:Class (it has no class that extends wildtta.Method yet)"


def _owners() -> dict[str, list[str]]:
    """Options and the methods that have them."""
    found: dict[str, list[str]] = {}
    for name, cls in config_classes().items():
        for item in dataclasses.fields(cls):
            found.setdefault(item.name, []).append(name)
    return found


def get_method(method: str | Method, **options: Any) -> Method:
    """A config from a name (or a config) and options; what is unknown is answered with what is known."""
    if isinstance(method, str):
        cls = method_class(method)
    elif isinstance(method, Method):
        cls = type(method)
    else:
        got = f"the class {method.__name__}: call it" if isinstance(method, type) else type(method).__name__
        raise TypeError(f"method must be a name or a config such as wildtta.SAR2(), got {got}")
    fields = [item.name for item in dataclasses.fields(cls)]
    unknown = [name for name in options if name not in fields]
    if unknown:
        raise TypeError(
            f"{cls.name} has no option {unknown[0]!r}.{option_hint(unknown[0], fields, _owners())} "
            f"Options: {', '.join(fields) or 'none'}"
        )
    return cls(**options) if isinstance(method, str) else dataclasses.replace(method, **options)
