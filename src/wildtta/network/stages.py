"""The chain of stages or blocks that a network is made of: its top, its middle, and running only up to a stage."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wildtta.network.changes import Changes
from wildtta.network.norms import is_norm
from wildtta.network.probe import Execution, probe

_MOST_STAGES = 8


def norms_in_order(network: nn.Module, seen: Execution | None) -> list[str]:
    """Norm layers in order of execution; of registration where none was seen to run."""
    registered = [name for name, module in network.named_modules() if is_norm(module)]
    executed = [] if seen is None else [name for name in seen.spans if name in registered]
    return executed or registered


def _chains(network: nn.Module, norms: list[str], seen: Execution | None) -> list[list[str]]:
    """Sequences of siblings of one class that contain norms, outermost first, each in order of execution."""
    found: list[tuple[int, int, list[str]]] = []
    for parent_name, parent in network.named_modules():
        prefix = f"{parent_name}." if parent_name else ""
        siblings: dict[type[nn.Module], list[str]] = {}
        for child_name, child in parent.named_children():
            name = prefix + child_name
            if (seen is None or name in seen.spans) and _held((name,), norms):
                siblings.setdefault(type(child), []).append(name)
        for names in siblings.values():
            held = len(_held(tuple(names), norms))
            # A chain that holds less than half of the norms (two layers inside one block) is not the network's shape.
            if len(names) > 1 and 2 * held > len(norms):
                ordered = names if seen is None else sorted(names, key=lambda name: seen.spans[name][0])
                found.append((prefix.count("."), -held, ordered))
    return [names for _, _, names in sorted(found, key=lambda chain: chain[:2])]


def _held(names: tuple[str, ...], norms: list[str]) -> list[str]:
    """The norms inside the modules ``names``."""
    return [norm for norm in norms if norm.startswith(tuple(f"{name}." for name in names))]


def _top_of(network: nn.Module, norms: list[str], seen: Execution | None) -> list[str]:
    """The last blocks, or the last stage, of the chain that is the network's trunk; nothing where there is no such chain.

    The outermost chain is the trunk, unless it only wraps one: [stem, stages] or [features, classifier], with the stages or
    blocks inside one member. Blocks give what they take in shape; stages differ in the shape that they give.
    """
    trunk: list[str] = []
    for chain in _chains(network, norms, seen):
        shapes = {} if seen is None else {name: seen.shapes[name] for name in chain}
        given = {after for _, after in shapes.values()}
        everywhere = given | {before for before, _ in shapes.values()}
        if len(chain) >= 4 and (seen is None or (len(everywhere) == 1 and None not in everywhere)) and len(trunk) < 3:
            return chain[-max(1, len(chain) // 4) :]
        if len(chain) <= _MOST_STAGES and len(given - {None}) > 1:
            trunk = chain
    return trunk[-1:]


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
    frozen = _held(tuple(_top_of(network, norms, seen)), norms)
    first = norms.index(frozen[0]) if frozen else len(norms) - max(1, len(norms) // 4)
    return norms[first:] if first > 0 else []


class _Reached(Exception):
    """Carries a stage's output out of a network that shall run no further."""


def run_to(network: nn.Module, stage: str, images: Tensor, changes: Changes | None = None) -> Tensor:
    """What the module named ``stage`` gives for ``images``; the network runs no further."""

    def stop(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        raise _Reached(output[0] if isinstance(output, tuple) else output)

    try:
        with (changes or Changes()).hook(network.get_submodule(stage), stop, before=False):
            network(images)
    except _Reached as reached:
        features: Tensor = reached.args[0]
        return features
    raise ValueError(f"{type(network).__name__} does not run its module {stage!r}; name another stage")


def middle_stage(network: nn.Module) -> tuple[str, list[str]]:
    """The stage that ends the first half of the chain, and the names of those after it.

    The second of four stages (ResNet, ConvNeXt, Swin), the sixth of twelve blocks (ViT-B).
    """
    seen = probe(network)
    chain = next(iter(_chains(network, norms_in_order(network, seen), seen)), [])
    if len(chain) < 2:
        raise ValueError(
            f"{type(network).__name__} is no chain of stages or blocks with norms, so its middle cannot be told; "
            "name a module of it with stage= and give the branch that goes on from there as a module"
        )
    half = len(chain) // 2
    return chain[half - 1], chain[half:]


def parameters_up_to(network: nn.Module, stage: str) -> list[str]:
    """Names of the parameters of all modules that start before ``stage`` ends, in the network's order."""
    modules = dict(network.named_modules())
    if stage not in modules:
        raise ValueError(f"{type(network).__name__} has no module {stage!r}; it has {', '.join(list(modules)[1:9])}, …")
    seen = probe(network)
    if seen is None or stage not in seen.spans:
        raise ValueError(
            f"the order in which {type(network).__name__} runs its modules could not be seen; "
            "choose what learns with parameters="
        )
    end = seen.spans[stage][1]
    early = {name for name, (entered, _) in seen.spans.items() if entered < end}
    return [name for name, _ in network.named_parameters() if name.rpartition(".")[0] in early]


def token_blocks(network: nn.Module) -> tuple[list[str], int]:
    """The blocks of a transformer in order of execution, and the width of its tokens.

    They are the outermost chain of one class whose members take tokens [batch, tokens, width] and give as many.
    """
    seen = probe(network)
    for chain in [] if seen is None else _chains(network, norms_in_order(network, seen), seen):
        assert seen is not None
        shapes = {shape for name in chain for shape in seen.shapes[name]}
        shape = shapes.pop()
        if not shapes and shape is not None and len(shape) == 3:
            return chain, shape[-1]
    raise ValueError(
        f"{type(network).__name__} has no chain of blocks that work on tokens [batch, tokens, width], as a ViT has; "
        "prompts can be put into such networks alone"
    )


def first_norm(network: nn.Module, block: str) -> nn.Module:
    """The norm that runs first within ``block``."""
    names = [name for name in norms_in_order(network, probe(network)) if name.startswith(f"{block}.")]
    if not names:
        raise ValueError(f"the block {block!r} of {type(network).__name__} has no norm layer")
    return network.get_submodule(names[0])
