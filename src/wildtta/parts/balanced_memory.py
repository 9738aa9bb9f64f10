"""RoTTA's memory: balanced over predicted classes, timely, certain.

Kept samples have a place (a row), a predicted class, an uncertainty and an age; which row is given up is decided on the
host from these few numbers, the images stay on the device. Pure bookkeeping: all of it is declared state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EMPTY = -1


@dataclass(frozen=True)
class BalancedMemory:
    """Category-balanced sampling with timeliness and uncertainty (CSTU; Yuan et al., CVPR 2023).

    A sample's score is λ_t / (1 + exp(−age/N)) + λ_u · uncertainty / ln C. A new sample is let in where there is room for
    its class; else the sample with the highest score gives way, among its own class where that has its share N/C
    already, among the fullest classes otherwise, and only if its score is higher than the new one's.
    """

    capacity: int
    classes: int
    timeliness: float = 1.0
    uncertainty: float = 1.0

    def empty(self) -> dict[str, Tensor]:
        """The bookkeeping of a memory that holds nothing; on the host."""
        return {
            "kept_class": torch.full((self.capacity,), EMPTY, dtype=torch.int64),
            "kept_uncertainty": torch.zeros(self.capacity, dtype=torch.float64),
            "kept_age": torch.zeros(self.capacity, dtype=torch.int64),
            "kept_since": torch.zeros(self.capacity, dtype=torch.int64),
            "offered": torch.zeros((), dtype=torch.int64),
        }

    def score(self, age: int, uncertainty: float) -> float:
        timely = self.timeliness / (1 + math.exp(-age / self.capacity))
        return timely + self.uncertainty * uncertainty / math.log(self.classes)

    def offer(self, memory: dict[str, Tensor], label: int, uncertainty: float) -> int | None:
        """Let a sample in if it deserves a row: the row, or None. Everything kept grows older by one."""
        row = self._row_for(memory, label, self.score(0, uncertainty))
        if row is not None:
            memory["kept_class"][row] = label
            memory["kept_uncertainty"][row] = uncertainty
            memory["kept_age"][row] = 0
            memory["kept_since"][row] = memory["offered"]
        memory["kept_age"].add_(memory["kept_class"] != EMPTY)
        memory["offered"].add_(1)
        return row

    def rows(self, memory: dict[str, Tensor]) -> list[int]:
        """Occupied rows, by class and then by arrival."""
        labels, since = memory["kept_class"].tolist(), memory["kept_since"].tolist()
        occupied = [row for row, label in enumerate(labels) if label != EMPTY]
        return sorted(occupied, key=lambda row: (labels[row], since[row]))

    def _row_for(self, memory: dict[str, Tensor], label: int, score: float) -> int | None:
        labels = memory["kept_class"].tolist()
        of_class = labels.count(label)
        if of_class < self.capacity / self.classes:
            if EMPTY in labels:
                return int(labels.index(EMPTY))
            counts = torch.bincount(memory["kept_class"], minlength=self.classes)
            giving = set((counts == counts.max()).nonzero().flatten().tolist())
        else:
            giving = {label}
        ages, uncertainties = memory["kept_age"].tolist(), memory["kept_uncertainty"].tolist()
        worst, highest = None, -math.inf
        for row in self.rows(memory):
            if labels[row] in giving:
                candidate = self.score(ages[row], uncertainties[row])
                if candidate >= highest:
                    worst, highest = row, candidate
        return worst if highest > score else None


def timeliness_weights(ages: Tensor, capacity: int) -> Tensor:
    """exp(−a)/(1 + exp(−a)) with a = age/N: the weight of a kept sample in the loss (in float32, as its authors have it)."""
    return torch.sigmoid(-(ages.double() / capacity).float())
