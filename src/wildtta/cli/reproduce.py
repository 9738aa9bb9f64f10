"""``wildtta reproduce``: the paper's tables and figures by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from wildtta.bench import BenchError, Cell, Row, read
from wildtta.bench.errors import refuse_unknown
from wildtta.bench.launching import devices_named
from wildtta.cli.launching import Launch, console, exit_code, one_line_errors, pairs, print_table, runs_cells
from wildtta.paper import (
    Experiment,
    Network,
    Setting,
    Where,
    asked,
    experiments,
    needs,
    section,
    select,
    setting,
    unique,
)
from wildtta.paper.estimate import estimate, measure_pace, measured_rates
from wildtta.paper.settings import EPISODIC, IMAGENET_NETWORKS, SLOW
from wildtta.report.document import gather
from wildtta.report.terminal import claim_lines
from wildtta.report.writing import require_packages, write_document

_WIDE = 160


def register(app: typer.Typer) -> None:
    app.command("reproduce")(runs_cells(reproduce))


def reproduce(
    launch: Launch,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="table-1 … table-9, table-a … table-r, figure-1 … figure-9, figure-a … figure-e, or all; run in this order."
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Name all 41 with what each needs and costs.")] = False,
    on: Annotated[str, typer.Option(help="glyphs (embedded, scaled down), imagenet-c, or folder.")] = "glyphs",
    imagenet_r: Annotated[Path | None, typer.Option(help="ImageNet-R, for tables D and E.", metavar="DIR")] = None,
    imagenet: Annotated[Path | None, typer.Option(help="Clean validation images (figure D).", metavar="DIR")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short streams, few corruptions, one seed: minutes.")] = False,
    scale: Annotated[str, typer.Option(help="full, short (as on glyphs), brief, quick or tiny.")] = "full",
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
    report: Annotated[bool, typer.Option(help="Print and write the report at the end.")] = True,
) -> None:
    """Run tables and figures of the paper and write a report on them.

    Cells that several tables share run once. After a kill, or when --seconds are over, the same command goes on
    with what is missing. Experiments run in the order of their names (table-7 all: first table 7, then the rest),
    but MEMO, TTT and DDA, with dozens of passes per image, after everything else. Rows whose method or network is
    missing on the chosen data are listed as not available. Exit code: 0 all done, 1 some cells failed, 2 the
    request cannot be run, 3 the time was up.
    """
    book = journal or Path("runs") / f"reproduce-{on}.jsonl"
    with one_line_errors(book):
        where = setting(
            cast(Where, on),
            scale="quick" if quick else scale,
            seeds=seeds,
            protocol=protocol,
            limit=limit,
            random_weights=weights == "none",
            networks=_networks(model, weights),
            overrides=_overrides(set_),
        )
        if listing or not names:
            _list(where, read(book) if book.exists() else [], launch.device)
            return
        if report:
            require_packages()
        chosen = select([name.lower() for name in names])
        wanted = _filter(where, method or (), network or (), corruption or ())
        cells: list[Cell] = []
        askers: dict[str, list[dict[str, Any]]] = {}
        for experiment in chosen:
            for cell in filter(wanted, experiment.cells(where)):
                cells.append(cell)
                askers.setdefault(cell.key, []).append(asked(experiment, where))
        if not cells:
            raise BenchError("nothing of this can be run here: every row lacks its method, network or corruption")
        cells.sort(key=lambda cell: (cell.method in SLOW, cell.method in EPISODIC))
        outcomes = [
            launch(part, journal=book, root=root, asked_by=askers)
            for root, part in _by_root(unique(cells), {"imagenet-r": imagenet_r, "imagenet": imagenet}, launch.root)
        ]
        rows = [row for outcome in outcomes for row in outcome.rows]
        if report:
            _report(chosen, where, rows, out or book.with_suffix(""))
    raise typer.Exit(exit_code(*outcomes))


def _networks(entries: Sequence[str] | None, weights: str) -> dict[str, Network] | None:
    """The user's own networks by the paper's names; None: the usual ones."""
    if weights not in ("pinned", "none"):
        raise ValueError(f"--weights is 'pinned' or 'none', got {weights!r}; a file goes with --model NAME=MODEL@FILE")
    networks = {}
    for entry in entries or ():
        name, equals, place = entry.partition("=")
        if not equals or name not in IMAGENET_NETWORKS:
            raise ValueError(f"--model takes NAME=MODEL with NAME one of {', '.join(IMAGENET_NETWORKS)}; got {entry!r}")
        spec, _, file = place.partition("@")
        options = {"pretrained": False} if weights == "none" else {}
        networks[name] = Network(model=spec, model_options=options, weights=file or None)
    return networks or None


def _overrides(entries: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    overrides: dict[str, dict[str, Any]] = {}
    for place, value in pairs(entries, "--set").items():
        method, dot, option = place.partition(".")
        if not dot:
            raise ValueError(f"--set takes METHOD.OPTION=VALUE, got {place!r}")
        overrides.setdefault(method, {})[option] = value
    return overrides


def _filter(
    where: Setting, methods: Sequence[str], networks: Sequence[str], corruptions: Sequence[str]
) -> Callable[[Cell], bool]:
    """Whether a cell has one of these methods, networks and corruptions; none of a kind: whichever it has."""
    refuse_unknown(networks, where.networks, "no network {} here")
    refuse_unknown(methods, sorted(where.methods), "unknown method {}")
    models = {where.networks[name].model for name in networks}
    return lambda cell: (
        (not methods or cell.method in methods)
        and (not models or cell.model in models)
        and (not corruptions or not set(corruptions).isdisjoint(cell.corruptions))
    )


def _by_root(
    cells: Sequence[Cell], roots: dict[str, Path | None], usual: Path | None
) -> Iterable[tuple[Path | None, list[Cell]]]:
    """Cells by the folder that holds their data; those whose folder is not named are left out with a message."""
    lacking = Counter(cell.data for cell in cells if roots.get(cell.data, ...) is None)
    for data, count in lacking.items():
        typer.echo(f"{count} cells need {data}: name its folder with --{data}; they are left out", err=True)
    placed: dict[Path | None, list[Cell]] = {}
    for cell in cells:
        if cell.data not in lacking:
            placed.setdefault(roots.get(cell.data, usual), []).append(cell)
    if not placed:
        raise ValueError("no data for any of these cells")
    return placed.items()


def _report(experiments: Sequence[Experiment], where: Setting, rows: Sequence[Row], out: Path) -> None:
    """The tables and claims on the terminal, and everything in files."""
    shown = section(where, rows, [experiment.name for experiment in experiments])
    document = gather(rows, title=f"SAR and SAR² on {where.where}", sections=[shown])
    figures = [replace(figure.table, title=figure.title) for figure in shown.figures if figure.table is not None]
    for table in (*shown.tables, *figures):
        print_table(table)
        typer.echo()
    for line in claim_lines(document.outcomes):
        typer.echo(line)
    typer.echo(f"report: {write_document(document, out).html}")


def _list(where: Setting, rows: Sequence[Row], device: str) -> None:
    """All experiments: name, title, needs, cells, cost."""
    from rich.table import Table

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
        cost = estimate(cells, paces, rates).words
        table.add_row(experiment.name, experiment.title, needs(experiment, where), str(len(cells)), cost)
    console(_WIDE).print(table)
    every = unique(cell for experiment in experiments().values() for cell in experiment.cells(where))
    done = {row["key"] for row in rows if row["status"] == "ok"}
    left = [cell for cell in every if cell.key not in done]
    typer.echo(f"{len(experiments())} experiments on {where.label}")
    typer.echo(
        f"all: {len(every)} cells, since several share some; {len(left)} to run, {estimate(left, paces, rates).words}, "
        "one after the other"
    )
