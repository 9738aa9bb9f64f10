"""Code of the user's own, named on a command line or in a grid: ``path/to/file.py:name`` or ``package.module:name``."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def own_object(place: str, name: str) -> Any:
    """What ``name`` means in the file or module ``place``; an error says what is missing."""
    module = own_module(place)
    if not hasattr(module, name):
        there = defined_in(module)
        near = difflib.get_close_matches(name, there, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{place} has no {name!r}.{hint} It has {', '.join(there) or 'nothing that could be called'}")
    return getattr(module, name)


def defined_in(module: ModuleType) -> list[str]:
    """The classes and functions that a module defines itself, without what it imports."""
    return [
        word
        for word, value in vars(module).items()
        if callable(value) and not word.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def own_module(place: str) -> ModuleType:
    """The module in the file ``place`` (one per path, however often it is named), or of that dotted name."""
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")):
            raise ValueError(f"{place!r} is neither a file (path/to/file.py) nor a module (package.module)")
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"no module {error.name!r} for {place!r}") from error
    path = Path(place).resolve()
    if not path.is_file():
        raise ValueError(f"no file {place}")
    title = f"wildtta_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if title in sys.modules:
        return sys.modules[title]
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None
    assert spec.loader is not None
    # A file's neighbours can be imported as when it is run.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[title]
        told = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"{place} failed while it was imported: {told}") from error
    return module


def code_digest(place: str) -> str:
    """12 hexadecimal digits that change with the code in ``place``."""
    file = own_module(place).__file__
    return hashlib.sha256(b"" if file is None else Path(file).read_bytes()).hexdigest()[:12]
