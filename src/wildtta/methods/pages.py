"""What the registry knows, as pages: the table of methods and the list of options, in Markdown.

docs/methods.md and docs/options.md are what these functions give (``wildtta methods --markdown methods``, ``... --markdown
options``), and a test compares them: a new method is documented by being registered.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wildtta.methods.base import Method
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.registry import config_classes

COLUMNS: dict[str, str] = {
    "name": "name",
    "method": "title",
    "updates": "updates",
    "source data": "needs_source",
    "batch of 1": "batch_of_one",
    "passes fwd / bwd": "passes",
    "prediction": "prediction",
    "paper": "paper",
}
"""Heading to the class attribute that fills the column."""

_ADDRESS = re.compile(r"https?://[^\s,)]+[^\s,.)]")
_WIDTH = 110
_OPTION_HEADINGS = ["option", "default", "meaning"]


def methods_page() -> str:
    """docs/methods.md: one row per registered method, learning rates, then each method's formula."""
    known = config_classes().values()
    rows = [
        [f"[`{cls.name}`](#{cls.name})", *(_cell(getattr(cls, field)) for field in list(COLUMNS.values())[1:])]
        for cls in known
    ]
    rates = [
        [f"`{cls.name}`", *(f"{low:.3g} … {high:.3g}" for low, high in cls.learning_rates.values())]
        for cls in known
        if cls.learning_rates
    ]
    parts = [_METHODS_HEAD, _table(list(COLUMNS), rows), _RATES_HEAD]
    parts.append(_table(["name", "convolutional", "transformer"], rates))
    for cls in known:
        parts += [
            f"## {cls.name}",
            f"**{cls.title}**",
            *map(_wrapped, _markdown(inspect.getdoc(cls) or "").split("\n\n")),
        ]
    return _page(parts)


def options_page() -> str:
    """docs/options.md: :func:`wildtta.adapt`'s arguments, what gradient methods share, each method's own options."""
    known = config_classes().values()
    members = ", ".join(f"`{cls.name}`" for cls in known if issubclass(cls, GradientMethod))
    family = _wrapped(
        f"{members} have these options. Where a method has another default, its own table below shows it."
    )
    parts = [_OPTIONS_HEAD, _table(["argument", "meaning"], _adapt_arguments()), _FAMILY_HEAD, family]
    parts += [_table(_OPTION_HEADINGS, _options(GradientMethod)), _OWN_HEAD]
    for cls in known:
        own = _options(cls)
        shared = "The shared options." if issubclass(cls, GradientMethod) else "None."
        parts += [f"### {cls.name}", _table(_OPTION_HEADINGS, own) if own else shared]
    return _page(parts)


PAGES: dict[str, Callable[[], str]] = {"methods": methods_page, "options": options_page}
"""The generated pages by name: docs/NAME.md."""


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _wrapped(paragraph: str) -> str:
    """Prose in lines of at most 110 characters; formulas (indented) and lists stay as they are."""
    if paragraph.startswith((" ", "- ")) or max(map(len, paragraph.splitlines())) <= _WIDTH:
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text for a table: a reference becomes a link, a bar is escaped."""
    text = text.replace("|", "\\|")
    whole = re.fullmatch(rf"(.+?), ({_ADDRESS.pattern})", text)
    return f"[{whole[1]}]({whole[2]})" if whole else _markdown(text)


def _markdown(text: str) -> str:
    """Sphinx's roles and double backticks become Markdown's; addresses become links."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return _ADDRESS.sub(lambda found: f"<{found[0]}>", text)


def _options(cls: type[Method]) -> list[list[str]]:
    """The fields of a method; those of the gradient family only where this method's default is another."""
    family = {entry.name: entry.default for entry in dataclasses.fields(GradientMethod)}
    shared = family if issubclass(cls, GradientMethod) and cls is not GradientMethod else {}
    return [
        [f"`{entry.name}`", _default(entry), _cell(entry.metadata.get("help", ""))]
        for entry in dataclasses.fields(cls)
        if entry.name not in shared or entry.default != shared[entry.name]
    ]


def _default(entry: dataclasses.Field[Any]) -> str:
    value = entry.default
    return f"`{value:.4g}`" if isinstance(value, float) else f"`{value!r}`"


def _adapt_arguments() -> list[list[str]]:
    """From :func:`wildtta.adapt`'s docstring, whose Args section has one argument per entry."""
    from wildtta.adapt import adapt

    text = (inspect.getdoc(adapt) or "").split("Args:\n")[1].split("\n\n")[0]
    entries = re.split(r"\n(?=    \w+: )", text)
    named = [re.sub(r"\s+", " ", entry).strip().split(": ", 1) for entry in entries]
    return [[f"`{name}`", _cell(meaning)] for name, meaning in named]


_METHODS_HEAD = """
# Methods

*Generated by `wildtta methods --markdown methods > docs/methods.md`; edit the method's class, not this page.*

Names are for `wildtta.adapt(network, name)`, `wildtta run --method name` and grids. A name that a paper gave
means that paper: its hyper-parameters, its rules. `steady` is our own. Passes are per sample of the stream,
forward / backward, counted as in the paper's cost table. *Prediction* says which weights answer a batch:
those before the update that the batch causes, those after it, or a teacher's.
[Options](options.md) lists every hyper-parameter.
"""

_RATES_HEAD = """
## Learning rates

Defaults at batch size 1 … 64 by the network's family. With B samples per batch the rate is B times that of
one sample, up to that of 64 ([D38](decisions.md)). `lr=` overrides the rule, `lr_scale` multiplies it
(`steady`: by 40, and on a straight line from 1 to 64).
"""

_OPTIONS_HEAD = """
# Options

*Generated by `wildtta methods --markdown options > docs/options.md`; edit the help texts, not this page.*

Options are keyword arguments of `wildtta.adapt(network, method, ...)` or fields of a config class
(`wildtta.SAR2(inequity=None)`); `--option name=value` on the command line; `options = { name = value }` in a
grid. An unknown option, or one that has no effect with the others, is an error that says what to do.
`None` (`null` on the command line, `"null"` in a grid) switches a part off.
An option means the same in every method that has it.

## Arguments of `wildtta.adapt`
"""

_FAMILY_HEAD = """
## Options that all gradient methods share
"""

_OWN_HEAD = """
## Each method's own
"""
