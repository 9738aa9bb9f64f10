"""Rotation prediction, the pretext task of TTT, and the branch of a network that does it."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from wildtta.glyphs.parts import BRANCHES
from wildtta.methods.augmix import random_crops
from wildtta.network.inspection import inspect_network
from wildtta.network.probe import probe
from wildtta.network.stages import middle_stage
from wildtta.step.atomic_file import write_atomically

TURNS = 4
FORMAT = "1"


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Each image turned anticlockwise by ``turns`` quarters: [B, C, H, H] and [B] in 0 … 3."""
    if images.dim() != 4 or images.shape[2] != images.shape[3]:
        raise ValueError(f"quarter turns need square images [batch, channels, side, side], got {tuple(images.shape)}")
    turned = torch.stack([torch.rot90(images, quarter, (2, 3)) for quarter in range(TURNS)])
    return turned[turns.to(images.device), torch.arange(len(images), device=images.device)]


def training_views(images: Tensor, generator: torch.Generator, *, mirror: bool = True) -> Tensor:
    """The usual training views: a random crop, mirrored half of the time; ``generator`` lives on the host."""
    images = random_crops(images, generator)
    if not mirror:
        return images
    mirrored = (torch.rand(len(images), generator=generator) < 0.5).to(images.device).view(-1, 1, 1, 1)
    return torch.where(mirrored, images.flip(-1), images)


class RotationBranch(nn.Module):
    """Goes on from a network's middle stage: later stages of its own, mean over positions, four logits."""

    def __init__(self, stages: list[nn.Module], width: int, *, channels_first: bool) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.channels_first = channels_first
        self.norm = nn.Identity() if channels_first else nn.LayerNorm(width)
        self.head = nn.Linear(width, TURNS)

    def forward(self, features: Tensor) -> Tensor:
        for stage in self.stages:
            result: Any = stage(features)
            features = result[0] if isinstance(result, tuple) else result
        if features.dim() > 2:
            features = features.flatten(2).mean(2) if self.channels_first else features.flatten(1, -2).mean(1)
        logits: Tensor = self.head(self.norm(features))
        return logits


Initial = Literal["random", "copied"]


def rotation_branch(network: nn.Module, *, initial: Initial = "random", seed: int = 0) -> RotationBranch:
    """An untrained branch for ``network``: stages built like those after its middle, and a head.

    The paper initialises the branch at random and does not say how it is built. ``initial="copied"`` begins with
    the weights of the network's own stages instead; the head is random in any case.
    """
    _, later = middle_stage(network)
    seen = probe(network)
    shape = None if seen is None else seen.shapes[later[-1]][1]
    width = inspect_network(network).feature_width if shape is None else shape[-1]
    channels_first = shape is not None and len(shape) == 4 and shape[1] >= shape[-1]
    if channels_first and shape is not None:
        width = shape[1]
    stages = [copy.deepcopy(network.get_submodule(name)) for name in later]
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        branch = RotationBranch(stages, int(width), channels_first=channels_first)
        if initial == "random":
            _randomise(branch.stages)
    reference = next(network.parameters())
    return branch.to(reference.device, reference.dtype).requires_grad_(True)


def _randomise(stages: nn.Module) -> None:
    """Draw all weights anew, each layer by its own rule (``reset_parameters``)."""
    for name, module in stages.named_modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if reset is not None:
            reset()
        elif next(module.parameters(recurse=False), None) is not None:
            kind = type(module).__name__
            warnings.warn(f"{kind} ({name}) has no reset_parameters: its weights stay the network's", stacklevel=4)


class StoredBranch(NamedTuple):
    """A branch, the stage that it goes on from, and whether it was trained on mirrored images too."""

    module: nn.Module
    stage: str
    mirror: bool


def save_branch(path: str | Path, branch: nn.Module, stage: str, *, mirror: bool = True, half: bool = False) -> None:
    """Write a trained branch (safetensors, atomically), with what must be known to use it; ``half``: as float16."""
    branch = copy.deepcopy(branch).half() if half else branch
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in branch.state_dict().items()}
    note = {"kind": "rotation branch", "format": FORMAT, "stage": stage, "mirror": mirror}
    write_atomically(Path(path), save(tensors, {"wildtta": json.dumps(note)}))


def load_branch(path: str | Path, network: nn.Module) -> StoredBranch:
    """A branch for ``network`` with the weights in ``path``, a file or a packaged branch's name.

    A file that does not fit is refused.
    """
    path = BRANCHES.get(str(path), Path(path))
    if not path.is_file():
        raise FileNotFoundError(f"no rotation branch at {path}; train one with: wildtta ttt-train --out {path}")
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {}).get("wildtta", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, json.JSONDecodeError, OSError) as error:
        raise ValueError(f"{path} is no readable safetensors file ({error}); expected a trained branch") from error
    if note.get("kind") != "rotation branch" or note.get("format") != FORMAT:
        raise ValueError(f"{path} is no rotation branch of this version; expected a file written by wildtta ttt-train")
    branch = rotation_branch(network, initial="copied")  # all weights are replaced below: nothing to draw
    expected = {name: tuple(value.shape) for name, value in branch.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if expected != found:
        odd = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise ValueError(f"{path} was trained for another network: {', '.join(odd[:3])} differ")
    branch.load_state_dict(tensors)
    return StoredBranch(branch, str(note["stage"]), bool(note["mirror"]))
