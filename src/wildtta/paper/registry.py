"""All 41 experiments by name, in the paper's order."""

from __future__ import annotations

from functools import lru_cache

from wildtta.paper import (
    figures_curve,
    figures_picture,
    figures_sweep,
    tables_ablation,
    tables_comparison,
    tables_network,
)
from wildtta.paper.experiment import Experiment

_PARTS = (
    tables_comparison.TABLES,
    tables_comparison.APPENDIX,
    tables_ablation.TABLES,
    tables_ablation.APPENDIX,
    tables_network.TABLES,
    figures_sweep.FIGURES,
    figures_curve.FIGURES,
    figures_picture.FIGURES,
)


def _order(experiment: Experiment) -> tuple[bool, bool, str]:
    number = experiment.name.rpartition("-")[2]
    return experiment.kind == "figure", number.isalpha(), number


@lru_cache(maxsize=1)
def experiments() -> dict[str, Experiment]:
    """``table-1`` .. ``table-9``, ``table-a`` .. ``table-r``, ``figure-1`` .. ``figure-9``, ``figure-a`` .. ``figure-e``."""
    everything = sorted((experiment for part in _PARTS for experiment in part), key=_order)
    return {experiment.name: experiment for experiment in everything}


def select(names: list[str]) -> list[Experiment]:
    """The named experiments; ``all`` is every one. An unknown name is an error that lists the valid ones."""
    known = experiments()
    if "all" in names:
        return list(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"unknown experiment {unknown[0]!r}: expected 'all' or one of table-1 … table-9, table-a … table-r, "
            "figure-1 … figure-9, figure-a … figure-e"
        )
    return [known[name] for name in names]
