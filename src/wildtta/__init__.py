"""wildtta: test-time adaptation that does not collapse.

    model = wildtta.adapt(network, "sar2")
    logits = model(images)

Config classes (``wildtta.SAR2``, ``wildtta.Tent``, …) are attributes of the package.
"""

from __future__ import annotations

from typing import Any

from wildtta.adapt import adapt
from wildtta.adapter import Adapter
from wildtta.methods import Method, config_classes, methods, register

__version__ = "0.1.0"
__all__ = ["Adapter", "Method", "adapt", "methods", "register"]


def __getattr__(name: str) -> Any:
    """Config classes by their name, found in the registry."""
    for cls in config_classes().values():
        if cls.__name__ == name:
            return cls
    raise AttributeError(f"module 'wildtta' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(cls.__name__ for cls in config_classes().values())])
