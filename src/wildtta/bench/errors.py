"""What can go wrong for reasons that the user can mend; the command line prints these as one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """A request that cannot be run as it stands; the message says what was expected and what to do."""


class JournalError(BenchError):
    """A journal that cannot be read, locked or written."""


def refuse_unknown(names: Iterable[object], known: Iterable[str], saying: str) -> None:
    """Raise an error for the first name that is not known: ``saying`` with that name, and what there is."""
    choices = list(known)
    for name in names:
        if name not in choices:
            near = difflib.get_close_matches(str(name).lower(), choices, n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ";"
            there = f"{'There' if near else 'there'} are {', '.join(choices) or 'none'}"
            raise BenchError(f"{saying.format(repr(name))}{hint} {there}")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind where it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
