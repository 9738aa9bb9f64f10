"""What the study's journals say about Steady, statement by statement, in Markdown.

    J=docs/results/tiny-imagenet
    python studies/tiny-imagenet/verdicts.py $J/main.jsonl.gz $J/long.jsonl.gz > $J/verdicts.md

``--of sar2`` judges SAR² with ζ = 20 and R over columns in its place. Every number is an average over corruptions, then over
seeds. A statement is judged by these numbers alone: ✓ or ✗.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wildtta.bench.journal import Row, read

_QUESTIONS = frozenset({"shot_noise", "contrast", "fog"})
_GUARDS = frozenset(
    {
        "gaussian_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "snow",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    }
)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The method that the statements are about: its titles in the grids, and the corruptions it was chosen on."""

    short: str
    title: str
    without_R: str
    without_I: str
    one_pass: str
    chosen_on: frozenset[str]


JUDGED = {
    "steady": Judged(
        short="Steady",
        title="Steady with sharpness",
        without_R="Steady with sharpness, without R",
        without_I="Steady with sharpness, without I",
        one_pass="Steady of 0.1",
        chosen_on=_QUESTIONS | _GUARDS,
    ),
    "sar2": Judged(
        short="SAR²",
        title="SAR² (ζ = 20, R over columns)",
        without_R="SAR² (ζ = 20, without R)",
        without_I="SAR² (ζ = 20, without I, R over columns)",
        one_pass="SAR² (ζ = 20, one pass, R over columns)",
        chosen_on=_QUESTIONS,
    ),
}
"""SAR² was chosen on the corruptions of sweeps/open-questions.toml, Steady also on those of sweeps/guards.toml and after."""

MODELS = {"rn26_gn": "ResNet-26-GN", "vit": "ViT"}


@dataclass(frozen=True)
class Stream:
    """A scenario of the grid: its title, and which cells belong to it."""

    title: str
    scenario: str
    draws: int | None = None

    def holds(self, cell: dict[str, Any]) -> bool:
        same = cell["scenario"] == self.scenario and cell["severity"] == 5
        return same and (self.draws is None or cell["scenario_options"].get("draws") == self.draws)


LABEL_SHIFT = Stream("label shift", "label_shift", 100)
SHORT_LABEL_SHIFT = Stream("label shift, 5,000 images", "label_shift", 25)
MIXED = Stream("mixed", "mixed")
CONTINUAL = Stream("continual label shift, 300,000 images", "continual_label_shift", 100)
SHORT_CONTINUAL = Stream("continual label shift, 39,000 images", "continual_label_shift", 13)
SINGLE = Stream("batch size 1", "single")
MILD = Stream("mild", "mild")
WILD = (LABEL_SHIFT, MIXED, CONTINUAL, SHORT_CONTINUAL, SINGLE)
ABLATED = (SHORT_LABEL_SHIFT, MIXED, CONTINUAL, SHORT_CONTINUAL, SINGLE)
"""Where the judged method also ran without one of its terms and in one pass."""

Value = Callable[[Row], float]


def accuracy(row: Row) -> float:
    return float(row["metrics"]["accuracy"])


def ece(row: Row) -> float:
    return float(row["metrics"]["ece"])


def top_share(row: Row) -> float:
    return float(row["metrics"]["top_class_share"])


def method_of(row: Row) -> str:
    return str(row["cell"]["name"] or row["cell"]["method"])


class Study:
    """The finished rows of the journals."""

    def __init__(self, rows: Sequence[Row], judged: str = "steady") -> None:
        self.rows = [row for row in rows if row["status"] == "ok"]
        self.of = JUDGED[judged]
        self.judged = self.of.title

    def select(self, stream: Stream, model: str, method: str) -> list[Row]:
        return [
            row
            for row in self.rows
            if row["cell"]["model_name"] == model and method_of(row) == method and stream.holds(row["cell"])
        ]

    def by_seed(
        self, stream: Stream, model: str, method: str, value: Value = accuracy, without: frozenset[str] = frozenset()
    ) -> dict[int, float]:
        """A mean over corruptions for each seed that ran as many of them as the fullest seed."""
        seeds: dict[int, list[float]] = {}
        for row in self.select(stream, model, method):
            corruptions = row["cell"]["corruptions"]
            if len(corruptions) > 1 or corruptions[0] not in without:
                seeds.setdefault(row["cell"]["seed"], []).append(value(row))
        most = max((len(values) for values in seeds.values()), default=0)
        return {seed: statistics.fmean(values) for seed, values in sorted(seeds.items()) if len(values) == most}

    def mean(self, *arguments: Any, **options: Any) -> float | None:
        found = self.by_seed(*arguments, **options)
        return statistics.fmean(found.values()) if found else None

    def seeds_by_corruption(self, stream: Stream, model: str, method: str) -> dict[str, dict[int, float]]:
        """Accuracy by corruption and seed, of the corruptions that every seed ran (alone, or as a part of one stream)."""
        found: dict[str, dict[int, float]] = {}
        for row in self.select(stream, model, method):
            for corruption, value in row["metrics"]["per_corruption"].items():
                found.setdefault(corruption, {})[row["cell"]["seed"]] = value
        seeds = {seed for values in found.values() for seed in values}
        return {corruption: values for corruption, values in found.items() if set(values) == seeds}

    def seeds_on_shared_corruptions(self, stream: Stream, model: str, method: str) -> list[float]:
        """Means per seed over the corruptions that every seed ran."""
        return means_by_seed(self.seeds_by_corruption(stream, model, method))

    def deviations(self, stream: Stream, model: str, method: str) -> tuple[float, float] | None:
        """Standard deviation over seeds: of one corruption's accuracy (their mean), and of the mean over corruptions."""
        shared = self.seeds_by_corruption(stream, model, method)
        means = means_by_seed(shared)
        if len(means) < 2:
            return None
        return statistics.fmean(statistics.stdev(values.values()) for values in shared.values()), statistics.stdev(
            means
        )


def means_by_seed(accuracies: dict[str, dict[int, float]]) -> list[float]:
    """The mean over corruptions of each seed, from accuracies by corruption and seed."""
    seeds = sorted(next(iter(accuracies.values()), {}))
    return [statistics.fmean(values[seed] for values in accuracies.values()) for seed in seeds]


def mark(holds: bool | None) -> str:
    return "not run" if holds is None else "✓" if holds else "✗"


def shown(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def above(first: float | None, second: float | None, by: float = 0.0) -> bool | None:
    return None if first is None or second is None else first - second >= by


def table(heading: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gains(study: Study) -> Iterator[Sequence[str]]:
    for stream in WILD:
        for model, title in MODELS.items():
            none, sar, tent, ours = (
                study.mean(stream, model, method) for method in ("none", "sar", "tent", study.judged)
            )
            needed = 0.0 if stream is SINGLE else 5.0
            yield (
                stream.title,
                title,
                *map(shown, (none, tent, sar, ours)),
                mark(above(ours, none) and above(ours, sar)),
                "–" if stream is SINGLE else f"{mark(above(ours, none, needed))} ({shown((ours or 0) - (none or 0))})",
            )


def held_out(study: Study) -> Iterator[Sequence[str]]:
    for stream in (LABEL_SHIFT, MILD):
        for model, title in MODELS.items():
            for_all = [study.mean(stream, model, method) for method in ("none", study.judged)]
            unseen = [
                study.mean(stream, model, method, without=study.of.chosen_on) for method in ("none", study.judged)
            ]
            yield stream.title, title, *map(shown, for_all), *map(shown, unseen)


def single_terms(study: Study) -> Iterator[Sequence[str]]:
    for stream in ABLATED:
        for model, title in MODELS.items():
            methods = (study.judged, study.of.without_R, study.of.without_I)
            each = [study.by_seed(stream, model, method) for method in methods]
            shared = sorted(set.intersection(*(set(means) for means in each)))
            values = [statistics.fmean(means[seed] for seed in shared) if shared else None for means in each]
            both, *single = values
            best = max((value for value in single if value is not None), default=None)
            yield stream.title, title, str(len(shared)), *map(shown, values), mark(above(both, best))


def passes(study: Study) -> Iterator[Sequence[str]]:
    for stream in (MILD, *ABLATED):
        for model, title in MODELS.items():
            two = study.seeds_on_shared_corruptions(stream, model, study.judged)
            one = study.seeds_on_shared_corruptions(stream, model, study.of.one_pass)
            shared = min(len(one), len(two))
            if shared:
                differences = [a - b for a, b in zip(one[:shared], two[:shared], strict=True)]
                yield (
                    stream.title,
                    title,
                    " ".join(shown(value) for value in two[:shared]),
                    " ".join(shown(value) for value in one[:shared]),
                    f"{statistics.fmean(differences):+.2f}",
                )


def seeds(study: Study) -> Iterator[Sequence[str]]:
    for stream in (LABEL_SHIFT, CONTINUAL, SHORT_CONTINUAL):
        for model, title in MODELS.items():
            found = [study.deviations(stream, model, method) for method in ("tent", "sar", study.judged)]
            cells = []
            for which in (0, 1):
                _, sar, ours = values = [None if pair is None else pair[which] for pair in found]
                cells += [*(shown(value, 2) for value in values), mark(above(sar, ours))]
            number = len(study.seeds_on_shared_corruptions(stream, model, study.judged))
            yield stream.title, title, str(number), *cells


def calibration(study: Study) -> Iterator[Sequence[str]]:
    for stream in (MILD, *WILD):
        for model, title in MODELS.items():
            tent, sar, ours = (study.mean(stream, model, method, ece) for method in ("tent", "sar", study.judged))
            yield stream.title, title, *map(shown, (tent, sar, ours)), mark(above(tent, ours))


def one_class(study: Study) -> Iterator[Sequence[str]]:
    for stream in (MILD, LABEL_SHIFT, *ABLATED):
        for model, title in MODELS.items():
            cells = {method: study.select(stream, model, method) for method in ("none", "tent", "sar", study.judged)}
            ours = cells[study.judged]
            worst = max(ours, key=top_share, default=None)
            where = (
                ""
                if worst is None or len(worst["cell"]["corruptions"]) > 1
                else f" ({worst['cell']['corruptions'][0]})"
            )
            yield (
                stream.title,
                title,
                *(
                    f"{sum(top_share(row) > 20 for row in rows)} of {len(rows)}" if rows else "–"
                    for rows in cells.values()
                ),
                "–" if worst is None else f"{top_share(worst):.1f}{where}",
                mark(None if worst is None else top_share(worst) <= 20),
            )


NAME = "<method>"
"""Stands for the judged method in a heading."""

SECTIONS: tuple[tuple[str, Sequence[str], Callable[[Study], Iterator[Sequence[str]]]], ...] = (
    (
        f"{NAME} is above no adaptation and above SAR, by 5 points or more over no adaptation (but for batch size 1)",
        ("stream", "network", "none", "Tent", "SAR", NAME, "above both", "by 5"),
        gains,
    ),
    (
        f"{NAME}'s settings hold on corruptions that were not used to choose them (all images here are of the half kept aside)",
        ("stream", "network", "none, all 15", f"{NAME}, all 15", "none, not used", f"{NAME}, not used"),
        held_out,
    ),
    (
        f"Both terms are needed: {NAME} is at least as good as its best single term (mean of the seeds that all three ran)",
        ("stream", "network", "seeds", NAME, "without R", "without I", "holds"),
        single_terms,
    ),
    (
        f"{NAME} never predicts one class for more than 20 % of the last fifth of a stream"
        f" (runs above 20 %; {NAME}'s largest share)",
        ("stream", "network", "none", "Tent", "SAR", NAME, "largest", "holds"),
        one_class,
    ),
    (
        f"{NAME}'s standard deviation over seeds is smaller than SAR's"
        " (of one corruption's accuracy, and of the mean over corruptions)",
        (
            *("stream", "network", f"seeds of {NAME}", "Tent, one corruption", "SAR", NAME, "holds"),
            *("Tent, mean of corruptions", "SAR", NAME, "holds"),
        ),
        seeds,
    ),
    (
        f"{NAME} is better calibrated than Tent (ECE, %)",
        ("stream", "network", "Tent", "SAR", NAME, "holds"),
        calibration,
    ),
    (
        "Is the second pass needed? (accuracy per seed)",
        ("stream", "network", NAME, f"{NAME}, one pass", "one pass less two"),
        passes,
    ),
)


def headline(title: str) -> str:
    """A title with what is in brackets below it."""
    head, bracket, note = title.partition(" (")
    return f"{head}\n\n{bracket.strip()}{note}" if note else head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", type=Path, nargs="+")
    parser.add_argument("--of", choices=tuple(JUDGED), default="steady")
    arguments = parser.parse_args()
    study = Study(read(arguments.journals), arguments.of)
    parts = [f"### {headline(title)}\n\n{table(heading, rows(study))}" for title, heading, rows in SECTIONS]
    told = f"## Statements\n\n{NAME} in these statements is *{study.judged}* of the tables below.\n\n" + "\n\n".join(
        parts
    )
    print(told.replace(NAME, study.of.short))


if __name__ == "__main__":
    main()
