"""The facts about a network that adaptation needs, found by watching it run once."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.network.families import Family, family_of
from wildtta.network.features import are_rectified, features_of
from wildtta.network.head import classes_in, find_head, head_logits
from wildtta.network.inputs import as_call
from wildtta.network.norms import is_batch_norm
from wildtta.network.probe import Convolution, Execution, input_convolution, probe, takes_tokens
from wildtta.network.stages import norms_in_order, top_norms


@dataclass
class Network:
    """A classifier as adaptation sees it."""

    module: nn.Module
    head_name: str
    head: nn.Module
    """The layer whose input are the features: linear, a 1×1 convolution, or a module that makes logits of vectors."""
    logit_scale: float
    """What the head's result is multiplied by to give the logits (a temperature outside of the head); usually 1."""
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
    takes_tokens: bool
    """Whether an input may be whole numbers."""
    input_rank: int | None
    input_channels: int | None
    input_width: int | None
    """Entries of a sample where samples are vectors (no convolution; a vector was accepted)."""

    @property
    def reference(self) -> Tensor:
        """A tensor of the head (of the network where it has none): it tells the device and the type."""
        return next(chain(self.head.parameters(), self.head.buffers(), self.module.parameters()))

    def logits(self, features: Tensor) -> Tensor:
        """h(z): what the network would answer with these features [B, D], in their type."""
        logits = head_logits(self.head, features)
        return logits if self.logit_scale == 1 else self.logit_scale * logits


def inspect_network(network: nn.Module, head: str | nn.Module = "auto", example: Any = None) -> Network:
    """Run ``network`` once and say what it is; an error says what is missing where it cannot be adapted.

    It runs on ``example`` (a tensor, a mapping of named inputs, a tuple), or on made-up inputs of likely shapes.
    """
    refuse_other_tasks(network)
    seen = probe(network, None if example is None else as_call(example))
    if seen is not None and seen.logits is not None and seen.logits.dim() != 2:
        raise ValueError(
            f"{type(network).__name__} returned a tensor of shape {tuple(seen.logits.shape)} for one batch; expected logits "
            "[batch, classes], one answer per sample. Regression, detection and answers per token cannot be adapted; for "
            "segmentation there is wildtta.segmentation.adapt_segmentation"
        )
    head_name, layer = find_head(network, head, seen)
    classes, width = _widths(layer, head_name, seen)
    if classes < 2:
        raise ValueError(
            f"the head {head_name!r} has {classes} output; a classifier with at least 2 classes is needed (regression, or "
            "one logit for two classes, cannot be adapted). If this is not the layer that makes the logits, name it with head="
        )
    if seen is None:
        warnings.warn(
            f"{type(network).__name__} could not be run on a made-up input, so {head_name!r} is taken for its head and the "
            "order of its norm layers for that of registration; give adapt(…, example=batch) to have it looked at",
            stacklevel=3,
        )
    norms = norms_in_order(network, seen)
    ends_in_group_norm = bool(norms) and isinstance(network.get_submodule(norms[-1]), nn.GroupNorm)
    convolution = input_convolution(network, seen)
    return Network(
        module=network,
        head_name=head_name,
        head=layer,
        logit_scale=_logit_scale(layer, head_name, seen),
        classes=classes,
        feature_width=width,
        norm_names=norms,
        top_norm_names=top_norms(network, norms, seen),
        family=family_of(network),
        has_batch_norm=any(is_batch_norm(module) for module in network.modules()),
        sparse_features=seen is not None and ends_in_group_norm and are_rectified(network, layer, seen.call),
        takes_tokens=takes_tokens(network, seen),
        input_rank=None if convolution is None else 2 + len(convolution.kernel_size),
        input_channels=None if convolution is None else convolution.in_channels,
        input_width=_input_width(seen),
    )


def refuse_other_tasks(network: nn.Module) -> None:
    """An error where Hugging Face's config says that the outputs are no classes of which one is right."""
    task = getattr(getattr(network, "config", None), "problem_type", None)
    if task in ("regression", "multi_label_classification"):
        words = "predicts numbers" if task == "regression" else "gives several labels to one sample"
        raise ValueError(
            f"{type(network).__name__} {words} (problem_type={task!r}); these methods need a classifier, in which one of "
            "at least 2 classes is right: they minimise the entropy of its softmax"
        )


def _widths(layer: nn.Module, name: str, seen: Execution | None) -> tuple[int, int]:
    """The head's outputs and inputs."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    if isinstance(layer, Convolution):
        return layer.out_channels, layer.in_channels
    if seen is None or name not in seen.vectors:
        raise ValueError(
            f"what enters and leaves the head {name!r} could not be seen: it must take features [batch, width] and give "
            "logits [batch, classes], and the network must run on example= where its inputs are not plain"
        )
    before, after = seen.vectors[name]
    return classes_in(layer, after), before.shape[-1]


def _logit_scale(layer: nn.Module, name: str, seen: Execution | None) -> float:
    """s where the logits were seen to be s times what the head gives for the features, else 1."""
    if seen is None or seen.logits is None or name not in seen.vectors:
        return 1.0
    logits = seen.logits.double()
    try:
        with torch.no_grad():
            made = head_logits(layer, features_of(layer, [seen.vectors[name]], seen.logits)).double()
    except (ValueError, RuntimeError):
        return 1.0
    if made.shape != logits.shape or torch.allclose(made, logits, rtol=1e-3, atol=1e-5):
        return 1.0
    scale = float((made * logits).sum() / made.square().sum().clamp(min=1e-30))
    return scale if scale > 0 and torch.allclose(scale * made, logits, rtol=1e-3, atol=1e-5) else 1.0


def _input_width(seen: Execution | None) -> int | None:
    """The length of a sample that is a vector of numbers and entered a linear layer as it is."""
    if seen is None or not isinstance(seen.call, Tensor) or seen.call.dim() != 2 or not seen.call.is_floating_point():
        return None
    entered = any(before.shape == seen.call.shape for before, _ in seen.vectors.values())
    return seen.call.shape[1] if entered else None
