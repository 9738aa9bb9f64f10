"""Tables about networks rather than methods: A, L, M, P, Q."""

from __future__ import annotations

from wildtta.paper.experiment import TOP_CLASS, Experiment, Spot
from wildtta.paper.printed import printed
from wildtta.paper.settings import BN, CONVNEXT, GN, VIT, Setting
from wildtta.paper.spots import (
    LABEL_SHIFT,
    MILD,
    MIXED,
    RECIPES,
    cells_for,
    corruption_row,
    mean_spot,
    stand_in,
)

_TENT_RATE = 2.5e-4


def _table_a(setting: Setting) -> list[Spot]:
    """TTT with a rate of 1e-3 per sample in the batch; the first row, not printed there, is the network left alone."""
    table = printed("A")
    spots = []
    sizes = [size for size in (1, 2, 4, 8, 16) if setting.scale.name == "full" or size in (4, 16)]
    for network in (BN, GN):
        for label, row in (("NoAdapt", "NoAdapt"), ("TTT", "TTT (lr 0.001*BS)")):
            for size in sizes:
                options = {"lr": 1e-3 * size} if label == "TTT" else {}
                cells, missing = cells_for(
                    setting,
                    network,
                    RECIPES[label],
                    options=options,
                    scenario=MILD,
                    corruptions=("gaussian_noise",),
                    batch_size=size,
                )
                value, _ = table.number(network, row, f"bs{size}")
                spots.append(Spot(row=(network, row), column=f"bs{size}", cells=cells, missing=missing, printed=value))
    return spots


_COLLAPSES = {
    GN: ("gaussian_noise", "shot_noise", "impulse_noise", "fog", "elastic_transform"),
    VIT: ("shot_noise", "snow", "frost"),
}


def _table_l(setting: Setting) -> list[Spot]:
    table = printed("L")
    rows = (
        ("initial inequity class", "NoAdapt", "diagnostics/health/inequity_class", ("health",)),
        ("Tent collapse class", "Tent", TOP_CLASS, ()),
    )
    spots = []
    for row, label, metric, measure in rows:
        for network, corruptions in _COLLAPSES.items():
            for name in corruptions:
                cells, missing = cells_for(
                    setting, network, RECIPES[label], scenario=MILD, corruptions=(name,), measure=measure
                )
                value, _ = table.number(None, row, f"{network}/{name}")
                # A class index has no mean over seeds: the first seed's counts.
                spots.append(
                    Spot(
                        row=(row,),
                        column=f"{network}/{name}",
                        cells=cells[:1],
                        metric=metric,
                        missing=missing,
                        printed=value,
                    )
                )
    return spots


def _table_m(setting: Setting) -> list[Spot]:
    table = printed("M")
    spots = []
    for row, label in (("NoAdapt", "NoAdapt"), ("Tent Adapted", "Tent")):
        for network in (GN, BN):
            cells, missing = cells_for(
                setting,
                network,
                RECIPES[label],
                scenario=MILD,
                corruptions=("gaussian_noise",),
                measure=("sparsity",),
            )
            for level in ("0.1", "0.01", "0.001"):
                value, _ = table.number(None, row, f"{network}/m={level}")
                spots.append(
                    Spot(
                        row=(row,),
                        column=f"{network}/m={level}",
                        cells=cells,
                        metric=f"diagnostics/sparsity/{level}",
                        missing=missing,
                        printed=value,
                    )
                )
    return spots


def _table_p(setting: Setting) -> list[Spot]:
    """The learning rate stays where it is while the batch grows."""
    table = printed("P")
    network, name = stand_in(setting, BN)
    spots = []
    for severity in (5, 3):
        row = (name, f"level {severity}")

        def number(column: str, severity: int = severity) -> tuple[float | None, float | None]:
            return table.number(BN, "Tent", column, severity=severity) if name == BN else (None, None)

        for column, label in (("base", "NoAdapt"), ("avg_adapt bs64", "Tent")):
            spots.append(
                mean_spot(
                    setting,
                    network,
                    RECIPES[label],
                    row=row,
                    column=column,
                    scenario=MILD,
                    severity=severity,
                    printed=number(column),
                )
            )
        spots += [
            mean_spot(
                setting,
                network,
                RECIPES["Tent"],
                row=row,
                column=f"mix bs{size}",
                scenario=MIXED,
                severity=severity,
                printed=number(f"mix bs{size}"),
                batch_size=size,
                options=None if size == 64 else {"lr": _TENT_RATE},
            )
            for size in setting.scale.large_batches
        ]
    return spots


def _table_q(setting: Setting) -> list[Spot]:
    table = printed("Q")
    spots: list[Spot] = []
    for severity in (5, 3):
        for network in (BN, CONVNEXT):
            used, name = stand_in(setting, network)
            for label in ("NoAdapt", "Tent"):
                line = corruption_row(
                    setting,
                    table,
                    used,
                    label,
                    scenario=LABEL_SHIFT,
                    severity=severity,
                    row=(name, label, f"level {severity}"),
                )
                spots += line
    return spots


TABLES: tuple[Experiment, ...] = (
    Experiment(
        name="table-a",
        title="TTT with a learning rate that grows with the batch, Gaussian noise",
        needs="ImageNet-C gaussian_noise 5, 2 networks; rotation heads for TTT",
        plan=_table_a,
    ),
    Experiment(
        name="table-l",
        title="The class that the mean feature favours before adaptation, and the class Tent collapses to",
        needs="ImageNet-C severity 5, 2 networks",
        plan=_table_l,
        row_names=("class",),
        unit="class index",
    ),
    Experiment(
        name="table-m",
        title="Feature dimensions near zero (mean |z| < m), before and after Tent, Gaussian noise",
        needs="ImageNet-C gaussian_noise 5, 2 networks",
        plan=_table_m,
        row_names=("method",),
        unit="% of dimensions",
    ),
    Experiment(
        name="table-p",
        title="Tent on batch norm under the mixture, growing batches at a fixed learning rate",
        needs="ImageNet-C severities 5 and 3, ResNet50-BN",
        plan=_table_p,
        row_names=("model", "severity"),
    ),
    Experiment(
        name="table-q",
        title="Tent on ConvNeXt and batch norm, class-ordered",
        needs="ImageNet-C severities 5 and 3, ResNet50-BN and ConvNeXt-B",
        plan=_table_q,
        row_names=("model", "method", "severity"),
    ),
)
