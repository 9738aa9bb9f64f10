"""What people type, and what they are told."""

from __future__ import annotations

import pytest

import wildtta
from toy_networks import build


@pytest.mark.parametrize(
    ("method", "word", "told"),
    [
        ("tent", "learning_rate", "Did you mean 'lr'"),
        ("sar", "rho", "Did you mean 'sharpness'"),
        ("sar2", "alpha", "Did you mean 'redundancy'"),
        ("sar2", "beta", "Did you mean 'inequity'"),
        ("sar", "margin_e0", "Did you mean 'reliable'"),
        ("sar", "reset_constant", "Did you mean 'recovery'"),
        ("tent", "weight_decay", "source_pull of steady"),
        ("tent", "optimizer", "steps of SGD"),
        ("tent", "device", r"move that with \.to\(device\)"),
        ("tent", "epochs", "steps="),
        ("tent", "learing_rte", "Did you mean 'lr'"),
        ("tent", "rho", "'rho' is called 'sharpness' here, and belongs to sar, sar2, sar2-efficient, steady"),
        ("sar", "class_cap", "'class_cap' belongs to steady"),
        ("tent", "qqq", "Options: lr"),
        ("none", "rho", "Options: none"),
    ],
)
def test_words_for_options(method: str, word: str, told: str) -> None:
    with pytest.raises(TypeError, match=rf"{method} has no option '{word}'\..*{told}"):
        wildtta.adapt(build("ln_mlp"), method, **{word: 0.1})


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *((word, "none") for word in ("NoAdapt", "no adaptation", "source")),
        *((word, "sar2") for word in ("SAR²", "sar^2")),
        ("bn", "bn-adapt"),
        ("tnet", "tent"),
    ],
)
def test_words_for_methods(word: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
        wildtta.adapt(build("ln_mlp"), word)


def test_a_class_in_place_of_a_config() -> None:
    with pytest.raises(TypeError, match=r"such as wildtta\.SAR2\(\), got the class Tent: call it"):
        wildtta.adapt(build("ln_mlp"), wildtta.Tent)  # type: ignore[arg-type]


def test_no_adaptation_has_one_name() -> None:
    assert (wildtta.NoAdaptation.name, wildtta.NoAdaptation.title) == ("none", "no adaptation")
