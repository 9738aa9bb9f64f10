"""Silence speaks: a model that learns nothing, small batches for BatchNorm, endless recovery, a softmax at the end."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import wildtta
from toy_networks import batches, build, flags, images, same_bits, snapshot


def _messages(adapter: wildtta.Adapter, stream: list[torch.Tensor]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in stream:
            adapter(batch)
    assert all(warning.filename == __file__ for warning in caught), "a warning points at the caller's line"
    return [str(warning.message) for warning in caught]


def test_a_bank_that_never_fills_is_told_once_with_the_number_to_give() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "sar2")
    few = images("ln_mlp", 400)
    few = few[build("ln_mlp")(few).argmax(1) < 2][:8]  # two classes, and ζ is 5
    (message,) = _messages(adapter, [few] * 250)
    assert "learned nothing" in message
    assert "5 classes" in message
    assert "shown 2" in message
    assert "warmup=1" in message
    bare = adapter.unload()
    assert _messages(wildtta.adapt(bare, "sar2", warmup=1), [few] * 150) == []


def test_nothing_selected_is_told() -> None:
    unsure = build("ln_mlp")
    with torch.no_grad():
        unsure[-1].weight.mul_(0.01)
        unsure[-1].bias.mul_(0.01)
    adapter = wildtta.adapt(unsure, "sar")
    (message,) = _messages(adapter, batches("ln_mlp", 120, 8))
    assert "no sample was selected" in message
    assert "reliable=" in message
    adapter = wildtta.adapt(build("ln_mlp"), "tent")
    (message,) = _messages(adapter, [torch.full((8, 12), torch.nan)] * 120)
    assert "not finite" in message
    adapter = wildtta.adapt(build("bn_resnet"), "steady")
    (message,) = _messages(adapter, [torch.full_like(images("bn_resnet", 8), torch.nan)] * 120)
    assert "120 batches" in message or "100 batches" in message


def test_a_model_that_learns_and_one_that_never_should_say_nothing() -> None:
    for method in ("tent", "steady", "none", "lame"):
        assert _messages(wildtta.adapt(build("ln_mlp"), method), batches("ln_mlp", 110, 8)) == []
    # In batches of one the bank fills slowly: a hundred of them are no silence yet.
    assert _messages(wildtta.adapt(build("ln_mlp"), "sar2", warmup=10), [images("ln_mlp", 1)] * 120) == []


def test_recovery_batch_after_batch_is_told() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "sar", recovery=50.0)
    (message,) = _messages(adapter, batches("ln_mlp", 210, 8))
    assert "recovery=50" in message
    assert "recovery=None" in message


def test_small_batches_for_batch_norm_are_told_once_and_a_short_last_batch_is_not() -> None:
    adapter = wildtta.adapt(build("bn_resnet"), "tent")
    assert _messages(adapter, [*batches("bn_resnet", 3, 16), images("bn_resnet", 3), images("bn_resnet", 16)]) == []
    (message,) = _messages(adapter, batches("bn_resnet", 5, 2))
    assert "batches of 2" in message
    assert "GroupNorm" in message
    alternating = [images("bn_resnet", size, seed=size) for size in (16, 2) * 4]
    (message,) = _messages(wildtta.adapt(build("bn_resnet"), "tent"), alternating)
    assert "batches of 2" in message
    for kind, method in (("gn_resnet", "tent"), ("bn_resnet", "none")):
        assert _messages(wildtta.adapt(build(kind), method), batches(kind, 3, 1)) == []


def test_a_network_that_ends_in_a_softmax_is_told() -> None:
    adapter = wildtta.adapt(nn.Sequential(build("ln_mlp"), nn.Softmax(1)), "tent")
    (message,) = _messages(adapter, batches("ln_mlp", 3, 8))
    assert "softmax" in message
    assert (
        _messages(wildtta.adapt(nn.Sequential(build("ln_mlp"), nn.LogSoftmax(1)), "tent"), batches("ln_mlp", 2, 8))
        == []
    )


@pytest.mark.parametrize("bad", [1, 8])
def test_a_softmax_is_told_also_where_the_first_batch_holds_bad_images(bad: int) -> None:
    adapter = wildtta.adapt(nn.Sequential(build("ln_mlp"), nn.Softmax(1)), "tent")
    first, *others = batches("ln_mlp", 3, 8)
    first[:bad] = torch.nan
    (message,) = _messages(adapter, [first, *others])
    assert "softmax" in message
    first = first.clone()
    assert _messages(wildtta.adapt(build("ln_mlp"), "tent"), [first, *others]) == []


# -- networks that cannot be adapted as they come -----------------------------------------------------------------------------


def test_a_network_that_another_adapter_holds_is_refused() -> None:
    network = build("bn_resnet")
    before, flags_before = snapshot(network), flags(network)
    first = wildtta.adapt(network, "tent", lr=0.1)
    first(images("bn_resnet", 8))
    another = build("bn_resnet")
    another.stage2[0].norm1.weight = nn.Parameter(network.stage2[0].norm1.weight.data)  # another object, the same numbers
    for held in (network, nn.Sequential(network), network.stage2, another):
        with pytest.raises(ValueError, match=r"another adapter.*unload\(\)"):
            wildtta.adapt(held, "sar")
    first(images("bn_resnet", 8))
    assert same_bits(snapshot(wildtta.adapt(first.unload(), "sar").unload()), before) == []
    assert flags(network) == flags_before
    copied = copy.deepcopy(wildtta.adapt(network, "tent"))
    with pytest.raises(ValueError, match="another adapter"):
        wildtta.adapt(copied.network, "tent")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_a_copy_of_an_adapted_network_does_not_keep_its_batch_statistics(copied: Callable[[nn.Module], nn.Module]) -> None:
    batch = images("bn_resnet", 8)
    adapter, twin = (wildtta.adapt(build("bn_resnet"), "tent") for _ in range(2))
    plain = wildtta.adapt(build("bn_resnet"), "none")
    other = wildtta.adapt(copied(adapter.network), "none")
    assert torch.equal(other(batch), plain(batch))
    assert torch.equal(adapter(batch), twin(batch))  # it keeps its own
    assert not any(module._forward_pre_hooks for module in other.unload().modules())


def test_a_network_that_was_never_given_back_is_told() -> None:
    network = build("ln_mlp")
    wildtta.adapt(network, "tent", lr=0.1)(images("ln_mlp", 8))
    with pytest.warns(UserWarning, match=r"without unload\(\)"):
        wildtta.adapt(network, "tent")


def test_compiled_networks_and_compiled_adapters_get_a_clear_answer() -> None:
    network = build("ln_mlp")
    with pytest.raises(TypeError, match=r"compile=True"):
        wildtta.adapt(torch.compile(network), "tent")
    with pytest.raises(TypeError, match=r"its part '0'"):
        wildtta.adapt(nn.Sequential(torch.compile(network)), "tent")
    inside = build("ln_mlp")
    inside.compile()
    with pytest.raises(TypeError, match=r"compile=True"):
        wildtta.adapt(inside, "tent")
    adapter = wildtta.adapt(network, "tent")
    for compiled in (torch.compile, lambda module: module.compile()):
        with pytest.raises(RuntimeError, match=r"adapt\(network, compile=True\)"):
            compiled(adapter)
    adapter(images("ln_mlp", 4))


# -- copies ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ln_mlp", "bn_resnet"])
@pytest.mark.parametrize("method", ["tent", "sar2", "steady", "none"])
def test_an_adapter_can_be_pickled_after_its_first_call(kind: str, method: str) -> None:
    adapter = wildtta.adapt(build(kind), method)
    stream = batches(kind, 6, 8)
    for batch in stream[:3]:
        adapter(batch)
    twin = pickle.loads(pickle.dumps(adapter))
    with pytest.raises(RuntimeError, match="no last step"):
        _ = twin.last
    for batch in stream[3:]:
        assert torch.equal(twin(batch), adapter(batch))
    assert same_bits(twin.online_state(), adapter.online_state()) == []
    network = twin.unload()
    assert same_bits(snapshot(network), snapshot(build(kind))) == []
    assert flags(network) == flags(build(kind))
