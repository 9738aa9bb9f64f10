"""What a network is made of, as far as adaptation cares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from wildtta.methods.registry import get_method
from wildtta.network import choose_parameters, inspect_network


@dataclass(frozen=True)
class NetworkFacts:
    """The network of a checkup."""

    name: str
    family: str
    classes: int
    head: str
    feature_width: int
    norms: dict[str, int]
    """Norm layers with affine parameters, by kind."""
    learning_norms: int
    """How many of them learn with the default method."""
    learning_values: int
    """Numbers that learn with it; on a BatchNorm network none: the statistics change instead."""
    parameters: int
    batch_norm: bool

    @property
    def adaptable(self) -> bool:
        """Whether there is a norm layer that can learn, or whose statistics can follow the stream."""
        return bool(self.norms)


def network_facts(network: nn.Module, example: Any = None) -> NetworkFacts:
    """Look at ``network`` (it runs once, on ``example`` or a made-up input); an error where it is no classifier."""
    seen = inspect_network(network, example=example)
    method = get_method("steady")
    layers = {name: network.get_submodule(name) for name in seen.norm_names}
    learned = choose_parameters(seen, method.parameter_choice(seen), method.scope) if layers else []
    values = dict(network.named_parameters())
    own = {name for name in layers if any(entry.rpartition(".")[0] == name for entry in learned)}
    return NetworkFacts(
        name=type(network).__name__,
        family=seen.family,
        classes=seen.classes,
        head=seen.head_name,
        feature_width=seen.feature_width,
        norms=dict(Counter(type(layer).__name__ for layer in layers.values())),
        learning_norms=0 if seen.has_batch_norm else len(own),
        learning_values=0 if seen.has_batch_norm else sum(values[name].numel() for name in learned),
        parameters=sum(value.numel() for value in values.values()),
        batch_norm=seen.has_batch_norm,
    )
