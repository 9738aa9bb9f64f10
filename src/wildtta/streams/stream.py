"""A stream: which image of which domain comes when, in which batches, and where the adapter starts afresh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from wildtta.streams.labels import IntArray


class Domain(NamedTuple):
    """One kind of shift. `name` is a corruption or a data set; "clean" is the data set as it is."""

    name: str
    severity: int | None = None

    def __str__(self) -> str:
        return self.name if self.severity is None else f"{self.name}-{self.severity}"


DomainLike: TypeAlias = "Domain | str | tuple[str, int | None]"


def as_domains(domains: Iterable[DomainLike], *, severity: int | None = None) -> tuple[Domain, ...]:
    """Domains from names, (name, severity) pairs or domains; `severity` is for bare names."""
    if isinstance(domains, str):
        raise TypeError(f"domains must be a sequence of domains, got the string {domains!r}; write [{domains!r}]")
    listed = tuple(Domain(d, severity) if isinstance(d, str) else Domain(*d) for d in domains)
    if not listed:
        raise ValueError("a stream needs at least one domain, got none; the unshifted data set is the domain 'clean'")
    return listed


class Batch(NamedTuple):
    """Positions of one batch: image `indices[i]` of domain number `domains[i]`."""

    domains: IntArray
    indices: IntArray
    reset: bool
    """The adapter is to be reset before this batch."""
    start: int
    """How many samples came before this batch."""


@dataclass(frozen=True, eq=False)
class Stream:
    """The order of a whole run; images are looked up later.

    `domain[i]` numbers into `domains`, `index[i]` is the position of the image in that domain's data set. A
    batch never reaches over a position in `breaks` (where a data loader would end with a short batch: between
    domains that come one after the other), and the adapter is reset at the positions in `resets`.
    """

    scenario: str
    domains: tuple[Domain, ...]
    domain: IntArray
    index: IntArray
    batch_size: int
    breaks: tuple[int, ...] = (0,)
    resets: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.domain.shape != self.index.shape or self.index.ndim != 1:
            raise ValueError(
                "domain and index must be one-dimensional and of one length, "
                f"got {self.domain.shape} and {self.index.shape}"
            )
        if not set(self.resets) <= set(self.breaks):
            raise ValueError(f"a reset must fall between batches, got resets {self.resets}, breaks {self.breaks}")
        if any(a >= b for a, b in pairwise(self.breaks)) or self.breaks[0] != 0:
            raise ValueError(f"breaks must ascend from 0, got {self.breaks}")

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.index)

    def batches(self) -> Iterator[Batch]:
        """The batches in order; short ones only before a break and at the end."""
        return map(self.batch, range(self.batch_count))

    def batch(self, number: int) -> Batch:
        """The batch of this number, counted from 0."""
        starts = self._batch_starts
        start, stop = int(starts[number]), int(starts[number + 1])
        return Batch(self.domain[start:stop], self.index[start:stop], start in self.resets, start)

    @property
    def batch_count(self) -> int:
        """How many batches `batches` yields."""
        return len(self._batch_starts) - 1

    @cached_property
    def _batch_starts(self) -> IntArray:
        """Where every batch begins, and the end."""
        stretches = pairwise((*self.breaks, len(self)))
        starts = [np.arange(begin, end, self.batch_size) for begin, end in stretches]
        return np.concatenate([*starts, [len(self)]]).astype(np.int64)

    def first(self, samples: int) -> Stream:
        """The stream cut off after so many samples."""
        if samples < 1:
            raise ValueError(f"a stream keeps at least 1 sample, got {samples}")
        return replace(
            self,
            domain=self.domain[:samples],
            index=self.index[:samples],
            breaks=tuple(b for b in self.breaks if b < samples),
            resets=tuple(r for r in self.resets if r < samples),
        )


def given(order: IntArray, batch_size: int) -> Stream:
    """Images of one data set in an order that is given."""
    return Stream("given", (Domain("given"),), np.zeros(len(order), dtype=np.int64), order, batch_size)
