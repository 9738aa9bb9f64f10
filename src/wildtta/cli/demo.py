"""``wildtta demo``: the paper's story on the embedded glyphs, in a few minutes on a CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wildtta.cli.launching import Device, exit_code, one_line_errors

if TYPE_CHECKING:
    from wildtta.bench import Cell, Row

NETWORKS = {"glyphs:resnet_gn": "ResNet, GroupNorm", "glyphs:vit": "ViT, LayerNorm"}
METHODS = {"none": "no adaptation", "tent": "Tent", "sar": "SAR", "sar2": "SAR²"}
SEVERITY = 5
SHIFT = "gaussian_noise"
MIXTURE = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
SCENARIOS: dict[str, dict[str, Any]] = {
    "label shift": {"scenario": "label_shift", "scenario_options": {"draws": 20}, "corruptions": (SHIFT,)},
    "batch 1": {"scenario": "single", "batch_size": 1, "limit": 600, "corruptions": (SHIFT,)},
    "mixed": {"scenario": "mixed", "limit": 4000, "corruptions": MIXTURE},
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the report; its journal is begun anew.")] = Path(
        "wildtta-report"
    ),
    device: Device = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; default: one for each core, 4 at most.")
    ] = None,
) -> None:
    """Corrupt glyphs, adapt to them in three wild ways, and show who stays upright.

    Glyphs are rendered letters and the networks are small: a demonstration, not evidence.
    """
    with one_line_errors():
        from wildtta import report
        from wildtta.bench import launch

        journal = out / "demo.jsonl"
        journal.unlink(missing_ok=True)
        cells = demo_cells()
        typer.echo(
            f"{len(cells)} runs on 200-class glyphs: {SHIFT.replace('_', ' ')}, severity {SEVERITY} (label shift, batch 1) and a "
            f"mixture of {', '.join(name.replace('_', ' ') for name in MIXTURE)}, severity {SEVERITY}."
        )
        at_a_time = workers or min(4, os.cpu_count() or 1)
        outcome = launch(cells, journal=journal, device=device, per_device=at_a_time)
        print_story(outcome.rows)
        written = report.write(outcome.rows, out, title="wildtta demo: glyphs")
        typer.echo(f"\nReport: {written.html} (open it in a browser); every number: {journal}")
    raise typer.Exit(exit_code(outcome))


def demo_cells() -> list[Cell]:
    """Every network, scenario and method of the demonstration; the slow ones first, so that no core waits at the end."""
    from wildtta.bench import Cell

    return [
        Cell(
            model=model,
            model_name=title,
            method=method,
            name=METHODS[method],
            severity=SEVERITY,
            **SCENARIOS[scenario],
        )
        for model, title in reversed(NETWORKS.items())
        for scenario in SCENARIOS
        for method in reversed(METHODS)
    ]


def print_story(rows: Sequence[Row]) -> None:
    """Accuracy by network, method and scenario; a collapse is marked."""
    from rich.console import Console
    from rich.table import Table

    from wildtta.bench import Cell

    found = {(row["cell"]["model"], row["cell"]["method"], row["cell"]["scenario"]): row for row in rows}
    table = Table(
        title="Online accuracy, % (in brackets: share of the most predicted class, last fifth)", show_edge=False
    )
    for heading in ("network", "method", *SCENARIOS):
        table.add_column(heading, justify="left" if heading in ("network", "method") else "right", no_wrap=True)
    for model, title in NETWORKS.items():
        for method, name in METHODS.items():
            shown = [found.get((model, method, entry["scenario"])) for entry in SCENARIOS.values()]
            table.add_row(title if method == "none" else "", name, *map(_shown, shown), end_section=method == "sar2")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    collapsed = [row for row in rows if row["status"] == "ok" and row["metrics"]["collapsed"]]
    for row in collapsed:
        typer.echo(f"collapsed onto one class: {Cell.from_json(row['cell']).describe()}")
    for row in rows:
        if row["status"] != "ok":
            typer.echo(f"failed: {Cell.from_json(row['cell']).describe()}: {row['reason']}", err=True)


def _shown(row: Row | None) -> str:
    if row is None or row["status"] != "ok":
        return "failed"
    metrics = row["metrics"]
    share = f"({metrics['top_class_share']:.0f})"
    accuracy = f"{metrics['accuracy']:.1f} {share:>5}"
    return f"[red]{accuracy}[/red]" if metrics["collapsed"] else accuracy
