"""Claims about figures 2, 3, 7, B, D and E. The paper prints no numbers for them; its words are turned into tests here."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from wildtta.paper.claim import Claim, Verdict, arrow, claim, close, rising
from wildtta.paper.experiment import NotRun, View, look_up
from wildtta.paper.figures_curve import LEVELS, entropy_threshold, series
from wildtta.paper.figures_picture import diagnostic
from wildtta.paper.settings import GN, VIT

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
            holds = holds and rising(values)
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
    claim("figure-2/C1", "At level 5 Tent ends in one predicted class", _f2_c1),
    claim("figure-2/C2", "At level 3 it does not", _f2_c2),
    claim("figure-2/C3", "At level 5 the gradient norm rises, peaks, and falls to about zero at collapse", _f2_c3),
    claim("figure-2/C4", "At level 3 the gradient norm stays in a stable band", _f2_c4),
    claim("figure-3/C1", "Before adaptation R and I are larger at level 5", _f3_c1),
    claim("figure-3/C2", "At level 5 R is flat at first and jumps at collapse", _f3_c2),
    claim("figure-3/C3", "At level 5 I grows early and ever faster", _f3_c3),
    claim("figure-3/C4", "At level 3 both stay in range", _f3_c4),
    claim("figure-3/C5", "The entropy threshold removes a part of the samples with large gradients, not all", _f3_c5),
    claim("figure-7/C1", "Clipping at 0.001 (value) or 0.1 (norm) gains only marginally", _f7_c1),
    claim("figure-7/C2", "Clipping at 0.005 (value) or 1.0 (norm) still collapses", _f7_c2),
    claim("figure-7/C3", "SAR is clearly best and needs no clipping level", _f7_c3),
    claim(
        "figure-b/C1", "Only reliable and sharpness-aware together keep the gradient norm in range throughout", _fb_c1
    ),
    claim("figure-d/C1", "R and I of the unadapted network grow with the severity", _fd_c1),
    claim("figure-d/C2", "The growth accelerates (ViT R: +3.1 from level 1 to 2, +97.9 from 4 to 5)", _fd_c2),
    claim("figure-e/C1", "At level 5 R falls at first and then explodes", _fe_c1),
    claim("figure-e/C2", "At level 3 R falls steadily", _fe_c2),
    claim("figure-e/C3", "At level 5 I accelerates", _fe_c3),
    claim("figure-e/C4", "At level 3 I stays low and flat", _fe_c4),
)
