"""Which methods and networks a fleet can run, and why others cannot."""

from __future__ import annotations

from wildtta.methods.eata import ETA
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.sar import SAR
from wildtta.methods.sar2.method import SAR2, SAR2Efficient
from wildtta.methods.steady.method import Steady
from wildtta.methods.tent import Tent
from wildtta.step.engine import Engine

METHODS: tuple[type[GradientMethod], ...] = (Steady, Tent, ETA, SAR, SAR2, SAR2Efficient)
"""Methods whose hooks look at outputs alone, so that they can be mapped over streams. Subclasses may do more."""


def refuse_unsuitable(engine: Engine) -> GradientMethod:
    """The method, or an error that says what a fleet cannot do and what to do instead."""
    method, network = engine.method, engine.network
    if network.has_batch_norm:
        raise ValueError(
            f"{type(network.module).__name__} has BatchNorm layers, whose statistics mix the samples of a batch: streams in "
            "one batch would see each other. Use a network with GroupNorm, LayerNorm or RMSNorm, or one adapter per stream"
        )
    if type(method) not in METHODS or not isinstance(method, GradientMethod):
        names = ", ".join(kind.name for kind in METHODS)
        raise ValueError(f"a fleet runs {names}; {method.name!r} needs one adapter per stream (wildtta.adapt)")
    odd = {
        "steps": method.steps != 1,
        "episodic": method.episodic,
        "recovery": method.selective_reset is not None,
        "perturbation": getattr(method, "perturbation", "joint") != "joint",
        "bank_refresh": getattr(method, "bank_refresh", "after") != "after",
        "bank_features": getattr(method, "bank_features", "first") != "first",
        "bank": not method.leaves_out,
    }
    wrong = [f"{name}={getattr(method, name)!r}" for name, is_odd in odd.items() if is_odd]
    if wrong:
        raise ValueError(
            f"a fleet does not run {method.name} with {', '.join(wrong)}: it maps one plain step over its streams. Leave the "
            "option out, or use one adapter per stream"
        )
    return method
