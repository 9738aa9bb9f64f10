"""One forward pass over a made-up input: what runs, in which order, with which shapes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.network.inputs import Inputs, called
from wildtta.network.norms import is_norm
from wildtta.network.output import NoLogits, logits_of

_IMAGE_SIDES = (32, 64, 224, 28, 96, 128, 256, 299, 384, 448, 512, 16, 8)
_LENGTHS = (16, 128, 1024)
"""Of tokens, of time series and of point clouds."""
_WAVEFORMS = (16_000, 4_000)
"""Samples of sound: a second at the usual rate, and less for small networks."""
_FRAMES = 4
"""Of a clip."""


@dataclass
class Execution:
    """What a probe saw.

    ``spans`` maps a module's name to its first (entry, exit) tick, in the order in which modules *finished* first, and
    ``shapes`` to the shapes of its first tensor argument and result.
    """

    call: Tensor | Inputs
    """What the network was called with."""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    shapes: dict[str, tuple[torch.Size | None, torch.Size | None]] = field(default_factory=dict)
    vectors: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """What entered and left the layers that may be a head (:func:`makes_vectors`, or from vectors to vectors), when they
    last ran."""
    logits: Tensor | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample; empty where the network was called with several arguments."""
        return tuple(self.call.shape[1:]) if isinstance(self.call, Tensor) else ()


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def makes_vectors(module: nn.Module) -> bool:
    """Whether ``module`` may be a head: one matrix, applied to vectors.

    A linear layer, a 1×1 convolution, or a module whose tensors hold one matrix and no norm layer (a cosine classifier,
    with its scale and whatever it is made of).
    """
    if isinstance(module, nn.Linear):
        return True
    if isinstance(module, Convolution):
        return set(module.kernel_size) == {1} and module.groups == 1
    parts = list(module.modules())
    if any(is_norm(part) or isinstance(part, nn.Embedding | nn.EmbeddingBag | Convolution) for part in parts):
        return False
    matrices = [value for part in parts for value in (*part._parameters.values(), *part._buffers.values())]
    return [value.dim() for value in matrices if value is not None and value.dim() > 1] == [2]


def input_convolution(network: nn.Module, seen: Execution | None) -> Convolution | None:
    """The convolution that the input was seen to enter as it is: it tells the input's rank and channels."""
    if seen is None:
        return None
    convolutions = {name: part for name, part in network.named_modules() if isinstance(part, Convolution)}
    first = min(
        (name for name in convolutions if name in seen.spans), key=lambda name: seen.spans[name][0], default=None
    )
    if first is None or not isinstance(seen.call, Tensor) or seen.shapes[first][0] != seen.call.shape:
        return None
    return convolutions[first]


def takes_tokens(network: nn.Module, seen: Execution | None) -> bool:
    """Whether whole numbers are an input: they were seen to be, or an embedding may look them up."""
    if seen is None or not isinstance(seen.call, Tensor):
        return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in network.modules())
    return not seen.call.is_floating_point()


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
            convolution = next((part for part in network.modules() if isinstance(part, Convolution)), None)
            channels: int = getattr(holder, "num_channels", None) or getattr(convolution, "in_channels", None) or 3
            yield (int(channels), int(height), int(width))
    yield from _hinted_sequences(getattr(network, "config", None))


def _hinted_sequences(config: Any) -> Iterator[tuple[int, ...]]:
    """Of Hugging Face's audio and video networks: spectrograms [time, mel] and [mel, time], frames of images."""
    bins, length = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
    if bins and length:
        yield (length, bins)
    positions = getattr(config, "max_source_positions", None)
    if bins and positions:
        yield (bins, 2 * positions)
    frames, side = getattr(config, "num_frames", None), getattr(config, "image_size", None)
    if frames and isinstance(side, int):
        yield (frames, getattr(config, "num_channels", 3), side, side)


def _candidate_shapes(network: nn.Module) -> Iterator[tuple[int, ...]]:
    """Hints first; then what a convolution would take, then what a linear layer would (in order of registration).

    Sequences (time series, point clouds, sound) may come with their channels last, or without any where there is one.
    """
    yield from dict.fromkeys(_hinted_shapes(network))
    modules = list(network.modules())
    convolutions = [module for module in modules if isinstance(module, Convolution)]
    kinds = dict.fromkeys((module.in_channels, len(module.kernel_size)) for module in convolutions)
    for channels, dimensions in kinds:
        for side in _IMAGE_SIDES if dimensions < 3 else (32, 16, 64):
            yield (channels, *[side] * dimensions)
    widths = list(dict.fromkeys(module.in_features for module in modules if isinstance(module, nn.Linear)))
    yield from ((width,) for width in widths)
    for channels, dimensions in kinds:
        if dimensions == 1:
            yield from ((length, channels) for length in _LENGTHS)
            yield from ((length,) for length in _WAVEFORMS if channels == 1)
    yield from ((length, width) for length in _LENGTHS for width in widths)
    yield from (
        (_FRAMES, channels, side, side) for channels, dimensions in kinds if dimensions == 2 for side in (32, 224)
    )


def _candidates(network: nn.Module, reference: Tensor) -> Iterator[Tensor]:
    """Made-up batches of two: tokens first where the network says that it reads text, noise in every likely shape."""
    generator = torch.Generator().manual_seed(0)

    def tokens() -> Iterator[Tensor]:
        words = next((module.num_embeddings for module in network.modules() if isinstance(module, nn.Embedding)), None)
        if words is not None:
            for length in _LENGTHS[:2]:
                yield torch.randint(0, words, (2, length), generator=generator).to(reference.device)

    reads = getattr(network, "main_input_name", None) == "input_ids"
    if reads:
        yield from tokens()
    for shape in _candidate_shapes(network):
        yield torch.randn(2, *shape, generator=generator).to(reference)
    if not reads:
        yield from tokens()


def _shape_of(value: Any) -> torch.Size | None:
    """Of the tensor, or of the first one in a sequence."""
    items = value if isinstance(value, tuple | list) else (value,)
    return next((item.shape for item in items if isinstance(item, Tensor)), None)


def _watch(network: nn.Module, call: Tensor | Inputs) -> Execution:
    seen = Execution(call)
    tick = itertools.count()
    entered: dict[str, int] = {}
    names = {module: name for name, module in network.named_modules()}
    heads = {module for module in names if makes_vectors(module)}

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        entered.setdefault(names[module], next(tick))

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        name = names[module]
        tensors = bool(inputs) and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)
        if tensors and (module in heads or inputs[0].dim() == output.dim() == 2):
            seen.vectors.pop(name, None)  # the order is that of the last run
            seen.vectors[name] = inputs[0], output
        if name not in seen.spans:
            seen.spans[name] = (entered[name], next(tick))
            seen.shapes[name] = (_shape_of(inputs), _shape_of(output))

    with contextlib.ExitStack() as stack:
        for module in names:
            stack.enter_context(module.register_forward_pre_hook(enter))
            stack.enter_context(module.register_forward_hook(leave))
        seen.logits = logits_of(called(network, call))
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


def probe(network: nn.Module, example: Tensor | Inputs | None = None) -> Execution | None:
    """Run ``network`` once on ``example``, or on two made-up samples, and say what ran; None where nothing made up fits.

    Shapes come from the network's own hints, else from its convolutions with usual image sides, else from its linear
    layers and embeddings.
    """
    reference = next(network.parameters(), None)
    if reference is None:
        return None
    with undisturbed(network):
        if example is not None:
            return _watch(network, example)
        attempts = (_attempt(network, call) for call in _candidates(network, reference))
        return next((seen for seen in attempts if seen is not None), None)


def _attempt(network: nn.Module, call: Tensor) -> Execution | None:
    """What ran on a made-up input; None where the network would not take it."""
    try:
        return _watch(network, call)
    except NoLogits:
        raise
    except Exception:
        return None
