"""Every checkable claim, in the order of the experiments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from wildtta.bench import Row
from wildtta.paper import claims_ablation, claims_comparison, claims_figure
from wildtta.paper.claim import Claim, Outcome, decide
from wildtta.paper.registry import experiments
from wildtta.paper.settings import Setting


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """All claims."""
    order = list(experiments())
    everything = (*claims_comparison.CLAIMS, *claims_ablation.CLAIMS, *claims_figure.CLAIMS)
    return tuple(sorted(everything, key=lambda claim: (order.index(claim.experiment), claim.number)))


def outcomes(setting: Setting, rows: Mapping[str, Row]) -> list[Outcome]:
    """Every claim decided on journal rows (by key)."""
    known = experiments()
    return [decide(claim, known[claim.experiment], setting, rows) for claim in claims()]
