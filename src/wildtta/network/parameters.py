"""Which parameters may learn: the method's own choice, or the caller's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal, cast

from torch import nn

from wildtta.network.inspection import Network

Scope = Literal["nothing", "norms", "norms below the top", "everything"]
ParameterChoice = str | Iterable[str] | Callable[[str, nn.Parameter], bool]


def _by_scope(network: Network, available: dict[str, nn.Parameter], scope: Scope) -> list[str]:
    if scope == "nothing":
        return []
    if scope == "everything":
        return list(available)
    if not network.norm_names:
        raise ValueError(
            f"{type(network.module).__name__} has no normalisation layer with affine parameters (BatchNorm, GroupNorm, "
            "LayerNorm, InstanceNorm, RMSNorm), and only those would learn. Choose what learns with "
            "parameters=: a list of parameter names, a regular expression or a function"
        )
    frozen = network.top_norm_names if scope == "norms below the top" else []
    layers = [network.module.get_submodule(name) for name in network.norm_names if name not in frozen]
    # Of the norm itself: a BatchNormAct2d may hold an activation with parameters.
    wanted = {id(getattr(layer, name, None)) for layer in layers for name in ("weight", "bias")}
    return [name for name, parameter in available.items() if id(parameter) in wanted]


def choose_parameters(network: Network, choice: ParameterChoice, scope: Scope) -> list[str]:
    """Names of the parameters that learn, in the network's order.

    ``choice`` is ``"auto"`` (the method's ``scope``), another scope (``"norms"``, ``"norms below the top"``,
    ``"everything"``), a regular expression searched in each name, a list of names, or a function of (name, parameter).
    """
    available = {name: value for name, value in network.module.named_parameters() if value.is_floating_point()}
    if choice in ("auto", "norms", "norms below the top", "everything"):
        return _by_scope(network, available, scope if choice == "auto" else cast(Scope, choice))
    if isinstance(choice, str):
        try:
            pattern = re.compile(choice)
        except re.error as error:
            raise ValueError(f"parameters={choice!r} is no regular expression: {error}") from error
        chosen = [name for name in available if pattern.search(name)]
        described = f"the regular expression {choice!r}"
    elif callable(choice):
        chosen = [name for name, parameter in available.items() if choice(name, parameter)]
        described = "the function given as parameters="
    else:
        wanted = list(choice)
        unknown = [name for name in wanted if name not in available]
        if unknown:
            raise ValueError(
                f"parameters= names {unknown[:5]}, which this network does not have; its parameters: "
                f"{', '.join(list(available)[:12])}{', …' if len(available) > 12 else ''}"
            )
        chosen = [name for name in available if name in wanted]
        described = "the list given as parameters="
    if not chosen:
        raise ValueError(
            f"{described} chose none of the network's {len(available)} parameters, for instance "
            f"{', '.join(list(available)[:6])}; something must learn"
        )
    return chosen
