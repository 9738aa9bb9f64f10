"""The facts about a network that adaptation needs, found by watching it run once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from wildtta.network.features import are_rectified
from wildtta.network.head import find_head
from wildtta.network.norms import is_batch_norm
from wildtta.network.probe import input_convolution, probe
from wildtta.network.stages import norms_in_order, top_norms

Family = Literal["convolutional", "transformer"]
_QUERY_NAMES = ("qkv", "query", "q_proj", "to_q", "q", "to_qkv")


@dataclass
class Network:
    """A classifier as adaptation sees it."""

    module: nn.Module
    head_name: str
    head: nn.Linear
    classes: int
    feature_width: int
    norm_names: list[str]
    """Norm layers with affine parameters, in order of execution."""
    top_norm_names: list[str]
    """The part of ``norm_names`` that SAR and SAR² freeze: the last blocks or stage, and all after it."""
    family: Family
    has_batch_norm: bool
    sparse_features: bool
    """Whether the features come from GroupNorm and ReLU; False where that could not be seen."""
    input_rank: int | None
    input_channels: int | None
    input_width: int | None
    """Entries of a sample where samples are vectors (no convolution; a vector was accepted)."""


def family_of(network: nn.Module) -> Family:
    """``transformer`` where something attends (queries are computed), else ``convolutional``."""
    for module in network.modules():
        if isinstance(module, nn.MultiheadAttention):
            return "transformer"
        if "attention" in type(module).__name__.lower() and any(hasattr(module, name) for name in _QUERY_NAMES):
            return "transformer"
    return "convolutional"


def inspect_network(network: nn.Module, head: str | nn.Module = "auto") -> Network:
    """Run ``network`` on dummy inputs and say what it is; an error says what is missing where it cannot be adapted."""
    seen = probe(network)
    head_name, linear = find_head(network, head, seen)
    classes = linear.out_features
    if classes < 2:
        raise ValueError(
            f"the head {head_name!r} has {classes} output; a classifier with at least 2 classes is needed. "
            "If this is not the layer that makes the logits, name it with head="
        )
    norms = norms_in_order(network, seen)
    ends_in_group_norm = bool(norms) and isinstance(network.get_submodule(norms[-1]), nn.GroupNorm)
    convolution = input_convolution(network, seen)
    return Network(
        module=network,
        head_name=head_name,
        head=linear,
        classes=classes,
        feature_width=linear.in_features,
        norm_names=norms,
        top_norm_names=top_norms(network, norms, seen),
        family=family_of(network),
        has_batch_norm=any(is_batch_norm(module) for module in network.modules()),
        sparse_features=seen is not None and ends_in_group_norm and are_rectified(network, linear, seen.input_shape),
        input_rank=None if convolution is None else 2 + len(convolution.kernel_size),
        input_channels=None if convolution is None else convolution.in_channels,
        input_width=seen.input_shape[0] if seen is not None and len(seen.input_shape) == 1 else None,
    )
