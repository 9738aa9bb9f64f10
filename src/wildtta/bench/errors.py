"""What can go wrong for reasons that the user can mend; the command line prints these as one line."""

from __future__ import annotations


class BenchError(Exception):
    """A request that cannot be run as it stands; the message says what was expected, what came and what to do."""


class JournalError(BenchError):
    """A journal that cannot be read, locked or written."""
