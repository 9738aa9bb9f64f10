"""One forward pass over a dummy input: what runs, in which order, with which shapes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.network.output import logits_of

_IMAGE_SIDES = (32, 64, 224, 28, 96, 128, 256, 299, 384, 448, 512, 16, 8)


@dataclass
class Execution:
    """What a probe saw.

    ``spans`` maps a module's name to its first (entry, exit) tick, in the order in which modules *finished* first, and
    ``shapes`` to the shapes of its first tensor argument and result.
    """

    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    shapes: dict[str, tuple[torch.Size | None, torch.Size | None]] = field(default_factory=dict)
    linear_outputs: dict[str, Tensor] = field(default_factory=dict)
    linear_inputs: dict[str, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    input_shape: tuple[int, ...] = ()


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def input_convolution(network: nn.Module, seen: Execution | None = None) -> Convolution | None:
    """The first convolution to run (a patch embedding is one): it tells the rank and the channels of an input.

    Without an execution the first one registered is taken. A network that was seen to work on vectors has none.
    """
    modules = network.modules()
    if seen is not None:
        by_entry = sorted(seen.spans, key=lambda name: seen.spans[name][0])
        modules = map(network.get_submodule, [] if len(seen.input_shape) == 1 else by_entry)
    return next((module for module in modules if isinstance(module, Convolution)), None)


def _hinted_shapes(network: nn.Module) -> Iterator[tuple[int, ...]]:
    """Input shapes that the network itself tells: timm's config, Hugging Face's config, a patch embedding's size."""
    for attribute in ("pretrained_cfg", "default_cfg"):
        config = getattr(network, attribute, None)
        if isinstance(config, Mapping) and config.get("input_size"):
            yield tuple(config["input_size"])
    for module in network.modules():
        for holder in (module, getattr(module, "config", None)):
            size = getattr(holder, "img_size", None) or getattr(holder, "image_size", None)
            if size is None:
                continue
            height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
            convolution = input_convolution(network)
            channels: int = getattr(holder, "num_channels", None) or getattr(convolution, "in_channels", None) or 3
            yield (int(channels), int(height), int(width))


def _candidate_shapes(network: nn.Module) -> Iterator[tuple[int, ...]]:
    """Hints first; then what a convolution would take, then what a linear layer would (in order of registration)."""
    yield from dict.fromkeys(_hinted_shapes(network))
    convolutions = [module for module in network.modules() if isinstance(module, Convolution)]
    for channels, dimensions in dict.fromkeys((module.in_channels, len(module.kernel_size)) for module in convolutions):
        for side in _IMAGE_SIDES if dimensions < 3 else (32, 16, 64):
            yield (channels, *[side] * dimensions)
    yield from dict.fromkeys((module.in_features,) for module in network.modules() if isinstance(module, nn.Linear))


def _shape_of(value: Any) -> torch.Size | None:
    """Of the tensor, or of the first one in a sequence."""
    items = value if isinstance(value, tuple | list) else (value,)
    return next((item.shape for item in items if isinstance(item, Tensor)), None)


def _watch(network: nn.Module, images: Tensor) -> Execution:
    seen = Execution(input_shape=tuple(images.shape[1:]))
    tick = itertools.count()
    entered: dict[str, int] = {}
    names = {module: name for name, module in network.named_modules()}

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        entered.setdefault(names[module], next(tick))

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        name = names[module]
        if isinstance(module, nn.Linear):
            seen.linear_inputs[name], seen.linear_outputs[name] = inputs[0], output
        if name not in seen.spans:
            seen.spans[name] = (entered[name], next(tick))
            seen.shapes[name] = (_shape_of(inputs), _shape_of(output))

    with contextlib.ExitStack() as stack:
        for module in names:
            stack.enter_context(module.register_forward_pre_hook(enter))
            stack.enter_context(module.register_forward_hook(leave))
        seen.logits = logits_of(network(images))
    return seen


@contextlib.contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; modes, buffers and the random state are left as they were."""
    modes = {module: module.training for module in network.modules()}
    devices = {parameter.device for parameter in network.parameters() if parameter.is_cuda}
    for module in modes:
        module.training = False
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def probe(network: nn.Module) -> Execution | None:
    """Run ``network`` once on two samples of zeros and say what ran; None where no input fits.

    Shapes come from the network's own hints, else from its convolutions with usual image sides, else from its
    linear layers.
    """
    reference = next(network.parameters(), None)
    if reference is None:
        return None
    with undisturbed(network):
        for shape in _candidate_shapes(network):
            images = torch.zeros(2, *shape, dtype=reference.dtype, device=reference.device)
            try:
                return _watch(network, images)
            except TypeError:
                raise
            except Exception:
                continue
    return None
