"""Figures to look at: features (8), entropy surfaces (9, C) and the corruptions (A)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wildtta.paper.checks import rising
from wildtta.paper.experiment import Claim, Experiment, Part, Spot, later
from wildtta.paper.plan import LABEL_SHIFT, Stream, one_stream, place
from wildtta.paper.recipes import RECIPES
from wildtta.paper.settings import CORRUPTIONS, GN, VIT, Setting
from wildtta.paper.view import TooShort, View
from wildtta.report.chart import Chart, PictureChart, ScatterChart, SurfaceChart

#: The paper says "a smaller learning rate" without a value. At a tenth of its rate Tent does not collapse at once.
_EMBEDDED = {
    "NoAdapt": RECIPES["NoAdapt"],
    "Tent": RECIPES["Tent"].with_(lr=1e-4),
    "SAR": RECIPES["SAR"],
    "SAR2": RECIPES["SAR2"],
}
#: Tent's collapse on ResNet50-GN begins after this batch; the paper draws its surface there.
_TENT_CHECKPOINT = 120
Surface = Sequence[Sequence[float]]


def _draw_embeddings(view: View) -> Iterator[Chart]:
    for label in _EMBEDDED:
        found = view.recorded("diagnostics/tsne", VIT, label, "accuracy")
        if found:
            x, y = zip(*found["points"], strict=True)
            title = label.replace("SAR2", "SAR²")
            yield ScatterChart(title=title, x=x, y=y, group=found["labels"], axes=False)


def separability(points: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """Percent of points whose nearest neighbour (not the point itself) has their class."""
    place, truth = np.asarray(points, dtype=float), np.asarray(labels)
    distance = ((place[:, None] - place[None]) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    return 100 * float((truth[distance.argmin(1)] == truth).mean())


def _classes_separate(view: View) -> Iterator[Part]:
    found = {label: view.record("diagnostics/tsne", VIT, label, "accuracy") for label in _EMBEDDED}
    values = {label: separability(one["points"], one["labels"]) for label, one in found.items()}
    told = ", ".join(f"{label} {value:.1f} %" for label, value in values.items())
    yield rising(list(values.values())), f"nearest neighbour of the same class: {told}"


def _one_cluster(view: View) -> Iterator[Part]:
    shares = {label: view.record("metrics/top_class_share", VIT, label, "accuracy") for label in _EMBEDDED}
    told = ", ".join(f"{label} {share:.0f} %" for label, share in shares.items())
    yield max(shares, key=shares.__getitem__) == "Tent", f"share of the class predicted most: {told}"


FIGURE_8 = Experiment(
    "figure-8",
    "Features after adaptation (t-SNE, 20 classes), snow, class-ordered",
    one_stream([VIT], _EMBEDDED, scenario=LABEL_SHIFT, corruptions=("snow",), measure=("tsne",), seeds=1),
    Claim("Classes separate better in the order no adaptation, Tent, SAR, SAR²", _classes_separate),
    Claim("Tent gathers its samples in one big cluster", _one_cluster),
    draw=_draw_embeddings,
    note="colours are true classes; Tent runs at a tenth of its rate",
)


@later
def _surfaces(setting: Setting, network: str, tent_batches: int | None = None) -> list[Spot]:
    stream: Stream = {"corruptions": ("gaussian_noise",), "measure": ("surface",), "seeds": 1}
    most = {"Tent": tent_batches and 64 * tent_batches, "SAR": None}
    return [
        place(setting, network, label, (network, label), "accuracy", most=limit, **stream)
        for label, limit in most.items()
    ]


def _draw_surfaces(view: View) -> Iterator[Chart]:
    for network, label in view.row_labels:
        found = view.recorded("diagnostics/surface", network, label, "accuracy")
        if found:
            yield SurfaceChart(
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


def lowest_contour(entropies: Surface) -> float:
    """The level a tenth of the way from the surface's lowest to its highest point."""
    return float(np.min(entropies) + 0.1 * np.ptp(entropies))


def area_inside(entropies: Surface, level: float) -> float:
    """Percent of the plane whose entropy is below a level."""
    return 100 * float((np.asarray(entropies) < level).mean())


def _entropies(view: View) -> dict[str, Surface]:
    return {row[-1]: view.record("diagnostics/surface", *row, "accuracy")["entropy"] for row in view.row_labels}


def _larger_area(view: View) -> Iterator[Part]:
    areas = {label: area_inside(table, lowest_contour(table)) for label, table in _entropies(view).items()}
    told = f"Tent {areas['Tent']:.1f} %, SAR {areas['SAR']:.1f} % of the plane"
    points = np.size(next(iter(_entropies(view).values())))
    if abs(areas["SAR"] - areas["Tent"]) * points / 100 < 1.5:
        raise TooShort(f"inside the lowest contour: {told}: one of {points} points of the grid at most apart")
    yield areas["SAR"] > areas["Tent"], f"inside the lowest contour: {told}"


FIGURE_9 = Experiment(
    "figure-9",
    "Entropy surface around the adapted weights, Gaussian noise, ViT",
    _surfaces(VIT),
    Claim("The lowest contour encloses a larger area for SAR than for Tent", _larger_area),
    draw=_draw_surfaces,
)


def _proper_minimum(view: View) -> Iterator[Part]:
    """SAR's lowest point lies inside, Tent's on the rim of the plane."""
    for label, table in _entropies(view).items():
        entropies = np.asarray(table)
        place = np.unravel_index(entropies.argmin(), entropies.shape)
        inside = all(0 < i < size - 1 for i, size in zip(place, entropies.shape, strict=True))
        yield inside == (label == "SAR"), f"{label} has {'a minimum inside' if inside else 'its minimum on the rim'}"


FIGURE_C = Experiment(
    "figure-c",
    "Entropy surface around the adapted weights, Gaussian noise, ResNet50-GN",
    _surfaces(GN, _TENT_CHECKPOINT),
    Claim("On GN Tent's surface has no proper minimum, SAR's has", _proper_minimum),
    draw=_draw_surfaces,
    note=f"Tent stops at batch {_TENT_CHECKPOINT}, where its collapse begins",
)


def _corruptions(setting: Setting) -> list[Spot]:
    """What the unadapted network makes of each corruption stands under its picture."""
    return [place(setting, GN, "NoAdapt", (GN, "NoAdapt"), name, corruptions=(name,), seeds=1) for name in CORRUPTIONS]


def _draw_corruptions(view: View) -> Iterator[Chart]:
    """One embedded image under each corruption: drawn anew, since a journal holds numbers and no pictures."""
    from wildtta.data import corrupt
    from wildtta.glyphs import Glyphs

    known = view.known_line(GN, "NoAdapt")
    if not known:
        return
    clean = Glyphs(16, seed=0).images([5])
    images = {"clean": clean}
    for name, accuracy in known.items():
        images[f"{name.replace('_', ' ')} · {accuracy.mean:.1f} %"] = corrupt(clean, name, 5, seed=0)
    pictures = [batch[0].permute(1, 2, 0).numpy() for batch in images.values()]
    title = "severity 5, and the accuracy without adaptation"
    yield PictureChart(title=title, pictures=pictures, captions=list(images))


FIGURE_A = Experiment(
    "figure-a",
    "The 15 corruptions",
    _corruptions,
    draw=_draw_corruptions,
    note="pictures show an embedded glyph whatever the data",
)
