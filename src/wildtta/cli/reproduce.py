"""``wildtta reproduce``: the paper's tables and figures by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from wildtta.cli.launching import Launch, console, exit_code, one_line_errors, pairs, runs_cells

if TYPE_CHECKING:
    from wildtta.bench import Cell, Row
    from wildtta.paper import Experiment, Setting, Where

_WIDE = 160


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("reproduce")(runs_cells(reproduce))


def reproduce(
    launch: Launch,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="table-1 … table-9, table-a … table-r, figure-1 … figure-9, figure-a … figure-e, or all."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Name all 41 with what each needs and costs.")] = False,
    on: Annotated[str, typer.Option(help="glyphs (embedded, scaled down), imagenet-c, or folder.")] = "glyphs",
    imagenet_r: Annotated[Path | None, typer.Option(help="ImageNet-R, for tables D and E.", metavar="DIR")] = None,
    imagenet: Annotated[Path | None, typer.Option(help="Clean validation images (figure D).", metavar="DIR")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short streams, few corruptions, one seed: minutes.")] = False,
    scale: Annotated[str, typer.Option(help="full, quick or tiny.")] = "full",
    limit: Annotated[int | None, typer.Option(min=1, help="Cut every stream to this many images.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per number (default 3; 1 when quick).")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Preprocessing: paper (as the printed numbers need) or timm (each network's own)."),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="pinned (the paper's), or none: random weights, a check of the machinery only.")
    ] = "pinned",
    model: Annotated[
        list[str] | None,
        typer.Option(help="PAPER'S NAME=MODEL[@WEIGHTS], as VitBase-LN=my.module:build@vit.safetensors.", metavar="…"),
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method (may be repeated).")] = None,
    network: Annotated[list[str] | None, typer.Option(help="Only this network, by the paper's name.")] = None,
    corruption: Annotated[list[str] | None, typer.Option(help="Only streams of this corruption.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="METHOD.OPTION=VALUE, as sar2.warmup=1 (may be repeated).")
    ] = None,
    journal: Annotated[Path | None, typer.Option(help="Default: runs/reproduce-ON.jsonl.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the report. Default: beside the journal.")] = None,
) -> None:
    """Run tables and figures of the paper and write a report on them.

    Cells that several tables share run once. After a kill the same command goes on with what is missing. Rows
    whose method or network is missing on the chosen data are listed as not available.
    """
    book = journal or Path("runs") / f"reproduce-{on}.jsonl"
    with one_line_errors(book):
        from wildtta.bench import BenchError, read
        from wildtta.paper import asked, select, setting, unique

        where = setting(
            cast("Where", on),
            scale="quick" if quick else scale,
            seeds=seeds,
            protocol=protocol,
            limit=limit,
            random_weights=_random(weights),
            networks=_networks(model, weights),
            overrides=_overrides(set_),
        )
        if listing or not names:
            _list(where, read(book) if book.exists() else [], launch.device)
            return
        chosen = select([name.lower() for name in names])
        cells: list[Cell] = []
        askers: dict[str, list[dict[str, Any]]] = {}
        for experiment in chosen:
            for cell in experiment.cells(where):
                if _wanted(cell, where, method, network, corruption):
                    cells.append(cell)
                    askers.setdefault(cell.key, []).append(asked(experiment, where))
        if not cells:
            raise BenchError("nothing of this can be run here: every row lacks its method, network or corruption")
        outcomes = [
            launch(part, journal=book, root=root, asked_by=askers)
            for root, part in _by_root(unique(cells), {"imagenet-r": imagenet_r, "imagenet": imagenet}, launch.root)
        ]
        _report(chosen, where, [row for outcome in outcomes for row in outcome.rows], out or book.with_suffix(""))
    raise typer.Exit(max(exit_code(outcome) for outcome in outcomes))


def _random(weights: str) -> bool:
    if weights not in ("pinned", "none"):
        raise ValueError(f"--weights is 'pinned' or 'none', got {weights!r}; a file goes with --model NAME=MODEL@FILE")
    return weights == "none"


def _networks(entries: Sequence[str] | None, weights: str) -> Any:
    """The user's own networks by the paper's names; None: the usual ones."""
    from wildtta.paper import Network
    from wildtta.paper.settings import IMAGENET_NETWORKS

    if not entries:
        return None
    networks = {}
    for entry in entries:
        name, equals, place = entry.partition("=")
        if not equals or name not in IMAGENET_NETWORKS:
            raise ValueError(f"--model takes NAME=MODEL with NAME one of {', '.join(IMAGENET_NETWORKS)}; got {entry!r}")
        spec, _, file = place.partition("@")
        options = {"pretrained": False} if _random(weights) else {}
        networks[name] = Network(model=spec, model_options=options, weights=file or None)
    return networks


def _overrides(entries: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    overrides: dict[str, dict[str, Any]] = {}
    for place, value in pairs(entries, "--set").items():
        method, dot, option = place.partition(".")
        if not dot:
            raise ValueError(f"--set takes METHOD.OPTION=VALUE, got {place!r}")
        overrides.setdefault(method, {})[option] = value
    return overrides


def _wanted(
    cell: Cell,
    where: Setting,
    methods: Sequence[str] | None,
    networks: Sequence[str] | None,
    corruptions: Sequence[str] | None,
) -> bool:
    """Whether the filters of the command line leave this cell in."""
    for name in networks or ():
        if name not in where.networks:
            raise ValueError(f"no network {name!r} here; there are {', '.join(where.networks)}")
    for name in methods or ():
        if name not in where.methods:
            raise ValueError(f"unknown method {name!r}; there are {', '.join(sorted(where.methods))}")
    models = {where.networks[name].model for name in networks or ()}
    return (
        (not methods or cell.method in methods)
        and (not models or cell.model in models)
        and (not corruptions or bool(set(cell.corruptions) & set(corruptions)))
    )


def _by_root(
    cells: Sequence[Cell], roots: dict[str, Path | None], usual: Path | None
) -> list[tuple[Path | None, list[Cell]]]:
    """Cells by the folder of their data; those whose folder is not named are left out with a message."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.data if cell.data in roots else "", []).append(cell)
    placed = []
    for data, part in groups.items():
        root = roots[data] if data else usual
        if data and root is None:
            typer.echo(f"{len(part)} cells need {data}: name its folder with --{data}; they are left out", err=True)
            continue
        placed.append((root, part))
    if not placed:
        raise ValueError("no data for any of these cells")
    return placed


def _report(experiments: Sequence[Experiment], where: Setting, rows: Sequence[Row], out: Path) -> None:
    """The tables and claims on the terminal, and everything in files."""
    from wildtta.paper import section
    from wildtta.report.document import gather
    from wildtta.report.terminal import claim_lines, rich_table
    from wildtta.report.writing import write_document

    shown = section(where, rows, [experiment.name for experiment in experiments])
    document = gather(rows, title=f"SAR and SAR² on {where.where}", sections=[shown])
    figures = [replace(figure.table, title=figure.title) for figure in shown.figures if figure.table is not None]
    screen = console(_WIDE)
    for table in (*shown.tables, *figures):
        screen.print(rich_table(table))
        screen.print()
    for line in claim_lines(document.outcomes):
        typer.echo(line)
    typer.echo(f"report: {write_document(document, out).html}")


def _list(where: Setting, rows: Sequence[Row], device: str) -> None:
    """All experiments: name, title, needs, cells, cost."""
    from rich.table import Table

    from wildtta.bench.launching import devices_named
    from wildtta.paper import experiments
    from wildtta.paper.estimate import estimate, measure_pace, measured_rates

    place = devices_named(device)[0]
    small = where.where == "glyphs"
    paces = {}
    for network in {entry.model for entry in where.networks.values()}:
        typer.echo(f"timing a few steps of {network} on {place} ...", err=True)
        paces[network] = measure_pace(network, device=place, side=32 if small else 224, batch=64 if small else 4)
    rates = measured_rates(rows)
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("name", "shows", "needs", "cells", f"cost on {place}"):
        table.add_column(heading, overflow="fold", justify="right" if heading == "cells" else "left")
    for experiment in experiments().values():
        cells = experiment.cells(where)
        needs = "nothing (embedded)" if small else experiment.needs
        table.add_row(experiment.name, experiment.title, needs, str(len(cells)), estimate(cells, paces, rates).words)
    console(_WIDE).print(table)
    typer.echo(f"{len(experiments())} experiments on {where.label}; cells that several share run once")
