"""``wildtta methods``: what there is."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from wildtta.cli.launching import one_line_errors


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("methods")(methods)


def methods(
    name: Annotated[str | None, typer.Argument(help="One method: show its options and description.")] = None,
) -> None:
    """List the methods, or one with its options."""
    with one_line_errors():
        from wildtta.methods.registry import config_classes, get_method

        if name is None:
            _print_all(config_classes())
        else:
            _print_one(type(get_method(name)))


def _print_all(known: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False)
    for heading in ("name", "method", "updates", "source data", "batch of 1", "passes fwd/bwd", "prediction", "paper"):
        table.add_column(heading, overflow="fold")
    for name, cls in known.items():
        table.add_row(
            name, cls.title, cls.updates, cls.needs_source, cls.batch_of_one, cls.passes, cls.prediction, cls.paper
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo(f"{len(known)} methods; `wildtta methods NAME` shows a method's options")


def _print_one(cls: Any) -> None:
    import inspect

    typer.echo(f"{cls.name}: {cls.title}\n\n{inspect.getdoc(cls)}\n\nOptions:")
    for entry in dataclasses.fields(cls):
        default = "required" if entry.default is dataclasses.MISSING else repr(entry.default)
        typer.echo(f"  {entry.name} = {default}  {entry.metadata.get('help', '')}".rstrip())
