"""The online state of an engine as tensors and facts, and an engine that goes on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wildtta.step.engine import Engine


def state_of(engine: Engine) -> dict[str, Tensor]:
    """All that learning changed: copies of the learned parameters and of the method's declared state."""
    engine.read()
    learned = engine.learnables.split(engine.learnables.vector()) if engine.learns else {}
    return {
        **{f"parameters/{name}": value for name, value in learned.items()},
        **{f"memory/{name}": value.clone() for name, value in engine.memory.items()},
    }


def facts_of(engine: Engine, network: str) -> dict[str, Any]:
    """What belongs to the state and is no tensor; ``network`` is the fingerprint of the source network."""
    return {
        "method": engine.method.name,
        "options": engine.method.plain_options(),
        "network": network,
        "batch_size": engine.batch_size,
        "share": None if engine.share is None else engine.share.hex(),
        "host_steps": engine.host_steps,
        "calls": engine.calls,
        "gate_open": engine.gate_open,
        "image_shape": engine.image_shape,
        "precision": engine.precision,
    }


def check_origin(engine: Engine, path: str | Path, facts: dict[str, Any], network: str) -> None:
    """An error where a state is of another method or network."""
    if facts["method"] != engine.method.name:
        raise ValueError(f"{path} is a state of {facts['method']!r}, this adapter runs {engine.method.name!r}")
    if facts["network"] != network:
        raise ValueError(
            f"{path} was saved from another network (or other weights, or other parameters that learn): "
            f"its fingerprint is {facts['network'][:8]}, this network's is {network[:8]}"
        )


def resume(
    engine: Engine, path: str | Path, tensors: dict[str, Tensor], facts: dict[str, Any], network: str
) -> list[str]:
    """Bring ``engine`` to a state that was read from ``path``; an error says why it does not fit. Returns warnings."""
    check_origin(engine, path, facts, network)
    if facts["image_shape"] is not None:
        engine.see(tuple(facts["image_shape"]))
    elif engine.image_shape is not None:
        tensors = {**tensors, **_not_there_yet(engine, tensors)}
    present = state_of(engine)
    odd = sorted(set(tensors) ^ set(present)) or [name for name in present if not _alike(tensors[name], present[name])]
    if odd:
        raise ValueError(f"{path} does not fit this adapter's options: {', '.join(odd[:4])} differ")
    unknown_at_first = {f"memory/{name}": value.isnan() for name, value in engine.blank_state().items()}
    odd = [name for name in present if not _finite(tensors[name], unknown_at_first.get(name))]
    if odd:
        raise ValueError(f"{path} holds values that are not finite, in {', '.join(odd[:4])}; take another state")
    if engine.learns:
        values = {name: tensors[f"parameters/{name}"] for name in engine.learnables.names}
        engine.learnables.assign(engine.learnables.join(values))
    for name, value in engine.memory.items():
        value.copy_(tensors[f"memory/{name}"])
    engine.batch_size = facts["batch_size"]
    engine.share = None if facts["share"] is None else float.fromhex(facts["share"])
    engine.host_steps, engine.gate_open = facts["host_steps"], facts["gate_open"]
    engine.calls = max(engine.calls, facts["calls"])
    engine.doubtful = ()
    mine = engine.method.plain_options()
    changed = [name for name, value in mine.items() if facts["options"].get(name) != value]
    return [f"{path} was saved with other values of {', '.join(changed)}; this adapter's are used"] if changed else []


def _not_there_yet(engine: Engine, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a state from before the first batch, what holds images and had no size yet: it begins anew."""
    with engine.changes.set(engine, image_shape=None):
        without = engine.initial_state()
    return {
        f"memory/{name}": value
        for name, value in engine.initial_state().items()
        if value.shape != without[name].shape == getattr(tensors.get(f"memory/{name}"), "shape", None)
    }


def _alike(stored: Tensor, present: Tensor) -> bool:
    """One shape and one kind of number; a float may be stored wider or narrower."""
    floats = stored.is_floating_point() and present.is_floating_point()
    return stored.shape == present.shape and (floats or stored.dtype == present.dtype)


def _finite(values: Tensor, may_be_nan: Tensor | None) -> bool:
    """Finite but where NaN stands for a value that is not known yet."""
    fine = torch.isfinite(values)
    return bool((fine if may_be_nan is None else fine | (values.isnan() & may_be_nan.to(values.device))).all())
