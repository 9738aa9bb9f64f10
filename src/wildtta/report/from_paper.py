"""The paper's tables, figures and claims from journal rows, for every setting that the rows turn out to belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wildtta.bench import Cell, Row
from wildtta.paper import (
    Experiment,
    Network,
    NotRun,
    Outcome,
    Setting,
    Spot,
    View,
    claims,
    decide,
    experiments,
    setting,
)
from wildtta.paper.experiment import ECE
from wildtta.paper.settings import CORRUPTIONS, FILES, IMAGENET_NETWORKS, Where, network_of, scale_named
from wildtta.report.chart import Figure
from wildtta.report.names import paper_label
from wildtta.report.table import Better, Column, Number, Table, TableRow, with_best

_SCALES = ("full", "quick", "tiny")
_OF_WHERE: dict[str, Where] = {
    "glyphs": "glyphs",
    "imagenet-c": "imagenet-c",
    "imagenet-r": "imagenet-c",
    "imagenet": "imagenet-c",
    "folder": "folder",
}


@dataclass(frozen=True, kw_only=True)
class PaperPart:
    """What one setting's rows show of the paper."""

    setting: Setting
    tables: Sequence[Table]
    figures: Sequence[Figure]
    outcomes: Sequence[Outcome]
    keys: frozenset[str]


def settings_in(rows: Sequence[Row]) -> list[Setting]:
    """The settings of the paper's experiments that these rows come from, the one with most rows first.

    A journal names cells, not experiments, but ``wildtta reproduce`` titles its networks by the paper's names; so every
    combination of scale, data, preprocessing and networks that such rows have is tried, and kept where it explains rows
    that no better one does. Other rows never become a table of the paper, however much they look like one.
    """
    everything = [Cell.from_json(row["cell"]) for row in rows]
    cells = [cell for cell in everything if network_of(cell.model_name)]
    chosen, covered = _explain(cells, cut=False)
    rest = [cell for cell in cells if cell.key not in covered]
    # Streams cut by --limit fit no scale as it is: try their own lengths on what is left.
    return chosen + _explain(rest, cut=True)[0]


def _explain(cells: Sequence[Cell], *, cut: bool) -> tuple[list[Setting], set[str]]:
    """Settings that explain cells, and the keys that they explain; ``cut``: with the stream lengths that occur."""
    present = {cell.key for cell in cells}
    candidates = []
    for cell_data, protocol in sorted({(cell.data, cell.protocol) for cell in cells}):
        where = _OF_WHERE.get(cell_data)
        if where is None:
            continue
        of_data = [cell for cell in cells if (cell.data, cell.protocol) == (cell_data, protocol)]
        seeds = 1 + max(cell.seed for cell in of_data)
        methods = {cell.method for cell in of_data}
        for networks in _networks_in(of_data):
            lengths = sorted({cell.limit for cell in of_data if cell.limit is not None}) if cut else [None]
            for scale in _SCALES:
                if not cut and not _plausible(scale, where, of_data):
                    continue
                candidates += [
                    setting(
                        where, scale=scale, seeds=seeds, protocol=protocol, limit=length, networks=networks,
                        methods=sorted(methods),
                        overrides=_files_in(of_data),
                    )
                    for length in lengths
                ]  # fmt: skip
    explained = []
    for candidate in candidates:
        keys = {cell.key for experiment in experiments().values() for cell in experiment.cells(candidate)}
        explained.append((candidate, keys & present))
    # Larger explanations first; between equals the scale's own stream lengths before a cut.
    explained.sort(key=lambda pair: (-len(pair[1]), _SCALES.index(pair[0].scale.name), _is_cut(pair[0])))
    chosen: list[Setting] = []
    covered: set[str] = set()
    for candidate, keys in explained:
        if keys - covered:
            chosen.append(candidate)
            covered |= keys
    return chosen, covered


def _plausible(scale: str, where: Where, cells: Sequence[Cell]) -> bool:
    """Whether any stream has a length of this scale: cheap to ask before thousands of cells are planned."""
    size = scale_named(scale, where)
    lengths = {size.limit, size.single_limit, size.mixed_limit}
    return any(
        cell.scenario_options.get("draws") == size.draws if "label_shift" in cell.scenario else cell.limit in lengths
        for cell in cells
    )


def _is_cut(candidate: Setting) -> bool:
    return candidate.scale != scale_named(candidate.scale.name, candidate.where)


def _networks_in(cells: Sequence[Cell]) -> list[dict[str, Network]]:
    """The networks by the paper's names, one table per way of making them (trained or random weights)."""
    ways: dict[str, dict[str, Network]] = {}
    for cell in cells:
        name = network_of(cell.model_name)
        if name is None:
            continue
        way = ways.setdefault(str(sorted(cell.model_options.items())), {})
        network = Network(model=cell.model, model_options=cell.model_options, weights=cell.weights)
        way.setdefault(name, network)
    return [{name: way[name] for name in IMAGENET_NETWORKS if name in way} for way in ways.values()]


def _files_in(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """What was given to methods that cannot run without a file, per network."""
    return {
        f"{cell.method}@{network_of(cell.model_name)}": {FILES[cell.method][0]: cell.options[FILES[cell.method][0]]}
        for cell in cells
        if cell.method in FILES and FILES[cell.method][0] in cell.options
    }


def paper_part(where: Setting, rows: Sequence[Row], names: Collection[str] | None = None) -> PaperPart:
    """Tables, figures and claims of one setting: the named experiments, or those that the rows are about."""
    by_key = {row["key"]: row for row in rows}
    views = {name: View(experiment, where, by_key) for name, experiment in experiments().items()}
    found = {
        name: {cell.key for spot in view.spots for cell in spot.cells if cell.key in by_key}
        for name, view in views.items()
    }
    chosen = set(names) if names is not None else _about(views, found)
    shown = [view for name, view in views.items() if name in chosen and found[name]]
    return PaperPart(
        setting=where,
        tables=[table_of(view) for view in shown if view.experiment.draw is None],
        figures=[figure_of(view) for view in shown if view.experiment.draw is not None],
        outcomes=[decide(claim, experiments()[claim.experiment], where, by_key) for claim in claims()],
        keys=frozenset().union(*(found[view.experiment.name] for view in shown)),
    )


def _about(views: Mapping[str, View], found: Mapping[str, set[str]]) -> set[str]:
    """Experiments of which at least half was run, and, for rows in none of them, those that hold most of these rows.

    Tables share cells: running one leaves fragments of many others, which nobody asked for.
    """
    planned = {name: len({cell.key for spot in view.spots for cell in spot.cells}) for name, view in views.items()}
    chosen = {name for name, keys in found.items() if keys and len(keys) >= planned[name] / 2}
    rest = set().union(*found.values()) - set().union(*(found[name] for name in chosen))
    while rest:
        best = max(found, key=lambda name: len(found[name] & rest))
        chosen.add(best)
        rest -= found[best]
    return chosen


def paper_parts(rows: Sequence[Row]) -> list[PaperPart]:
    """One part per setting found in the rows."""
    return [paper_part(where, rows) for where in settings_in(rows)]


def command_of(experiment: Experiment, where: Setting) -> str:
    """The command that runs the experiment again."""
    words = ["wildtta", "reproduce", experiment.name, "--on", where.where]
    if where.where != "glyphs":
        words += ["--data", "DIR", "--protocol", where.protocol]
    if where.scale.name != "full":
        words += ["--quick"] if where.scale.name == "quick" else ["--scale", where.scale.name]
    if _is_cut(where) and where.scale.limit is not None:
        words += ["--limit", str(where.scale.limit)]
    if any(network.model_options.get("pretrained") is False for network in where.networks.values()):
        words += ["--weights", "none"]
    return " ".join([*words, "--seeds", str(where.seeds)])


def _column(experiment: Experiment, label: str, spots: Sequence[Spot]) -> Column:
    metric = spots[0].metric
    better: Better = "high" if metric.startswith("metrics/") and metric != ECE else "none"
    if metric == ECE:
        better = "low"
    digits = 0 if metric.startswith("cost/") or experiment.unit == "class index" else 1
    if experiment.name == "figure-d":
        digits = 3
    return Column(label=paper_label(label), better=better, digits=digits)


def number_at(view: View, spot: Spot) -> Number:
    """A spot as a number of a table."""
    comparable = view.setting.same_as_paper
    behind = view.finished(spot)
    keys = tuple(row["key"] for row in behind)
    collapsed = any((row.get("metrics") or {}).get("collapsed") for row in behind)
    try:
        value = view.value_at(spot)
    except NotRun as reason:
        return Number(missing=str(reason), printed=spot.printed, printed_std=spot.printed_std)
    return Number(
        mean=value.mean,
        std=value.std if value.seeds > 1 else None,
        seeds=value.seeds,
        printed=spot.printed,
        printed_std=spot.printed_std,
        difference=value.mean - spot.printed if comparable and spot.printed is not None else None,
        keys=keys,
        collapsed=collapsed and len(spot.cells) <= view.setting.seeds,
    )


def table_of(view: View) -> Table:
    """An experiment's table; rows that cannot be run here stay, with the reason."""
    experiment = view.experiment
    by_column: dict[str, list[Spot]] = {}
    for spot in view.spots:
        by_column.setdefault(spot.column, []).append(spot)
    names = view.columns
    if set(names) & set(CORRUPTIONS):
        names = [name for name in CORRUPTIONS if name in names] + [name for name in names if name not in CORRUPTIONS]
    columns = tuple(_column(experiment, name, by_column[name]) for name in names)
    rows = []
    for labels in view.row_labels:
        places = {spot.column: spot for spot in view.spots if spot.row == labels}
        numbers = tuple(
            number_at(view, places[name]) if name in places else Number(missing="not part of the table")
            for name in names
        )
        rows.append(TableRow(labels=tuple(paper_label(label) for label in labels), numbers=numbers))
    grouped = experiment.row_names[0] == "model" and len(experiment.row_names) > 1
    return Table(
        name=experiment.name,
        title=f"{experiment.heading}. {experiment.title}",
        subtitle=view.setting.brief,
        row_names=experiment.row_names,
        columns=columns,
        rows=with_best(rows, columns, grouped=grouped),
        unit=experiment.unit,
        note=experiment.note,
        command=command_of(experiment, view.setting),
        comparable=view.setting.same_as_paper,
    )


def figure_of(view: View) -> Figure:
    """An experiment's figure, with the reasons for what it lacks and the numbers behind it as a table."""
    experiment = view.experiment
    assert experiment.draw is not None
    problems = [number.missing for spot in view.spots if (number := number_at(view, spot)).missing]
    return Figure(
        name=experiment.name,
        title=f"{experiment.heading}. {experiment.title}",
        subtitle=view.setting.brief,
        charts=experiment.draw(view),
        note=experiment.note,
        problems=list(dict.fromkeys(problems)),
        table=dataclasses.replace(table_of(view), title="Numbers behind the figure"),
    )
