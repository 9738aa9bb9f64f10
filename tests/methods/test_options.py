"""Every option of every method does something, or is refused; and wrong values are answered with what was expected."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wildtta
from golden_cases import Folder
from toy_networks import build, images
from wildtta.methods.registry import config_classes
from wildtta.methods.views import jitter

BATCHES, SIZE = 4, 12

METHODS_BY_STEPS = ("sar", "tent", "come", "infomax", "deyo", "recap", "roid", "zerosiam", "cmf", "shot", "poem", "spa")
ALWAYS: dict[str, dict[str, Any]] = {
    **{method: {"lr": 0.01} for method in METHODS_BY_STEPS},
    **{method: {"lr": 0.01, "redundant": 0.9} for method in ("eta", "eata", "rdumb")},
    **{method: {"lr": 0.002, "warmup": 5} for method in ("sar2", "sar2-efficient")},
    "steady": {"lr": 1e-3, "warmup": 5, "evidence": False},
    "cotta": {"confidence": 1.0, "restore": 0.1},
}
"""Settings in which a short stream moves the weights."""

VALUES: dict[str, Any] = {
    "lr": 0.013,
    "clip_value": 1e-4,
    "clip_norm": 1e-3,
    "recovery": 10.0,
    "warmup": 18,
    "momentum": 0.5,
    "destruction": "pixel",
    "augment": jitter,
    "margin": 0.7,
    "largest_weight": 0.5,
    "region_reliable": 0.3,
    "weight_decay": 0.5,
    "predictor_rate": 3.0,
    "reset_every": 2,
    "stage": "layer1",
    "turns": lambda number, generator: torch.ones(number, dtype=torch.int64),
    "restore_mask": lambda size, generator: torch.ones(size, dtype=torch.bool),
    "sigma": torch.full((64,), 1e-4),
    "branch": None,
    "diffusion": None,
    "centroids": "reliable",
    "prior": 3.0,
    "fisher_batch": 8,
    "capacity": 5,
    "redundancy": 1e5,
    "rate": 0.1,
    "noise": 0.3,
    "masked": 0.5,
    "delay": 30,
    "largest_stake": 0.05,
    "source_kept": 9,
    "supports": 1,
    "process_noise": 5.0,
    "draws": lambda shape, generator: torch.ones(shape),
    "first_prompts": torch.zeros(1, 48),
    "kept_frequencies": lambda shape, generator: torch.zeros(shape),
    "noise_draws": lambda shape, generator: torch.zeros(shape),
}
"""Another value for an option, where none follows from its type."""

ANY_WIDTH = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.AdaptiveAvgPool1d(8), nn.Linear(8, 4))
"""A rotation branch that takes the features of any stage."""

CONTEXTS: dict[tuple[str, str], dict[str, Any]] = {
    ("*", "nesterov"): {"momentum": 0.9},
    ("*", "recovery_keep"): {"recovery": 1e-6},
    ("*", "second_filter"): {"sharpness": 1.0},
    ("*", "bank_refresh"): {"sharpness": 1.0, "second_labels": "second"},
    ("*", "second_labels"): {"sharpness": 1.0},
    ("*", "warmup_inclusive"): {"warmup": 12},
    ("*", "warmup_scope"): {"warmup": 18},
    ("*", "variance_floor"): {"normalisation": "columns"},
    ("*", "mean"): {"std": 0.3},
    ("*", "std"): {"mean": 0.4},
    ("steady", "perturbation"): {"sharpness": 0.05},
    ("steady", "class_cap"): {"redundancy": None, "inequity": None, "bank": False},
    ("bn-adapt", "fresh"): {"momentum": 0.1, "use": "running"},
    ("bn-adapt", "momentum"): {"momentum": 0.1, "use": "running"},
    ("bn-adapt", "use"): {"momentum": 0.1},
    ("recap", "measure"): {"source_images": None},
    ("recap", "destruction"): {"plpd": 0.05},
    ("recap", "seed"): {"plpd": 0.05},
    ("recap", "grid"): {"plpd": 0.05},
    ("memo", "carry"): {"optimizer": "adamw"},
    ("lame", "rounds"): {"affinity": "linear"},
    ("ttt", "stage"): {"branch": ANY_WIDTH},
    ("cmf", "filter_keep"): {"process_noise": 5.0},
    ("poem", "largest_stake"): {"stake_rate": 0.3},
}
"""What else must be set for an option to matter (a refusal otherwise); "*": for every method."""

SMALL: dict[tuple[str, str], Any] = {
    ("class_cap", "steady"): 0.1,
    ("measure", "recap"): 24,
    ("optimizer", "memo"): "adamw",
    ("chunk", "dda"): 5,
    ("centroids", "sar2-efficient"): "all",
    ("normalisation", "steady"): "rows",
    ("normalisation", "sar2"): "columns",
    ("normalisation", "sar2-efficient"): "columns",
    ("rounds", "lame"): 1,
    ("source_batch", "poem"): 8,
    ("views", "cotta"): 3,
    ("views", "memo"): 3,
    **{("redundant", method): 0.2 for method in ("eta", "eata", "rdumb")},
    ("plpd", "deyo"): 0.6,
    ("temperature", "roid"): 2.0,
}
ON_BATCH_NORM = {("poem", "source_batch"), ("memo", "prior"), ("rotta", "norm_rate"), ("ttt", "norm_momentum")}


def cases() -> list[tuple[str, str]]:
    return [(name, item.name) for name, cls in config_classes().items() for item in dataclasses.fields(cls)]


def other_value(cls: type[wildtta.Method], item: dataclasses.Field[Any], present: Any, source: Tensor) -> Any:
    if (item.name, cls.name) in SMALL:
        return SMALL[item.name, cls.name]
    if item.name in VALUES:
        return VALUES[item.name]
    kind = typing.get_type_hints(cls)[item.name]
    members = typing.get_args(kind) if typing.get_origin(kind) is not Literal else (kind,)
    choices = [word for member in members or (kind,) for word in typing.get_args(member)]
    if isinstance(present, bool):
        return not present
    if isinstance(present, int):
        return present + 1
    if isinstance(present, float):
        return present / 2 if present else 0.5
    if isinstance(present, str):
        return next(word for word in choices if word not in (present, "auto"))
    return source


def trajectory(golden: Folder, method: str, kind: str, stream: str, options: dict[str, Any]) -> list[Tensor]:
    """Everything that can be seen from outside: logits of each batch, then the state."""
    torch.manual_seed(0)
    model = wildtta.adapt(golden.network(kind).float(), method, **options)
    logits = [model(batch[:SIZE].float()).clone() for batch in golden.stream(stream)[:BATCHES]]
    counters = ("forwards", "backwards", "draws", "skipped")
    return logits + [value for name, value in model.online_state().items() if not name.endswith(counters)]


@pytest.mark.parametrize(("method", "option"), cases(), ids=lambda value: value)
def test_an_option_changes_what_happens_or_is_refused(method: str, option: str, golden: Folder) -> None:
    cls = config_classes()[method]
    item = next(item for item in dataclasses.fields(cls) if item.name == option)
    kind = "bn" if method == "bn-adapt" or (method, option) in ON_BATCH_NORM else "vit" if method == "foa" else "gn"
    stream = "unrel_gn" if option == "step_without_samples" else "mix"
    source, other_source = (golden.stream("fisher")[number].float() for number in (0, 1))
    options = {**cls.example_options(source), **ALWAYS.get(method, {})}
    context = {**CONTEXTS.get(("*", option), {}), **CONTEXTS.get((method, option), {})}
    fields = {entry.name for entry in dataclasses.fields(cls)}
    options |= {name: value for name, value in context.items() if name in fields}
    present = options.pop(option, item.default)
    before = options if present is item.default else {**options, option: present}
    after = {**options, option: other_value(cls, item, present, other_source)}
    try:
        changed = trajectory(golden, method, kind, stream, after)
    except (ValueError, TypeError):
        return  # refused
    usual = trajectory(golden, method, kind, stream, before)
    same = len(usual) == len(changed) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(usual, changed, strict=True)
    )
    assert not same, f"{method}: {option}={after[option]!r} did nothing"


def test_tent_has_few_options_and_no_foreign_ones() -> None:
    assert len(dataclasses.fields(wildtta.Tent)) <= 15
    with pytest.raises(TypeError):
        wildtta.Tent(bank_rate=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="tent has no option 'bank_rate'"):
        wildtta.adapt(build("gn_resnet"), "tent", bank_rate=0.1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": "fast"}, TypeError, "lr must be float or None, got 'fast'"),
        ({"lr": float("inf")}, ValueError, "lr must be a number above 0 or None"),
        ({"warmup": -3}, ValueError, "warmup must be a number at least 0"),
        ({"warmup": 2.5}, TypeError, "warmup must be int or None, got 2.5"),
        ({"bank": 1}, TypeError, "bank must be bool, got 1"),
        ({"bank_refresh": "later"}, ValueError, "bank_refresh must be 'after' or 'before', got 'later'"),
        ({"bank": False, "warmup": 5}, ValueError, "warmup=5 has no effect while bank=False"),
    ],
)
def test_wrong_values_are_told_what_was_expected(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        wildtta.SAR2(**options)


@pytest.mark.parametrize("recovery", [torch.tensor([0.1, 0.2]), np.array([0.1, 0.2]), [0.1], {"start": 1, "odd": 2}])
def test_a_recovery_that_is_none_is_told_what_was_expected(recovery: Any) -> None:
    with pytest.raises(ValueError, match="recovery must be a number, 'relative'"):
        wildtta.Tent(recovery=recovery)


@pytest.mark.parametrize("value", [1e39, -1e300])
def test_numbers_beyond_float32_are_refused(value: float) -> None:
    """They become infinite where they meet a tensor: in the state, which could then not be loaded, or deep in a step."""
    for cls, name in ((wildtta.CMF, "process_noise"), (wildtta.POEM, "stake_rate"), (wildtta.Tent, "clip_value")):
        with pytest.raises(ValueError, match=f"{name} must be a number"):
            cls(**{name: value})


@pytest.mark.parametrize(
    ("method", "option", "given"),
    [
        ("cmf", "augment", None),
        ("roid", "augment", torch.zeros(1, 12)),
        ("rotta", "augment", [1, 2]),
        ("cotta", "augment", torch.zeros(3)),
        ("cotta", "restore_mask", None),
        ("memo", "augment", None),
        ("deyo", "destruction", None),
    ],
)
def test_what_an_own_function_gives_is_checked(method: str, option: str, given: Any) -> None:
    options = {**config_classes()[method].example_options(images("ln_mlp", 8)), option: lambda *_: given}
    if method == "cotta":
        options["confidence"] = 1.0
    adapter = wildtta.adapt(build("ln_mlp"), method, **options)

    def run() -> None:
        for seed in range(10):
            adapter(images("ln_mlp", 16, seed=seed))

    with pytest.raises(ValueError, match=rf"{option}=? must (give|keep).*(gave|got)"):
        run()


@pytest.mark.parametrize(("method", "option"), [("eata", "fisher_images"), ("poem", "source_images")])
@pytest.mark.parametrize("source", [torch.tensor(0.5), torch.ones(12), [torch.ones(12)]], ids=["number", "one", "ones"])
def test_source_images_without_a_batch_dimension_are_refused(method: str, option: str, source: Any) -> None:
    adapter = wildtta.adapt(build("ln_mlp"), method, **{option: source})
    with pytest.raises(ValueError, match=r"must come in batches \[number, …\].*torch\.stack"):
        adapter(images("ln_mlp", 8))
