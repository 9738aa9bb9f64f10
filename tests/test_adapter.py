"""The door: names and options, grad modes, nn.Module's verbs, validation before anything runs, what ``last`` tells, pausing."""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import CLASSES, batches, build, flags, images, same_bits, snapshot
from wildtta.methods.registry import config_classes, get_method

# -- names and options -----------------------------------------------------------------------------------------------------


def test_unknown_method_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'sar3'\. Did you mean 'sar2?'\?") as refusal:
        wildtta.adapt(build("ln_mlp"), "sar3")
    for name in wildtta.methods():
        assert name in str(refusal.value)


@pytest.mark.parametrize("as_config", [False, True])
def test_unknown_option_is_answered_with_the_nearest_and_all(as_config: bool) -> None:
    method = wildtta.SAR2() if as_config else "sar2"
    with pytest.raises(TypeError, match=r"no option 'redundncy'\. Did you mean 'redundancy'\?.*sharpness"):
        wildtta.adapt(build("ln_mlp"), method, redundncy=3)


def test_method_must_be_a_name_or_a_config() -> None:
    with pytest.raises(TypeError, match=r"wildtta\.SAR2\(\)"):
        wildtta.adapt(build("ln_mlp"), 3)


@pytest.mark.parametrize("name", wildtta.methods())
def test_configs_are_frozen_keyword_only_documented_and_exported(name: str) -> None:
    cls = config_classes()[name]
    assert getattr(wildtta, cls.__name__) is cls
    assert cls.__name__ in dir(wildtta)
    assert cls.__doc__
    config = cls(**cls.example_options(images("gn_resnet", 4)))
    fields = dataclasses.fields(cls)
    for item in fields:
        assert item.kw_only
        assert item.metadata.get("help"), f"{cls.__name__}.{item.name} is not documented"
    if fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, fields[0].name, None)
    with pytest.raises(TypeError):
        cls(0.1)
    assert type(cls(**config.options())) is cls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a number above 0 or None"),
        ({"sharpness": 0.0}, "sharpness must be a number above 0 or None"),
        ({"momentum": 1.5}, r"momentum must be a number in \[0, 1\]"),
        ({"normalisation": "diagonals"}, "normalisation must be 'auto' or 'columns' or 'rows'"),
        ({"perturbation": "three"}, "perturbation must be 'joint' or 'per_term'"),
        ({"steps": 0}, "steps must be a number at least 1"),
        ({"recovery": None, "recovery_keep": 0.5}, "recovery_keep=0.5 has no effect while recovery=None"),
        ({"sharpness": None, "perturbation": "per_term"}, "has no effect while sharpness=None"),
        ({"redundancy": None, "inequity": None}, "bank=True keeps centroids"),
        ({"entropy": 0, "redundancy": None, "inequity": None, "bank": False}, "nothing to minimise"),
        ({"recovery": math.nan}, "recovery must be a number above 0"),
        ({"sharpness": 2**70}, "sharpness must be a number that fits into 64 bits"),
        ({"warmup": 2**70}, "warmup must be a number that fits into 64 bits"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wildtta.adapt(build("ln_mlp"), "sar2", **options)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sar2", {"lr": "fast"}, "lr must be float or None, got 'fast'"),
        ("sar2", {"lr": True}, "lr must be float or None"),
        ("sar2", {"warmup": 2.5}, "warmup must be int or None"),
        ("sar2", {"bank": "yes"}, "bank must be bool"),
        ("roid", {"augment": "flip"}, "augment must be a function or None"),
        ("roid", {"mean": "imagenet"}, "mean must be float or Sequence or None"),
        ("eata", {"fisher_images": 3}, "fisher_images must be Tensor or Iterable or None"),
        ("recap", {"sigma": "wide"}, "sigma must be Tensor or None"),
        ("ttt", {"branch": 3}, "branch must be str or Path or Module or a function"),
        ("tent", {"parameters": 3}, "parameters must be a scope"),
        ("tent", {"head": 3}, "head must be the name of a linear layer"),
        ("tent", {"compile": "yes"}, "compile must be True or False"),
    ],
)
def test_options_of_the_wrong_type_are_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        wildtta.adapt(build("ln_mlp"), method, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mean": math.nan}, ValueError, "mean must be a number that is finite"),
        ({"mean": [0.5, math.inf]}, ValueError, "mean must be a number that is finite"),
        ({"mean": ["grey"]}, ValueError, "mean must be a number that is finite"),
        ({"std": 0}, ValueError, "std must be a number above 0"),
        ({"std": torch.tensor([1.0, 0.0, 1.0])}, ValueError, "std must be a number above 0"),
        ({"std": -1.0}, ValueError, "std must be a number above 0"),
        ({"mean": b"grey"}, TypeError, "mean must be float or Sequence"),
        ({"std": {}}, TypeError, "std must be float or Sequence"),
        ({"mean": (level for level in [0.5])}, TypeError, "mean must be float or Sequence"),  # read once, it would be empty
        ({"mean": {0.5, 0.4}}, TypeError, "mean must be float or Sequence"),
        ({"mean": []}, ValueError, "mean must be a number that is finite"),
        ({"std": [[1.0, 2.0], [3.0]]}, ValueError, "std must be a number above 0"),
        ({"std": torch.ones(3, device="meta")}, ValueError, "std must be a number above 0"),
        ({"std": 1e308}, ValueError, "std must be a number that fits into float32"),
    ],
)
@pytest.mark.parametrize("method", [wildtta.ROID, wildtta.CoTTA, wildtta.RoTTA, wildtta.MEMO])
def test_levels_that_cannot_be_meant_are_refused(method: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        method(**options)


@pytest.mark.parametrize("mean", [0.5, [0.5, 0.4, 0.3], (0.5,) * 3, torch.full((3,), 0.5), None])
def test_levels_may_come_in_any_kind_of_sequence(mean: Any) -> None:
    assert wildtta.ROID(mean=mean).mean is mean


def test_settings_of_the_call_are_checked() -> None:
    with pytest.raises(ValueError, match="precision must be None or one of"):
        wildtta.adapt(build("ln_mlp"), "tent", precision="fp8")
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        wildtta.adapt(build("ln_mlp"), "tent", batch_size=0)


def test_option_on_top_of_a_config_wins() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), wildtta.SAR(lr=0.5, sharpness=0.1), sharpness=None)
    assert adapter.method == wildtta.SAR(lr=0.5, sharpness=None)


# Learning rates of the paper: SAR² 1e-3 and 5e-3 at 64, a sixteenth at 1; Tent 2.5e-4/32 and 1e-3/64 at 1; SAR /16 and /32.
@pytest.mark.parametrize(
    ("method", "kind", "at_one", "at_64"),
    [
        ("sar2", "gn_resnet", 1e-3 / 16, 1e-3),
        ("sar2", "ln_vit", 5e-3 / 16, 5e-3),
        ("sar", "gn_resnet", 2.5e-4 / 16, 2.5e-4),
        ("sar", "ln_vit", 1e-3 / 32, 1e-3),
        ("tent", "gn_resnet", 2.5e-4 / 32, 2.5e-4),
        ("tent", "ln_vit", 1e-3 / 64, 1e-3),
    ],
)
def test_learning_rate_follows_family_and_batch_size(method: str, kind: str, at_one: float, at_64: float) -> None:
    def rate(size: int) -> float:
        return wildtta.adapt(build(kind), method, batch_size=size).learning_rate

    assert rate(1) == pytest.approx(at_one, rel=1e-12)
    assert rate(64) == rate(1000) == at_64
    assert wildtta.adapt(build(kind), method, lr=0.3, batch_size=1).learning_rate == 0.3
    halved = wildtta.adapt(build(kind), method, lr_scale=0.5, batch_size=64).learning_rate
    assert halved == pytest.approx(at_64 / 2)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64])
def test_tents_rate_between_1_and_64_is_the_papers_formula(size: int) -> None:
    """A.2: (0.00025/32)·BS below 32, else 0.00025, for ResNets; (0.001/64)·BS for ViTs."""
    resnet = 0.00025 / 32 * size if size < 32 else 0.00025
    assert wildtta.adapt(build("gn_resnet"), "tent", batch_size=size).learning_rate == pytest.approx(resnet, rel=1e-12)
    vit = wildtta.adapt(build("ln_vit"), "tent", batch_size=size)
    assert vit.learning_rate == pytest.approx(0.001 / 64 * size, rel=1e-12)


@pytest.mark.parametrize(
    ("method", "usual", "dividers"),
    [
        ("eata", (2.5e-4, 1e-3), (32, 64)),
        ("sar", (2.5e-4, 1e-3), (16, 32)),
        ("deyo", (2.5e-4, 1e-3), (16, 32)),
        ("recap", (2.5e-4, 1e-3), (16, 32)),
        ("sar2", (1e-3, 5e-3), (16, 16)),
        ("sar2-efficient", (1e-3, 5e-3), (16, 16)),
    ],
)
def test_the_other_rates_grow_from_the_papers_batch_of_one(
    method: str, usual: tuple[float, float], dividers: tuple[int, int]
) -> None:
    """A.2 gives the rates at batches of 1 and 64; between them Tent's rule with the method's own divider (D38)."""
    config = get_method(method)
    for family, rate, divider in zip(("convolutional", "transformer"), usual, dividers, strict=True):
        assert config.learning_rate(family, 1) == pytest.approx(rate / divider, rel=1e-12)
        assert config.learning_rate(family, 8) == pytest.approx(8 * rate / divider, rel=1e-12)
        assert config.learning_rate(family, 64) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(("method", "rates"), [("memo", (2.5e-4, 1e-5)), ("ttt", (1e-3, 1e-4))])
def test_memo_and_ttt_have_one_rate_for_every_batch_size(method: str, rates: tuple[float, float]) -> None:
    options = {"branch": "branch.safetensors"} if method == "ttt" else {}
    config = get_method(method, **options)
    for size in (1, 2, 16, 64):
        assert tuple(config.learning_rate(family, size) for family in ("convolutional", "transformer")) == rates


def test_batch_size_comes_from_the_first_batch_that_is_learned_from() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "tent")
    with adapter.paused():
        adapter(images("gn_resnet", 64))
    network = adapter.network
    handle = network.stage4.register_forward_pre_hook(lambda module, inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapter(images("gn_resnet", 64))
    handle.remove()
    adapter(images("gn_resnet", 1))
    adapter(images("gn_resnet", 64))
    assert adapter.learning_rate == pytest.approx(2.5e-4 / 32)


# -- grad modes ------------------------------------------------------------------------------------------------------------

MODES = {"plain": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def _run(mode: str, method: str, kind: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    network = build(kind)
    options = {} if method == "none" else {"lr": 0.01}
    with MODES[mode]():
        adapter = wildtta.adapt(network, method, **options)
        answers = []
        for batch in batches(kind, 4, 8):
            before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            answers.append(adapter(batch))
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
            assert not answers[-1].requires_grad
            assert answers[-1].grad_fn is None
    return answers, adapter.online_state()


@pytest.mark.parametrize("method", ["none", "tent", "sar", "sar2"])
@pytest.mark.parametrize("kind", ["ln_mlp", "bn_resnet"])
def test_grad_mode_of_the_caller_changes_nothing_and_is_not_changed(method: str, kind: str) -> None:
    expected, state = _run("plain", method, kind)
    for mode in ("no_grad", "inference_mode"):
        answers, theirs = _run(mode, method, kind)
        assert all(torch.equal(a, b) for a, b in zip(answers, expected, strict=True))
        assert same_bits(theirs, state) == []


def test_every_verb_works_inside_inference_mode_and_life_goes_on_outside(tmp_path) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "sar2", lr=0.01)
    with torch.inference_mode():
        for batch in batches("ln_mlp", 3, 8):
            adapter(batch)
        adapter.save(tmp_path / "state")
        adapter.reset()
        adapter.load(tmp_path / "state")
        assert repr(adapter)
    adapter(images("ln_mlp", 8))
    with torch.inference_mode():
        network = adapter.unload()
    again = wildtta.adapt(network, "sar2", lr=0.01)
    again(images("ln_mlp", 8))
    network(images("ln_mlp", 2)).sum().backward()


# -- nn.Module's verbs -----------------------------------------------------------------------------------------------------


def test_dropout_stays_off_whatever_the_mark() -> None:
    adapter = wildtta.adapt(build("ln_vit").train(), "tent", lr=0.01)
    twin = wildtta.adapt(build("ln_vit"), "tent", lr=0.01)
    assert adapter.train() is adapter
    assert adapter.training
    holder = nn.ModuleList([adapter]).train()
    for batch in batches("ln_vit", 3, 4):
        assert torch.equal(holder[0](batch), twin.eval()(batch))
    assert not any(module.training for module in adapter.network.modules())


@pytest.mark.parametrize(("kind", "method"), [("ln_vit", "tent"), ("bn_resnet", "none"), ("bn_resnet", "steady")])
def test_a_train_that_reaches_the_network_itself_changes_nothing(kind: str, method: str) -> None:
    """As of a module that holds both the network and its adapter: dropout stays off, and no buffer is written."""
    network = build(kind)
    adapter, twin = wildtta.adapt(network, method), wildtta.adapt(build(kind), method)
    for batch in batches(kind, 3, 4):
        network.train()
        assert torch.equal(adapter(batch), twin(batch))
    assert same_bits(snapshot(adapter.unload()), snapshot(build(kind))) == []


@pytest.mark.parametrize("method", ["tent", "sar", "steady"])
def test_what_learns_and_is_frozen_by_somebody_is_told(method: str) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), method)
    adapter(images("ln_mlp", 8))
    adapter.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"(\d) of \1 parameters that learn ask for no gradient.*paused"):
        adapter(images("ln_mlp", 8))
    with adapter.paused():
        adapter(images("ln_mlp", 8))
    for name in adapter.learned_parameters:
        adapter.get_parameter(f"network.{name}").requires_grad_()
    adapter(images("ln_mlp", 8))
    assert adapter.last.step == 3


def test_a_network_that_was_made_float16_behind_the_adapter_is_refused() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent")
    adapter.network.half()
    with pytest.raises(TypeError, match="float16"):
        adapter(images("ln_mlp", 8).half())


def test_sparse_batches_and_networks_without_values_are_refused() -> None:
    with pytest.raises(TypeError, match=r"layout torch.sparse_coo; give images.to_dense"):
        wildtta.adapt(build("ln_mlp"), "tent")(images("ln_mlp", 8).to_sparse())
    with pytest.raises(ValueError, match="no values yet"):
        wildtta.adapt(build("ln_mlp").to("meta"), "tent")


def test_a_network_of_which_a_part_was_exchanged_is_given_back() -> None:
    network = build("ln_mlp").train()
    adapter = wildtta.adapt(network, "tent")
    network[9] = nn.Sequential(network[9])
    adapter(images("ln_mlp", 8))
    assert adapter.unload() is network
    assert network[0].training


@pytest.mark.parametrize("kind", ["ln_mlp", "bn_resnet"])
@pytest.mark.parametrize("method", ["tent", "sar2"])
def test_deep_copies_live_their_own_lives(kind: str, method: str) -> None:
    adapter = wildtta.adapt(build(kind), method, lr=0.01)
    stream = batches(kind, 6, 8)
    for batch in stream[:3]:
        adapter(batch)
    twin = copy.deepcopy(adapter)
    state = {name: value.clone() for name, value in adapter.online_state().items()}
    theirs = [twin(batch) for batch in stream[3:]]
    assert same_bits(adapter.online_state(), state) == []
    ours = [adapter(batch) for batch in stream[3:]]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert same_bits(adapter.online_state(), twin.online_state()) == []
    for copied in (adapter, twin):
        network = copied.unload()
        assert same_bits(snapshot(network), snapshot(build(kind))) == []
        assert flags(network) == flags(build(kind))


@pytest.mark.parametrize("method", ["tent", "sar", "sar2"])
def test_change_of_dtype_takes_the_online_state_along(method: str) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), method, lr=0.01)
    stream = batches("ln_mlp", 6, 16)
    for batch in stream[:3]:
        adapter(batch)
    forwards = adapter.cost.forwards
    assert adapter.double() is adapter
    reference = copy.deepcopy(adapter)
    wide = adapter(stream[3].double())
    assert wide.dtype == torch.float64
    assert adapter.cost.forwards > forwards
    assert adapter.online_state()["memory/momentum"].dtype == torch.float64
    adapter.float()
    narrow = wildtta.adapt(build("ln_mlp"), method, lr=0.01)
    for batch in stream[:3]:
        narrow(batch)
    assert torch.allclose(narrow(stream[3]).double(), reference(stream[3].double()), atol=1e-4)
    network = adapter.unload()
    assert same_bits(snapshot(network), snapshot(build("ln_mlp"))) == []


def test_state_dict_keeps_its_meaning() -> None:
    adapter = wildtta.adapt(build("bn_resnet"), "tent", lr=0.05)
    for batch in batches("bn_resnet", 3, 8):
        adapter(batch)
    state = adapter.state_dict()
    assert set(state) == {f"network.{name}" for name in build("bn_resnet").state_dict()}
    other = wildtta.adapt(build("bn_resnet"), "tent", lr=0.05)
    assert other.load_state_dict(state).missing_keys == []
    assert same_bits(snapshot(other.network), snapshot(adapter.network)) == []
    assert not torch.equal(state["network.stem_norm.weight"], build("bn_resnet").stem_norm.weight)


def test_only_what_learns_has_gradients_and_storage_never_moves() -> None:
    network = build("gn_resnet")
    places = {name: p.data_ptr() for name, p in network.named_parameters()}
    adapter = wildtta.adapt(network, "sar", lr=0.01)
    assert {n for n, p in network.named_parameters() if p.requires_grad} == set(adapter.learned_parameters)
    for batch in batches("gn_resnet", 3, 8):
        adapter(batch)
    adapter.reset()
    network = adapter.unload()
    assert {name: p.data_ptr() for name, p in network.named_parameters()} == places
    assert all(p.grad is None for p in network.parameters())


def test_print_shows_what_is_in_force() -> None:
    text = repr(wildtta.adapt(build("gn_resnet"), "sar2", sharpness=None, bank_rate=0.5))
    assert "options=sharpness=None, bank_rate=0.5\n" in text
    assert "learning rate=0.001 (if batches are of 64; the first one tells)\n" in text
    assert "warm-up=5 classes\n" in text
    adapter = wildtta.adapt(build("gn_resnet"), "sar2", warmup=3, lr_scale=2.0)
    adapter(images("gn_resnet", 1))
    assert f"learning rate={2e-3 / 16:g}\n" in repr(adapter)
    assert "warm-up=3 classes\n" in repr(adapter)
    assert "options=lr_scale=2.0, warmup=3\n" in repr(adapter)
    for method in ("none", "tent"):
        text = repr(wildtta.adapt(build("gn_resnet"), method))
        assert "options=the defaults\n" in text
        assert "warm-up" not in text
        assert ("learning rate" in text) is (method == "tent")


def test_unloaded_adapter_says_so() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "tent")
    adapter(images("ln_mlp", 2))
    adapter.unload()
    for use in (
        lambda: adapter(images("ln_mlp", 2)),
        lambda: adapter.save("never"),
        lambda: adapter.load("never"),
        adapter.reset,
        adapter.unload,
        lambda: adapter.cost,
        lambda: adapter.learned_parameters,
        lambda: adapter.learning_rate,
    ):
        with pytest.raises(RuntimeError, match=r"unloaded.*wildtta\.adapt"):
            use()
    assert "unloaded" in repr(adapter)


# -- what a network returns ------------------------------------------------------------------------------------------------

NamedOutput = collections.namedtuple("NamedOutput", ["logits", "other"])


@dataclasses.dataclass
class PlainOutput:
    logits: Tensor
    other: Any = None


@dataclasses.dataclass(frozen=True)
class FrozenOutput:
    logits: Tensor
    other: Any = None


@dataclasses.dataclass(slots=True)
class SlottedOutput:
    logits: Tensor
    other: Any = None


class Returning(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.inner = build("ln_mlp")
        self.make = make

    def forward(self, x: Tensor) -> Any:
        logits = self.inner(x)
        return self.make(logits, [logits * 2, {"deep": logits * 3}, "text"])


@pytest.mark.parametrize(
    "make",
    [
        NamedOutput,
        PlainOutput,
        FrozenOutput,
        SlottedOutput,
        lambda logits, other: types.SimpleNamespace(logits=logits, other=other),
        lambda logits, other: {"logits": logits, "other": other},
    ],
    ids=["named tuple", "dataclass", "frozen", "slots", "namespace", "dict"],
)
@pytest.mark.parametrize("method", ["none", "tent", "sar"])
def test_objects_with_logits_come_back_as_what_they_are(make, method: str) -> None:
    adapter = wildtta.adapt(Returning(make), method)
    x = images("ln_mlp", 5)
    bare = Returning(make)(x)
    output = adapter(x)
    assert type(output) is type(bare)
    logits, other = (output["logits"], output["other"]) if isinstance(output, dict) else (output.logits, output.other)
    expected = bare["logits"] if isinstance(bare, dict) else bare.logits
    assert torch.equal(logits, expected)
    assert torch.equal(other[0], expected * 2)
    assert other[2] == "text"
    for tensor in (logits, other[0], other[1]["deep"]):
        assert tensor.grad_fn is None
        assert not tensor.requires_grad


# -- validation ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "batch", "error", "message"),
    [
        ("gn_resnet", torch.zeros(0, 3, 16, 16), ValueError, r"empty batch of shape \(0, 3, 16, 16\)"),
        ("gn_resnet", torch.zeros(2, 3, 0, 16), ValueError, r"empty batch"),
        ("gn_resnet", torch.zeros(3, 16, 16), ValueError, r"rank 4.*\(3, 16, 16\).*images\[None\]"),
        ("gn_resnet", torch.zeros(1, 2, 3, 16, 16), ValueError, r"rank 4"),
        ("gn_resnet", torch.zeros(2, 1, 16, 16), ValueError, r"3 channels.*\(2, 1, 16, 16\)"),
        ("gn_resnet", torch.zeros(2, 16, 16, 3), ValueError, r"3 channels.*\[batch, channels, height, width\]"),
        ("gn_resnet", torch.zeros(2, 3, 16, 16, dtype=torch.uint8), TypeError, r"uint8.*normalise"),
        ("gn_resnet", torch.zeros(2, 3, 16, 16, dtype=torch.int64), TypeError, r"int64.*normalise"),
        ("gn_resnet", torch.zeros(2, 3, 16, 16, device="meta"), ValueError, r"meta.*cpu.*images\.to\('cpu'\)"),
        ("gn_resnet", torch.zeros(2, 3, 16, 16, dtype=torch.float64), TypeError, r"float64.*float32"),
        ("gn_resnet", [[1.0]], TypeError, r"expected a tensor.*list"),
        ("ln_mlp", torch.zeros(12), ValueError, r"rank 2.*images\[None\]"),
        ("ln_mlp", torch.zeros(2, 13), ValueError, r"12 values.*\(2, 13\)"),
    ],
)
@pytest.mark.parametrize("method", ["none", "sar2"])
def test_wrong_batches_are_refused_before_anything_runs(kind, batch, error, message: str, method: str) -> None:
    adapter = wildtta.adapt(build(kind), method)
    adapter(images(kind, 4))
    state = {name: value.clone() for name, value in adapter.online_state().items()}
    last = adapter.last
    ran: list[int] = []
    handle = adapter.network.register_forward_pre_hook(lambda module, inputs: ran.append(1))
    with pytest.raises(error, match=message):
        adapter(batch)
    handle.remove()
    assert ran == []
    assert adapter.last is last
    assert same_bits(adapter.online_state(), state) == []


def test_rank_comes_from_the_first_accepted_batch_where_no_convolution_tells_it() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = build("ln_mlp")

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x.mean(1) if x.dim() == 3 else x)

    adapter = wildtta.adapt(Tokens(), "tent")
    adapter(torch.randn(2, 5, 12))
    with pytest.raises(ValueError, match="rank 3"):
        adapter(torch.randn(2, 12))
    adapter.reset()
    adapter(torch.randn(2, 12))


def test_error_within_a_pass_leaves_the_adapter_as_it_was() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "sar2", lr=0.01, bank_refresh="before", second_labels="second")
    for batch in batches("gn_resnet", 3, 16):
        adapter(batch)
    state = {name: value.clone() for name, value in adapter.online_state().items()}
    passes: list[int] = []

    def fail_in_the_second(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        passes.append(1)
        if len(passes) == 2:
            raise MemoryError("as a full device would")

    handle = adapter.network.register_forward_pre_hook(fail_in_the_second)
    with pytest.raises(MemoryError):
        adapter(images("gn_resnet", 16, seed=50))
    handle.remove()
    assert len(passes) == 2
    assert same_bits(adapter.online_state(), state) == []


# -- last, cost, paused ----------------------------------------------------------------------------------------------------


def test_last_tells_what_happened() -> None:
    adapter = wildtta.adapt(build("gn_resnet", dtype=torch.float64), "sar2", lr=0.01)
    with pytest.raises(RuntimeError, match="call the adapter on a batch first"):
        _ = adapter.last
    for batch in batches("gn_resnet", 3, 16, dtype=torch.float64):
        logits = adapter(batch)
    last = adapter.last
    probabilities = logits.softmax(-1)
    entropies = -(probabilities * probabilities.log()).sum(-1)
    torch.testing.assert_close(last.entropies, entropies, rtol=1e-9, atol=1e-12)
    assert last.entropy.item() == pytest.approx(entropies.mean().item())
    reliable = entropies < 0.4 * math.log(CLASSES)
    assert torch.equal(last.mask, reliable)
    assert int(last.selected) == int(reliable.sum())
    assert 0 <= int(last.selected_second) <= int(last.selected)
    assert int(last.seen) == 16
    for name in ("redundancy", "inequity", "gradient_norm", "gradient_norm_second", "e_m", "loss"):
        value = getattr(last, name)
        assert value.dim() == 0
        assert math.isfinite(value.item()), name
        assert not value.requires_grad
    assert 0 <= last.redundancy.item() <= 20
    assert 0 <= last.inequity.item() <= math.log(CLASSES)
    assert int(last.resets) == 0
    assert int(last.bank_rows) == int(adapter.online_state()["memory/bank_filled"].sum()) > 0
    assert bool(last.learned)
    assert int(last.skipped) == 0
    for word in ("seen=16", "bank_rows=", "gradient_norm="):
        assert word in repr(last)


def test_last_of_an_earlier_step_does_not_change_afterwards() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "sar2", lr=0.01)
    kept, values = [], []
    for batch in batches("gn_resnet", 4, 16):
        adapter(batch)
        kept.append(adapter.last)
        values.append((float(adapter.last.e_m), int(adapter.last.bank_rows), float(adapter.last.redundancy)))
    for report, (average, rows, redundancy) in zip(kept, values, strict=True):
        assert float(report.e_m) == average or math.isnan(average)
        assert int(report.bank_rows) == rows
        assert float(report.redundancy) == redundancy


def test_paused_predicts_only_and_ends_with_its_context() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "sar2", lr=0.01)
    for batch in batches("gn_resnet", 3, 16):
        adapter(batch)
    state = {name: value.clone() for name, value in adapter.online_state().items()}
    x = images("gn_resnet", 16, seed=40)
    with torch.no_grad():
        bare = adapter.network(x)
    with adapter.paused() as same:
        assert same is adapter
        with adapter.paused():
            assert torch.equal(adapter(x), bare)
        assert torch.equal(adapter(x), bare)
        assert not bool(adapter.last.learned)
        assert int(adapter.last.backwards) == 0
    assert same_bits(adapter.online_state(), state) == []

    def fail() -> None:
        with adapter.paused():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    adapter(x)
    assert bool(adapter.last.learned)


def test_prediction_is_that_of_the_bare_network_before_the_update() -> None:
    for kind in ("gn_resnet", "ln_vit", "ln_mlp"):
        for method in ("none", "tent", "sar", "sar2"):
            x = images(kind, 8)
            with torch.no_grad():
                bare = build(kind)(x)
            assert torch.equal(wildtta.adapt(build(kind), method)(x), bare)


def test_bfloat16_autocast_by_option_and_by_context_agree_and_losses_stay_wide() -> None:
    by_option = wildtta.adapt(build("gn_resnet"), "sar2", lr=0.01, precision="bf16")
    by_context = wildtta.adapt(build("gn_resnet"), "sar2", lr=0.01)
    for batch in batches("gn_resnet", 4, 16):
        ours = by_option(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            theirs = by_context(batch)
        assert ours.dtype == theirs.dtype == torch.bfloat16
        assert torch.equal(ours, theirs)
        assert by_option.last.entropies.dtype == torch.float32
        assert by_option.last.redundancy.dtype == torch.float32
    assert same_bits(by_option.online_state(), by_context.online_state()) == []
    assert all(value.dtype != torch.bfloat16 for value in by_option.online_state().values())


@pytest.mark.parametrize("precision", ["fp32", "tf32", "auto"])
def test_other_precisions_work_and_turn_a_surrounding_autocast_off(precision: str) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "sar", precision=precision)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = adapter(images("ln_mlp", 8))
    if precision != "auto":
        assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()
