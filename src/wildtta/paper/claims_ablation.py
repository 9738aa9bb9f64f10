"""Claims about tables 6-9, F-K, N, O and R."""

from __future__ import annotations

from collections.abc import Sequence

from wildtta.paper.claim import (
    Claim,
    Verdict,
    all_of,
    arrow,
    as_printed,
    claim,
    close,
    compare,
    corruption_columns,
    rising,
)
from wildtta.paper.experiment import AVERAGE, View
from wildtta.paper.settings import BN, GN, VIT

_BOTH = (GN, VIT)
_SCENARIOS = ("label_shift", "mixed", "bs1")


def _lift(
    view: View, row: Sequence[str], over: Sequence[str], column: str, printed: float | None = None
) -> tuple[bool, str]:
    """Whether one row is above another in a column, by the printed amount where that can be compared."""
    high, low = view.mean(*row, column), view.mean(*over, column)
    holds = high > low and (printed is None or close(view, high - low, printed))
    return holds, f"{column}: {low:.1f} → {high:.1f}"


def _t6_c1(view: View) -> Verdict:
    return all_of([_lift(view, (VIT, "RE+SA"), (VIT, "RE"), "bs1", 5.2)])


def _t6_c2(view: View) -> Verdict:
    full, without = (VIT, "SAR (RE+SA+RC)"), (VIT, "RE+SA")
    mixed = view.mean(*full, "mixed") - view.mean(*without, "mixed")
    return all_of(
        [
            _lift(view, full, without, "label_shift", 3.5),
            _lift(view, full, without, "bs1", 0.6),
            (abs(mixed) <= 0.5, f"mixed {mixed:+.1f}"),
        ]
    )


def _t7_c1(view: View) -> Verdict:
    return all_of(
        [
            (holds, f"{label[1:]} {text}")
            for label in ("SAR+R", "SAR+I")
            for column in _SCENARIOS
            for holds, text in [_lift(view, (VIT, label), (VIT, "SAR"), column)]
        ]
    )


def _t7_c2(view: View) -> Verdict:
    parts = []
    for column in _SCENARIOS:
        both = view.mean(VIT, "SAR2 (R+I)", column)
        rival = max(view.mean(VIT, label, column) for label in ("SAR", "SAR+R", "SAR+I"))
        parts.append((both >= rival, f"{column}: both {both:.1f}, next {rival:.1f}"))
    return all_of(parts)


def _t8_c1(view: View) -> Verdict:
    parts = []
    for network in _BOTH:
        ours, other = (view.mean(label, f"{network}/acc") for label in ("Tent+I", "Tent+InfoMax"))
        ece, worse = (view.mean(label, f"{network}/ece") for label in ("Tent+I", "Tent+InfoMax"))
        text = f"{network}: accuracy {ours:.1f} and {other:.1f}, ECE {ece:.1f} and {worse:.1f}"
        parts.append((ours > other and ece < worse, text))
    return all_of(parts, "inequity and InfoMax, ")


def _t8_c2(view: View) -> Verdict:
    ours, alone = (view.mean(label, f"{AVERAGE}/ece") for label in ("Tent+I", "NoAdapt"))
    return Verdict(holds=ours < alone, numbers=f"ECE: Tent+I {ours:.1f}, NoAdapt {alone:.1f}")


def _over_steps(view: View, column: str) -> list[float]:
    return [view.mean(GN, label, column) for label in ("no pre-regularisation", "K=2", "K=4", "K=6")]


def _t9_c1(view: View) -> Verdict:
    parts = []
    for column in ("Tent", "SAR", "DeYO"):
        values = _over_steps(view, column)
        parts.append((rising(values), f"{column} {arrow(values)}"))
    return all_of(parts)


def _steps_gain(view: View, column: str, printed: float) -> Verdict:
    values = _over_steps(view, column)
    gain = values[-1] - values[0]
    return Verdict(holds=gain > 0 and close(view, gain, printed, 2.0), numbers=f"{column} {arrow(values)}")


def _t9_c2(view: View) -> Verdict:
    return _steps_gain(view, "Tent", 30.9)


def _t9_c3(view: View) -> Verdict:
    return _steps_gain(view, AVERAGE, 12.6)


def _component_lift(view: View, network: str, with_: str, without: str, columns: Sequence[str]) -> Verdict:
    return all_of([_lift(view, (network, with_), (network, without), column) for column in columns], f"{network} ")


def _tf_c1(view: View) -> Verdict:
    return _component_lift(view, VIT, "reliable+sa+recover", "reliable+sa", ("snow", "frost"))


def _tf_c2(view: View) -> Verdict:
    change = view.mean(GN, "reliable+sa+recover", AVERAGE) - view.mean(GN, "reliable+sa", AVERAGE)
    return all_of(
        [
            _lift(view, (GN, "reliable+sa"), (GN, "reliable"), AVERAGE, 5.3),
            _lift(view, (GN, "reliable+sa"), (GN, "reliable"), "fog"),
            (abs(change) <= 0.5, f"recovery {change:+.1f}"),
        ],
        "GN ",
    )


def _tg_c1(view: View) -> Verdict:
    return _component_lift(view, VIT, "reliable+sa+recover", "reliable+sa", ("frost",))


def _tg_c2(view: View) -> Verdict:
    return _component_lift(view, VIT, "reliable+sa", "reliable", ("shot_noise",))


def _th_c1(view: View) -> Verdict:
    parts = []
    for network in _BOTH:
        values = [view.mean(network, label, "accuracy") for label in ("Tent (entropy only)", "reliable", "reliable+sa")]
        parts.append((values[0] < values[1] <= values[2] + 1e-9, f"{network} {arrow(values)}"))
    return all_of(parts)


def _th_c2(view: View) -> Verdict:
    rows = [row for row in view.row_labels if row[0] in _BOTH]
    return as_printed(view, *rows)


def _sweep(view: View, network: str, row: str, start: str) -> dict[str, float]:
    return {c: view.mean(network, row, c) for c in view.columns if c.startswith(start)}


def _ti_c1(view: View) -> Verdict:
    values = _sweep(view, VIT, "rho sweep", "SAR rho=")
    flat = [value for column, value in values.items() if not column.endswith("=0.01")]
    alone = view.mean(VIT, "rho sweep", "NoAdapt")
    spread = max(flat) - min(flat)
    return Verdict(
        holds=spread <= 1.5 and min(flat) > alone,
        numbers=f"ρ = 0.03 … 0.1: {arrow(flat)} (spread {spread:.1f}; NoAdapt {alone:.1f})",
    )


def _all_above_sar(view: View, network: str, row: str, start: str) -> tuple[list[float], float]:
    return list(_sweep(view, network, row, start).values()), view.mean(network, row, "SAR")


def _tj_c1(view: View) -> Verdict:
    values, sar = _all_above_sar(view, GN, "alpha sweep", "SAR2-R alpha=")
    return Verdict(holds=min(values) > sar, numbers=f"α = 10 … 10⁴: {arrow(values)}, SAR {sar:.1f}")


def _tj_c2(view: View) -> Verdict:
    values, _ = _all_above_sar(view, GN, "alpha sweep", "SAR2-R alpha=")
    plateau = values[2:]
    spread = max(plateau) - min(plateau)
    return Verdict(holds=spread <= 2.0, numbers=f"α ≥ 500: {arrow(plateau)} (spread {spread:.1f})")


def _tk_c1(view: View) -> Verdict:
    values, sar = _all_above_sar(view, VIT, "beta sweep", "SAR2-I beta=")
    spread = max(values) - min(values)
    return Verdict(holds=min(values) > sar and spread <= 1.5, numbers=f"β = 5 … 200: {arrow(values)}, SAR {sar:.1f}")


def _tn_c1(view: View) -> Verdict:
    parts = []
    for network in (BN, GN, VIT):
        alone, tent, only = (view.mean(network, column) for column in ("NoAdapt", "Tent", "R only"))
        holds = only > alone and (network == BN or only > tent)
        parts.append((holds, f"{network}: NoAdapt {alone:.1f}, Tent {tent:.1f}, R {only:.1f}"))
    return all_of(parts)


def _tn_c2(view: View) -> Verdict:
    parts = []
    for network in (BN, GN, VIT):
        both = view.mean(network, "Tent+R")
        rival = max(view.mean(network, column) for column in ("NoAdapt", "Tent", "R only"))
        parts.append((both >= rival, f"{network}: Tent+R {both:.1f}, next {rival:.1f}"))
    return all_of(parts)


def _wins(view: View, better: str, worse: str) -> Verdict:
    columns = corruption_columns(view)
    parts = []
    for network in _BOTH:
        won, lost = compare(view, (network, better), (network, worse), columns)
        parts.append((not lost, f"{network}: {len(won)} of {len(columns)}"))
    return all_of(parts, f"{better} above {worse}, ")


def _to_c1(view: View) -> Verdict:
    return _wins(view, "Tent+I", "Tent")


def _to_c2(view: View) -> Verdict:
    columns = corruption_columns(view)
    lowered = {n: len(compare(view, (n, "Tent"), (n, "Tent+InfoMax"), columns)[0]) for n in _BOTH}
    share = lowered[VIT] / len(columns)
    holds = lowered[VIT] > lowered[GN] and share > 0.5
    holds = holds and close(view, lowered[VIT], 11, 2) and close(view, lowered[GN], 2, 2)
    total = len(columns)
    return Verdict(
        holds=holds, numbers=f"InfoMax below Tent on {lowered[VIT]} of {total} (ViT), {lowered[GN]} of {total} (GN)"
    )


def _to_c3(view: View) -> Verdict:
    return _wins(view, "Tent+I", "Tent+InfoMax")


def _tr_c1(view: View) -> Verdict:
    parts = []
    for network in _BOTH:
        sar = view.mean(network, "SAR", AVERAGE)
        tent, eata = (view.mean(network, f"{method}+recover", AVERAGE) for method in ("Tent", "EATA"))
        parts.append((sar > max(tent, eata), f"{network}: SAR {sar:.1f}, Tent+ {tent:.1f}, EATA+ {eata:.1f}"))
    return all_of(parts)


def _tr_c2(view: View) -> Verdict:
    return all_of(
        [
            _lift(view, (network, "Tent+recover"), (network, "Tent"), AVERAGE, gain)
            for network, gain in ((GN, 4.1), (VIT, 5.0))
        ]
    )


CLAIMS: tuple[Claim, ...] = (
    claim("table-6/C1", "Sharpness awareness lifts reliable entropy with batches of one (by 5.2)", _t6_c1),
    claim(
        "table-6/C2",
        "Recovery lifts label shift (54.5 to 58.0) and batches of one, and leaves the mixture alone",
        _t6_c2,
    ),
    claim("table-7/C1", "Redundancy alone and inequity alone each improve SAR in every scenario", _t7_c1),
    claim("table-7/C2", "Both together are best in every scenario", _t7_c2),
    claim("table-8/C1", "Inequity beats InfoMax in accuracy and in calibration, on both networks", _t8_c1),
    claim("table-8/C2", "With inequity, Tent's calibration error is below the unadapted network's", _t8_c2),
    claim("table-9/C1", "Accuracy rises with the number of regulariser-only steps for Tent, SAR and DeYO", _t9_c1),
    claim("table-9/C2", "Six such steps lift Tent from 2.6 to 33.5", _t9_c2),
    claim("table-9/C3", "Six such steps lift the average from 25.8 to 38.4", _t9_c3),
    claim("table-f/C1", "On ViT recovery rescues snow and frost under label shift", _tf_c1),
    claim(
        "table-f/C2",
        "On GN sharpness awareness lifts the average (31.7 to 37.0) and fog; recovery changes nothing",
        _tf_c2,
    ),
    claim("table-g/C1", "On ViT recovery rescues frost with batches of one", _tg_c1),
    claim("table-g/C2", "On ViT sharpness awareness rescues shot noise with batches of one", _tg_c2),
    claim(
        "table-h/C1", "Under the mixture reliable entropy lifts Tent, and sharpness awareness does not lower it", _th_c1
    ),
    claim("table-h/C2", "Mixture: GN 13.4, 38.1, 38.2, 38.2; ViT 16.5, 55.2, 57.1, 57.1", _th_c2),
    claim("table-i/C1", "SAR is insensitive to its radius between 0.03 and 0.1", _ti_c1),
    claim("table-j/C1", "Every redundancy weight from 10 to 10⁴ improves SAR", _tj_c1),
    claim("table-j/C2", "From 500 on the weight hardly matters", _tj_c2),
    claim("table-k/C1", "Every inequity weight from 5 to 200 improves SAR, nearly equally", _tk_c1),
    claim("table-n/C1", "Redundancy alone beats the unadapted network everywhere, and Tent on GN and ViT", _tn_c1),
    claim("table-n/C2", "Tent with redundancy is best", _tn_c2),
    claim("table-o/C1", "Inequity improves Tent on every corruption and both networks", _to_c1),
    claim("table-o/C2", "InfoMax lowers Tent where Tent works: 11 of 15 corruptions on ViT, 2 on GN", _to_c2),
    claim("table-o/C3", "Inequity beats InfoMax on every corruption and both networks", _to_c3),
    claim("table-r/C1", "SAR is above Tent and EATA with recovery", _tr_c1),
    claim("table-r/C2", "Recovery lifts Tent (22.0 to 26.1 on GN, 47.3 to 52.3 on ViT)", _tr_c2),
)
