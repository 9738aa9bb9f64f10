"""``wildtta methods``: what there is."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any

import typer

from wildtta.cli.launching import console, one_line_errors


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("methods")(methods)


def methods(
    name: Annotated[str | None, typer.Argument(help="One method: show its options and description.")] = None,
    markdown: Annotated[
        str | None, typer.Option(help="Print a page of the documentation: methods or options.", metavar="PAGE")
    ] = None,
) -> None:
    """List the methods, or one with its options."""
    with one_line_errors():
        from wildtta.methods.pages import PAGES
        from wildtta.methods.registry import config_classes, get_method

        if markdown is not None:
            if markdown not in PAGES:
                raise ValueError(f"no generated page is called {markdown!r}; there are {', '.join(PAGES)}")
            typer.echo(PAGES[markdown](), nl=False)
        elif name is None:
            _print_all(config_classes())
        else:
            _print_one(type(get_method(name)))


_ON_A_NARROW_TERMINAL = ("name", "updates", "passes fwd / bwd")
_WIDE = 140


def _print_all(known: dict[str, Any]) -> None:
    from rich.table import Table

    from wildtta.methods.pages import COLUMNS

    screen = console(200)
    shown = list(COLUMNS) if screen.width >= _WIDE else list(_ON_A_NARROW_TERMINAL)
    table = Table(show_edge=False, pad_edge=False)
    for heading in shown:
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for cls in known.values():
        table.add_row(*(getattr(cls, COLUMNS[heading]) for heading in shown))
    screen.print(table)
    typer.echo(f"{len(known)} methods; `wildtta methods NAME` shows a method's options")


def _print_one(cls: Any) -> None:
    typer.echo(f"{cls.name}: {cls.title}\n\n{inspect.getdoc(cls)}\n\nOptions:")
    for entry in dataclasses.fields(cls):
        default = "required" if entry.default is dataclasses.MISSING else repr(entry.default)
        typer.echo(f"  {entry.name} = {default}  {entry.metadata.get('help', '')}".rstrip())
