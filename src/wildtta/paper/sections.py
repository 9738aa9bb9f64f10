"""The paper's tables, figures and claims for a report, from journal rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from wildtta.bench import Row
from wildtta.bench.unadapted import beside_unadapted
from wildtta.paper.experiment import ECE, Experiment, Spot
from wildtta.paper.registry import experiments
from wildtta.paper.settings import CORRUPTIONS, Setting
from wildtta.paper.view import NotRun, View, decide
from wildtta.report.chart import BarChart, Chart, LineChart
from wildtta.report.command import command_line
from wildtta.report.document import Section
from wildtta.report.figure import Figure
from wildtta.report.names import SHORT_CORRUPTIONS
from wildtta.report.runs import collapsed, look_up
from wildtta.report.table import Better, Column, Number, Table, TableRow, with_best


def asked(experiment: Experiment, setting: Setting) -> dict[str, Any]:
    """What a row's ``asked_by`` says of an experiment."""
    return {"experiment": experiment.name, "setting": setting.to_json()}


def sections(rows: Sequence[Row]) -> list[Section]:
    """A section per setting in which experiments asked for rows (``asked_by``), that with most rows first."""
    found: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        for entry in row.get("asked_by") or ():
            if entry.get("experiment") in experiments():
                # Who asked first for one seed and then for three asked for three.
                place = json.dumps({**entry["setting"], "seeds": None}, sort_keys=True)
                found.setdefault(place, []).append((entry["setting"]["seeds"], entry["experiment"]))
    result = []
    for place, asking in sorted(found.items(), key=lambda item: -len(item[1])):
        seeds, names = max(seeds for seeds, _ in asking), {name for _, name in asking}
        result.append(section(Setting.from_json({**json.loads(place), "seeds": seeds}), rows, names))
    return result


def section(setting: Setting, rows: Sequence[Row], names: Collection[str]) -> Section:
    """Tables, figures and claims of the named experiments in one setting; all other claims were not run."""
    by_key = {row["key"]: row for row in beside_unadapted(rows)}
    views = {name: View(experiment, setting, by_key) for name, experiment in experiments().items()}
    shown = [view for name, view in views.items() if name in names and view.keys]
    others = [view for view in views.values() if view not in shown]
    return Section(
        label=setting.label,
        tables=[table_of(view) for view in shown if view.experiment.draw is None],
        figures=[figure_of(view) for view in shown if view.experiment.draw is not None],
        undecided=[decide(claim, view) for view in others for claim in view.experiment.claims],
        keys=frozenset().union(*(view.keys for view in shown)),
    )


def command_of(experiment: Experiment, setting: Setting) -> str:
    """The command that runs the experiment again."""
    words = ["wildtta", "reproduce", experiment.name, "--on", setting.where]
    if setting.where != "glyphs":
        words += ["--data", "DIR", "--protocol", setting.protocol]
    if setting.scale.name != "full":
        words += ["--quick"] if setting.scale.name == "quick" else ["--scale", setting.scale.name]
    random = any(network.model_options.get("pretrained") is False for network in setting.networks.values())
    weights = "none" if random else None
    return command_line(words, ("--limit", setting.limit), ("--weights", weights), ("--seeds", setting.seeds))


def label_of(words: str) -> str:
    """The paper's row and column names with its typography: ``SAR2`` is SAR²."""
    if words in SHORT_CORRUPTIONS:
        return SHORT_CORRUPTIONS[words]
    for plain, fine in (("SAR2", "SAR²"), ("rho=", "ρ = "), ("alpha=", "α = "), ("beta=", "β = "), ("Avg/", "Avg ")):
        words = words.replace(plain, fine)
    head, slash, tail = words.partition("/")
    if slash:
        return f"{head} {SHORT_CORRUPTIONS.get(tail, tail.replace('level', 'level '))}"
    told = {"gpu_time_s": "seconds", "other": "other computation", "label_shift": "label shift", "bs1": "batch size 1"}
    return told.get(words, words)


def number_at(view: View, spot: Spot) -> Number:
    """A spot as a number of a table."""
    printed = Number(
        printed=spot.printed, printed_std=spot.printed_std, words=spot.words, printed_words=spot.printed_words
    )
    if spot.words:
        return printed
    try:
        value = view.value_at(spot)
    except NotRun as reason:
        return replace(printed, missing=str(reason))
    behind = view.finished(spot)
    return replace(
        printed,
        mean=value.mean,
        std=value.std if value.seeds > 1 else None,
        seeds=value.seeds,
        difference=value.mean - spot.printed if spot.printed is not None and view.setting.same_as_paper else None,
        keys=tuple(row["key"] for row in behind),
        collapsed=len(spot.cells) <= view.setting.seeds and any(map(collapsed, behind)),
    )


def row_label(setting: Setting, label: str) -> str:
    """A row's label; a network by what was run in its place, too."""
    return label_of(setting.title(label) if label in setting.networks else setting.renamed(label))


def images_told(view: View, labels: tuple[str, ...]) -> str:
    """How many images the streams behind a row had: ``4,000`` or ``200 … 3,000``; empty where none was run."""
    behind = (row for spot in view.spots if spot.row == labels for row in view.finished(spot))
    lengths = {look_up(row, "metrics/samples") for row in behind} - {None}
    return " … ".join(f"{length:,}" for length in sorted({min(lengths), max(lengths)})) if lengths else ""


def normalisations_told(view: View) -> str:
    """Over what R was normalised on each network, where a run of the experiment used R."""
    rows = [row for spot in view.spots for row in view.finished(spot)]
    # As the plan names networks; the row's own title may be an older one.
    titles = {cell.key: cell.model_title for spot in view.spots for cell in spot.cells}
    used = {
        (titles[row["key"]], str(look_up(row, "resolved/normalisation")))
        for row in rows
        if look_up(row, "resolved/normalisation") is not None and (row["resolved"].get("redundancy", 1) is not None)
    }
    return "; ".join(f"R over {over} on {network}" for network, over in sorted(used))


def table_of(view: View) -> Table:
    """An experiment's table with its claims; rows that cannot be run here stay, with the reason."""
    experiment = view.experiment
    metrics = {spot.column: spot.metric for spot in reversed(view.spots)}
    usual = {name: place for place, name in enumerate(CORRUPTIONS)}
    # Corruptions in their usual order, then what stands behind them.
    names = sorted(view.columns, key=lambda name: usual.get(name, len(usual)))
    columns = []
    for name in names:
        metric = metrics[name]
        better: Better = "low" if metric == ECE else "high" if metric.startswith("metrics/") else "none"
        digits = 0 if metric.startswith("cost/") else experiment.digits
        columns.append(Column(label=label_of(view.setting.renamed(name)), better=better, digits=digits))
    rows = []
    for labels in view.row_labels:
        places = {spot.column: spot for spot in view.spots if spot.row == labels}
        numbers = tuple(
            number_at(view, places[name]) if name in places else Number(missing="not part of the table")
            for name in names
        )
        rows.append(TableRow(labels=tuple(row_label(view.setting, label) for label in labels), numbers=numbers))
    lengths = [images_told(view, labels) for labels in view.row_labels]
    if len(set(filter(None, lengths))) > 1:
        # Scaled-down runs give slow methods fewer images: every row says how many it saw.
        columns.append(Column(label="images", better="none"))
        rows = [
            replace(row, numbers=(*row.numbers, Number(words=words, missing="not run")))
            for row, words in zip(rows, lengths, strict=True)
        ]
    grouped = experiment.row_names[0] == "model" and len(experiment.row_names) > 1
    return Table(
        name=experiment.name,
        title=f"{experiment.heading}. {view.setting.renamed(experiment.title)}",
        subtitle=view.setting.brief,
        row_names=experiment.row_names,
        columns=tuple(columns),
        rows=with_best(rows, columns, grouped=grouped),
        unit=experiment.unit,
        note="; ".join(filter(None, (experiment.note, normalisations_told(view)))),
        command=command_of(experiment, view.setting),
        comparable=view.setting.same_as_paper,
        printed_on="ImageNet-C and its own networks",
        claims=[decide(claim, view) for claim in experiment.claims],
    )


def renamed_chart(chart: Chart, setting: Setting) -> Chart:
    """A chart with the networks that were run in place of the paper's."""
    changed: dict[str, Any] = {"title": setting.renamed(chart.title)}
    if isinstance(chart, LineChart):
        changed["lines"] = [replace(line, label=setting.renamed(line.label)) for line in chart.lines]
    elif isinstance(chart, BarChart):
        changed |= {name: [*map(setting.renamed, getattr(chart, name))] for name in ("groups", "series")}
    return replace(chart, **changed)


def figure_of(view: View) -> Figure:
    """An experiment's figure, with the reasons for what it lacks and the numbers behind it as a table."""
    experiment = view.experiment
    assert experiment.draw is not None
    table = table_of(view)
    problems = [number.missing for number in table.numbers if number.missing]
    return Figure(
        name=table.name,
        title=table.title,
        subtitle=table.subtitle,
        charts=[renamed_chart(chart, view.setting) for chart in experiment.draw(view)],
        note=table.note,
        problems=list(dict.fromkeys(problems)),
        table=replace(table, title="Numbers behind the figure"),
        claims=table.claims,
    )
