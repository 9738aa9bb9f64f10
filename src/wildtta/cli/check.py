"""``wildtta check``: will adaptation help on this network and these images?"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

from wildtta.bench import BenchError, Cell
from wildtta.bench.launching import devices_named
from wildtta.bench.models import build_model, check_model
from wildtta.checkup import SHIFTS, TRIALS, Checkup
from wildtta.checkup import check as checked
from wildtta.checkup.checking import as_input
from wildtta.checkup.plan import FEWEST_IMAGES, MOST_IMAGES, Plan, measured_pace, plan_within, seconds_for
from wildtta.checkup.sample import Sample, folder_sample, glyph_sample, protocol_for
from wildtta.cli.launching import one_line_errors, pairs
from wildtta.data import InputProtocol
from wildtta.network import inspect_network
from wildtta.progress import Progress, duration


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    model: Annotated[
        str, typer.Option(help="glyphs:NAME, timm:NAME, torchvision:NAME, package.module:function or file.py:function.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="Folder, zip or tar of images, with or without class folders. Embedded networks need none."),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            min=2, help="Draw so many images and try everything, however long it takes. Default: see --minutes."
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(help=f"Try as much as fits into so many minutes, with {FEWEST_IMAGES} to {MOST_IMAGES:,} images."),
    ] = 5.0,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="The folders' names are no classes.")] = False,
    protocol: Annotated[str, typer.Option(help="Preprocessing: auto, paper, timm, native, custom:...")] = "auto",
    weights: Annotated[str | None, typer.Option(help="A safetensors file with the model's weights.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="name=value for the model.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:0.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the images drawn, the orders and the corruptions.")] = 0,
    file: Annotated[Path | None, typer.Option("--json", help="Also write everything as JSON.", metavar="FILE")] = None,
) -> None:
    """Tell in a few minutes whether adaptation is likely to help on your network and your images.

    Example: wildtta check --model my_model.py:network --data photos/
    """
    with one_line_errors():
        if file is not None and not file.absolute().parent.is_dir():
            raise BenchError(f"--json: there is no folder {file.absolute().parent}; make it first")
        cell = Cell(model=model, model_options=pairs(model_option, "--model-option"), weights=weights)
        check_model(cell)
        place = torch.device(devices_named(device)[0])
        network = build_model(cell)
        chosen = protocol_for(model, protocol, network)
        sample = _sample(model, data, network, images or MOST_IMAGES, seed=seed, use_labels=not unlabelled)
        network = network.to(place)
        plan = _plan(network, sample, chosen, images, minutes)
        found = _checkup(network, sample, chosen, plan, seed)
        typer.echo(found.text())
        if file is not None:
            file.write_text(json.dumps(found.as_dict(), indent=1) + "\n", encoding="utf-8")


def _sample(model: str, data: Path | None, network: nn.Module, number: int, *, seed: int, use_labels: bool) -> Sample:
    if data is not None:
        with warnings.catch_warnings():
            # That a made-up input did not fit says nothing: it is looked at again with real images.
            warnings.simplefilter("ignore")
            classes = inspect_network(network).classes
        return folder_sample(data, classes, seed=seed, use_labels=use_labels)
    if model.startswith("glyphs:"):
        return glyph_sample(number, seed=seed, use_labels=use_labels)
    raise BenchError("name a folder of images with --data; only the embedded networks (glyphs:...) come with their own")


def _plan(network: nn.Module, sample: Sample, protocol: InputProtocol, images: int | None, minutes: float) -> Plan:
    """Everything on so many images, or what fits into the minutes; either way the time is told before it begins."""
    first = sample.pixels(min(32, len(sample)), protocol)
    pace = measured_pace(network, lambda part: as_input(first, part, protocol, network), len(first))
    if images is None:
        plan = plan_within(minutes, pace, len(sample))
    else:
        number = min(images, len(sample))
        plan = Plan(number, SHIFTS, TRIALS, (), seconds_for(pace, number, SHIFTS, TRIALS))
    typer.echo(
        f"{plan.images:,} images, {len(plan.shifts)} shifts, {len(plan.trials)} trials: about {duration(plan.seconds)}",
        err=True,
    )
    return plan


def _checkup(network: nn.Module, sample: Sample, protocol: InputProtocol, plan: Plan, seed: int) -> Checkup:
    pixels, labels = sample.pixels(plan.images, protocol), sample.labels(plan.images)
    display = Progress("checking, percent")
    display.begin(100)
    try:
        found = checked(
            network,
            pixels,
            labels,
            protocol=protocol,
            shifts=plan.shifts,
            trials=plan.trials,
            seed=seed,
            report=lambda share, doing: display.update(100 * share, doing),
        )
    finally:
        display.end()
    return found.noting([*sample.notes, f"preprocessing: {protocol}"], plan.left_out)
