"""Claims about figures 8, 9 and C."""

from __future__ import annotations

from collections.abc import Sequence

from wildtta.paper.claim import Claim, Verdict, claim, rising
from wildtta.paper.experiment import View, look_up
from wildtta.paper.figures_picture import diagnostic, lowest_contour
from wildtta.paper.settings import VIT


def separability(points: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """Share of points (percent) whose nearest neighbour has their class: 1-NN, leaving the point itself out."""
    import numpy as np

    place, truth = np.asarray(points, dtype=float), np.asarray(labels)
    distance = ((place[:, None] - place[None]) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    return 100 * float((truth[distance.argmin(1)] == truth).mean())


def _separabilities(view: View) -> dict[str, float]:
    values = {}
    for label in ("NoAdapt", "Tent", "SAR", "SAR2"):
        found = diagnostic(view.row(VIT, label, "accuracy"), "tsne")
        values[label] = separability(found["points"], found["labels"])
    return values


def _f8_c1(view: View) -> Verdict:
    values = _separabilities(view)
    text = ", ".join(f"{label} {value:.1f} %" for label, value in values.items())
    return Verdict(holds=rising(list(values.values())), numbers=f"nearest neighbour of the same class: {text}")


def _f8_c2(view: View) -> Verdict:
    shares = {}
    for label in ("NoAdapt", "Tent", "SAR", "SAR2"):
        share = look_up(view.row(VIT, label, "accuracy"), "metrics/top_class_share")
        shares[label] = float(share) if share is not None else 0.0
    text = ", ".join(f"{label} {share:.0f} %" for label, share in shares.items())
    return Verdict(
        holds=max(shares, key=shares.__getitem__) == "Tent", numbers=f"share of the class predicted most: {text}"
    )


def area_inside(entropies: Sequence[Sequence[float]], level: float) -> float:
    """Percent of the plane whose entropy is below a level."""
    values = [value for line in entropies for value in line]
    return 100 * sum(1 for value in values if value < level) / len(values)


def _f9_c1(view: View) -> Verdict:
    network = view.row_labels[0][0]
    areas = {}
    for label in ("Tent", "SAR"):
        table = diagnostic(view.row(network, label, "accuracy"), "surface")["entropy"]
        areas[label] = area_inside(table, lowest_contour(table))
    return Verdict(
        holds=areas["SAR"] > areas["Tent"],
        numbers=f"inside the lowest contour: Tent {areas['Tent']:.0f} %, SAR {areas['SAR']:.0f} % of the plane",
    )


def _proper_minimum(entropies: Sequence[Sequence[float]]) -> bool:
    """The lowest point lies inside, not on the rim of the plane."""
    size = len(entropies)
    cells = [(entropies[i][j], i, j) for i in range(size) for j in range(size)]
    _, i, j = min(cells)
    return 0 < i < size - 1 and 0 < j < size - 1


def _fc_c1(view: View) -> Verdict:
    network = view.row_labels[0][0]
    proper = {
        label: _proper_minimum(diagnostic(view.row(network, label, "accuracy"), "surface")["entropy"])
        for label in ("Tent", "SAR")
    }
    words = {True: "a minimum inside", False: "its minimum on the rim"}
    return Verdict(
        holds=proper["SAR"] and not proper["Tent"],
        numbers="; ".join(f"{label} has {words[inside]}" for label, inside in proper.items()),
    )


CLAIMS: tuple[Claim, ...] = (
    claim("figure-8/C1", "Classes separate better in the order NoAdapt, Tent, SAR, SAR²", _f8_c1),
    claim("figure-8/C2", "Tent gathers its samples in one big cluster", _f8_c2),
    claim("figure-9/C1", "The lowest contour encloses a larger area for SAR than for Tent", _f9_c1),
    claim("figure-c/C1", "On GN Tent's surface has no proper minimum, SAR's has", _fc_c1),
)
