"""Streams over several domains: separate, continual, mixed, gradual, coming and going; over any order within one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from wildtta.randomness import derived_seed
from wildtta.streams.labels import IntArray, as_labels, balanced_subset
from wildtta.streams.orders import mild
from wildtta.streams.stream import Domain, DomainLike, Stream, as_domains

if TYPE_CHECKING:
    from typing_extensions import Unpack

Labels: TypeAlias = "npt.ArrayLike | Sequence[npt.ArrayLike]"
"""The labels of the data set that all domains share, or one label array per domain."""


class Order(Protocol):
    """An order within a domain: `mild`, `functools.partial(label_shift, ratio=1000)`, ..."""

    def __call__(self, labels: npt.ArrayLike, /, *, seed: int = 0) -> IntArray: ...


class StreamOptions(TypedDict, total=False):
    """What all of these streams take."""

    within: Order
    """The order of the images; default `mild`."""
    batch_size: int
    """Default 64. Batches end with their domain, unless domains are mixed."""
    seed: int
    """Of every order; default 0."""
    limit: int | None
    """Use only so many images of each domain, spread evenly over the classes; default: all."""


def separate(
    labels: Labels, domains: Iterable[DomainLike], *, reshuffle: bool = False, **options: Unpack[StreamOptions]
) -> Stream:
    """Domains one after the other, a reset before each: how "the average over 15 corruptions" is measured.

    `reshuffle=False`: the same order in every domain, so that domains differ in nothing but the shift (as in
    the paper); True: every domain has an order of its own.
    """
    return _arranged("separate", labels, as_domains(domains), reset_each=True, reshuffle=reshuffle, **options)


def continual(
    labels: Labels, domains: Iterable[DomainLike], *, reshuffle: bool = False, **options: Unpack[StreamOptions]
) -> Stream:
    """Domains one after the other, the adapter never reset. `reshuffle` as in `separate`."""
    return _arranged("continual", labels, as_domains(domains), reshuffle=reshuffle, **options)


def mixed(labels: Labels, domains: Iterable[DomainLike], **options: Unpack[StreamOptions]) -> Stream:
    """All images of all domains as one pool, put in order together; the adapter is never reset.

    With `mild` the pool is shuffled: every image once in every domain. With `label_shift` or `dirichlet` the
    classes are correlated in time while the domains stay mixed. `batch_size=1` combines mixed shifts with
    single images.
    """
    return _arranged("mixed", labels, as_domains(domains), pooled=True, **options)


def gradual(
    labels: Labels,
    domains: Iterable[DomainLike],
    *,
    severity: int = 5,
    per_level: int | None = None,
    reshuffle: bool = True,
    **options: Unpack[StreamOptions],
) -> Stream:
    """Severity climbs 1, 2, ..., top and falls back to 1 in one domain, then the next begins; never reset.

    Every level shows the whole data set, or the first `per_level` samples of its order. With `reshuffle` (the
    default) neighbouring levels differ in their order, so that a short `per_level` doesn't show the same few
    images nine times.

    Source: the gradually changing setting of CoTTA (Wang et al., CVPR 2022).
    """
    if per_level is not None and per_level < 1:
        raise ValueError(f"per_level must be at least 1 sample, got {per_level}")
    listed = as_domains(domains)
    ramp = severity_ramp(listed, severity=severity)
    labels_of = dict(zip((name for name, _ in listed), _labels_per_domain(labels, len(listed)), strict=True))
    own = [labels_of[name] for name, _ in ramp]
    return _arranged("gradual", own, ramp, reshuffle=reshuffle, per_level=per_level, **options)


def comes_and_goes(
    labels: Labels, domains: Iterable[DomainLike], *, every: int = 512, **options: Unpack[StreamOptions]
) -> Stream:
    """``every`` clean images, as many of the next domain, clean ones again, and so on; never reset.

    Every image of the order comes once, in whichever domain its turn falls. A shift that ends is a test of its own: what
    was learned for it must not stay.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1 image, got {every}")
    listed = (Domain("clean"), *(domain for domain in as_domains(domains) if domain.name != "clean"))
    if len(listed) < 2:
        raise ValueError("a shift that comes and goes needs a domain other than 'clean'")
    plain = _arranged("comes_and_goes", labels, listed[:1], **options)
    piece = np.arange(len(plain.index)) // every
    shifted = 1 + piece // 2 % (len(listed) - 1)
    return replace(plain, domains=listed, domain=np.where(piece % 2 == 0, 0, shifted))


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


def _arranged(
    scenario: str,
    labels: Labels,
    domains: tuple[Domain, ...],
    *,
    within: Order = mild,
    batch_size: int = 64,
    seed: int = 0,
    limit: int | None = None,
    reshuffle: bool = False,
    per_level: int | None = None,
    reset_each: bool = False,
    pooled: bool = False,
) -> Stream:
    """Domains one after the other, each put in order for itself; with `pooled` all images together."""
    labels_of = _labels_per_domain(labels, len(domains))
    kept = [np.arange(len(own)) if limit is None else balanced_subset(own, limit) for own in labels_of]
    counts = [len(positions) for positions in kept]
    index, domain = np.concatenate(kept), np.repeat(np.arange(len(domains), dtype=np.int64), counts)
    label = np.concatenate([own[positions] for own, positions in zip(labels_of, kept, strict=True)])
    orders = []
    for number, pool in enumerate(np.split(np.arange(len(index)), [] if pooled else np.cumsum(counts)[:-1])):
        order = within(label[pool], seed=derived_seed(seed, number) if reshuffle else seed)
        orders.append(pool[order[:per_level]])
    starts = tuple(np.cumsum([0, *map(len, orders[:-1])]).tolist())
    together = np.concatenate(orders)
    resets = starts if reset_each else (0,)
    return Stream(scenario, domains, domain[together], index[together], batch_size, starts, resets)


def _labels_per_domain(labels: Labels, domains: int) -> list[IntArray]:
    """One label array per domain, from one shared array or a sequence of arrays."""
    if isinstance(labels, list | tuple) and labels and np.ndim(labels[0]) == 1:
        if len(labels) != domains:
            raise ValueError(f"expected one label array for each of the {domains} domains, got {len(labels)}")
        return [as_labels(own) for own in labels]
    return [as_labels(labels)] * domains  # type: ignore[arg-type]
