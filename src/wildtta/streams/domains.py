"""Streams over several domains: separate, mixed, continual and gradual; each over any order within a domain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from wildtta.streams.labels import IntArray, as_labels, balanced_subset
from wildtta.streams.orders import mild
from wildtta.streams.stream import Domain, DomainLike, Stream, as_domains, in_sequence

Labels: TypeAlias = "npt.ArrayLike | Sequence[npt.ArrayLike]"
"""The labels of the data set that all domains share, or one label array per domain."""


class Order(Protocol):
    """An order within a domain: `mild`, `functools.partial(label_shift, ratio=1000)`, ..."""

    def __call__(self, labels: npt.ArrayLike, /, *, seed: int = 0) -> IntArray: ...


def separate(
    labels: Labels,
    domains: Iterable[DomainLike],
    *,
    within: Order = mild,
    batch_size: int = 64,
    seed: int = 0,
    reshuffle: bool = False,
    limit: int | None = None,
    scenario: str = "separate",
) -> Stream:
    """Domains one after the other with a reset before each: what "the average over 15 corruptions" is measured on.

    `reshuffle=False`: the same order in every domain, so that domains differ in nothing but the shift (as the paper
    does); True: every domain has an order of its own. `limit`: use only so many images of each domain, spread evenly
    over the classes.
    """
    listed = as_domains(domains)
    orders = _orders(labels, listed, within, seed, reshuffle, limit)
    return in_sequence(scenario, listed, orders, batch_size=batch_size, reset_each=True)


def continual(
    labels: Labels,
    domains: Iterable[DomainLike],
    *,
    within: Order = mild,
    batch_size: int = 64,
    seed: int = 0,
    reshuffle: bool = False,
    limit: int | None = None,
    scenario: str = "continual",
) -> Stream:
    """Domains one after the other, the adapter never reset. `reshuffle` and `limit` as in `separate`."""
    listed = as_domains(domains)
    orders = _orders(labels, listed, within, seed, reshuffle, limit)
    return in_sequence(scenario, listed, orders, batch_size=batch_size, reset_each=False)


def mixed(
    labels: Labels,
    domains: Iterable[DomainLike],
    *,
    within: Order = mild,
    batch_size: int = 64,
    seed: int = 0,
    limit: int | None = None,
    scenario: str = "mixed",
) -> Stream:
    """All images of all domains as one pool, put in order together; the adapter is never reset.

    With `mild` the pool is shuffled: every image once in every domain. With `label_shift` or `dirichlet` the classes
    are correlated in time while the domains stay mixed. `batch_size=1` combines mixed shifts with single images.
    `limit` as in `separate`.
    """
    listed = as_domains(domains)
    per_domain = _labels_per_domain(labels, len(listed))
    kept = [_kept(own, limit) for own in per_domain]
    domain_of = np.repeat(np.arange(len(listed), dtype=np.int64), [len(own) for own in kept])
    pool = np.concatenate([own[positions] for own, positions in zip(per_domain, kept, strict=True)])
    order = within(pool, seed=seed)
    return Stream(
        scenario=scenario,
        domains=listed,
        domain=domain_of[order],
        index=np.concatenate(kept)[order],
        batch_size=batch_size,
    )


def severity_ramp(domains: Iterable[DomainLike], *, severity: int = 5) -> tuple[Domain, ...]:
    """Each domain at severities 1, 2, ..., top, ..., 2, 1; `severity` is the top for domains that bring none.

    >>> [str(d) for d in severity_ramp(["fog"], severity=3)]
    ['fog-1', 'fog-2', 'fog-3', 'fog-2', 'fog-1']
    """
    ramp = []
    for name, own_top in as_domains(domains):
        top = severity if own_top is None else own_top
        if top < 1:
            raise ValueError(f"a gradual stream needs a top severity of at least 1 for {name!r}, got {top}")
        ramp += [Domain(name, level) for level in (*range(1, top), *range(top, 0, -1))]
    return tuple(ramp)


def gradual(
    labels: Labels,
    domains: Iterable[DomainLike],
    *,
    severity: int = 5,
    per_level: int | None = None,
    within: Order = mild,
    batch_size: int = 64,
    seed: int = 0,
    reshuffle: bool = True,
    limit: int | None = None,
) -> Stream:
    """Severity climbs 1, 2, ..., top and falls back to 1 in one domain, then the next begins; never reset.

    Every level shows the whole data set, or the first `per_level` samples of its order. With `reshuffle` (the default)
    neighbouring levels differ in their order, so that a short `per_level` doesn't show the same few images nine times.
    `limit` as in `separate`.

    Source: the gradually changing setting of CoTTA (Wang et al., CVPR 2022).
    """
    ramp = severity_ramp(domains, severity=severity)
    if per_level is not None and per_level < 1:
        raise ValueError(f"per_level must be at least 1 sample, got {per_level}")
    named = as_domains(domains)
    given = _labels_per_domain(labels, len(named))
    label_of = {domain.name: own for domain, own in zip(named, given, strict=True)}
    orders = _orders([label_of[level.name] for level in ramp], ramp, within, seed, reshuffle, limit)
    cut = [order if per_level is None else order[:per_level] for order in orders]
    return in_sequence("gradual", ramp, cut, batch_size=batch_size, reset_each=False)


def _labels_per_domain(labels: Labels, domains: int) -> list[IntArray]:
    """One label array per domain, from one shared array or a sequence of arrays."""
    if isinstance(labels, list | tuple) and labels and np.ndim(labels[0]) == 1:
        if len(labels) != domains:
            raise ValueError(f"expected one label array for each of the {domains} domains, got {len(labels)}")
        return [as_labels(own) for own in labels]
    return [as_labels(labels)] * domains  # type: ignore[arg-type]


def _kept(labels: IntArray, limit: int | None) -> IntArray:
    """The positions of the images that take part."""
    return np.arange(len(labels), dtype=np.int64) if limit is None else balanced_subset(labels, limit)


def _orders(
    labels: Labels, domains: tuple[Domain, ...], within: Order, seed: int, reshuffle: bool, limit: int | None
) -> list[IntArray]:
    """The order of every domain, over the images that take part, as positions in the whole set."""
    orders = []
    for number, own in enumerate(_labels_per_domain(labels, len(domains))):
        kept = _kept(own, limit)
        orders.append(kept[within(own[kept], seed=_domain_seed(seed, number) if reshuffle else seed)])
    return orders


def _domain_seed(seed: int, number: int) -> int:
    """A seed for the order of one domain, unrelated to those of its neighbours and of neighbouring seeds."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
