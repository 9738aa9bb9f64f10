"""The chain of stages or blocks that a network is made of: its middle, what comes before, and running no further than that."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wildtta.network.inspection import main_chain
from wildtta.network.probe import probe


class _Reached(Exception):
    """Carries a stage's output out of a network that is not to be run further."""

    def __init__(self, features: Tensor) -> None:
        super().__init__("stage reached")
        self.features = features


def run_to(network: nn.Module, stage: str, images: Tensor) -> Tensor:
    """What the module named ``stage`` gives for ``images``; the network is run no further."""

    def stop(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        raise _Reached(output[0] if isinstance(output, tuple) else output)

    handle = network.get_submodule(stage).register_forward_hook(stop)
    try:
        network(images)
    except _Reached as reached:
        return reached.features
    finally:
        handle.remove()
    raise ValueError(f"{type(network).__name__} does not run its module {stage!r}; name another stage")


def middle_stage(network: nn.Module) -> tuple[str, list[str]]:
    """The stage that ends the first half of the chain, and the names of those after it.

    The second of four stages (ResNet, ConvNeXt, Swin), the sixth of twelve blocks (ViT-B).
    """
    chain = main_chain(network)
    if len(chain) < 2:
        raise ValueError(
            f"{type(network).__name__} is no chain of stages or blocks with norms, so its middle cannot be told; "
            "name a module of it with stage= and give the branch that goes on from there as a module"
        )
    half = len(chain) // 2
    return chain[half - 1], chain[half:]


def parameters_up_to(network: nn.Module, stage: str) -> list[str]:
    """Names of the parameters that have worked when ``stage`` is over, in the network's order."""
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
