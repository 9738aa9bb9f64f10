"""``wildtta.adapt``: make a network adapt itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from wildtta.adapter import Adapter, refuse_half_precision
from wildtta.guard.guard import Guard
from wildtta.methods.base import Method
from wildtta.methods.registry import get_method
from wildtta.network import choose_parameters, inspect_network
from wildtta.network.norms import take_off_batch_statistics
from wildtta.network.parameters import ParameterChoice
from wildtta.step.compiling import refuse_compiled
from wildtta.step.holding import refuse_held
from wildtta.step.precision import PRECISIONS, Precision
from wildtta.step.replicas import Replicas


def adapt(
    model: nn.Module,
    method: str | Method = "steady",
    *,
    parameters: ParameterChoice = "auto",
    head: str | nn.Module = "auto",
    batch_size: int | None = None,
    precision: Precision | Literal["auto"] = None,
    statistics: Literal["mean", "median"] = "mean",
    compile: bool = False,
    example: Any = None,
    guard: Guard | None = None,
    group: Any = None,
    **options: Any,
) -> Adapter:
    """Make ``model`` adapt to its inputs while it predicts.

    Args:
        model: a classifier that returns logits (or an object with ``.logits``), with a head (:mod:`wildtta.network.head`)
            and norm layers whose affine parameters can learn. It is changed in place.
        method: a name (:func:`wildtta.methods`) or a config such as ``wildtta.SAR2(inequity=None)``; the default is
            wildtta's own method.
        parameters: what may learn: ``"auto"`` (the method's choice among norm layers), ``"norms"``, ``"norms below the
            top"``, a list of names, a regular expression, or a function of (name, parameter).
        head: the layer that makes the logits, by name or as a module; ``"auto"`` finds it.
        batch_size: for the learning rate's rule; None takes the first batch's size.
        precision: None leaves the caller's settings alone; ``"fp32"``, ``"tf32"``, ``"bf16"``; ``"auto"``: the fastest.
        statistics: what BatchNorm's batch statistics are made of: the batch's mean, or its median, which a few malicious
            samples do not move (MedBN, https://arxiv.org/abs/2403.19326).
        compile: run the network through :func:`torch.compile`.
        example: a batch as the network takes it: a tensor, a mapping of named inputs, or a tuple. The network is run on it
            once to see its head and the order of its layers; None makes up an input.
        guard: a :class:`wildtta.Guard` that slows down, pauses or takes back learning where it does harm.
        group: one stream over several processes, which learn as one adapter on the joint batch would: True (the default
            process group), a process group of :mod:`torch.distributed`, or a :class:`wildtta.Replicas`.
        options: the method's hyper-parameters.

    Returns:
        An :class:`~wildtta.adapter.Adapter`, an ``nn.Module`` that predicts and learns on every call.

    Example:
        >>> import torch, wildtta
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
        >>> model = wildtta.adapt(net, "tent")
        >>> model(torch.randn(5, 8)).shape
        torch.Size([5, 4])
    """
    if isinstance(model, Adapter):
        raise TypeError("this model is adapted already; get the network back with model.unload() first")
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected an nn.Module that returns logits, got {type(model).__name__}")
    check_settings(
        parameters=parameters,
        head=head,
        batch_size=batch_size,
        precision=precision,
        statistics=statistics,
        compile=compile,
    )
    if guard is not None and not isinstance(guard, Guard):
        raise TypeError(f"guard must be a wildtta.Guard or None, got {type(guard).__name__}")
    replicas = Replicas.of(group)
    if replicas is not None and guard is not None:
        raise ValueError(
            "guard= compares answers on images that it keeps, and with group= each replica has its own alone; guard an "
            "adapter in one process, or leave one of the two out"
        )
    if replicas is not None and precision == "auto":
        raise ValueError(
            "precision='auto' takes what is fastest in one process, and replicas must compute alike; with group= give "
            f"one of {', '.join(name for name in PRECISIONS if name != 'auto')}, or None"
        )
    config = get_method(method, **options)
    refuse_held(model)
    take_off_batch_statistics(model)
    refuse_compiled(model)
    refuse_half_precision(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError("the network's parameters have no values yet (device 'meta'); load its weights first")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError("the network was made inside torch.inference_mode() and cannot learn; make it outside")
    with torch.inference_mode(False):
        facts = inspect_network(model, head, example)
        choice = config.parameter_choice(facts) if parameters == "auto" else parameters
        names = choose_parameters(facts, choice, config.scope) if config.scope != "nothing" else []
        return Adapter(
            facts,
            names,
            config,
            batch_size=batch_size,
            precision=precision,
            median=statistics == "median",
            compiled=compile,
            guard=guard,
            replicas=replicas,
        )


def check_settings(
    *,
    parameters: Any = "auto",
    head: Any = "auto",
    batch_size: Any = None,
    precision: Any = None,
    statistics: Any = "mean",
    compile: Any = False,
) -> None:
    """Refuse what :func:`adapt` cannot take, whatever the network and the method."""
    if not callable(parameters) and not isinstance(parameters, str | Iterable):
        raise TypeError(f"parameters must be a scope, a pattern, a list of names or a function, got {parameters!r}")
    if not isinstance(head, str | nn.Module):
        raise TypeError(f"head must be the name of a linear layer or the layer itself, got {head!r}")
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision must be None or one of {', '.join(PRECISIONS)}, got {precision!r}")
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise ValueError(
            f"batch_size must be at least 1 (a whole number) or None (taken from the first batch), got {batch_size!r}"
        )
    if statistics not in ("mean", "median"):
        raise ValueError(f"statistics must be 'mean' or 'median', got {statistics!r}")
    if not isinstance(compile, bool):
        raise TypeError(f"compile must be True or False, got {compile!r}")
