"""The tables of the no-harm battery's core: each method's verdict on the streams that all kinds of methods have run, and
without BatchNorm, which decides most there, what it does where classes are mixed, in class order, and on one class.

    python studies/later-methods/core_table.py runs/no-harm.jsonl [more journals …] [--into docs/results/later-methods.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from cells import show

from methods import FOR_BATCH_NORM, methods_for
from wildtta.bench import read

from page import ALLOWED, Score, points, scores, shared_by_methods, verdicts  # isort: skip  (methods.py names its folder)

ORDERS = {
    "classes mixed": ("shuffled", "mixture", "continual"),
    "class order": ("long runs", "clean, runs"),
    "one class": ("one class",),
}


def by_order(found: Sequence[Score]) -> str:
    """Per method: mean gain for each order of the classes, the worst stream, how many are harmed."""
    lines = [f"| method | {' | '.join(ORDERS)} | worst | harmed |", "|---|" + "---|" * (len(ORDERS) + 2)]
    told = []
    for method in dict.fromkeys(score.method for score in found):
        own = [score for score in found if score.method == method]
        means = [mean(score.gain for score in own if score.scenario in names) for names in ORDERS.values()]
        harmed = sum(score.gain < -ALLOWED["mean"] for score in own)
        cells = [*map(points, means), points(min(score.gain for score in own)), f"{harmed} of {len(own)}"]
        told.append((-means[0], f"| {method} | {' | '.join(cells)} |"))
    return "\n".join(lines + [line for _, line in sorted(told)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("journals", nargs="+")
    parser.add_argument("--into", type=Path, help="page that takes the tables in place of its old ones")
    options = parser.parse_args()
    found = shared_by_methods(scores(read(options.journals)))
    with_batch_norm = {name for name in {score.network for score in found} if FOR_BATCH_NORM & set(methods_for(name))}
    others = [score for score in found if score.network not in with_batch_norm]
    show(verdicts(found), "no-harm core", options.into)
    show(by_order(others), "no-harm core without BatchNorm", options.into)


if __name__ == "__main__":
    main()
