"""Tables that compare methods: 1-5, B-E."""

from __future__ import annotations

from wildtta.paper.experiment import ACCURACY, AVERAGE, STREAM_SECONDS, Experiment, Spot
from wildtta.paper.printed import printed
from wildtta.paper.settings import BN, GLYPH_RENDITION, GN, VIT, Setting
from wildtta.paper.spots import (
    CONTINUAL,
    LABEL_SHIFT,
    MILD,
    MIXED,
    RECIPES,
    SINGLE,
    cells_for,
    corruption_table,
    mean_spot,
)

_BN_METHODS = ("NoAdapt", "MEMO", "DDA", "Tent", "EATA")
_ALL_METHODS = (*_BN_METHODS, "ROID", "DeYO", "ReCAP", "SAR", "SAR2")
_SINGLE_METHODS = (*_BN_METHODS, "DeYO", "ReCAP", "SAR", "SAR2")
_APPENDIX_METHODS = (*_BN_METHODS, "SAR", "SAR2")
_COST_METHODS = ("MEMO", "DDA", "TTT", "Tent", "EATA", "SAR", "SAR2", "SAR2-efficient")


def _table_1(setting: Setting) -> list[Spot]:
    rows = ((BN, _BN_METHODS), (GN, _ALL_METHODS), (VIT, _ALL_METHODS))
    return corruption_table(setting, printed("1"), rows, scenario=LABEL_SHIFT, severity=5)


def _table_2(setting: Setting) -> list[Spot]:
    """Passes and seconds on one stream; the last two columns (not printed there) give what the cost buys."""
    table = printed("2")
    measured = (("forward", "cost/forwards"), ("backward", "cost/backwards"), ("gpu_time_s", STREAM_SECONDS))
    spots = []
    for label in _COST_METHODS:
        cells, missing = cells_for(setting, GN, RECIPES[label], scenario=MILD, corruptions=("gaussian_noise",))
        for column, metric in measured:
            value, _ = table.number(GN, label, column)
            spots.append(
                Spot(row=(GN, label), column=column, cells=cells, missing=missing, metric=metric, printed=value)
            )
        spots.append(Spot(row=(GN, label), column="accuracy", cells=cells, missing=missing))
        if label.startswith("SAR2"):
            streams = [
                mean_spot(
                    setting, network, RECIPES[label], row=(GN, label), column="", scenario=MIXED, severity=severity
                )
                for network in (GN, VIT)
                for severity in (5, 3)
            ]
            spots.append(average(streams, (None, None), column="mixed accuracy"))
    return spots


def _table_3(setting: Setting) -> list[Spot]:
    rows = ((BN, _BN_METHODS), (GN, _SINGLE_METHODS), (VIT, _SINGLE_METHODS))
    return corruption_table(setting, printed("3"), rows, scenario=SINGLE, severity=5)


def _table_4(setting: Setting) -> list[Spot]:
    table = printed("4")
    spots: list[Spot] = []
    for label in _ALL_METHODS:
        line = [
            mean_spot(
                setting,
                network,
                RECIPES[label],
                row=(label,),
                column=f"{network}/level{severity}",
                scenario=MIXED,
                severity=severity,
                printed=table.number(None, label, f"{network}/level{severity}"),
            )
            for network in (GN, VIT)
            for severity in (5, 3)
        ]
        spots += [*line, average(line, table.number(None, label, AVERAGE))]
    return spots


def average(line: list[Spot], value: tuple[float | None, float | None], *, column: str = AVERAGE) -> Spot:
    """The mean of a row's spots; its printed number only where theirs are comparable."""
    comparable = all(spot.printed is not None for spot in line)
    return Spot(
        row=line[0].row,
        column=column,
        cells=tuple(cell for spot in line for cell in spot.cells),
        parts=tuple(line),
        metric=line[0].metric,
        missing=next((spot.missing for spot in line if spot.missing), ""),
        printed=value[0] if comparable else None,
        printed_std=value[1] if comparable else None,
    )


def _table_5(setting: Setting) -> list[Spot]:
    table = printed("5")
    spots = []
    for network in (GN, VIT):
        for label in _ALL_METHODS:
            whole = mean_spot(
                setting,
                network,
                RECIPES[label],
                row=(network, label),
                column=AVERAGE,
                scenario=CONTINUAL,
                printed=table.number(network, label, AVERAGE),
            )
            for name in setting.corruptions():
                value, std = table.number(network, label, name)
                spots.append(
                    Spot(
                        row=(network, label),
                        column=name,
                        cells=whole.cells,
                        metric=f"metrics/per_corruption/{name}",
                        missing=whole.missing,
                        printed=value,
                        printed_std=std,
                    )
                )
            spots.append(whole)
    return spots


def _table_b(setting: Setting) -> list[Spot]:
    rows = ((BN, _BN_METHODS), (GN, _APPENDIX_METHODS), (VIT, _APPENDIX_METHODS))
    return corruption_table(setting, printed("B"), rows, scenario=LABEL_SHIFT, severity=3)


def _table_c(setting: Setting) -> list[Spot]:
    rows = ((BN, _BN_METHODS), (GN, _APPENDIX_METHODS), (VIT, _APPENDIX_METHODS))
    return corruption_table(setting, printed("C"), rows, scenario=SINGLE, severity=3)


def _renditions(setting: Setting, name: str, scenario: str) -> list[Spot]:
    """ImageNet-R; elsewhere one corruption outside the 15 plays the part of the natural shift."""
    table = printed(name)
    real = setting.where == "imagenet-c"
    spots = []
    for label in ("NoAdapt", "Tent", "EATA", "SAR", "SAR2"):
        for network in (BN, GN, VIT):
            if network == BN and label.startswith("SAR"):
                continue  # the paper has no such entry
            cells, missing = cells_for(
                setting,
                network,
                RECIPES[label],
                scenario=scenario,
                data="imagenet-r" if real else None,
                corruptions=() if real else (GLYPH_RENDITION,),
            )
            value, std = table.number(None, label, network)
            spots.append(
                Spot(
                    row=(label,),
                    column=network,
                    cells=cells,
                    missing=missing,
                    metric=ACCURACY,
                    printed=value,
                    printed_std=std,
                )
            )
    return spots


def _table_d(setting: Setting) -> list[Spot]:
    return _renditions(setting, "D", LABEL_SHIFT)


def _table_e(setting: Setting) -> list[Spot]:
    return _renditions(setting, "E", SINGLE)


_BIG = "ImageNet-C, 3 networks; MEMO is slow, DDA needs a diffusion model"
_RENDITION_NOTE = f"off ImageNet, the corruption {GLYPH_RENDITION!r} (not one of the 15) plays the natural shift"

TABLES: tuple[Experiment, ...] = (
    Experiment(
        name="table-1",
        title="Class-ordered streams (label shift, ratio ∞), severity 5",
        needs=_BIG,
        plan=_table_1,
    ),
    Experiment(
        name="table-2",
        title="Cost on one stream of Gaussian noise, severity 5",
        needs="ImageNet-C gaussian_noise 5 (all 15 for the mixed column); TTT needs a rotation head",
        plan=_table_2,
        unit="samples passed, seconds",
    ),
    Experiment(name="table-3", title="One sample per step (batch size 1), severity 5", needs=_BIG, plan=_table_3),
    Experiment(
        name="table-4",
        title="Mixture of 15 corruptions, severities 5 and 3",
        needs="ImageNet-C severities 5 and 3, 2 networks",
        plan=_table_4,
        row_names=("method",),
    ),
    Experiment(
        name="table-5",
        title="Continual: 15 corruptions without a reset, class-ordered, severity 5",
        needs="ImageNet-C, 2 networks",
        plan=_table_5,
    ),
)

APPENDIX: tuple[Experiment, ...] = (
    Experiment(
        name="table-b",
        title="Class-ordered streams (label shift, ratio ∞), severity 3",
        needs=_BIG,
        plan=_table_b,
    ),
    Experiment(name="table-c", title="One sample per step (batch size 1), severity 3", needs=_BIG, plan=_table_c),
    Experiment(
        name="table-d",
        title="ImageNet-R, class-ordered",
        needs="ImageNet-R, 3 networks",
        plan=_table_d,
        row_names=("method",),
        note=_RENDITION_NOTE,
    ),
    Experiment(
        name="table-e",
        title="ImageNet-R, one sample per step",
        needs="ImageNet-R, 3 networks",
        plan=_table_e,
        row_names=("method",),
        note=_RENDITION_NOTE,
    ),
)
