"""One file per method, and the registry that finds them."""

from wildtta.methods.base import Method
from wildtta.methods.registry import config_classes, get_method, methods, register

__all__ = ["Method", "config_classes", "get_method", "methods", "register"]
