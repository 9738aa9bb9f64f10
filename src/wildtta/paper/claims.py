"""Every checkable claim, in the order of the experiments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from wildtta.bench import Row
from wildtta.paper import (
    claims_ablation,
    claims_comparison,
    claims_curve,
    claims_network,
    claims_picture,
    claims_sweep,
)
from wildtta.paper.claim import Claim, Outcome, decide
from wildtta.paper.registry import experiments
from wildtta.paper.settings import Setting

_PARTS = (claims_comparison, claims_ablation, claims_network, claims_sweep, claims_curve, claims_picture)


@lru_cache(maxsize=1)
def claims() -> tuple[Claim, ...]:
    """All claims."""
    order = list(experiments())
    everything = [claim for part in _PARTS for claim in part.CLAIMS]
    return tuple(sorted(everything, key=lambda claim: (order.index(claim.experiment), claim.number)))


def outcomes(setting: Setting, rows: Mapping[str, Row]) -> list[Outcome]:
    """Every claim decided on journal rows (by key)."""
    known = experiments()
    return [decide(claim, known[claim.experiment], setting, rows) for claim in claims()]
