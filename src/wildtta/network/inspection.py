"""The facts about a network that adaptation needs, found by watching it run once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from wildtta.network.norms import is_batch_norm, is_norm
from wildtta.network.probe import Execution, input_convolution, probe

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
    """The part of ``norm_names`` that SAR and its kin leave alone: the last blocks or stage, and all after it."""
    family: Family
    has_batch_norm: bool
    input_rank: int | None
    input_channels: int | None
    input_width: int | None
    """Entries of a sample where samples are vectors (no convolution; a vector was accepted)."""
    sparse_features: bool = False


def find_head(network: nn.Module, head: str | nn.Module, seen: Execution | None) -> tuple[str, nn.Linear]:
    """The linear layer that makes the logits: named by the caller, or the last one whose result the logits are."""
    linears = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    if isinstance(head, nn.Module):
        for name, module in linears.items():
            if module is head:
                return name, module
        raise ValueError(
            f"head= must be a linear layer of this network, got {type(head).__name__}; linear layers: {_listing(linears)}"
        )
    if head != "auto":
        if head in linears:
            return head, linears[head]
        raise ValueError(f"head={head!r} is no linear layer of this network; linear layers: {_listing(linears)}")
    if not linears:
        raise ValueError(
            f"{type(network).__name__} has no linear layer, so no head was found: features and logits are read at the "
            "last nn.Linear. Give the network a linear classifier, or name it with head="
        )
    if seen is not None and seen.logits is not None:
        logits = seen.logits
        executed = [(name, out) for name, out in seen.linear_outputs.items() if name in linears]
        for name, out in reversed(executed):
            if out.data_ptr() == logits.data_ptr() and out.shape[-1] == logits.shape[-1]:
                return name, linears[name]
        for name, out in reversed(executed):
            if out.shape[-1] == logits.shape[-1] and seen.linear_inputs[name].dim() == 2:
                return name, linears[name]
        raise ValueError(
            f"no linear layer of {type(network).__name__} makes its {logits.shape[-1]} logits; "
            f"name the classifier with head=, one of: {_listing(linears)}"
        )
    return next(reversed(linears.items()))


def _listing(names: dict[str, nn.Linear]) -> str:
    shown = [f"{name} ({layer.in_features} to {layer.out_features})" for name, layer in names.items()]
    return ", ".join(shown[-8:]) or "none"


def family_of(network: nn.Module) -> Family:
    """``transformer`` where something attends (queries are computed), else ``convolutional``."""
    for module in network.modules():
        if isinstance(module, nn.MultiheadAttention):
            return "transformer"
        if "attention" in type(module).__name__.lower() and any(hasattr(module, name) for name in _QUERY_NAMES):
            return "transformer"
    return "convolutional"


def _norms_in_order(network: nn.Module, seen: Execution | None) -> list[str]:
    norms = {name for name, module in network.named_modules() if is_norm(module)}
    registered = [name for name, _ in network.named_modules() if name in norms]
    if seen is None:
        return registered
    executed = [name for name in seen.order if name in norms]
    return executed or registered


def _holds_norm(name: str, norms: list[str]) -> bool:
    return any(norm.startswith(f"{name}.") for norm in norms)


def _chains(network: nn.Module, norms: list[str], seen: Execution | None) -> list[list[str]]:
    """Sequences of siblings of one class that contain norms, outermost first, each in order of execution."""
    found: list[tuple[int, int, list[str]]] = []
    for parent_name, parent in network.named_modules():
        prefix = f"{parent_name}." if parent_name else ""
        by_class: dict[type[nn.Module], list[str]] = {}
        for child_name, child in parent.named_children():
            name = prefix + child_name
            ran = seen is None or name in seen.spans
            if ran and _holds_norm(name, norms):
                by_class.setdefault(type(child), []).append(name)
        depth = prefix.count(".")
        for names in by_class.values():
            if len(names) > 1:
                ordered = names if seen is None else sorted(names, key=lambda name: seen.spans[name][0])
                held = sum(any(norm.startswith(f"{name}.") for name in names) for norm in norms)
                found.append((depth, held, ordered))
    # A chain that holds less than half of the norms (two layers inside one block) does not tell the network's shape.
    found = [chain for chain in found if 2 * chain[1] > len(norms)]
    found.sort(key=lambda chain: (chain[0], -chain[1]))
    return [names for _, _, names in found]


def main_chain(network: nn.Module) -> list[str]:
    """The siblings that a network is made of (a ResNet's stages, a transformer's blocks), in order; empty: there are none."""
    seen = probe(network)
    chains = _chains(network, _norms_in_order(network, seen), seen)
    return chains[0] if chains else []


def _keeps_shape(names: list[str], seen: Execution | None) -> bool:
    if seen is None:
        return True
    shapes = {shape for name in names for shape in seen.shapes[name]}
    return len(shapes) == 1 and None not in shapes


def _changes_shape(names: list[str], seen: Execution | None) -> bool:
    """Whether the members' results differ in shape, as those of stages do (blocks within a stage give one shape)."""
    return seen is not None and len({seen.shapes[name][1] for name in names} - {None}) > 1


_MOST_STAGES = 8


def _top_of(network: nn.Module, norms: list[str], seen: Execution | None) -> list[str]:
    """The last blocks, or the last stage, of the chain that is the network's trunk; nothing where there is no such chain.

    The outermost chain is the trunk, unless it is only the wrapping of one: [stem, stages] or [features, classifier], with
    the stages or blocks inside one member.
    """
    trunk: list[str] = []
    top: list[str] = []
    for chain in _chains(network, norms, seen):
        blocks = len(chain) >= 4 and _keeps_shape(chain, seen)
        stages = len(chain) <= _MOST_STAGES and _changes_shape(chain, seen)
        if blocks and len(trunk) < 3:
            return chain[-max(1, len(chain) // 4) :]
        if stages:
            trunk, top = chain, chain[-1:]
    return top


def top_norms(network: nn.Module, norms: list[str], seen: Execution | None) -> list[str]:
    """The norms that SAR, SAR², DeYO and ReCAP freeze: the network's top, by position and not by name.

    (a) At least 4 blocks of one class that keep their shape (a ViT): the last quarter of the blocks. (b) A few stages
    whose shape changes along the way (ResNet, ConvNeXt, Swin): the last stage. In both, every norm that runs after the
    first frozen one is frozen too. (c) Anything else: the last quarter of the norm layers, at least one. Where nothing
    would be left to learn, nothing is frozen. For ResNet-50 and ViT-B/16 this is the paper's rule (``layer4``; blocks 9
    to 11 and the final norm), which its code writes as tests on names.
    """
    if len(norms) < 2:
        return []
    frozen = _top_of(network, norms, seen)
    if frozen:
        first = next(i for i, norm in enumerate(norms) if any(norm.startswith(f"{block}.") for block in frozen))
    else:
        first = len(norms) - max(1, len(norms) // 4)
    return norms[first:] if first > 0 else []


def inspect_network(network: nn.Module, head: str | nn.Module = "auto") -> Network:
    """Look at ``network`` once and say what it is; an error that tells what is missing where it cannot be adapted."""
    seen = probe(network)
    head_name, linear = find_head(network, head, seen)
    classes = linear.out_features
    if classes < 2:
        raise ValueError(
            f"the head {head_name!r} has {classes} output; a classifier with at least 2 classes is needed. "
            "If this is not the layer that makes the logits, name it with head="
        )
    norms = _norms_in_order(network, seen)
    convolution = input_convolution(network, seen)
    rank = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}
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
        input_rank=next((size for kind, size in rank.items() if isinstance(convolution, kind)), None),
        input_channels=getattr(convolution, "in_channels", None),
        input_width=seen.input_shape[0] if seen is not None and len(seen.input_shape) == 1 else None,
    )
