"""The machinery that methods work with: passes through the network, what learns, the declared state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wildtta.kernels import FastPasses
from wildtta.network import Network
from wildtta.network.features import FeatureTap
from wildtta.network.output import logits_of
from wildtta.network.stages import run_to
from wildtta.network.statistics import NormStatistics, Rule
from wildtta.step.compiling import CompiledNetwork
from wildtta.step.learnables import Learnables
from wildtta.step.precision import Precision, pass_precision
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.methods.base import Method


class Engine:
    """A network with what a method needs to run it.

    ``memory`` is the whole online state beside the parameters: a flat dict of tensors, declared once, changed in place.
    """

    def __init__(self, network: Network, learnables: Learnables | None, method: Method, precision: Precision) -> None:
        self.network = network
        self._learnables = learnables
        self.method = method
        self.precision = precision
        self.batch_statistics = network.has_batch_norm and method.batch_statistics == "batch"
        self.given_batch_size: int | None = None
        self.batch_size: int | None = None
        self.share: float | None = None
        """Share of samples selected in the last batch: decides whether the first pass keeps its graph."""
        self.fixed_shapes = False
        """Whether a step must run without looking at the data (while a CUDA graph is recorded)."""
        self.fastest = False
        """Whether speed was asked for above all (``precision="auto"``): libraries may then time their kernels."""
        self.host_steps = 0
        """Updates so far."""
        self.gate_open = False
        """Whether the host has seen that the method may learn (it looks until then)."""
        self.compiled: CompiledNetwork | None = None
        self.fast = FastPasses(network.module, network.head)
        self.norms = NormStatistics(network.module)
        """BatchNorm layers that keep running statistics."""
        self.image_shape: tuple[int, ...] | None = None
        """Shape of one image, once a batch has shown it: for state that holds images."""
        self.companions: dict[str, Any] = {}
        """Frozen helpers of the method (a diffusion model, a branch's structure): no part of the state."""
        self.source: Tensor | None = None if learnables is None else learnables.vector()
        self.memory: dict[str, Tensor] = {}
        self.memory = self.initial_state()

    # -- what learns ---------------------------------------------------------------------------------------------------

    @property
    def learnables(self) -> Learnables:
        if self._learnables is None:
            raise TypeError(f"{self.method.name} learns nothing, so there are no learnable parameters to ask for")
        return self._learnables

    @property
    def learns(self) -> bool:
        return self._learnables is not None

    @property
    def device(self) -> torch.device:
        return self.network.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which losses are computed: the head's, but at least float32."""
        return torch.promote_types(self.network.head.weight.dtype, torch.float32)

    @property
    def lr(self) -> float:
        """The learning rate in force, from the method's rule and the first batch's size."""
        return self.method.learning_rate(self.network.family, self.batch_size or 64)

    @cached_property
    def source_norm(self) -> float:
        """‖θ₀‖ of the learnables as they were before the first batch: the length that a step can be measured by."""
        if self.source is None:
            raise TypeError(f"{self.method.name} learns nothing, so there are no source weights to measure")
        return float(self.source.cpu().double().norm())

    def distance(self) -> Tensor:
        """‖θ − θ₀‖ / ‖θ₀‖, NaN where nothing learns."""
        if self.source is None:
            return torch.full((), torch.nan)
        moved: Tensor = (self.learnables.vector() - self.source).norm()
        return moved / self.source.norm().clamp(min=1e-12)

    # -- state ---------------------------------------------------------------------------------------------------------

    def initial_state(self) -> dict[str, Tensor]:
        """The declared state before the first batch."""
        device = self.device
        state = {name: torch.zeros((), dtype=torch.int64, device=device) for name in COUNTERS}
        declared = self.method.declare(self)
        return {**state, **declared}

    def reset(self) -> None:
        """Parameters and state back to the initial state, in place."""
        if self._learnables is not None and self.source is not None:
            self._learnables.assign(self.source)
        for name, value in self.initial_state().items():
            self.memory[name].copy_(value)
        self.batch_size = self.given_batch_size
        self.share = None
        self.host_steps = 0
        self.gate_open = False

    def restart(self) -> None:
        """What learning changed goes back to the initial state (an episode ends); counters and the batch size stay."""
        kept = {name: self.memory[name].clone() for name in COUNTERS}
        batch_size, share = self.batch_size, self.share
        self.reset()
        self.batch_size, self.share = batch_size, share
        for name, value in kept.items():
            self.memory[name].copy_(value)

    def see(self, image_shape: tuple[int, ...]) -> None:
        """Learn the shape of an image; state that was declared without it is declared again."""
        if self.image_shape is not None:
            return
        self.image_shape = image_shape
        for name, value in self.initial_state().items():
            if self.memory[name].shape != value.shape:
                self.memory[name] = value

    def moved(self) -> None:
        """Follow the network to its (new) device and type."""
        self.fast.forget()
        if self._learnables is not None and self.source is not None:
            self.source = self.source.to(self._learnables.device, self._learnables.dtype)
        fresh = self.initial_state()
        self.memory = {name: self.memory[name].to(value.device, value.dtype) for name, value in fresh.items()}

    def keep(self, allowed: Tensor, values: Mapping[str, Tensor]) -> None:
        """Write ``values`` into the state where ``allowed`` (a boolean on the device)."""
        for name, value in values.items():
            self.memory[name].copy_(torch.where(allowed, value, self.memory[name]))

    @contextlib.contextmanager
    def normalised_by(self, rule: Rule | None) -> Iterator[None]:
        """Within, BatchNorm layers normalise by what ``rule`` says; None, or without such layers, nothing changes."""
        if rule is None or not self.norms:
            yield
            return
        compiled, self.compiled = self.compiled, None  # a compiled network does not look at new hooks
        try:
            with self.norms.chosen(rule):
                yield
        finally:
            self.compiled = compiled

    def observed(self) -> dict[str, Tensor]:
        """What a step's report shows of the state."""
        shown = {name: self.memory[name] for name in ("resets", "skipped")}
        return {**shown, **self.method.observed(self)}

    def count(self, **amounts: Tensor | int) -> None:
        """Add to the counters."""
        for name, amount in amounts.items():
            self.memory[name].add_(amount)

    # -- passes --------------------------------------------------------------------------------------------------------

    def forward(self, images: Tensor, *, grad: bool) -> Output:
        """One pass: logits and features in at least float32, with a graph where ``grad``."""
        with torch.set_grad_enabled(grad), pass_precision(self.precision, images.device):
            raw, features = self._run(images) if self.compiled is None else self.compiled(images)
        logits = logits_of(raw)
        features = logits if features is None else features
        if features.dim() != 2 or logits.dim() != 2:
            raise ValueError(
                f"expected logits [batch, classes] and features [batch, width] at the head {self.network.head_name!r}, "
                f"got {tuple(logits.shape)} and {tuple(features.shape)}; name the classifier's last linear layer with head="
            )
        return Output(images, logits.to(self.dtype), features.to(self.dtype), raw)

    def _run(self, images: Tensor) -> tuple[Any, Tensor | None]:
        """The network's result and what entered its head."""
        fast = self.fast.applied(images, recording=self.fixed_shapes)
        with fast, contextlib.closing(FeatureTap(self.network.head)) as tap:
            return self.fast.run(images), tap.take()

    def forward_to(self, stage: str, images: Tensor, *, grad: bool) -> Tensor:
        """What the module named ``stage`` gives for ``images``; the network is run no further."""
        precision = pass_precision(self.precision, images.device)
        with torch.set_grad_enabled(grad), precision, self.fast.applied(images, recording=self.fixed_shapes):
            return run_to(self.network.module, stage, images)

    def head_logits(self, features: Tensor) -> Tensor:
        """h(z): the linear head alone, in the losses' type."""
        head = self.network.head
        bias = None if head.bias is None else head.bias.to(features.dtype)
        return nn.functional.linear(features, head.weight.to(features.dtype), bias)

    @contextlib.contextmanager
    def at(self, values: Tensor, back_to: Tensor) -> Iterator[None]:
        """The parameters at ``values`` within, at ``back_to`` afterwards, whatever happens."""
        self.learnables.assign(values)
        try:
            yield
        finally:
            self.learnables.assign(back_to)


COUNTERS = ("resets", "skipped", "forwards", "backwards", "computed_forwards", "computed_backwards")
