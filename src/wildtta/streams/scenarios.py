"""A stream by the name of its scenario: what a benchmark asks for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from wildtta.streams.domains import Labels, comes_and_goes, continual, gradual, mixed, separate
from wildtta.streams.label_shift import label_shift
from wildtta.streams.labels import IntArray
from wildtta.streams.orders import dirichlet, mild, one_class, runs, single, stored
from wildtta.streams.stream import DomainLike, Stream, as_domains

ORDERS: dict[str, Callable[..., IntArray]] = {
    "mild": mild,
    "single": single,
    "label_shift": label_shift,
    "dirichlet": dirichlet,
    "stored": stored,
    "runs": runs,
    "one_class": one_class,
}
"""Orders within a domain by name."""

_SCENARIOS: dict[str, tuple[Callable[..., Stream], str | None]] = {
    **{name: (separate, name) for name in ("mild", "label_shift", "single", "dirichlet", "stored", "runs", "one_class")},
    "mixed": (mixed, None),
    "continual": (continual, None),
    "continual_label_shift": (continual, "label_shift"),
    "gradual": (gradual, None),
    "comes_and_goes": (comes_and_goes, None),
}
"""How domains follow one another, and the order within each; None: `mild`, or what the option `within` names."""

SCENARIOS: tuple[str, ...] = tuple(_SCENARIOS)
"""Names that `build` knows."""


def scenario_options(scenario: str) -> list[str]:
    """The names of the options that a scenario takes in `build`."""
    if scenario not in _SCENARIOS:
        raise ValueError(f"unknown scenario {scenario!r}; known: {', '.join(SCENARIOS)}")
    across, fixed = _SCENARIOS[scenario]
    if fixed is not None:
        return sorted(_options_of(across, ORDERS[fixed]))
    return sorted(_options_of(across, *ORDERS.values()) | {"within"})


def _options_of(*functions: Callable[..., Any]) -> set[str]:
    """The names of the functions' own options; what `build` itself takes is not among them."""
    names = set().union(*(inspect.signature(function).parameters for function in functions))
    return names - {"labels", "domains", "severity", "seed", "options"}


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
        options: what the scenario takes besides (`scenario_options`): ratio, draws and order for label shift,
            gamma and slots for Dirichlet, run and length for runs, per_level for gradual, every for comes_and_goes,
            reshuffle; within ("mild", "label_shift", "dirichlet", "runs") with the options of that order for "mixed",
            "continual", "gradual" and "comes_and_goes".
    """
    allowed = scenario_options(scenario)
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ValueError(
            f"scenario {scenario!r} has no option {', '.join(unknown)}; it takes: {', '.join(allowed) or 'none'}"
        )
    if scenario == "single" and batch_size not in (None, 1):
        raise ValueError(f"scenario 'single' means batches of one, got batch_size={batch_size}; use 'mild' for others")
    if batch_size is None:
        batch_size = 1 if scenario == "single" else 64
    across, fixed = _SCENARIOS[scenario]
    name = options.pop("within", None) or fixed or "mild"
    if name not in ORDERS:
        raise ValueError(f"within must be one of {', '.join(ORDERS)}, got {name!r}")
    arranging = {option: options.pop(option) for option in _options_of(across) & set(options)}
    if across is gradual and severity is not None:
        arranging["severity"] = severity
    foreign = sorted(set(options) - _options_of(ORDERS[name]))
    if foreign:
        raise ValueError(f"the order {name!r} has no option {', '.join(foreign)}; set within= to one that has it")
    stream = across(
        labels,
        as_domains(domains, severity=severity),
        within=partial(ORDERS[name], **options),
        batch_size=batch_size,
        seed=seed,
        limit=limit,
        **arranging,
    )
    return replace(stream, scenario=scenario)
