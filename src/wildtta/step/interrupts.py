"""Signals wait until a step is over.

Python runs signal handlers in the main thread between two bytecodes. One that raises (Ctrl-C, a time limit by SIGALRM)
could leave a step anywhere: weights perturbed, half of the state new, a hook still on a layer. Within :class:`Held` a
handler is put off until the end, so that an interrupted call leaves the state from before it or from after it. A second
signal while one waits is handled at once: a step that hangs can be stopped.
"""

from __future__ import annotations

import functools
import importlib
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_NAMES = ("SIGINT", "SIGALRM", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGXCPU")
_NUMBERS = [int(getattr(signal, name)) for name in (*_NAMES, "SIGBREAK") if hasattr(signal, name)]
_c_module: Any = importlib.import_module("_signal")
"""The functions of ``signal`` without its conversion to enumerations, which would cost 30 µs in every step."""

# Signals are handled in the main thread alone, and only the main thread holds them: no lock is needed.
_handlers: dict[int, Handler] = {}
"""What is put off, by signal."""
_waiting: list[tuple[int, FrameType | None]] = []
_outermost: weakref.ref[Held] | None = None
"""Who holds the signals. It may be gone: a signal can keep a block from being left in order, and then nothing is held."""


def _is_held() -> bool:
    return _outermost is not None and _outermost() is not None


def _put_off(number: int, frame: FrameType | None) -> None:
    if _is_held() and _waiting:
        _handlers[number](number, frame)
        return
    _waiting.append((number, frame))
    if not _is_held():
        _hand_over()


def _hand_over() -> None:
    """Run what waits; a handler that raises does not keep the next one from running."""
    if _waiting:
        number, frame = _waiting.pop(0)
        try:
            _handlers[number](number, frame)
        finally:
            _hand_over()


@functools.cache
def _handles_signals() -> bool:
    """Whether this interpreter may set handlers; a sub-interpreter may not, and is not interrupted either."""
    try:
        _c_module.signal(_NUMBERS[0], _c_module.getsignal(_NUMBERS[0]))
    except (ValueError, TypeError):  # TypeError: a handler that was not set from Python
        return False
    return True


class Held:
    """Within, Python's signal handlers wait; in other threads than the main one there is nothing to do."""

    def __enter__(self) -> None:
        global _outermost
        if threading.current_thread() is not threading.main_thread() or not _handles_signals() or _is_held():
            return
        _hand_over()  # what waited in a block that was not left in order
        for number in _NUMBERS:
            handler = _c_module.getsignal(number)
            if callable(handler) and handler is not _put_off:
                # First the handler's place, then the handler: what is interrupted in between forwards as it should.
                _handlers[number] = handler
                _c_module.signal(number, _put_off)
        _outermost = weakref.ref(self)

    def __exit__(self, *_: object) -> None:
        global _outermost
        if _outermost is None or _outermost() is not self:
            return
        _outermost = None
        try:
            for number, handler in _handlers.items():
                if _c_module.getsignal(number) is _put_off:
                    _c_module.signal(number, handler)
        finally:
            _hand_over()
