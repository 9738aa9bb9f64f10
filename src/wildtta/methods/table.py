"""What the registry knows, as pages: the table of methods and the list of options, in Markdown.

The committed pages docs/methods.md and docs/options.md are what these functions give (``wildtta methods --markdown
methods``, ``... --markdown options``), and a test holds them to it: a new method is documented by being registered.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
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

EVERYDAY = (
    "lr",
    "lr_scale",
    "reliable",
    "sharpness",
    "recovery",
    "redundancy",
    "inequity",
    "coast",
    "steps",
    "episodic",
    "objective",
)
"""Options of the gradient family that one meets first; the others serve ablations and comparisons."""

COMPARED = ("tent", "sar", "sar2")
"""Methods whose defaults stand side by side in the family's tables."""

_ADDRESS = re.compile(r"https?://[^\s,)]+[^\s,.)]")


def methods_page() -> str:
    """docs/methods.md: one row per registered method, then each method's formula."""
    known = config_classes().values()
    rows = [
        [f"[`{cls.name}`](#{cls.name})", *(_cell(getattr(cls, field)) for field in list(COLUMNS.values())[1:])]
        for cls in known
    ]
    parts = [
        _METHODS_HEAD.strip(),
        _table(list(COLUMNS), rows),
        "## Learning rates",
        _RATES_HEAD.strip(),
        _learning_rates(known),
    ]
    for cls in known:
        parts += [f"## {cls.name}", f"**{cls.title}**", _description(cls)]
    return "\n\n".join(parts) + "\n"


def options_page() -> str:
    """docs/options.md: :func:`wildtta.adapt`'s arguments, the gradient family's options, each method's own."""
    known = config_classes()
    parts = [
        _OPTIONS_HEAD.strip(),
        "## Arguments of `wildtta.adapt`",
        _table(["argument", "meaning"], _adapt_arguments()),
    ]
    parts += ["## The gradient family", _family_sentence(known.values())]
    family = {entry.name: entry for entry in dataclasses.fields(GradientMethod)}
    for heading, names in {
        "### Everyday": list(EVERYDAY),
        "### For ablations and comparisons": [name for name in family if name not in EVERYDAY],
    }.items():
        compared = [{e.name: e for e in dataclasses.fields(known[name])} for name in COMPARED]
        rows = [
            [f"`{name}`", *(_default(fields[name]) for fields in compared), _cell(family[name].metadata["help"])]
            for name in names
        ]
        parts += [heading, _table(["option", *(f"`{name}`" for name in COMPARED), "meaning"], rows)]
    parts += ["## Each method's own", _OWN_HEAD.strip()]
    for cls in known.values():
        own = _own_options(cls) if cls.name not in COMPARED else []
        text = _table(["option", "default", "meaning"], own) if own else _without_own_options(cls)
        parts += [f"### {cls.name}", text]
    return "\n\n".join(parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {"methods": methods_page, "options": options_page}
"""The generated pages by name: docs/NAME.md."""


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text for a table: a reference becomes a link, a bar is escaped."""
    text = text.replace("|", "\\|")
    whole = re.fullmatch(rf"(.+?), ({_ADDRESS.pattern})", text)
    return f"[{whole[1]}]({whole[2]})" if whole else _ADDRESS.sub(lambda found: f"<{found[0]}>", text)


def _default(entry: dataclasses.Field[Any]) -> str:
    value = entry.default
    if value is dataclasses.MISSING:
        return "required"
    return f"`{value:.4g}`" if isinstance(value, float) else f"`{value!r}`"


def _description(cls: type[Method]) -> str:
    """The class's docstring; Sphinx's roles and double backticks become Markdown's."""
    text = inspect.getdoc(cls) or ""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    return _ADDRESS.sub(lambda found: f"<{found[0]}>", text)


def _learning_rates(known: Iterable[type[Method]]) -> str:
    def shown(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.3g} … {pair[1]:.3g}"

    rows = [
        [f"`{cls.name}`", shown(cls.learning_rates["convolutional"]), shown(cls.learning_rates["transformer"])]
        for cls in known
        if cls.learning_rates
    ]
    return _table(["name", "convolutional", "transformer"], rows)


def _family_sentence(known: Iterable[type[Method]]) -> str:
    members = ", ".join(f"`{cls.name}`" for cls in known if issubclass(cls, GradientMethod))
    return (
        f"These options belong to {members}. The columns show the defaults of three of them; where another method's default "
        "differs, its own table below has it."
    )


def _own_options(cls: type[Method]) -> list[list[str]]:
    """Fields beyond the family's, and the family's where this method's default is another."""
    family = {entry.name: entry.default for entry in dataclasses.fields(GradientMethod)}
    inherits = issubclass(cls, GradientMethod)
    return [
        [f"`{entry.name}`", _default(entry), _cell(entry.metadata.get("help", ""))]
        for entry in dataclasses.fields(cls)
        if not (inherits and entry.name in family and entry.default == family[entry.name])
    ]


def _without_own_options(cls: type[Method]) -> str:
    return "See the family's tables above." if issubclass(cls, GradientMethod) else "None."


def _adapt_arguments() -> list[list[str]]:
    """From :func:`wildtta.adapt`'s docstring, whose Args section has one argument per entry."""
    from wildtta.adapt import adapt

    text = (inspect.getdoc(adapt) or "").split("Args:\n")[1].split("\n\n")[0]
    entries = re.split(r"\n(?=    \w+: )", text)
    named = [re.sub(r"\s+", " ", entry).strip().split(": ", 1) for entry in entries]
    return [
        [f"`{name}`", _cell(re.sub(r":\w+:`~?([^`]+)`", r"`\1`", meaning.replace("``", "`")))]
        for name, meaning in named
    ]


_METHODS_HEAD = """
# Methods

*Made from the registry by `wildtta methods --markdown methods > docs/methods.md`; change the method's class, not this page.*

Names are for `wildtta.adapt(network, name)`, `wildtta run --method name` and grids. Passes are per sample of the stream,
forward / backward, counted as the paper's cost table does. *Prediction* says which weights answer a batch: those from before
the update that the batch causes, those after it, or a teacher's. [Options](options.md) has every hyper-parameter.
"""

_RATES_HEAD = """
Defaults at batch size 1 … 64 by the network's family, linear between the two and constant above 64; `lr=` overrides the rule.
"""

_OPTIONS_HEAD = """
# Options

*Made from the code by `wildtta methods --markdown options > docs/options.md`; change a field's help text, not this page.*

Options are keyword arguments of `wildtta.adapt(network, method, ...)` or fields of a config class
(`wildtta.SAR2(ensembling=0.99)`); `--option name=value` on the command line; `options = { name = value }` in a grid. An unknown
one is an error that names the nearest. `None` (`null` on the command line, `"null"` in a grid) switches a part off.
"""

_OWN_HEAD = """
Options that only this method has, and options of the family whose default is another here.
"""
