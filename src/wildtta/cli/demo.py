"""``wildtta demo``: the paper's story on the embedded glyphs, in a few minutes on a CPU."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from wildtta import report
from wildtta.bench import Cell, launch
from wildtta.bench.unadapted import beside_unadapted
from wildtta.cli.launching import Device, one_line_errors, print_failures, print_table
from wildtta.cli.story import Story
from wildtta.data import CORRUPTIONS
from wildtta.glyphs import CHARACTERS
from wildtta.report.writing import require_packages

_OUT = Path("wildtta-report")
NETWORKS = {"glyphs:resnet_gn": "ResNet, GroupNorm", "glyphs:vit": "ViT, LayerNorm"}
METHODS = {"none": "no adaptation", "tent": "Tent", "sar": "SAR", "steady": "Steady (ours)"}
SEVERITY = 5
# The same streams for both networks: as much as 2 cores do in 3 minutes.
SCENARIOS = {
    "noise": "label shift, Gaussian noise",
    "contrast": "label shift, contrast",
    "single": "batch 1, Gaussian noise",
    "mixed": "mixed, 15 corruptions",
}
LENGTHS = {"noise": 2000, "contrast": 2000, "single": 300, "mixed": 2000}
"""Images of each stream; under label shift every class has a 200th of them."""


def _stream(scenario: str) -> dict[str, Any]:
    """The fields of a cell that make the stream."""
    length = LENGTHS[scenario]
    if scenario == "single":
        return {"scenario": "single", "batch_size": 1, "limit": length, "corruptions": ("gaussian_noise",)}
    if scenario == "mixed":
        return {"scenario": "mixed", "limit": length, "corruptions": CORRUPTIONS}
    corruption = {"noise": "gaussian_noise", "contrast": "contrast"}[scenario]
    draws = max(1, length // len(CHARACTERS))
    return {"scenario": "label_shift", "scenario_options": {"draws": draws}, "corruptions": (corruption,)}


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the report; its journal is begun anew.")] = _OUT,
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; default: one for each core, 4 at most.")
    ] = None,
) -> None:
    """Adapt two networks to four wild streams of corrupted glyphs, and show who stays upright.

    Glyphs are rendered letters and the networks are small: a demonstration, not evidence.
    """
    with one_line_errors():
        require_packages()
        journal = out / "demo.jsonl"
        journal.unlink(missing_ok=True)
        cells = planned()
        typer.echo(
            f"{len(cells)} runs on 200-class glyphs, every corruption at severity {SEVERITY}. "
            "Label shift: classes come one after the other."
        )
        at_a_time = workers or min(4, os.cpu_count() or 1)
        outcome = launch(demo_cells(), journal=journal, device=device, per_device=at_a_time)
        found = {row["key"]: row for row in beside_unadapted(outcome.rows)}
        rows = {place: found[cell.key] for place, cell in cells.items()}
        story = Story(rows=rows, networks=NETWORKS, streams=SCENARIOS, methods=METHODS)
        print_table(story.table)
        typer.echo(f"\n{story.words}")
        print_failures(rows.values())
        written = report.write(
            list(rows.values()), out, title="wildtta demo: glyphs", intro=story.words, sections=[story.section]
        )
        typer.echo(f"\nReport: {written.html} (open it in a browser); every number: {journal}")
    raise typer.Exit(outcome.failed > 0)


def planned() -> dict[tuple[str, str, str], Cell]:
    """The cells of the demonstration by network, scenario and method."""
    return {
        (model, scenario, method): Cell(
            model=model,
            model_name=NETWORKS[model],
            method=method,
            name=METHODS[method],
            severity=SEVERITY,
            # Every answer: a gain of a few images is told from chance by the images that changed.
            measure=("predictions",),
            measure_options={"predictions": {"points": max(LENGTHS.values())}},
            **_stream(scenario),
        )
        for model, scenario, method in itertools.product(NETWORKS, SCENARIOS, METHODS)
    }


def demo_cells() -> list[Cell]:
    """The plan with the slow cells first, so that no core waits at the end."""

    def cost(cell: Cell) -> int:
        passes = {"none": 1, "tent": 3}.get(cell.method, 6)
        return passes * (2 if cell.model == "glyphs:vit" else 1)

    return sorted(planned().values(), key=cost, reverse=True)
