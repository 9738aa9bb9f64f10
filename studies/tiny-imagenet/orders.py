"""How much a method's accuracy depends on the order of the classes, from the journals of orders.toml and orders-first-half.toml.

    J=docs/results/tiny-imagenet
    python studies/tiny-imagenet/orders.py $J/orders.jsonl.gz $J/orders-first-half.jsonl.gz

For each stream, network and method: accuracy ± its standard deviation over orders (of the mean over corruptions; in brackets
that of one corruption's accuracy, averaged over the corruptions). Then, how well the orders' means agree between two rows.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

from verdicts import MODELS, method_of

from wildtta.bench.journal import read

Orders = dict[int, dict[str, float]]
"""Accuracy by seed (which is the class order) and corruption."""

CONTINUAL = "continual_label_shift"


def by_order(journal: Path) -> dict[tuple[str, str, str], Orders]:
    """A journal's finished rows by stream, network and method."""
    found: dict[tuple[str, str, str], Orders] = defaultdict(lambda: defaultdict(dict))
    for row in read([journal]):
        if row["status"] != "ok":
            continue
        cell, metrics = row["cell"], row["metrics"]
        accuracies = metrics.get("per_corruption") or {cell["corruptions"][0]: metrics["accuracy"]}
        found[cell["scenario"], cell["model_name"], method_of(row)][cell["seed"]].update(accuracies)
    return found


def means(orders: Orders) -> list[float]:
    """The mean over corruptions of each order."""
    return [statistics.fmean(orders[seed].values()) for seed in sorted(orders)]


def deviation_of_one_corruption(orders: Orders) -> float:
    corruptions = next(iter(orders.values()))
    return statistics.fmean(statistics.stdev(order[name] for order in orders.values()) for name in corruptions)


def agreement(one: Orders, other: Orders) -> str:
    """Pearson's correlation of two rows' means over the orders that both have, and the deviation of their difference."""
    common = sorted(one.keys() & other.keys())
    first, second = means({seed: one[seed] for seed in common}), means({seed: other[seed] for seed in common})
    differences = [a - b for a, b in zip(first, second, strict=True)]
    correlation = statistics.correlation(first, second)
    return f"{len(common)} orders | {correlation:.2f} | {statistics.stdev(differences):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("second_half", type=Path, help="journal of orders.toml")
    parser.add_argument("first_half", type=Path, help="journal of orders-first-half.toml")
    given = parser.parse_args()
    second, first = by_order(given.second_half), by_order(given.first_half)

    for title, found in (("second half", second), ("first half", first)):
        print(f"\n| {title} | network | method | orders | accuracy |\n|---|---|---|---|---|")
        for (stream, network, method), orders in sorted(found.items()):
            values = means(orders)
            spread = f"{statistics.stdev(values):.2f} ({deviation_of_one_corruption(orders):.2f})"
            accuracy = f"{statistics.fmean(values):.1f} ± {spread}"
            print(f"| {stream} | {MODELS[network]} | {method} | {len(values)} | {accuracy} |")

    print("\n| continual | network | common | correlation | deviation of the difference |\n|---|---|---|---|---|")
    for network, name in MODELS.items():
        halves = {"SAR²": ("sar2", "SAR², two passes"), "SAR": ("sar", "sar")}
        for title, (later, earlier) in halves.items():
            agree = agreement(second[CONTINUAL, network, later], first[CONTINUAL, network, earlier])
            print(f"| {title}, second half and first | {name} | {agree} |")
        agree = agreement(second[CONTINUAL, network, "sar2"], second[CONTINUAL, network, "sar2-single"])
        print(f"| SAR², two passes and one | {name} | {agree} |")


if __name__ == "__main__":
    main()
