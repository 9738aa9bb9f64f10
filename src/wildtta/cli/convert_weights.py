"""``wildtta convert-weights``: weights that torch.save wrote, as the safetensors that every verb reads."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from wildtta.cli.launching import one_line_errors

_HOLDERS = ("state_dict", "model_state_dict", "model", "ema")


def register(app: typer.Typer) -> None:
    app.command("convert-weights")(convert_weights)


def convert_weights(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A .pt, .pth or .bin file that torch.save wrote.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="DST", help="Default: the same name with .safetensors.")
    ] = None,
) -> None:
    """Write the tensors of a torch.save file as safetensors. No code in the file runs.

    A training's checkpoint is understood (the weights under state_dict, model_state_dict, model or ema), and
    so are names that begin with "module." (several GPUs).
    """
    with one_line_errors():
        from safetensors.torch import save_file

        out = target or source.with_suffix(".safetensors")
        tensors = weights_in(source)
        save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, out)
        typer.echo(f"{len(tensors)} tensors in {out}")


def weights_in(source: Path) -> dict[str, Tensor]:
    """The tensors of a network in a file that torch.save wrote."""
    try:
        found: Any = torch.load(source, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise ValueError(
            f"{source} cannot be read without running code in it; save the network's state_dict() alone "
            f"({str(error).strip().splitlines()[0]})"
        ) from error
    while isinstance(found, Mapping) and not any(isinstance(value, Tensor) for value in found.values()):
        inner = next((found[name] for name in _HOLDERS if name in found), None)
        if inner is None:
            entries = ", ".join(map(str, found)) or "nothing"
            raise ValueError(f"{source} holds no weights: expected tensors by name, got {entries}")
        found = inner
    if not isinstance(found, Mapping):
        raise ValueError(f"{source} holds a {type(found).__name__}; expected the state_dict() of a network")
    return {name.removeprefix("module."): value for name, value in found.items() if isinstance(value, Tensor)}
