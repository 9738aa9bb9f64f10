"""All 41 experiments by name, in the paper's order."""

from __future__ import annotations

from functools import lru_cache

from wildtta.paper import ablations, batchnorm, collapse, comparisons, costs, pictures, sensitivity, wild_streams
from wildtta.paper.experiment import Claim, Experiment

_SUBJECTS = (comparisons, costs, ablations, sensitivity, collapse, wild_streams, batchnorm, pictures)


def _order(experiment: Experiment) -> tuple[bool, bool, str]:
    number = experiment.name.rpartition("-")[2]
    return experiment.kind == "figure", number.isalpha(), number


@lru_cache(maxsize=1)
def experiments() -> dict[str, Experiment]:
    """``table-1`` to ``table-9`` and ``table-a`` to ``table-r``, then the figures ``1`` to ``9`` and ``a`` to ``e``."""
    found = [value for subject in _SUBJECTS for value in vars(subject).values() if isinstance(value, Experiment)]
    return {experiment.name: experiment for experiment in sorted(found, key=_order)}


def claims() -> list[Claim]:
    """Every checkable claim, in the order of the experiments."""
    return [claim for experiment in experiments().values() for claim in experiment.claims]


def select(names: list[str]) -> list[Experiment]:
    """The named experiments, in the order of their names; ``all`` is every one that is not named before it.

    An unknown name is an error that lists the valid ones.
    """
    known = experiments()
    unknown = [name for name in names if name not in known and name != "all"]
    if unknown:
        raise ValueError(
            f"unknown experiment {unknown[0]!r}: expected 'all' or one of table-1 … table-9, table-a … table-r, "
            "figure-1 … figure-9, figure-a … figure-e"
        )
    ordered = [each for name in names for each in (known if name == "all" else [name])]
    return [known[name] for name in dict.fromkeys(ordered)]
