"""Claims about the figures. The paper prints no numbers for them; the words are turned into tests stated here."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from wildtta.paper.claim import Claim, Verdict, arrow, claim, close
from wildtta.paper.experiment import NotRun, View, look_up
from wildtta.paper.figures_curve import LEVELS, entropy_threshold, series
from wildtta.paper.figures_picture import diagnostic, lowest_contour
from wildtta.paper.settings import BN, GN, VIT

#: "One predicted class": this share (percent) of the last fifth of the stream.
_ONE_CLASS = 90.0


def smooth(values: Sequence[float]) -> list[float]:
    """Means over about 20 consecutive windows: what the eye follows in a noisy curve."""
    width = max(1, len(values) // 20)
    return [statistics.fmean(values[start : start + width]) for start in range(0, len(values), width)]


def _curve(view: View, network: str, level: str, name: str) -> list[float]:
    values = smooth(series(view.row(network, "Tent", level), name)[1])
    if len(values) < 5:
        raise NotRun(f"a stream of {len(values)} points is too short to speak of a course")
    return values


def _brief(values: Sequence[float]) -> str:
    peak = max(values)
    return f"start {values[0]:.3g}, peak {peak:.3g}, end {values[-1]:.3g}"


def _in_band(values: Sequence[float], factor: float = 3.0) -> bool:
    """Never more than ``factor`` times the median."""
    return max(values) <= factor * statistics.median(values)


def _f1_c1(view: View) -> Verdict:
    alone, mixture = (view.mean(BN, "Tent", column) for column in ("one corruption at a time", "mixture"))
    sizes = sorted(int(c.removeprefix("batch ")) for c in view.columns if c.startswith("batch "))
    large, small = (view.mean(BN, "Tent", f"batch {size}") for size in (sizes[-1], sizes[0]))
    ordered = view.mean(BN, "Tent", "class-ordered")
    return Verdict(
        holds=mixture < alone and small < large and ordered < large,
        numbers=f"mixture {alone:.1f} → {mixture:.1f}; batch {sizes[-1]} → {sizes[0]}: {large:.1f} → {small:.1f}; "
        f"class-ordered {ordered:.1f}",
    )


def _share(view: View, level: str) -> float:
    share = look_up(view.row(GN, "Tent", level), "metrics/top_class_share")
    if share is None:
        raise NotRun("the run recorded no share of the top class")
    return float(share)


def _f2_c1(view: View) -> Verdict:
    share = _share(view, "level 5")
    return Verdict(holds=share >= _ONE_CLASS, numbers=f"top class in the last fifth: {share:.0f} %")


def _f2_c2(view: View) -> Verdict:
    share = _share(view, "level 3")
    return Verdict(holds=share < 50, numbers=f"top class in the last fifth: {share:.0f} %")


def _f2_c3(view: View) -> Verdict:
    values = _curve(view, GN, "level 5", "gradient_norm")
    peak = max(values)
    holds = peak >= 2 * values[0] and values[-1] <= 0.1 * peak
    return Verdict(holds=holds, numbers=f"gradient norm: {_brief(values)}")


def _f2_c4(view: View) -> Verdict:
    values = _curve(view, GN, "level 3", "gradient_norm")
    return Verdict(holds=_in_band(values), numbers=f"gradient norm: {_brief(values)}")


_REPRESENTATION = (("R", "feature_redundancy"), ("I", "feature_inequity"))


def _f3_c1(view: View) -> Verdict:
    texts, holds = [], True
    for symbol, name in _REPRESENTATION:
        five, three = (_curve(view, GN, level, name)[0] for level in LEVELS)
        holds = holds and five > three
        texts.append(f"{symbol}: {five:.3g} at level 5, {three:.3g} at level 3")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f3_c2(view: View) -> Verdict:
    values = _curve(view, GN, "level 5", "feature_redundancy")
    early = values[: max(2, len(values) // 5)]
    holds = max(early) <= 1.5 * early[0] and max(values) >= 2 * early[0]
    return Verdict(holds=holds, numbers=f"R: {_brief(values)}")


def _accelerates(values: Sequence[float]) -> bool:
    """Grows, and by more in the second half of its way to the peak than in the first."""
    top = values.index(max(values))
    half = top // 2
    return top > 0 and values[top] - values[half] > values[half] - values[0] and values[top] >= 2 * values[0]


def _f3_c3(view: View) -> Verdict:
    values = _curve(view, GN, "level 5", "feature_inequity")
    return Verdict(holds=_accelerates(values), numbers=f"I: {_brief(values)}")


def _f3_c4(view: View) -> Verdict:
    texts, holds = [], True
    for symbol, name in _REPRESENTATION:
        values = _curve(view, GN, "level 3", name)
        holds = holds and _in_band(values)
        texts.append(f"{symbol}: {_brief(values)}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f3_c5(view: View) -> Verdict:
    row = view.row(GN, "Tent", "level 5")
    found, threshold = diagnostic(row, "scatter"), entropy_threshold(row)
    if len(found["entropy"]) < 2:
        raise NotRun("a scatter of fewer than two samples")
    # "Large": the upper quarter of this very scatter.
    large = statistics.quantiles(found["gradient_norm"], n=4)[2]
    steep = [e for e, g in zip(found["entropy"], found["gradient_norm"], strict=True) if g > large]
    kept = sum(1 for entropy in steep if entropy < threshold)
    return Verdict(
        holds=0 < kept < len(steep),
        numbers=f"of {len(steep)} samples with a large gradient E < E₀ = {threshold:.2f} keeps {kept}",
    )


def _sizes(view: View, method: str, network: str, level: str) -> dict[int, float]:
    columns = [str(size) for size in view.setting.scale.batch_sizes if method != "TTT" or size <= 16]
    return {int(column): view.mean(method, network, level, column) for column in columns}


def _f4_c1(view: View) -> Verdict:
    values = _sizes(view, "Tent", BN, "level 5")
    small = [value for size, value in values.items() if size < 8]
    if not small:
        raise NotRun("no batch below 8 was run")
    return Verdict(holds=max(small) < 0.5 * values[64], numbers=f"BN level 5: {arrow(values.values())}")


def _f4_c2(view: View) -> Verdict:
    texts, holds = [], True
    for network, level in ((VIT, "level 5"), (VIT, "level 3"), (GN, "level 3")):
        values = list(_sizes(view, "Tent", network, level).values())
        holds = holds and max(values) - min(values) <= 3
        texts.append(f"{network} {level}: {min(values):.1f} to {max(values):.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f4_c3(view: View) -> Verdict:
    best = max(_sizes(view, "Tent", GN, "level 5").values())
    alone = view.mean("NoAdapt", GN, "level 5", "na")
    return Verdict(holds=best < alone, numbers=f"Tent at best {best:.1f}, no adaptation {alone:.1f}")


def _f4_c4(view: View) -> Verdict:
    texts, holds = [], True
    for level in LEVELS:
        for network in (BN, GN, VIT):
            lowest = min(_sizes(view, "TTT", network, level).values())
            alone = view.mean("NoAdapt", network, level, "na")
            holds = holds and lowest > alone
            texts.append(f"{network} {level}: at worst {lowest:.1f}, alone {alone:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _ttt_spread(view: View, columns: Sequence[str]) -> Verdict:
    spread: dict[str, float] = {}
    for network in (BN, GN, VIT):
        values = [view.value("TTT", network, level, column) for level in LEVELS for column in columns]
        if values[0].seeds < 3:
            raise NotRun(f"a standard deviation needs at least 3 seeds; there are {values[0].seeds}")
        spread[network] = max(value.std for value in values)
    others = max(spread[BN], spread[GN])
    text = ", ".join(f"{network} {value:.2f}" for network, value in spread.items())
    return Verdict(holds=spread[VIT] > 2 * others, numbers=f"largest std of TTT: {text}")


def _f4_c5(view: View) -> Verdict:
    return _ttt_spread(view, [str(size) for size in view.setting.scale.batch_sizes if size <= 16])


def _bars(view: View, method: str, network: str, level: str) -> tuple[float, float, float]:
    alone, average, mixture = (
        view.mean(method, network, level, column) for column in ("no adapt", "avg adapt", "mix adapt")
    )
    return alone, average, mixture


def _f5_c1(view: View) -> Verdict:
    texts, holds = [], True
    for method in ("Tent", "TTT"):
        for level in LEVELS:
            _, average, mixture = _bars(view, method, BN, level)
            holds = holds and mixture < average
            texts.append(f"{method} {level}: {average:.1f} → {mixture:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f5_c2(view: View) -> Verdict:
    texts, holds = [], True
    for method, network, level in (("TTT", GN, "level 5"), ("TTT", GN, "level 3"), ("Tent", VIT, "level 3")):
        _, average, mixture = _bars(view, method, network, level)
        holds = holds and abs(average - mixture) <= 2
        texts.append(f"{method} {network} {level}: {average:.1f} and {mixture:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f5_c3(view: View) -> Verdict:
    texts, holds = [], True
    for network, level in ((GN, "level 5"), (GN, "level 3"), (VIT, "level 5")):
        alone, _, mixture = _bars(view, "Tent", network, level)
        holds = holds and mixture < alone
        texts.append(f"{network} {level}: no adapt {alone:.1f}, mixture {mixture:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f5_c4(view: View) -> Verdict:
    return _ttt_spread(view, ("avg adapt", "mix adapt"))


def _ratios(view: View, method: str, network: str, level: str) -> list[float]:
    return [view.mean(method, network, level, f"{ratio:g}") for ratio in view.setting.scale.ratios]


def _f6_c1(view: View) -> Verdict:
    values = _ratios(view, "Tent", BN, "level 5")
    return Verdict(holds=values[-1] < 0.5 * values[0], numbers=f"BN level 5: {arrow(values)}")


def _f6_c2(view: View) -> Verdict:
    texts, holds = [], True
    for network in (GN, VIT):
        values = _ratios(view, "Tent", network, "level 3")
        holds = holds and max(values) - min(values) <= 3
        texts.append(f"{network}: {arrow(values)}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f6_c3(view: View) -> Verdict:
    texts, holds = [], True
    for network in (BN, GN, VIT):
        values = _ratios(view, "TTT", network, "level 5")
        holds = holds and values[-1] >= 0.7 * values[0]
        texts.append(f"{network}: {arrow(values)}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f6_c4(view: View) -> Verdict:
    group, batch = (_ratios(view, "Tent", network, "level 5")[0] for network in (GN, BN))
    alone, alone_batch = (view.mean("NoAdapt", network, "level 5", "na") for network in (GN, BN))
    return Verdict(
        holds=group < alone and batch > alone_batch,
        numbers=f"ratio 1: GN {group:.1f} (alone {alone:.1f}), BN {batch:.1f} (alone {alone_batch:.1f})",
    )


def _f7_c1(view: View) -> Verdict:
    alone, sar = (view.mean(VIT, label, "accuracy") for label in ("NoAdapt", "SAR"))
    texts, holds = [f"NoAdapt {alone:.1f}, SAR {sar:.1f}"], True
    for label in ("value 0.001", "norm 0.1"):
        value = view.mean(VIT, label, "accuracy")
        # "Marginal": less than a quarter of what SAR gains.
        holds = holds and 0 <= value - alone < 0.25 * (sar - alone)
        texts.append(f"{label}: {value:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f7_c2(view: View) -> Verdict:
    texts, holds = [], True
    for label in ("value 0.005", "norm 1.0"):
        row = view.row(VIT, label, "accuracy")
        collapsed = bool(look_up(row, "metrics/collapsed"))
        holds = holds and collapsed
        share = look_up(row, "metrics/top_class_share")
        texts.append(f"{label}: {'collapsed' if collapsed else 'no collapse'} (top class {share:.0f} %)")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f7_c3(view: View) -> Verdict:
    values = {label: view.mean(VIT, label, "accuracy") for _, label in view.row_labels}
    rival = max((label for label in values if label != "SAR"), key=values.__getitem__)
    return Verdict(
        holds=values["SAR"] > values[rival], numbers=f"SAR {values['SAR']:.1f}, next {rival} {values[rival]:.1f}"
    )


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
    ordered = list(values.values())
    rising = all(a < b for a, b in itertools.pairwise(ordered))
    text = ", ".join(f"{label} {value:.1f} %" for label, value in values.items())
    return Verdict(holds=rising, numbers=f"nearest neighbour of the same class: {text}")


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


def _fb_c1(view: View) -> Verdict:
    labels = ("Tent (entropy only)", "reliable", "sa", "reliable+sa")
    calm, texts = {}, []
    for label in labels:
        values = smooth(series(view.row(VIT, label, "accuracy"), "gradient_norm")[1])
        if len(values) < 5:
            raise NotRun(f"a stream of {len(values)} points is too short to speak of a course")
        # In range: neither exploding nor dying away.
        calm[label] = _in_band(values) and values[-1] >= 0.1 * statistics.median(values)
        texts.append(f"{label}: {_brief(values)}")
    holds = calm["reliable+sa"] and not any(calm[label] for label in labels[:-1])
    return Verdict(holds=holds, numbers="; ".join(texts))


def _levels(view: View, network: str, measure: str) -> list[float]:
    return [view.mean(network, measure, column) for column in view.columns]


def _fd_c1(view: View) -> Verdict:
    texts, holds = [], True
    for network in (GN, VIT):
        for measure in ("redundancy", "inequity"):
            values = _levels(view, network, measure)
            holds = holds and all(a < b for a, b in itertools.pairwise(values))
            texts.append(f"{network} {measure}: " + " → ".join(f"{value:.3g}" for value in values))
    return Verdict(holds=holds, numbers="; ".join(texts))


def _fd_c2(view: View) -> Verdict:
    values = _levels(view, VIT, "redundancy")
    first, last = values[2] - values[1], values[5] - values[4]
    holds = last > first and close(view, first, 3.1, 1.0) and close(view, last, 97.9, 10.0)
    return Verdict(holds=holds, numbers=f"ViT R: {first:+.3g} from level 1 to 2, {last:+.3g} from 4 to 5")


def _fe_c1(view: View) -> Verdict:
    values = _curve(view, VIT, "level 5", "feature_redundancy")
    low = min(values[: max(2, len(values) // 2)])
    return Verdict(
        holds=low < values[0] and max(values) >= 2 * values[0], numbers=f"R: low {low:.3g}, {_brief(values)}"
    )


def _fe_c2(view: View) -> Verdict:
    values = _curve(view, VIT, "level 3", "feature_redundancy")
    third = max(1, len(values) // 3)
    parts = [statistics.fmean(values[start : start + third]) for start in (0, third, len(values) - third)]
    return Verdict(holds=parts[0] > parts[1] > parts[2], numbers=f"R by thirds: {arrow(parts)}")


def _fe_c3(view: View) -> Verdict:
    values = _curve(view, VIT, "level 5", "feature_inequity")
    return Verdict(holds=_accelerates(values), numbers=f"I: {_brief(values)}")


def _fe_c4(view: View) -> Verdict:
    three, five = (_curve(view, VIT, level, "feature_inequity") for level in ("level 3", "level 5"))
    return Verdict(
        holds=_in_band(three) and max(three) < 0.5 * max(five),
        numbers=f"I at level 3: {_brief(three)}; peak at level 5 {max(five):.3g}",
    )


CLAIMS: tuple[Claim, ...] = (
    claim(
        "figure-1/C1", "Tent on batch norm degrades under the mixture, with small batches and under label shift", _f1_c1
    ),
    claim("figure-2/C1", "At level 5 Tent ends in one predicted class", _f2_c1),
    claim("figure-2/C2", "At level 3 it does not", _f2_c2),
    claim("figure-2/C3", "At level 5 the gradient norm rises, peaks, and falls to about zero at collapse", _f2_c3),
    claim("figure-2/C4", "At level 3 the gradient norm stays in a stable band", _f2_c4),
    claim("figure-3/C1", "Before adaptation R and I are larger at level 5", _f3_c1),
    claim("figure-3/C2", "At level 5 R is flat at first and jumps at collapse", _f3_c2),
    claim("figure-3/C3", "At level 5 I grows early and ever faster", _f3_c3),
    claim("figure-3/C4", "At level 3 both stay in range", _f3_c4),
    claim("figure-3/C5", "The entropy threshold removes a part of the samples with large gradients, not all", _f3_c5),
    claim("figure-4/C1", "Tent on batch norm falls sharply below a batch of 8", _f4_c1),
    claim("figure-4/C2", "Tent is flat in the batch size for ViT at both levels and for GN at level 3", _f4_c2),
    claim("figure-4/C3", "Tent on GN at level 5 is below no adaptation", _f4_c3),
    claim("figure-4/C4", "TTT works at every batch size on every network", _f4_c4),
    claim("figure-4/C5", "TTT on ViT varies much between runs; the others hardly", _f4_c5),
    claim("figure-5/C1", "On batch norm the mixture is below one corruption at a time, for Tent and TTT", _f5_c1),
    claim("figure-5/C2", "The mixture costs nothing for TTT on GN and for Tent on ViT at level 3", _f5_c2),
    claim("figure-5/C3", "Under the mixture Tent fails on GN at both levels and on ViT at level 5", _f5_c3),
    claim("figure-5/C4", "TTT on ViT varies much between runs", _f5_c4),
    claim("figure-6/C1", "Tent on batch norm falls steeply with the imbalance ratio", _f6_c1),
    claim("figure-6/C2", "GN and ViT at level 3 are stable over the ratio", _f6_c2),
    claim("figure-6/C3", "TTT falls mildly with the ratio", _f6_c3),
    claim("figure-6/C4", "At ratio 1 and level 5 Tent is below no adaptation on GN and above it on batch norm", _f6_c4),
    claim("figure-7/C1", "Clipping at 0.001 (value) or 0.1 (norm) gains only marginally", _f7_c1),
    claim("figure-7/C2", "Clipping at 0.005 (value) or 1.0 (norm) still collapses", _f7_c2),
    claim("figure-7/C3", "SAR is clearly best and needs no clipping level", _f7_c3),
    claim("figure-8/C1", "Classes separate better in the order NoAdapt, Tent, SAR, SAR²", _f8_c1),
    claim("figure-8/C2", "Tent gathers its samples in one big cluster", _f8_c2),
    claim("figure-9/C1", "The lowest contour encloses a larger area for SAR than for Tent", _f9_c1),
    claim(
        "figure-b/C1", "Only reliable and sharpness-aware together keep the gradient norm in range throughout", _fb_c1
    ),
    claim("figure-c/C1", "On GN Tent's surface has no proper minimum, SAR's has", _fc_c1),
    claim("figure-d/C1", "R and I of the unadapted network grow with the severity", _fd_c1),
    claim("figure-d/C2", "The growth accelerates (ViT R: +3.1 from level 1 to 2, +97.9 from 4 to 5)", _fd_c2),
    claim("figure-e/C1", "At level 5 R falls at first and then explodes", _fe_c1),
    claim("figure-e/C2", "At level 3 R falls steadily", _fe_c2),
    claim("figure-e/C3", "At level 5 I accelerates", _fe_c3),
    claim("figure-e/C4", "At level 3 I stays low and flat", _fe_c4),
)
