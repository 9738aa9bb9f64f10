"""Markdown that a user puts around the numbers, as HTML that can carry nothing but text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any


def prose_html(text: str) -> str:
    """Paragraphs, headings, lists, tables, code, links; HTML stays text, a picture becomes its caption."""
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise ImportError("text on the HTML page needs markdown-it-py: pip install 'wildtta[report]'") from error
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    reader.add_render_rule("image", _words_of_picture)
    return str(reader.render(text))


def _words_of_picture(_: Any, tokens: Sequence[Any], place: int, options: Any, environment: Any) -> str:
    return escape(tokens[place].content)
