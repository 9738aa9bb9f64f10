"""The one rule for the head: the layer that makes the logits of features. What enters it are the features."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.network.probe import Convolution, Execution, makes_vectors


def find_head(network: nn.Module, head: str | nn.Module, seen: Execution | None) -> tuple[str, nn.Module]:
    """The layer that the caller names; with ``"auto"`` the last one whose result the logits are.

    A head is a linear layer, a 1×1 convolution, or a module with a matrix of its own (a cosine classifier). A caller may
    name any module that makes logits [batch, classes] of features [batch, width].
    """
    modules = {name: module for name, module in network.named_modules() if name}
    layers = {name: module for name, module in modules.items() if makes_vectors(module)}
    if head != "auto":
        for name, module in modules.items():
            if head in (name, module):
                return name, module
        known = f"layers that may be one: {_listing(layers)}"
        if isinstance(head, nn.Module):
            raise ValueError(f"head= got a {type(head).__name__} that is no layer of this network; {known}")
        raise ValueError(f"head={head!r} is no layer of this network; {known}")
    linears = {name: module for name, module in layers.items() if isinstance(module, nn.Linear)}
    if seen is None or seen.logits is None:
        if linears:
            return next(reversed(linears.items()))
        raise ValueError(_none_found(network, layers))
    logits = seen.logits
    made = [(name, layers[name], before, after) for name, (before, after) in seen.vectors.items() if name in layers]
    made = [entry for entry in made if classes_in(entry[1], entry[3]) == logits.shape[-1]]
    for name, layer, _, after in made:  # the innermost comes first: it ends before the modules around it
        if after.data_ptr() == logits.data_ptr():
            return name, layer
    # Scaled, cast or pooled logits: the last layer that has as many outputs, linear ones first.
    linear_first = sorted(made, key=lambda entry: isinstance(entry[1], nn.Linear))
    for name, layer, before, _ in reversed(linear_first):
        if before.dim() == 2:
            return name, layer
    if linear_first:
        return linear_first[-1][:2]
    raise ValueError(_none_found(network, layers, logits.shape[-1]))


def classes_in(head: nn.Module, made: Tensor) -> int:
    """The number of classes in what ``head`` gave."""
    return made.shape[1 if isinstance(head, Convolution) and made.dim() > 2 else -1]


def head_logits(head: nn.Module, features: Tensor) -> Tensor:
    """h(z) of features [B, D] in their type: the matrix product of a linear head, else the module itself."""
    if isinstance(head, nn.Linear | Convolution):
        weight, bias = head_weights(head)
        return F.linear(features, weight.to(features.dtype), None if bias is None else bias.to(features.dtype))
    logits: Tensor = head(features)
    return logits.to(features.dtype)


def head_weights(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """W [C, D] and b of a linear head; an error for one that is not linear."""
    if not isinstance(head, nn.Linear | Convolution):
        raise ValueError(
            f"this needs a linear head (logits = W z + b), and {type(head).__name__} is not one; "
            "take another method, or normalise the features before a linear layer (wildtta.zero_shot does)"
        )
    return head.weight.flatten(1), head.bias


def head_rows(head: nn.Module) -> Tensor | None:
    """W [C, D] of a linear head, without a graph; None for a head without a row for each class."""
    return head_weights(head)[0].detach() if isinstance(head, nn.Linear | Convolution) else None


def _none_found(network: nn.Module, layers: dict[str, nn.Module], classes: int | None = None) -> str:
    what = "its logits" if classes is None else f"its {classes} logits"
    return (
        f"no layer of {type(network).__name__} makes {what}, so no head was found: features are read at the last linear "
        f"layer (or 1×1 convolution, or module with a matrix). {_advice(layers)} Where logits are a plain product with a "
        "matrix (CLIP), build the classifier with wildtta.zero_shot(encoder, embeddings)"
    )


def _advice(layers: dict[str, Any]) -> str:
    if not layers:
        return "It has no such layer; another module that makes logits of features can be named with head=."
    return f"Name the classifier with head=, one of: {_listing(layers)}."


def _listing(layers: dict[str, Any]) -> str:
    shown = [f"{name} ({_widths(layer)})" for name, layer in layers.items()]
    return ", ".join(shown[-8:]) or "none"


def _widths(layer: Any) -> str:
    if isinstance(layer, nn.Linear):
        return f"{layer.in_features} to {layer.out_features}"
    if isinstance(layer, Convolution):
        return f"{layer.in_channels} to {layer.out_channels}"
    return type(layer).__name__
