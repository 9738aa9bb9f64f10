"""What the study's page says about parts of a stream.

    J=docs/results/tiny-imagenet
    python studies/tiny-imagenet/along.py $J/main.jsonl.gz $J/long.jsonl.gz

The stream of 300,000 images in thirds, R in a mixture, and the gain within the first images of a shuffled stream.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from verdicts import CONTINUAL, MILD, MIXED, MODELS, Study, accuracy, shown, table, top_share

from wildtta.bench.journal import Row, read

METHODS = {
    "none": "no adaptation",
    "tent": "Tent",
    "sar": "SAR",
    "eata": "EATA",
    "roid": "ROID",
    "deyo": "DeYO",
    "recap": "ReCAP",
    "come": "COME",
    "zerosiam": "ZeroSiam",
    "SAR² (ζ = 20, R over columns)": "SAR² (ζ = 20, R over columns)",
    "Steady with sharpness, without I": "Steady with sharpness, without I",
    "Steady with sharpness, without R": "Steady with sharpness, without R",
    "Steady with sharpness": "Steady with sharpness",
    "Steady of 0.1": "Steady",
}
FIRST_IMAGES = 1008
"""As many of each corruption as the mixture has, to a whole batch and to a point that every journal keeps."""


def with_deviation(values: Sequence[float]) -> str:
    return shown(statistics.fmean(values)) + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def thirds(row: Row) -> list[float]:
    """Accuracy of the first, second and last five corruptions."""
    values = [row["metrics"]["per_corruption"][name] for name in row["cell"]["corruptions"]]
    return [statistics.fmean(values[start : start + 5]) for start in (0, 5, 10)]


def long_stream(study: Study) -> Iterator[Sequence[str]]:
    """Accuracy, also of the thirds; over all seeds the most recoveries and the largest share of one class in the last fifth."""
    for method, title in METHODS.items():
        cells = [title]
        for model in MODELS:
            rows = study.select(CONTINUAL, model, method)
            if rows:
                parts = zip(*map(thirds, rows), strict=True)
                cells.append(with_deviation([accuracy(row) for row in rows]))
                cells.append(", ".join(shown(statistics.fmean(part)) for part in parts))
                cells += [str(max(row["cost"]["resets"] for row in rows)), f"{max(map(top_share, rows)):.0f}"]
            else:
                cells += ["–"] * 4
        yield cells


def redundancy(row: Row) -> list[float]:
    values = [value for value in row["series"].get("redundancy", ()) if value is not None]
    if not values:
        raise SystemExit(f"{row['key']}: no R per batch in this journal; publish it with journals.py")
    return values


def of_corruption(rows: Sequence[Row], name: str) -> Row:
    return next(row for row in rows if row["cell"]["corruptions"] == [name])


def redundancy_in_streams(study: Study) -> Iterator[Sequence[str]]:
    for model, title in MODELS.items():
        alone = redundancy(of_corruption(study.select(MILD, model, study.judged), "shot_noise"))
        mixed = redundancy(next(row for row in study.select(MIXED, model, study.judged) if row["cell"]["seed"] == 0))
        fifth = len(mixed) // 5
        parts = (alone[:1], alone[-6:], mixed[fifth - 6 : fifth], mixed[-6:])
        yield title, *(shown(statistics.fmean(part)) for part in parts)


def after_first_images(row: Row) -> float:
    return float(dict(row["metrics"]["running"])[FIRST_IMAGES])


def gain_alone(study: Study) -> Iterator[Sequence[str]]:
    for model, title in MODELS.items():
        unadapted = study.select(MILD, model, "none")
        gains = [
            after_first_images(row) - after_first_images(of_corruption(unadapted, row["cell"]["corruptions"][0]))
            for row in study.select(MILD, model, study.judged)
        ]
        yield title, str(len(gains)), shown(statistics.fmean(gains))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", type=Path, nargs="+", help="journals of main.toml and long.toml")
    study = Study(read(parser.parse_args().journals))
    columns = [name for title in MODELS.values() for name in (title, "thirds", "recoveries", "one class")]
    print(table(["300,000 images", *columns], long_stream(study)))
    print()
    heading = ("R", "shuffled shot noise, start", "end", "mixture, after a fifth", "end")
    print(table(heading, redundancy_in_streams(study)))
    print()
    print(
        table(
            (f"first {FIRST_IMAGES} shuffled images", "corruptions", "Steady with sharpness over no adaptation"),
            gain_alone(study),
        )
    )


if __name__ == "__main__":
    main()
