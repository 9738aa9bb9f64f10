"""A network from its name in a cell.

- ``glyphs:NAME``: an embedded network (``resnet_gn``, ``vit``, ``resnet_bn``), trained on glyphs.
- ``scenes:network``: the embedded segmentation network, trained on rendered scenes.
- ``timm:NAME``: ``timm.create_model``; pretrained unless ``pretrained = false`` or a weights file is given.
- ``torchvision:NAME``: ``torchvision.models.get_model``; ``NAME.WEIGHTS`` picks other weights than
  ``IMAGENET1K_V1``.
- ``package.module:function`` or ``path/to/file.py:function``: the user's own code, called with the cell's
  ``model_options`` and, where it has such a parameter, ``weights`` (else the file is loaded into what it
  returns).

A weights file is safetensors. ``pretrained = false`` gives the architecture with random weights (the same
ones every time): it exercises everything and means nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError, first_line, refuse_unknown
from wildtta.own_code import own_object

PINNED: dict[str, str] = {
    "resnet50_gn": "resnet50_gn.a1h_in1k",
    "vit_base_patch16_224": "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "convnext_base": "convnext_base.fb_in1k",
}
"""timm has served different weights under a bare name over the years; the paper's are these."""

_FORMS = "glyphs:NAME, scenes:network, timm:NAME, torchvision:NAME, package.module:function or path/to/file.py:function"


def build_model(cell: Cell) -> nn.Module:
    """A new network in evaluation mode, on the CPU; the same weights every time."""
    make = _maker(cell.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make(dict(cell.model_options), cell.weights)
    if not isinstance(network, nn.Module):
        raise BenchError(f"model {cell.model!r} gave {type(network).__name__}; expected a torch.nn.Module")
    return network.eval()


def check_model(cell: Cell) -> None:
    """Raise :class:`BenchError` where the name cannot mean anything or a file isn't there; builds nothing."""
    _maker(cell.model)
    if cell.weights is None:
        return
    if not Path(cell.weights).is_file():
        raise BenchError(f"no weights file at {cell.weights}")
    if advice := _advice(cell.weights):
        raise BenchError(f"{cell.weights} is no safetensors file{advice}")


def weights_digest(network: nn.Module) -> str:
    """12 hexadecimal digits that tell one set of weights from another."""
    digest = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


Maker = Callable[[dict[str, Any], str | None], Any]
"""From the cell's ``model_options`` and its weights file to a network."""


def _maker(model: str) -> Maker:
    kind, _, name = model.rpartition(":")
    if not kind or not name:
        raise BenchError(f"unknown model {model!r}. {_likely(model)}Expected {_FORMS}")
    known = {"glyphs": _glyphs, "scenes": _scenes, "timm": _timm, "torchvision": _torchvision}
    return known[kind](name) if kind in known else _own(kind, name)


def _likely(model: str) -> str:
    """What a name without a place may have meant: a file's function, or a library's network."""
    if model.endswith(".py"):
        return f"Name the function in the file too: {model}:FUNCTION. "
    found = [f"timm:{model}"] if importlib.util.find_spec("timm") and _library("timm").is_model(model) else []
    if importlib.util.find_spec("torchvision") and model in _library("torchvision.models").list_models():
        found.append(f"torchvision:{model}")
    return f"Did you mean {' or '.join(found)}? " if found else ""


def _glyphs(name: str) -> Maker:
    from wildtta import glyphs

    refuse_unknown([name], glyphs.NETWORKS, "glyphs has no network {}")
    return lambda options, weights: _loaded(glyphs.network(name, **options), weights)


def _scenes(name: str) -> Maker:
    from wildtta.segmentation import scenes

    refuse_unknown([name], ["network"], "scenes has no network {}")
    return lambda options, weights: _loaded(scenes.network(**options), weights)


def _timm(name: str) -> Maker:
    timm = _library("timm")
    if not timm.is_model(name.split(".")[0]):
        near = timm.list_models(f"*{name.split('.')[0]}*")[:5]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise BenchError(f"timm has no model {name!r}{hint}")

    def create(pretrained: bool, options: dict[str, Any]) -> Any:
        return timm.create_model(PINNED.get(name, name) if pretrained else name, pretrained=pretrained, **options)

    return _from_library("timm", name, create)


def _torchvision(name: str) -> Maker:
    models = _library("torchvision.models")
    architecture, _, chosen = name.partition(".")
    if architecture not in models.list_models():
        raise BenchError(f"torchvision has no model {architecture!r}; see torchvision.models.list_models()")

    def create(pretrained: bool, options: dict[str, Any]) -> Any:
        return models.get_model(architecture, weights=(chosen or "IMAGENET1K_V1") if pretrained else None, **options)

    return _from_library("torchvision", name, create)


def _from_library(library: str, name: str, create: Callable[[bool, dict[str, Any]], Any]) -> Maker:
    """Pretrained unless the options or a weights file say otherwise."""

    def make(options: dict[str, Any], weights: str | None) -> nn.Module:
        pretrained = bool(options.pop("pretrained", weights is None))
        try:
            network = create(pretrained, options)
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise BenchError(
                f"{library} could not make {name!r}: {first_line(error)}; where the weights cannot be fetched, give a "
                "weights file, or pretrained = false for random ones"
            ) from error
        return _loaded(network, weights)

    return make


def _own(place: str, name: str) -> Maker:
    try:
        function = own_object(place, name)
    except ValueError as error:
        raise BenchError(f"model {place}:{name}: {error}; expected {_FORMS}") from error
    if not callable(function):
        raise BenchError(f"{place} has no function {name!r}: it is a {type(function).__name__}")
    signature = inspect.signature(function)

    def make(options: dict[str, Any], weights: str | None) -> Any:
        takes_weights = weights is not None and "weights" in signature.parameters
        given = {**options, "weights": weights} if takes_weights else options
        try:
            signature.bind(**given)
        except TypeError as error:
            raise BenchError(f"{place}:{name}{signature}: {error}") from error
        return _loaded(function(**given), None if takes_weights else weights)

    return make


def _loaded(network: nn.Module, weights: str | None) -> nn.Module:
    if weights is None:
        return network
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        values: Mapping[str, torch.Tensor] = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise BenchError(f"cannot read the weights file {weights}: {first_line(error)}") from error
    try:
        told = network.load_state_dict(values, strict=False)
    except RuntimeError as error:
        raise BenchError(f"{weights} does not fit the network: {' '.join(str(error).split())[:300]}") from error
    # Counters of BatchNorm layers say nothing at test time and are often left out.
    missing = [name for name in told.missing_keys if not name.endswith("num_batches_tracked")]
    if missing or told.unexpected_keys:
        raise BenchError(
            f"{weights} does not fit the network: it lacks {missing[:3] or 'nothing'} and has "
            f"{told.unexpected_keys[:3] or 'nothing'} too many"
        )
    return network


def _advice(weights: str) -> str:
    """What to do with a file that torch.save wrote: it is a pickle, which is not read here because it may hold code."""
    path = Path(weights)
    with path.open("rb") as file:
        if file.read(2) not in (b"PK", b"\x80\x02"):
            return ""
    return (
        f". It was written by torch.save; convert it once: wildtta convert-weights {weights} "
        f"{path.with_suffix('.safetensors')}"
    )


def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BenchError(f"this model needs {module.split('.')[0]}: pip install 'wildtta[zoo]'") from error
