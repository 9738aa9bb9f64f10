"""The online state on disk: safetensors with a checksum, refused with the reason where it is damaged or does not fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from wildtta.step.atomic_file import write_atomically
from wildtta.step.precision import PRECISIONS
from wildtta.step.save_order import Save

FORMAT = "4"


def fingerprint(network: nn.Module, source: Mapping[Tensor, Tensor], unsaved: str) -> str:
    """A hash of every weight and buffer of ``network`` before adaptation, and of which parameters learn.

    ``source`` has the values from before adaptation of those. ``unsaved`` is the :func:`unsaved_fingerprint`. It reads the
    whole network: about a second for 100 million weights.
    """
    digest = hashlib.sha256(unsaved.encode())
    for name, value in network.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            before = source.get(value)
            _add(digest, name + " learns" * (before is not None), value if before is None else before.to(value.dtype))
    return digest.hexdigest()[:32]


def unsaved_fingerprint(network: nn.Module) -> str:
    """A hash of the parameters and buffers that ``network`` keeps out of its ``state_dict``; empty where there are none.

    To be taken before the first pass: among them are tables that a network makes longer when it needs to.
    """
    known = network.state_dict(keep_vars=True)
    everything = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
    unsaved = [(name, value) for name, value in everything if name not in known]
    digest = hashlib.sha256()
    for name, value in unsaved:
        _add(digest, name, value)
    return digest.hexdigest() if unsaved else ""


def _add(digest: Any, name: str, value: Tensor) -> None:
    digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
    value = value.detach().to("cpu")
    if value.layout != torch.strided:  # sparse (an adjacency matrix, say): its entries, for all of it may be too large
        entries = value.to_sparse().coalesce()
        _add(digest, "places", entries.indices())
        value = entries.values()
    digest.update(value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy())


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        _add(digest, name, tensors[name])
    return digest.hexdigest()


def write_state(
    path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], order: Save | None = None
) -> None:
    """Tensors and facts (as JSON) into one safetensors file; ``order`` was made where they were taken."""
    order = order or Save(path)
    contents = {name: value.detach().to("cpu").contiguous().clone() for name, value in tensors.items()}
    told = json.dumps({"format": FORMAT, **facts})
    metadata = {"wildtta": told, "checksum": _checksum(contents, told)}
    write_atomically(Path(path), save(contents, metadata), order.put)


def read_state(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts from a state file, or an error that says what the file is instead."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no state file at {path}; write one with model.save({str(path)!r})")
    try:
        # Read once: a save may put another file here at any time. (And in safetensors 0.8.0 every call of an open file's
        # get_tensor leaks two objects, 2 kB for a state.)
        data = path.read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata = header.get("__metadata__", {})
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} is no readable safetensors file ({error}); expected one written by model.save()"
        ) from error
    if "wildtta" not in metadata:
        raise ValueError(f"{path} holds tensors but no wildtta state; expected a file written by model.save()")
    told = metadata["wildtta"]
    written = _format_of(told)
    if written != FORMAT:
        raise ValueError(
            f"{path} has state format {written!r}, this version of wildtta reads {FORMAT!r} (0.1 wrote '1', previews of "
            "0.2 wrote '2' and '3'); load it with the version that wrote it, or start anew"
        )
    if metadata.get("checksum") != _checksum(tensors, told):
        raise ValueError(
            f"{path} is damaged: its contents do not match its checksum. Nothing was loaded; take another copy of the file"
        )
    facts: dict[str, Any] = json.loads(told)
    odd = [name for name, fits in _FACTS.items() if name not in facts or not fits(facts[name])]
    if odd:
        raise ValueError(
            f"{path} was not written by model.save(): {', '.join(odd)} missing or not of the type expected"
        )
    return tensors, facts


def read_facts(path: str | Path) -> dict[str, Any]:
    """The facts of a state file alone, unchecked: what it is about, at the price of its first bytes."""
    with safe_open(path, framework="pt") as file:
        facts: dict[str, Any] = json.loads((file.metadata() or {}).get("wildtta", "{}"))
    return facts


def _format_of(told: str) -> str | None:
    try:
        facts = json.loads(told)
    except ValueError:
        return None
    return facts.get("format") if isinstance(facts, dict) else None


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_hexadecimal_share(value: Any) -> bool:
    try:
        return isinstance(value, str) and 0 <= float.fromhex(value) <= 1
    except ValueError:
        return False


_FACTS: dict[str, Callable[[Any], bool]] = {
    "method": lambda value: isinstance(value, str),
    "options": lambda value: isinstance(value, dict),
    "network": lambda value: isinstance(value, str),
    "batch_size": lambda value: value is None or _whole(value, 1),
    "share": lambda value: value is None or _is_hexadecimal_share(value),
    "host_steps": lambda value: _whole(value, 0),
    "calls": lambda value: _whole(value, 0),
    "gate_open": lambda value: isinstance(value, bool),
    "image_shape": lambda value: value is None or (isinstance(value, list) and all(_whole(side, 1) for side in value)),
    "precision": lambda value: value is None or value in PRECISIONS,
}
"""What a state file tells beside its tensors, each with what it may be."""
