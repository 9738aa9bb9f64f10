"""The online state on disk: safetensors, written atomically, refused with the reason where it does not fit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

FORMAT = "2"


def fingerprint(network: nn.Module, learned: Mapping[str, Tensor]) -> str:
    """A short hash of the network's structure and of the source values of what learns.

    Two networks of one architecture differ in their norm parameters after training, so these few numbers identify the
    weights without reading all of them.
    """
    digest = hashlib.sha256()
    for name, parameter in network.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
    for name, value in learned.items():
        digest.update(name.encode())
        digest.update(value.detach().to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()[:32]


def write_atomically(path: Path, data: bytes) -> None:
    """All of ``data`` under ``path`` or nothing: a temporary file beside it, flushed to disk, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def write_state(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Tensors and facts (as JSON) into one safetensors file."""
    contents = {name: value.detach().to("cpu").contiguous().clone() for name, value in tensors.items()}
    metadata = {"wildtta": json.dumps({"format": FORMAT, **facts})}
    write_atomically(Path(path), save(contents, metadata))


def read_state(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts from a state file, or an error that says what the file is instead."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no state file at {path}; write one with model.save({str(path)!r})")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is no readable safetensors file ({error}); expected one written by model.save()"
        ) from error
    if "wildtta" not in metadata:
        raise ValueError(f"{path} holds tensors but no wildtta state; expected a file written by model.save()")
    facts: dict[str, Any] = json.loads(metadata["wildtta"])
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{path} has state format {facts.get('format')!r}, this version of wildtta reads {FORMAT!r} (0.1 wrote '1', "
            "under other names of methods and options); load it with the version that wrote it, or start anew"
        )
    return tensors, facts
