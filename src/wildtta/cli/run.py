"""``wildtta run``: one model, some methods, one kind of stream."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from wildtta.bench import MULTI_DOMAIN, BenchError, Cell, Conditions, measured_pace
from wildtta.cli.launching import Launch, exit_code, one_line_errors, pairs, print_rows, runs_cells
from wildtta.data import CORRUPTIONS

Names = list[str] | None


def register(app: typer.Typer) -> None:
    app.command("run")(runs_cells(run))


def run(
    launch: Launch,
    model: Annotated[
        str, typer.Option(help="glyphs:NAME, timm:NAME, torchvision:NAME, package.module:function or file.py:function.")
    ] = "glyphs:resnet_gn",
    method: Annotated[Names, typer.Option(help="A method, or file.py:Class (may be repeated; default steady).")] = None,
    scenario: Annotated[str, typer.Option(help="mild, label_shift, single, mixed, continual ...")] = "mild",
    corruption: Annotated[
        Names, typer.Option(help="A corruption (may be repeated), all, or clean. [default: gaussian_noise]")
    ] = None,
    severity: Annotated[int, typer.Option(min=1, max=5)] = 5,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Default 64; 1 in the scenario single.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed (may be repeated; default 0).")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Images in the stream at most.")] = None,
    regularise: Annotated[int, typer.Option(min=0, help="Steps of R and I alone before the stream begins.")] = 0,
    pace: Annotated[
        str,
        typer.Option(
            help="Time of the method's step over the unadapted network's, or measured: images that arrive meanwhile are "
            "answered without learning. 0: the stream waits."
        ),
    ] = "0",
    on: Annotated[str, typer.Option(help="The data: glyphs, folder, imagenet-c, imagenet-r ...")] = "glyphs",
    split: Annotated[
        str, typer.Option(help="all, first-half, second-half, first-classes, second-classes or robustbench-5000.")
    ] = "all",
    protocol: Annotated[str, typer.Option(help="Preprocessing: auto, paper, timm, native, custom:...")] = "auto",
    weights: Annotated[str | None, typer.Option(help="A safetensors file with the model's weights.")] = None,
    option: Annotated[Names, typer.Option(help="name=value for the method (may be repeated).")] = None,
    model_option: Annotated[Names, typer.Option(help="name=value for the model.")] = None,
    scenario_option: Annotated[Names, typer.Option(help="name=value for the stream: draws=100.")] = None,
    measure: Annotated[Names, typer.Option(help="A diagnostic: representation, health, sparsity ...")] = None,
    journal: Annotated[
        Path | None, typer.Option(help="Append to this journal, and take from it what is there.")
    ] = None,
) -> None:
    """Adapt a model on one kind of stream and print what came of it.

    Example: wildtta run --model glyphs:vit --method tent --method steady --scenario label_shift
    """
    with one_line_errors(journal):
        named = corruption or ["gaussian_noise"]
        every = list(CORRUPTIONS) if named == ["all"] else [] if named == ["clean"] else named
        streams = [tuple(every)] if scenario in MULTI_DOMAIN or not every else [(name,) for name in every]
        cells = [
            Cell(
                model=model,
                model_options=pairs(model_option, "--model-option"),
                weights=weights,
                method=name,
                options=pairs(option, "--option") if name != "none" else {},
                regularise=regularise,
                scenario=scenario,
                scenario_options=pairs(scenario_option, "--scenario-option"),
                data=on,
                data_options={} if split == "all" else {"split": split},
                corruptions=corruptions,
                severity=severity,
                batch_size=batch_size or (1 if scenario == "single" else 64),
                seed=number,
                limit=limit,
                protocol=protocol,
                measure=tuple(measure or ()),
            )
            for name, corruptions, number in itertools.product(method or ["steady"], streams, seed or [0])
        ]
        outcome = launch([_at_pace(cell, pace, launch) for cell in cells], journal=journal)
        print_rows(outcome.rows)
    raise typer.Exit(exit_code(outcome))


def _at_pace(cell: Cell, pace: str, launch: Launch) -> Cell:
    """The cell at a stated pace, or at the one measured on the device that will run it."""
    if cell.method == "none":
        return cell
    if pace == "measured":
        device = launch.device if launch.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        root, source = (None if path is None else str(path) for path in (launch.root, launch.source))
        conditions = Conditions(root=root, source=source, threads=launch.threads)
        cost = round(measured_pace(cell, conditions, device.partition(",")[0]), 2)
        typer.echo(f"{cell.describe()}: a step takes {cost} times as long as the unadapted network's")
        return replace(cell, pace=cost)
    try:
        return replace(cell, pace=float(pace))
    except ValueError as error:
        raise BenchError(f"--pace takes a number or 'measured', got {pace!r}") from error
