"""A scenario by name: the one door through which a benchmark asks for a stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from wildtta.streams.domains import Labels, Order, continual, gradual, mixed, separate
from wildtta.streams.label_shift import label_shift
from wildtta.streams.labels import IntArray
from wildtta.streams.orders import dirichlet, mild, single
from wildtta.streams.stream import DomainLike, Stream, as_domains

DEFAULT_BATCH_SIZE = 64


@dataclass(frozen=True)
class _Scenario:
    """How domains follow one another, the order within them, and whether that order may be chosen by an option."""

    across: Callable[..., Stream]
    within: Callable[..., IntArray]
    within_is_option: bool = False

    def options(self) -> list[str]:
        own = _option_names(self.across) - {"scenario", "severity", "limit"}
        inner = _option_names(self.within)
        if self.within_is_option:
            inner = {"within"}.union(*map(_option_names, ORDERS.values()))
        return sorted((own | inner) - {"seed", "batch_size"})


def _option_names(function: Callable[..., Any]) -> set[str]:
    positional = {"labels", "domains", "within"}
    return set(inspect.signature(function).parameters) - positional


ORDERS: dict[str, Callable[..., IntArray]] = {
    "mild": mild,
    "single": single,
    "label_shift": label_shift,
    "dirichlet": dirichlet,
}
"""Orders within a domain by name."""

_SCENARIOS: dict[str, _Scenario] = {
    "mild": _Scenario(separate, mild),
    "label_shift": _Scenario(separate, label_shift),
    "single": _Scenario(separate, single),
    "dirichlet": _Scenario(separate, dirichlet),
    "mixed": _Scenario(mixed, mild, within_is_option=True),
    "continual": _Scenario(continual, mild, within_is_option=True),
    "continual_label_shift": _Scenario(continual, label_shift),
    "gradual": _Scenario(gradual, mild, within_is_option=True),
}

SCENARIOS: tuple[str, ...] = tuple(_SCENARIOS)
"""Names that `build` knows."""


def scenario_options(scenario: str) -> list[str]:
    """The names of the options that a scenario takes in `build`."""
    return _find(scenario).options()


def build(
    scenario: str,
    labels: Labels,
    *,
    domains: Iterable[DomainLike] = ("clean",),
    severity: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    **options: Any,
) -> Stream:
    """The stream of a named scenario.

    Args:
        scenario: one of `SCENARIOS`.
        labels: of the data set that all domains share, or one array per domain.
        domains: names, (name, severity) pairs or `Domain`s, in the order in which they come.
        severity: of the domains that are given by bare name (the top severity in "gradual").
        batch_size: default 64; "single" is always 1.
        seed: of every order.
        limit: use only so many images of each domain, spread evenly over the classes.
        options: what the scenario takes besides (`scenario_options`): ratio, draws and order for label shift, gamma and
            slots for Dirichlet, per_level for gradual, reshuffle; within ("mild", "label_shift", "dirichlet") with the
            options of that order for "mixed", "continual" and "gradual".
    """
    chosen = _find(scenario)
    allowed = chosen.options()
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(
            f"scenario {scenario!r} has no option {', '.join(unknown)}; it takes: {', '.join(allowed) or 'none'}"
        )
    size = _batch_size(scenario, batch_size)
    across_options = {k: v for k, v in options.items() if k in _option_names(chosen.across)}
    within = _within(chosen, {k: v for k, v in options.items() if k not in across_options})
    if chosen.across is not gradual:
        across_options["scenario"] = scenario
    elif severity is not None:
        across_options["severity"] = severity
    listed = as_domains(domains, severity=severity)
    return chosen.across(
        labels, listed, within=within, batch_size=size, seed=seed, limit=limit, **across_options
    )


def _find(scenario: str) -> _Scenario:
    if scenario not in _SCENARIOS:
        raise ValueError(f"unknown scenario {scenario!r}; known: {', '.join(SCENARIOS)}")
    return _SCENARIOS[scenario]


def _batch_size(scenario: str, batch_size: int | None) -> int:
    if scenario != "single":
        return DEFAULT_BATCH_SIZE if batch_size is None else batch_size
    if batch_size not in (None, 1):
        raise ValueError(f"scenario 'single' means batches of one, got batch_size={batch_size}; use 'mild' for others")
    return 1


def _within(chosen: _Scenario, options: dict[str, Any]) -> Order:
    """The order within a domain with its options bound."""
    name = options.pop("within", None)
    if name is not None and name not in ORDERS:
        raise ValueError(f"within must be one of {', '.join(ORDERS)}, got {name!r}")
    order = chosen.within if name is None else ORDERS[name]
    foreign = sorted(set(options) - _option_names(order))
    if foreign:
        raise ValueError(
            f"the order {order.__name__!r} has no option {', '.join(foreign)}; set within= to one that has it"
        )
    return partial(order, **options)

