"""Names and titles of users as text that no viewer of a report takes for anything else."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def without_tags(text: str) -> str:
    """What would be read as HTML (``<script>``) stays text; ``a < b`` is as it was."""
    return _TAG.sub("&lt;", text)


def without_formula(text: str) -> str:
    """A cell that a spreadsheet program would compute (``=…``) stays text, by the apostrophe that such programs know."""
    return f"'{text}" if text.startswith(_FORMULA) else text
