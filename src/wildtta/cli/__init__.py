"""The command line: one module per verb, each with a ``register(app)`` that adds its commands."""

import importlib
import pkgutil
import sys
from typing import Annotated


def main() -> None:
    """Entry point of the ``wildtta`` command."""
    try:
        import typer
    except ImportError:
        sys.exit("the command line needs typer and rich: pip install 'wildtta[cli]'")
    app = typer.Typer(name="wildtta", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    def show_version(wanted: bool) -> None:
        if wanted:
            import torch

            import wildtta

            typer.echo(f"wildtta {wildtta.__version__} (torch {torch.__version__}, Python {sys.version.split()[0]})")
            raise typer.Exit

    @app.callback()
    def of_every_verb(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and end.")
        ] = False,
    ) -> None:
        """Test-time adaptation that does not collapse."""

    for module in pkgutil.iter_modules(__path__):
        verb = importlib.import_module(f"{__name__}.{module.name}")
        if hasattr(verb, "register"):
            verb.register(app)
    app()
