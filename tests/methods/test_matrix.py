"""Every registered method on every kind of network, precision and batch size.

A method joins by being registered: it must predict, learn, save, resume bit for bit, reset, pause and unload on all four
networks, unless :data:`UNDEFINED` says (with what its error must tell) that it means nothing there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import wildtta
from toy_networks import CLASSES, KINDS, batches, build, flags, images, same_bits, snapshot
from wildtta.methods.registry import config_classes

# What a method asks for that a network lacks: the words its refusal must hold.
UNDEFINED: dict[tuple[str, str], str] = {
    **{("bn-adapt", kind): "BatchNorm" for kind in ("gn_resnet", "ln_vit", "ln_mlp")},
    ("ttt", "ln_mlp"): "no chain of stages or blocks",
    ("dda", "ln_mlp"): r"images \[batch, channels, height, width\]",
    **{("foa", kind): "no chain of blocks that work on tokens" for kind in ("gn_resnet", "bn_resnet", "ln_mlp")},
    ("spa", "ln_mlp"): r"images \[batch, channels, height, width\]",
}
# Methods whose answer is all that they change.
ANSWER_ONLY = {"none", "lame", "bn-adapt", "dda"}
# … and on which networks, where they learn on others: Steady follows BatchNorm's moments.
ANSWER_ONLY_ON = {("steady", "bn_resnet")}
# Methods that learn without a backward pass.
FORWARD_ONLY = {"neo", "t3a", "foa"}
# The entropy of one prediction less the entropy of the mean prediction of one: nothing to minimise. One sample has
# no deviation (FOA), and SHOT's authors leave it out.
NOTHING_TO_LEARN_FROM_ONE = {"infomax", "shot", "foa"}
# State that tells of the source and so outlives a reset.
OF_THE_SOURCE = {
    f"memory/{name}"
    for name in ("fisher", "source_entropies", "source_mean", "source_std", "sigma", "sigma_of_source")
}
# Small settings, by the name of the option, with which a few samples are enough to learn from.
SMALL = {"lr": 0.01, "every": 4, "capacity": 8, "views": 2, "steps": 4, "depth": 2, "reliable": 0.9, "warmup": 2}
SMALL |= {"region_reliable": 3.0, "plpd": 0.01, "evidence": False}


def _options(method: str, kind: str) -> dict[str, Any]:
    cls = config_classes()[method]
    defaults = {item.name: item.default for item in dataclasses.fields(cls)}
    small = {name: value for name, value in SMALL.items() if name in defaults}
    if defaults.get("reliable") is None:
        small.pop("reliable", None)
    if method not in ("dda",):
        small.pop("steps", None)
    return {**cls.example_options(images(kind, 16, seed=77)), **small}


def _adapted(method: str, kind: str, network: torch.nn.Module | None = None) -> wildtta.Adapter:
    return wildtta.adapt(network if network is not None else build(kind), method, **_options(method, kind))


def _precision(name: str) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if name == "bfloat16" else contextlib.nullcontext()


def _cells() -> list[Any]:
    return [
        pytest.param(method, kind, precision, size, id=f"{method}-{kind}-{precision}-{size}")
        for method in wildtta.methods()
        for kind in KINDS
        for precision in ("float32", "bfloat16")
        for size in (16, 1)
        if (method, kind) not in UNDEFINED
    ]


@pytest.mark.parametrize(("method", "kind", "precision", "size"), _cells())
def test_a_method_lives_its_whole_life(method: str, kind: str, precision: str, size: int, tmp_path: Path) -> None:
    network = build(kind).train()
    before, flags_before = snapshot(network), flags(network)
    stream = batches(kind, 2 if size > 1 else 6, size)
    half = len(stream) // 2
    with _precision(precision):
        adapter = _adapted(method, kind, network)
        first_day = {name: value.clone() for name, value in adapter.online_state().items()}

        # predicts
        answers, learned = [], False
        for step, batch in enumerate(stream):
            if step == half:
                adapter.save(tmp_path / "state.safetensors")
            answers.append(adapter(batch))
            assert answers[-1].shape == (size, CLASSES)
            assert torch.isfinite(answers[-1]).all()
            assert not answers[-1].requires_grad
            assert int(adapter.last.seen) == size
            learned = learned or bool(adapter.last.learned)
        assert adapter.cost.forwards >= size * len(stream)

        # learns, and moves nothing but what it said
        moved = {name.removeprefix("network.") for name, value in adapter.state_dict().items()
                 if not torch.equal(value, before[name.removeprefix("network.")])}  # fmt: skip
        assert moved <= set(adapter.learned_parameters)
        only_answers = method in ANSWER_ONLY or (method, kind) in ANSWER_ONLY_ON
        if not only_answers and not (size == 1 and method in NOTHING_TO_LEARN_FROM_ONE):
            assert learned
            assert (adapter.cost.backwards > 0) == (method not in FORWARD_ONLY)
            bare = build(kind)
            with torch.no_grad():
                unadapted = [bare(batch) for batch in stream]
            assert moved or any(not torch.equal(a, b) for a, b in zip(answers, unadapted, strict=True))

        # resumes bit for bit
        twin = _adapted(method, kind)
        twin.load(tmp_path / "state.safetensors")
        resumed = [twin(batch) for batch in stream[half:]]
        for ours, theirs in zip(resumed, answers[half:], strict=True):
            assert torch.equal(ours, theirs)
        assert same_bits(twin.online_state(), adapter.online_state()) == []

        # pauses
        state = {name: value.clone() for name, value in adapter.online_state().items()}
        with adapter.paused():
            adapter(stream[0])
        assert same_bits(adapter.online_state(), state) == []

        # resets
        adapter.reset()
        assert same_bits(snapshot(adapter.network), before) == []
        state = adapter.online_state()
        kept = [name for name, value in first_day.items() if value.shape == state[name].shape]
        changed = same_bits({name: state[name] for name in kept}, {name: first_day[name] for name in kept})
        assert set(changed) <= OF_THE_SOURCE
        assert torch.equal(adapter(stream[0]), answers[0])

    # unloads
    back = adapter.unload()
    assert back is network
    assert same_bits(snapshot(back), before) == []
    assert flags(back) == flags_before


@pytest.mark.parametrize(("method", "kind"), UNDEFINED)
def test_a_method_that_means_nothing_on_a_network_says_so_and_leaves_it_alone(method: str, kind: str) -> None:
    if method not in wildtta.methods():
        pytest.fail(f"{method} is not registered; drop it from UNDEFINED")
    network = build(kind)
    before, flags_before = snapshot(network), flags(network)
    try:
        adapter = _adapted(method, kind, network)
    except ValueError as refusal:
        assert re.search(UNDEFINED[method, kind], str(refusal))  # noqa: PT017 - it may come now or with the first batch
    else:
        with pytest.raises(ValueError, match=UNDEFINED[method, kind]):
            adapter(images(kind, 4))
        adapter.unload()
    assert same_bits(snapshot(network), before) == []
    assert flags(network) == flags_before


def test_the_core_methods_are_registered() -> None:
    assert {"none", "tent", "infomax", "sar", "sar2", "sar2-efficient"} <= set(wildtta.methods())
    assert not {"none", "tent", "sar", "sar2", "sar2-efficient"} & {method for method, _ in UNDEFINED}
