"""The one rule for the head: the linear layer that makes the logits. What enters it are the features."""

from __future__ import annotations

from torch import nn

from wildtta.network.probe import Execution


def find_head(network: nn.Module, head: str | nn.Module, seen: Execution | None) -> tuple[str, nn.Linear]:
    """The layer that the caller names; with ``"auto"`` the last linear layer whose result the logits are."""
    linears = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    if head != "auto":
        for name, module in linears.items():
            if head in (name, module):
                return name, module
        known = f"linear layers: {_listing(linears)}"
        if isinstance(head, nn.Module):
            raise ValueError(f"head= must be a linear layer of this network, got {type(head).__name__}; {known}")
        raise ValueError(f"head={head!r} is no linear layer of this network; {known}")
    if not linears:
        raise ValueError(
            f"{type(network).__name__} has no linear layer, so no head was found: features and logits are read at the "
            "last nn.Linear. Give the network a linear classifier, or name it with head="
        )
    if seen is None or seen.logits is None:
        return next(reversed(linears.items()))
    logits = seen.logits
    outputs = [(name, out) for name, out in seen.linear_outputs.items() if out.shape[-1] == logits.shape[-1]]
    for name, out in reversed(outputs):
        if out.data_ptr() == logits.data_ptr():
            return name, linears[name]
    for name, _ in reversed(outputs):
        if seen.linear_inputs[name].dim() == 2:
            return name, linears[name]
    raise ValueError(
        f"no linear layer of {type(network).__name__} makes its {logits.shape[-1]} logits; "
        f"name the classifier with head=, one of: {_listing(linears)}"
    )


def _listing(names: dict[str, nn.Linear]) -> str:
    shown = [f"{name} ({layer.in_features} to {layer.out_features})" for name, layer in names.items()]
    return ", ".join(shown[-8:]) or "none"
