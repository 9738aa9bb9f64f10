"""What a checkup found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wildtta.checkup.advice import Advice, advice
from wildtta.checkup.answers import Inputs
from wildtta.checkup.facts import NetworkFacts
from wildtta.checkup.text import as_text
from wildtta.checkup.trials import Trial, TrialResult


@dataclass(frozen=True)
class Checkup:
    """The network, its answers as it is, what methods gained, and what follows."""

    network: NetworkFacts
    images: int
    labelled: bool
    inputs: list[Inputs]
    """Clean first, then every shift."""
    trials: list[TrialResult]
    left_out: list[Trial] = field(default_factory=list)
    """Trials that there was no time for."""
    notes: list[str] = field(default_factory=list)
    """On the data: where they are from, what is unusual about them."""

    @property
    def advice(self) -> Advice:
        """The recommendation and its reasons."""
        return advice(self.network, self.inputs, self.trials, labelled=self.labelled)

    def noting(self, notes: Sequence[str], left_out: Sequence[Trial] = ()) -> Checkup:
        """The same with more to say about the data and the plan."""
        return replace(self, notes=[*self.notes, *notes], left_out=[*self.left_out, *left_out])

    def text(self) -> str:
        """All of it for a person, in at most 110 columns."""
        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """All of it for a program: plain values that JSON can hold."""
        found = asdict(self)
        found["advice"] = asdict(self.advice)
        return found
