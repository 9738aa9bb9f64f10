"""How much a method's accuracy depends on the order of the classes: journals of orders.toml and sweeps/orders.toml.

    J=docs/results/tiny-imagenet
    python studies/tiny-imagenet/orders.py $J/orders.jsonl.gz $J/orders-first-half.jsonl.gz

A seed is an order of the classes here. For each stream, network and method: accuracy ± its standard deviation over orders (of the
mean over corruptions; in brackets that of one corruption's accuracy). Then, how well the orders' means agree between two rows.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from verdicts import LABEL_SHIFT, MODELS, SHORT_CONTINUAL, Study, method_of

from wildtta.bench.journal import read


def spread(study: Study) -> None:
    """A table of all rows of a journal."""
    for stream in (SHORT_CONTINUAL, LABEL_SHIFT):
        for model, title in MODELS.items():
            for method in sorted({method_of(row) for row in study.rows}):
                found = study.deviations(stream, model, method)
                if found is not None:
                    means = study.seeds_on_shared_corruptions(stream, model, method)
                    accuracy = f"{statistics.fmean(means):.1f} ± {found[1]:.2f} ({found[0]:.2f})"
                    print(f"| {stream.title} | {title} | {method} | {len(means)} | {accuracy} |")


def agreement(one: dict[int, float], other: dict[int, float]) -> str:
    """Pearson's correlation of two rows' means over the orders that both have, and the deviation of their difference."""
    common = sorted(one.keys() & other.keys())
    correlation = statistics.correlation([one[seed] for seed in common], [other[seed] for seed in common])
    difference = statistics.stdev(one[seed] - other[seed] for seed in common)
    return f"{len(common)} orders | {correlation:.2f} | {difference:.2f}"


def by_order(study: Study, model: str, method: str) -> dict[int, float]:
    """The mean over corruptions of each order, in the continual stream."""
    return study.by_seed(SHORT_CONTINUAL, model, method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("second_half", type=Path, help="journal of orders.toml")
    parser.add_argument("first_half", type=Path, help="journal of sweeps/orders.toml")
    given = parser.parse_args()
    second, first = (Study(read([path])) for path in (given.second_half, given.first_half))
    for title, study in (("second half", second), ("first half", first)):
        print(f"\n| {title} | network | method | orders | accuracy |\n|---|---|---|---|---|")
        spread(study)

    print("\n| continual | network | common | correlation | deviation of the difference |\n|---|---|---|---|---|")
    for model, name in MODELS.items():
        ours = by_order(second, model, second.judged)
        pairs = {
            "Steady with sharpness, second half and first": (ours, by_order(first, model, "two passes")),
            "SAR, second half and first": (by_order(second, model, "sar"), by_order(first, model, "sar")),
            "Steady, two passes and one": (ours, by_order(second, model, "Steady of 0.1")),
        }
        for title, pair in pairs.items():
            print(f"| {title} | {name} | {agreement(*pair)} |")


if __name__ == "__main__":
    main()
