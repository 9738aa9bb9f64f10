"""Figures to look at: 8 (t-SNE), 9 and C (entropy surface), A (the corruptions)."""

from __future__ import annotations

import dataclasses
from typing import Any

from wildtta.bench import Row
from wildtta.paper.experiment import Experiment, NotRun, Spot, View, look_up
from wildtta.paper.settings import CORRUPTIONS, GN, VIT, Setting
from wildtta.paper.spots import LABEL_SHIFT, MILD, RECIPES, Recipe, cells_for
from wildtta.report.chart import Chart, PictureChart, ScatterChart, SurfaceChart

#: The paper says "a smaller learning rate" without the value; a tenth of the ViT rule keeps Tent from collapsing at once.
_GENTLE_TENT = Recipe(method="tent", options={"lr": 1e-4})
_EMBEDDED = (
    ("NoAdapt", RECIPES["NoAdapt"]),
    ("Tent", _GENTLE_TENT),
    ("SAR", RECIPES["SAR"]),
    ("SAR2", RECIPES["SAR2"]),
)
#: Tent's collapse on ResNet50-GN begins after this batch; the paper draws its surface there.
_TENT_CHECKPOINT = 120


def diagnostic(row: Row, name: str) -> dict[str, Any]:
    """A diagnostic of a run, or :class:`NotRun` where it was not made."""
    found = look_up(row, f"diagnostics/{name}")
    if not isinstance(found, dict):
        raise NotRun(f"the run made no {name!r} diagnostic")
    return found


def _figure_8(setting: Setting) -> list[Spot]:
    spots = []
    for label, recipe in _EMBEDDED:
        cells, missing = cells_for(setting, VIT, recipe, scenario=LABEL_SHIFT, corruptions=("snow",), measure=("tsne",))
        spots.append(Spot(row=(VIT, label), column="accuracy", cells=cells[:1], missing=missing))
    return spots


def _draw_8(view: View) -> list[Chart]:
    charts: list[Chart] = []
    for label, _ in _EMBEDDED:
        try:
            found = diagnostic(view.row(VIT, label, "accuracy"), "tsne")
        except NotRun:
            continue
        charts.append(
            ScatterChart(
                title=label.replace("SAR2", "SAR²"),
                x=[point[0] for point in found["points"]],
                y=[point[1] for point in found["points"]],
                group=found["labels"],
                axes=False,
            )
        )
    return charts


def _surface_spots(setting: Setting, network: str, tent_batches: int | None) -> list[Spot]:
    spots = []
    for label in ("Tent", "SAR"):
        run = setting
        if label == "Tent" and tent_batches is not None:
            limit = tent_batches * 64
            longest = setting.scale.limit
            if longest is None or longest > limit:
                run = dataclasses.replace(setting, scale=dataclasses.replace(setting.scale, limit=limit))
        cells, missing = cells_for(
            run, network, RECIPES[label], scenario=MILD, corruptions=("gaussian_noise",), measure=("surface",)
        )
        spots.append(Spot(row=(network, label), column="accuracy", cells=cells[:1], missing=missing))
    return spots


def _draw_surfaces(view: View) -> list[Chart]:
    charts: list[Chart] = []
    for network, label in view.row_labels:
        try:
            found = diagnostic(view.row(network, label, "accuracy"), "surface")
        except NotRun:
            continue
        charts.append(
            SurfaceChart(
                title=f"{label}, {network}",
                x_label="direction 1",
                y_label="direction 2",
                z_label="entropy",
                x=found["axis"],
                y=found["axis"],
                # Rows of the table are the first direction, rows of a picture are the second.
                z=[list(column) for column in zip(*found["entropy"], strict=True)],
                level=lowest_contour(found["entropy"]),
            )
        )
    return charts


def lowest_contour(entropies: list[list[float]]) -> float:
    """The level a tenth of the way from the surface's lowest to its highest point."""
    values = [value for line in entropies for value in line]
    return min(values) + 0.1 * (max(values) - min(values))


def _figure_9(setting: Setting) -> list[Spot]:
    return _surface_spots(setting, VIT, None)


def _figure_c(setting: Setting) -> list[Spot]:
    return _surface_spots(setting, GN, _TENT_CHECKPOINT)


def _figure_a(setting: Setting) -> list[Spot]:
    """What the unadapted network makes of each corruption stands under its picture."""
    spots = []
    for name in CORRUPTIONS:
        cells, missing = cells_for(setting, GN, RECIPES["NoAdapt"], scenario=MILD, corruptions=(name,))
        spots.append(Spot(row=(GN, "NoAdapt"), column=name, cells=cells[:1], missing=missing))
    return spots


def _draw_a(view: View) -> list[Chart]:
    """One embedded image under each corruption: drawn anew, since a journal holds numbers and no pictures."""
    from wildtta.data import corrupt
    from wildtta.glyphs import Glyphs

    names = [name for name in CORRUPTIONS if view.has(GN, "NoAdapt", name)]
    if not names:
        return []
    clean = Glyphs(16, seed=0).images([5])
    pictures = [clean[0].permute(1, 2, 0).numpy()]
    captions = ["clean"]
    for name in names:
        pictures.append(corrupt(clean, name, 5, seed=0)[0].permute(1, 2, 0).numpy())
        captions.append(f"{name.replace('_', ' ')} · {view.mean(GN, 'NoAdapt', name):.1f} %")
    return [PictureChart(title="severity 5, and the accuracy without adaptation", pictures=pictures, captions=captions)]


FIGURES: tuple[Experiment, ...] = (
    Experiment(
        name="figure-8",
        title="Features after adaptation (t-SNE, 20 classes), snow, class-ordered",
        needs="ImageNet-C snow 5, ViT; scikit-learn",
        plan=_figure_8,
        draw=_draw_8,
        note="colours are true classes; Tent runs at a tenth of its rate",
    ),
    Experiment(
        name="figure-9",
        title="Entropy surface around the adapted weights, Gaussian noise, ViT",
        needs="ImageNet-C gaussian_noise 5, ViT",
        plan=_figure_9,
        draw=_draw_surfaces,
    ),
    Experiment(
        name="figure-a",
        title="The 15 corruptions",
        needs="nothing for the pictures (an embedded image); ImageNet-C severity 5 for the accuracies",
        plan=_figure_a,
        draw=_draw_a,
        note="pictures show an embedded glyph whatever the data",
    ),
    Experiment(
        name="figure-c",
        title="Entropy surface around the adapted weights, Gaussian noise, ResNet50-GN",
        needs="ImageNet-C gaussian_noise 5, ResNet50-GN",
        plan=_figure_c,
        draw=_draw_surfaces,
        note=f"Tent stops at batch {_TENT_CHECKPOINT}, where its collapse begins",
    ),
)
