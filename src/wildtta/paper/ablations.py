"""Methods taken apart: SAR (tables 6, F-H), SAR² (7), its regularisers on Tent (8, 9, N, O), recovery (R)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence

from wildtta.paper.checks import above, all_of, arrow, as_printed, best, close, equal, numbers, ordered, rising, wins
from wildtta.paper.experiment import ACCURACY, AVERAGE, ECE, Claim, Experiment, Part, Plan, Spot, later
from wildtta.paper.plan import (
    BOTH,
    LABEL_SHIFT,
    MILD,
    MIXED,
    NETWORKS,
    SINGLE,
    Stream,
    averaged,
    averaged_rows,
    corruption_table,
    one_stream,
    place,
)
from wildtta.paper.recipes import RECIPES
from wildtta.paper.settings import BN, GN, VIT, Setting
from wildtta.paper.view import View

_SCENARIOS = {"label_shift": LABEL_SHIFT, "mixed": MIXED, "bs1": SINGLE}
_COMPONENTS = ("Tent (entropy only)", "reliable", "reliable+sa", "reliable+sa+recover")
_STEPS = {"no pre-regularisation": 0, "K=2": 2, "K=4": 4, "K=6": 6}
_REGULARISED = ("Tent", "SAR", "DeYO")
_, _RELIABLE, _SHARP, _WHOLE = _COMPONENTS


def _three_scenarios(table: str, *labels: str) -> Plan:
    columns: dict[str, tuple[str, Stream]] = {name: (VIT, {"scenario": known}) for name, known in _SCENARIOS.items()}
    return averaged_rows(table, {(VIT, label): label for label in labels}, columns)


TABLE_6 = Experiment(
    "table-6",
    "SAR's components: reliable (RE), sharpness-aware (SA), recovery (RC)",
    _three_scenarios("6", "Tent", "RE", "RE+SA", "SAR (RE+SA+RC)"),
    Claim(
        "Sharpness awareness lifts reliable entropy with batches of one (by 5.2)",
        above((VIT, "RE+SA"), (VIT, "RE"), "bs1", by=5.2),
    ),
    Claim(
        "Recovery lifts label shift (54.5 to 58.0) and batches of one, and leaves the mixture alone",
        all_of(
            above((VIT, "SAR (RE+SA+RC)"), (VIT, "RE+SA"), "label_shift", by=3.5),
            above((VIT, "SAR (RE+SA+RC)"), (VIT, "RE+SA"), "bs1", by=0.6),
            equal((VIT, "SAR (RE+SA+RC)"), (VIT, "RE+SA"), "mixed"),
        ),
    ),
    Claim(
        "Reliable entropy lifts Tent's average over the scenarios (37.2 to 52.9)",
        above((VIT, "RE"), (VIT, "Tent"), AVERAGE, by=15.7),
    ),
    Claim(
        "Recovery lifts the average over the scenarios (55.8 to 57.1)",
        above((VIT, "SAR (RE+SA+RC)"), (VIT, "RE+SA"), AVERAGE, by=1.3),
    ),
)


def _both_best(view: View) -> Iterator[Part]:
    for column in _SCENARIOS:
        both, *others = view.means([(VIT, name) for name in ("SAR2 (R+I)", "SAR", "SAR+R", "SAR+I")], column)
        yield both >= max(others), f"{column}: both {both:.1f}, next {max(others):.1f}"


TABLE_7 = Experiment(
    "table-7",
    "SAR²'s regularisers",
    _three_scenarios("7", "SAR", "SAR+R", "SAR+I", "SAR2 (R+I)"),
    Claim(
        "Redundancy alone and inequity alone each improve SAR in every scenario",
        all_of(*(above((VIT, label), (VIT, "SAR"), *_SCENARIOS) for label in ("SAR+R", "SAR+I"))),
    ),
    Claim("Both together are best in every scenario", _both_best),
)


def _penalties(setting: Setting) -> Iterator[Spot]:
    for label in ("NoAdapt", "Tent", "Tent+InfoMax", "Tent+I"):
        for measure, metric in (("acc", ACCURACY), ("ece", ECE)):
            line = [
                place(setting, network, label, (label,), f"{network}/{measure}", table="8", metric=metric)
                for network in BOTH
            ]
            yield from averaged(line, table="8", column=f"{AVERAGE}/{measure}")


def _better_calibrated(view: View) -> Iterator[Part]:
    for network in BOTH:
        (ours, other), (ece, worse) = (
            view.means((("Tent+I",), ("Tent+InfoMax",)), f"{network}/{measure}") for measure in ("acc", "ece")
        )
        told = f"accuracy {ours:.1f} and {other:.1f}, ECE {ece:.1f} and {worse:.1f}"
        yield ours > other and ece < worse, f"{network}, inequity and InfoMax: {told}"


TABLE_8 = Experiment(
    "table-8",
    "Batch-imbalance penalties on Tent: accuracy and calibration, mild",
    _penalties,
    Claim("Inequity beats InfoMax in accuracy and in calibration, on both networks", _better_calibrated),
    Claim(
        "With inequity, Tent's calibration error is below the unadapted network's",
        numbers("ECE: Tent+I {:.1f}, NoAdapt {:.1f}", operator.lt, ("Tent+I", "Avg/ece"), ("NoAdapt", "Avg/ece")),
    ),
    Claim(
        "Both penalties lift Tent's average (36.5 to 46.0 and 54.1)",
        ordered((("Tent",), ("Tent+InfoMax",), ("Tent+I",)), "Avg/acc"),
    ),
    row_names=("method",),
    unit="accuracy and ECE, %",
)


def _regularised_first(setting: Setting) -> Iterator[Spot]:
    """K steps on R and I of the live batch alone, then the method as it is."""
    stream: Stream = {"scenario": LABEL_SHIFT, "corruptions": ("gaussian_noise",), "table": "9"}
    for row, steps in _STEPS.items():
        line = [place(setting, GN, name, (GN, row), name, regularise=steps, **stream) for name in _REGULARISED]
        yield from averaged(line, table="9")


@later
def _over_steps(view: View, column: str, *, gain: float | None = None) -> Iterator[Part]:
    """Accuracy rises with each number of steps; with the printed ``gain``: from none to the most."""
    values = view.means([(GN, label) for label in _STEPS], column)
    gained = values[-1] - values[0]
    holds = rising(values) if gain is None else gained > 0 and close(view, gained, gain, 2.0)
    yield holds, f"{column} {arrow(values)}"


TABLE_9 = Experiment(
    "table-9",
    "Regulariser-only steps before adaptation",
    _regularised_first,
    Claim(
        "Accuracy rises with the number of regulariser-only steps for Tent, SAR and DeYO",
        all_of(*map(_over_steps, _REGULARISED)),
    ),
    Claim("Six such steps lift Tent from 2.6 to 33.5", _over_steps("Tent", gain=30.9)),
    Claim("Six such steps lift the average from 25.8 to 38.4", _over_steps(AVERAGE, gain=12.6)),
)


def _on_both(table: str, labels: Sequence[str], scenario: str) -> Plan:
    return corruption_table(table, [(network, labels) for network in BOTH], scenario=scenario)


TABLE_F = Experiment(
    "table-f",
    "SAR's components, class-ordered",
    _on_both("F", _COMPONENTS, LABEL_SHIFT),
    Claim(
        "On ViT recovery rescues snow and frost under label shift",
        above((VIT, _WHOLE), (VIT, _SHARP), "snow", "frost"),
    ),
    Claim(
        "On GN sharpness awareness lifts the average (31.7 to 37.0) and fog; recovery changes nothing",
        all_of(
            above((GN, _SHARP), (GN, _RELIABLE), AVERAGE, by=5.3),
            above((GN, _SHARP), (GN, _RELIABLE), "fog"),
            equal((GN, _WHOLE), (GN, _SHARP), AVERAGE),
        ),
    ),
)


TABLE_G = Experiment(
    "table-g",
    "SAR's components, batch size 1",
    _on_both("G", _COMPONENTS, SINGLE),
    Claim("On ViT recovery rescues frost with batches of one", above((VIT, _WHOLE), (VIT, _SHARP), "frost")),
    Claim(
        "On ViT sharpness awareness rescues shot noise with batches of one",
        above((VIT, _SHARP), (VIT, _RELIABLE), "shot_noise"),
    ),
)


def _reliable_lifts(view: View) -> Iterator[Part]:
    for network in BOTH:
        tent, reliable, sharp = view.means([(network, label) for label in _COMPONENTS[:3]], "accuracy")
        yield tent < reliable <= sharp + 1e-9, f"{network} {arrow((tent, reliable, sharp))}"


TABLE_H = Experiment(
    "table-h",
    "SAR's components, mixture of 15",
    one_stream(BOTH, {label: RECIPES[label] for label in _COMPONENTS}, table="H", scenario=MIXED),
    Claim(
        "Under the mixture reliable entropy lifts Tent, and sharpness awareness does not lower it",
        _reliable_lifts,
    ),
    Claim(
        "Mixture: GN 13.4, 38.1, 38.2, 38.2; ViT 16.5, 55.2, 57.1, 57.1",
        as_printed(*itertools.product(BOTH, _COMPONENTS)),
    ),
)


def _redundancy_alone(setting: Setting) -> Iterator[Spot]:
    for network in NETWORKS:
        for column in ("NoAdapt", "Tent", "R only", "Tent+R"):
            # The paper's unadapted BN network already uses the test batch's statistics here (31.5, not 18.0).
            recipe = "BN statistics" if (network, column) == (BN, "NoAdapt") else column
            names = (network, "columns are methods")
            yield place(setting, network, recipe, (network,), column, table="N", printed_as=names)


def _redundancy_helps(view: View) -> Iterator[Part]:
    for network in NETWORKS:
        alone, tent, only = (view.mean(network, column) for column in ("NoAdapt", "Tent", "R only"))
        holds = only > alone and (network == BN or only > tent)
        yield holds, f"{network}: NoAdapt {alone:.1f}, Tent {tent:.1f}, R {only:.1f}"


def _tent_with_redundancy_best(view: View) -> Iterator[Part]:
    for network in NETWORKS:
        both, *others = (view.mean(network, column) for column in ("Tent+R", "NoAdapt", "Tent", "R only"))
        yield both >= max(others), f"{network}: Tent+R {both:.1f}, next {max(others):.1f}"


TABLE_N = Experiment(
    "table-n",
    "Redundancy alone and with Tent on the live batch, mild",
    _redundancy_alone,
    Claim("Redundancy alone beats the unadapted network everywhere, and Tent on GN and ViT", _redundancy_helps),
    Claim("Tent with redundancy is best", _tent_with_redundancy_best),
    row_names=("model",),
)


def _infomax_lowers(view: View) -> Iterator[Part]:
    total = len(view.corruptions)
    lowered = {
        n: sum(view.mean(n, "Tent", c) > view.mean(n, "Tent+InfoMax", c) for c in view.corruptions) for n in BOTH
    }
    holds = lowered[VIT] > lowered[GN] and lowered[VIT] / total > 0.5
    holds = holds and close(view, lowered[VIT], 11, 2) and close(view, lowered[GN], 2, 2)
    yield holds, f"InfoMax below Tent on {lowered[VIT]} of {total} (ViT), {lowered[GN]} of {total} (GN)"


TABLE_O = Experiment(
    "table-o",
    "Tent with InfoMax or inequity, per corruption, mild",
    _on_both("O", ("Tent", "Tent+InfoMax", "Tent+I"), MILD),
    Claim("Inequity improves Tent on every corruption and both networks", wins("Tent+I", "Tent")),
    Claim("InfoMax lowers Tent where Tent works: 11 of 15 corruptions on ViT, 2 on GN", _infomax_lowers),
    Claim("Inequity beats InfoMax on every corruption and both networks", wins("Tent+I", "Tent+InfoMax")),
)


def _recovery_is_not_enough(view: View) -> Iterator[Part]:
    for network in BOTH:
        rows = [(network, label) for label in ("SAR", "Tent+recover", "EATA+recover")]
        sar, tent, eata = view.means(rows, AVERAGE)
        yield sar > max(tent, eata), f"{network}: SAR {sar:.1f}, Tent+ {tent:.1f}, EATA+ {eata:.1f}"


def _marginal_on_eata(view: View) -> Iterator[Part]:
    for network in BOTH:
        tent, eata = (
            view.mean(network, f"{method}+recover", AVERAGE) - view.mean(network, method, AVERAGE)
            for method in ("Tent", "EATA")
        )
        yield abs(eata) < tent / 2, f"{network}: EATA {eata:+.1f}, Tent {tent:+.1f}"


TABLE_R = Experiment(
    "table-r",
    "Recovery added to Tent and EATA, class-ordered",
    _on_both("R", ("NoAdapt", "Tent", "Tent+recover", "EATA", "EATA+recover", "SAR", "SAR2"), LABEL_SHIFT),
    Claim("SAR is above Tent and EATA with recovery", _recovery_is_not_enough),
    Claim(
        "Recovery lifts Tent (22.0 to 26.1 on GN, 47.3 to 52.3 on ViT)",
        all_of(*(above((n, "Tent+recover"), (n, "Tent"), AVERAGE, by=by) for n, by in ((GN, 4.1), (VIT, 5.0)))),
    ),
    Claim("Its gain on EATA is marginal beside that on Tent (1.3 on GN, none on ViT)", _marginal_on_eata),
    Claim(
        "SAR² is above SAR and above everything else",
        all_of(*(best((network, "SAR2"), AVERAGE) for network in BOTH)),
    ),
)
