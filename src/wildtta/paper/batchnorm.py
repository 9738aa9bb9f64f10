"""Batch sizes and networks: TTT over batch sizes (table A), Tent on batch norm (P) and on ConvNeXt (Q)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wildtta.paper.checks import along, arrow, flat_row, needs_network, rising
from wildtta.paper.experiment import AVERAGE, Claim, Experiment, Part, Spot
from wildtta.paper.plan import LABEL_SHIFT, LEVELS, MIXED, Stream, by_corruption, place, stand_in
from wildtta.paper.recipes import RECIPES, tent_rate
from wildtta.paper.settings import BN, CONVNEXT, GN, Setting
from wildtta.paper.view import View

_TTT_ROW = "TTT (lr 0.001*BS)"


def _ttt_rates(setting: Setting) -> list[Spot]:
    """A rate of 1e-3 per sample in the batch; the first row, not printed there, is the network left alone."""
    sizes = [size for size in (1, 2, 4, 8, 16) if setting.scale.name == "full" or size in (4, 16)]
    stream: Stream = {"table": "A", "corruptions": ("gaussian_noise",)}
    return [
        place(setting, network, recipe, (network, row), f"bs{size}", batch_size=size, **stream)
        for network in (BN, GN)
        for row in ("NoAdapt", _TTT_ROW)
        for size in sizes
        for recipe in [RECIPES["NoAdapt"] if row == "NoAdapt" else RECIPES["TTT"].with_(lr=1e-3 * size)]
    ]


TABLE_A = Experiment(
    "table-a",
    "TTT with a learning rate that grows with the batch, Gaussian noise",
    _ttt_rates,
    Claim(
        "On batch norm TTT gains with the batch size (21.2 to 24.6)",
        along("BN", lambda values: values[-1] > values[0], BN, _TTT_ROW),
    ),
    Claim(
        "On GN TTT is flat in the batch size (about 41)",
        flat_row("GN", 1.5, GN, _TTT_ROW),
    ),
)


def _larger_batches(setting: Setting) -> Iterator[Spot]:
    """The learning rate stays where it is while the batch grows."""
    network, name = stand_in(setting, BN)
    fixed = RECIPES["Tent"].with_(lr=tent_rate(BN))
    for level, severity in LEVELS.items():
        columns: dict[str, tuple[Any, Stream]] = {"base": ("NoAdapt", {}), "avg_adapt bs64": ("Tent", {})}
        for size in setting.scale.large_batches:
            columns[f"mix bs{size}"] = ("Tent" if size == 64 else fixed, {"scenario": MIXED, "batch_size": size})
        for column, (recipe, stream) in columns.items():
            stream |= {"severity": severity, "table": "P", "printed_as": (name, "Tent")}
            yield place(setting, network, recipe, (name, level), column, **stream)


def _mixed_batches(view: View, level: str) -> dict[int, float]:
    columns = [column for column in view.columns if column.startswith("mix bs")]
    return {int(column.removeprefix("mix bs")): view.mean(BN, level, column) for column in columns}


def _larger_is_better(view: View) -> Iterator[Part]:
    values = list(_mixed_batches(view, "level 5").values())
    yield rising(values), f"level 5: {arrow(values)}"


def _peaks_in_between(view: View) -> Iterator[Part]:
    values = _mixed_batches(view, "level 3")
    peak = max(values, key=values.__getitem__)
    yield min(values) < peak < max(values), f"level 3: {arrow(values.values())}, best at {peak}"


def _mixture_is_below(view: View) -> Iterator[Part]:
    for level in LEVELS:
        top, average = max(_mixed_batches(view, level).values()), view.mean(BN, level, "avg_adapt bs64")
        yield top < average, f"{level}: mixture at best {top:.1f}, one at a time {average:.1f}"


TABLE_P = Experiment(
    "table-p",
    "Tent on batch norm under the mixture, growing batches at a fixed learning rate",
    _larger_batches,
    Claim("At level 5 Tent on batch norm gains from larger batches under the mixture", _larger_is_better),
    Claim("At level 3 it peaks in between (at 256) and then falls", _peaks_in_between),
    Claim("The mixture is always below adapting to one corruption at a time", _mixture_is_below),
    row_names=("model", "severity"),
)


def _convnext(setting: Setting) -> Iterator[Spot]:
    for level, severity in LEVELS.items():
        for used, name in (stand_in(setting, network) for network in (BN, CONVNEXT)):
            for label in ("NoAdapt", "Tent"):
                stream: Stream = {"scenario": LABEL_SHIFT, "severity": severity}
                yield from by_corruption(setting, "Q", used, label, (name, label, level), **stream)


def _tent_on_convnext(view: View) -> Iterator[Part]:
    needs_network(view, CONVNEXT)
    for severity, helped in (("level 5", False), ("level 3", True)):
        alone, tent = (view.mean(CONVNEXT, method, severity, AVERAGE) for method in ("NoAdapt", "Tent"))
        yield (tent > alone) == helped, f"{CONVNEXT} {severity}: {alone:.1f} → {tent:.1f}"


def _tent_ruins_batch_norm(view: View) -> Iterator[Part]:
    for severity in LEVELS:
        alone, tent = (view.mean(BN, method, severity, AVERAGE) for method in ("NoAdapt", "Tent"))
        yield tent < alone / 2, f"{BN} {severity}: {alone:.1f} → {tent:.1f}"


def _convnext_fails(view: View) -> Iterator[Part]:
    needs_network(view, CONVNEXT)
    for level, columns in (("level 5", ("elastic_transform", "frost", "zoom_blur")), ("level 3", ("snow",))):
        for column in columns:
            alone, tent = (view.mean(CONVNEXT, method, level, column) for method in ("NoAdapt", "Tent"))
            yield tent < alone / 2, f"ConvNeXt {column} at {level}: {alone:.1f} → {tent:.1f}"


TABLE_Q = Experiment(
    "table-q",
    "Tent on ConvNeXt and batch norm, class-ordered",
    _convnext,
    Claim("Tent lowers ConvNeXt at level 5 and lifts it at level 3", _tent_on_convnext),
    Claim("Tent ruins batch norm at both levels (18.0 to 2.1, 39.8 to 3.4)", _tent_ruins_batch_norm),
    Claim("ConvNeXt under Tent fails on elastic, frost and zoom at level 5 and on snow at level 3", _convnext_fails),
    row_names=("model", "method", "severity"),
)
