"""What is changed on a network for the time of a block, and taken back for certain.

A ``finally`` is not enough: it may be interrupted itself (a second Ctrl-C, a time limit in a thread), and then half of a
network stays as the block needed it. So how to take a change back is written down before it is made, and crossed out once
that is done. What an interrupted end leaves undone the next :meth:`Changes.take_back` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


class Changes:
    """Changes that are in force now, the latest last."""

    def __init__(self) -> None:
        self._backs: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def until_left(self, back: Callable[[], object]) -> Iterator[None]:
        """Within, what ``back`` takes back may be changed. It may run more than once, so that repeating must do no harm."""
        self._backs.append(back)
        try:
            yield
        finally:
            # A block whose end was made up for long ago may end here, late: then nothing in force is its own.
            if any(each is back for each in self._backs):
                self.take_back(first=back)

    def take_back(self, first: Callable[[], object] | None = None) -> None:
        """Take back all changes, the latest first; with ``first`` only that one and what came after it."""
        while self._backs:
            latest = self._backs[-1]
            latest()
            self._backs.pop()
            if latest is first:
                return

    def set(self, owner: object, **values: Any) -> contextlib.AbstractContextManager[None]:
        """Within, attributes of ``owner`` have these values."""
        before = {name: getattr(owner, name) for name in values}
        return self._with(lambda: _assign(owner, before), lambda: _assign(owner, values))

    def hook(
        self, module: nn.Module, function: Callable[..., Any], *, before: bool
    ) -> contextlib.AbstractContextManager[None]:
        """Within, ``function`` is a hook of ``module``: ``before`` its forward pass, or after it."""
        hooks: dict[int, Any] = module._forward_pre_hooks if before else module._forward_hooks

        register = module.register_forward_pre_hook if before else module.register_forward_hook
        return self._with(lambda: take_off(hooks, function), lambda: register(function))

    @contextlib.contextmanager
    def _with(self, back: Callable[[], object], make: Callable[[], object]) -> Iterator[None]:
        with self.until_left(back):
            make()
            yield


def take_off(hooks: dict[int, Any], function: Callable[..., Any]) -> None:
    """Remove ``function`` from the hooks of a module, if it is among them."""
    for number, known in list(hooks.items()):
        if known is function:
            del hooks[number]


def _assign(owner: object, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(owner, name, value)
