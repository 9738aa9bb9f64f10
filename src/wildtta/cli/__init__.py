"""The command line: one module per verb, each with a ``register(app)`` that adds its commands."""

from __future__ import annotations

import importlib
import pkgutil
import sys


def main() -> None:
    """Entry point of the ``wildtta`` command."""
    try:
        import typer
    except ImportError:
        sys.exit("the command line needs typer and rich: pip install 'wildtta[cli]'")
    app = typer.Typer(
        name="wildtta",
        help="Test-time adaptation that does not collapse.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for module in pkgutil.iter_modules(__path__):
        verb = importlib.import_module(f"{__name__}.{module.name}")
        if hasattr(verb, "register"):
            verb.register(app)
    app()
