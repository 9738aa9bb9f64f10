"""Checks that many claims share; each gives (holds, numbers) for every part of what it checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from wildtta.paper.experiment import AVERAGE, Check, Part, later
from wildtta.paper.plan import BOTH
from wildtta.paper.view import NotHere, NotRun, TooShort, Value, View

#: How far (points of accuracy) a number or difference may be from the printed one and still be called the same:
#: three times the largest spread between the paper's own repetitions of one experiment (0.3), rounded up.
TOLERANCE = 1.0
#: "Flat" and "the same" say something only of networks that still work: above so many times the accuracy of guessing.
_ABOVE_CHANCE = 3.0

Row = tuple[str, ...]


def all_of(*checks: Check) -> Check:
    """Several checks, all of which must hold."""
    return lambda view: [part for check in checks for part in check(view)]


@later
def numbers(view: View, told: str, holds: Callable[..., bool], *places: Row) -> Iterator[Part]:
    """A test of the numbers at some places; ``told`` is a format for them."""
    values = [view.mean(*place) for place in places]
    yield holds(*values), told.format(*values)


@later
def along(view: View, told: str, holds: Callable[[Sequence[float]], bool], *row: str) -> Iterator[Part]:
    """A test of one row's numbers over its columns."""
    values = list(view.line(*row).values())
    yield holds(values), f"{told} {arrow(values)}"


@later
def above(view: View, high: Row, low: Row, *columns: str, by: float | None = None) -> Iterator[Part]:
    """One row is above another in each column, by the printed amount where that can be compared."""
    for column in columns:
        more, less = view.means((high, low), column)
        holds = more > less and (by is None or close(view, more - less, by))
        yield holds, _told(high, low, column, more, less)


@later
def equal(view: View, one: Row, other: Row, *columns: str, within: float = 0.5) -> Iterator[Part]:
    """Two rows differ by no more than this in each column, both above chance."""
    for column in columns:
        first, second = view.means((one, other), column)
        yield works(view, first, second) and abs(first - second) <= within, _told(one, other, column, first, second)


@later
def flat_row(view: View, told: str, within: float, *row: str) -> Iterator[Part]:
    """One row's numbers lie in a band of this width over its columns, all above chance."""
    values = list(view.line(*row).values())
    yield works(view, *values) and flat(values, within), f"{told} {arrow(values)}"


@later
def never_recovers(view: View, *rows: Row, columns: Sequence[str] | None = None) -> Iterator[Part]:
    """No run behind these rows went back to the source weights; in some columns, or the average."""
    for row, column in itertools.product(rows, columns or [AVERAGE]):
        resets = view.total("cost/resets", *row, column)
        yield resets == 0, f"{' '.join(row)}: {resets:.0f} recoveries"


@later
def recovers(view: View, *rows: Row) -> Iterator[Part]:
    """At least one run behind these rows' averages went back to the source weights."""
    found = {" ".join(row): view.total("cost/resets", *row, AVERAGE) for row in rows}
    yield sum(found.values()) > 0, ", ".join(f"{row}: {resets:.0f} recoveries" for row, resets in found.items())


@later
def ordered(view: View, rows: Sequence[Row], *columns: str) -> Iterator[Part]:
    """Each row is above the one before it, in each column."""
    for column in columns:
        values = view.means(rows, column)
        told = ", ".join(f"{row[-1]} {value:.1f}" for row, value in zip(rows, values, strict=True))
        yield rising(values), f"{' '.join((*rows[0][:-1], column))}: {told}"


@later
def wins(view: View, better: str, worse: str) -> Iterator[Part]:
    """One method is above another on every corruption, on both networks."""
    for network in BOTH:
        lost = [c for c in view.corruptions if view.mean(network, better, c) <= view.mean(network, worse, c)]
        count = len(view.corruptions)
        yield not lost, f"{network}: {better} above {worse} on {count - len(lost)} of {count}"


@later
def best(view: View, row: Row, *columns: str) -> Iterator[Part]:
    """A row is best (or tied) in each column, among all others of its network that were run."""
    for column in columns:
        holds, told = best_of(view, row, column)
        yield holds, f"{' '.join((*row[:-1], column))}: {row[-1]} {told}"


def best_of(view: View, row: Row, column: str) -> Part:
    """Whether a row is best (or tied) among its network's rows that were run; names the best rival."""
    own = view.mean(*row, column)
    rivals = [other for other in view.row_labels if other[:-1] == row[:-1] and other != row]
    found = {rival: view.known(*rival, column) for rival in rivals}
    known = {rival: value.mean for rival, value in found.items() if value is not None}
    if not known:
        raise NotRun("no other method was run")
    rival = max(known, key=known.__getitem__)
    lacking = ", ".join(rival[-1] for rival in rivals if rival not in known)
    without = f" (without {lacking})" if lacking else ""
    # Printed numbers have one decimal: equal there is tied.
    return own >= known[rival] - 1e-9, f"{own:.1f}, next {rival[-1]} {known[rival]:.1f}{without}"


@later
def as_printed(view: View, *rows: Row, columns: Sequence[str] | None = None) -> Iterator[Part]:
    """Every number of these rows is within the tolerance of the printed one: only on the paper's own data."""
    if not view.setting.same_as_paper:
        raise NotHere("a magnitude printed for ImageNet-C and the paper's networks; these are other data")
    for row, column in itertools.product(rows, columns or view.columns):
        spot = view.spot(*row, column)
        if spot.printed is not None:
            value = view.value_at(spot).mean
            told = f"{row[-1]} {column} {value:.1f} (printed {spot.printed:.1f})"
            yield abs(value - spot.printed) <= TOLERANCE, told


def on_the_papers_data(check: Check) -> Check:
    """A check that counts only on the paper's own data and says nothing elsewhere."""
    return lambda view: check(view) if view.setting.same_as_paper else ()


def needs_seeds(value: Value) -> None:
    """Stop here unless a standard deviation means anything."""
    if value.seeds < 3:
        raise TooShort(f"a standard deviation needs at least 3 seeds; there are {value.seeds}")


def needs_network(view: View, network: str) -> None:
    """Stop here where nothing plays the part of a network."""
    if network not in view.setting.networks:
        raise NotHere(f"{network} has no counterpart on {view.setting.where}")


def works(view: View, *values: float) -> bool:
    """Whether all accuracies are clearly above guessing."""
    return min(values) > _ABOVE_CHANCE * view.chance


def close(view: View, value: float, printed: float, tolerance: float = TOLERANCE) -> bool:
    """Near the printed number; always so on other data, where that number says nothing."""
    return not view.setting.same_as_paper or abs(value - printed) <= tolerance


def rising(values: Sequence[float]) -> bool:
    """Whether each value is above the one before it."""
    return all(later > earlier for earlier, later in itertools.pairwise(values))


def flat(values: Sequence[float], within: float) -> bool:
    """Whether all values lie in a band of this width."""
    return max(values) - min(values) <= within


def arrow(values: Iterable[float]) -> str:
    """``2.6 → 5.1 → 16.3``."""
    return " → ".join(f"{value:.1f}" for value in values)


def averages_of(*methods: str) -> Check:
    """The averages of these methods on both networks are the printed ones."""
    return as_printed(*itertools.product(BOTH, methods), columns=[AVERAGE])


def _told(one: Row, other: Row, column: str, first: float, second: float) -> str:
    """``ResNet50-GN Avg: SAR2 51.7, SAR 37.2 (+14.5)``."""
    where = " ".join((*one[:-1], column))
    return f"{where}: {one[-1]} {first:.1f}, {other[-1]} {second:.1f} ({first - second:+.1f})"
