"""What can be wrong with data, said so that it can be put right."""

from __future__ import annotations


class DataError(ValueError):
    """Data that are not there, not complete or not in the layout expected. The first line says it all."""


class BrokenImage(ValueError):
    """An image file that can't be read or decoded; the message names the file."""


def layout_error(problem: str, *, expected: str, found: str, remedy: str = "") -> DataError:
    """An error whose first line is the problem; then the expected layout, what was found, and what to do."""
    lines = [problem, f"  expected: {expected}", f"  found:    {found}"]
    if remedy:
        lines.append(f"  to do:    {remedy}")
    return DataError("\n".join(lines))


def some_of(names: list[str], shown: int = 5) -> str:
    """The first few names and how many more there are.

    >>> some_of(["a", "b", "c"], shown=2)
    'a, b and 1 more'
    """
    if not names:
        return "nothing"
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
