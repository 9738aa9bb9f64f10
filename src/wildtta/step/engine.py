"""The machinery that methods work with: passes through the network, what learns, the declared state."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wildtta.kernels import FastPasses
from wildtta.network import Network
from wildtta.network.changes import Changes
from wildtta.network.features import FeatureTap, HeadPasses, features_of
from wildtta.network.inputs import Inputs, blanked, levels_of
from wildtta.network.levels import levels, no_levels_yet
from wildtta.network.norms import BatchStatistics
from wildtta.network.output import logits_of
from wildtta.network.stages import run_to
from wildtta.network.statistics import Moments, NormStatistics, Rule, mean_moments, median_moments
from wildtta.randomness import COUNTER
from wildtta.step.compiling import CompiledNetwork
from wildtta.step.learnables import Learnables
from wildtta.step.precision import Precision, pass_precision
from wildtta.step.report import Output
from wildtta.step.scrambling import are_pictures, scrambled
from wildtta.step.undo import Snapshot

if TYPE_CHECKING:
    from wildtta.methods.base import Method
    from wildtta.step.joint_batch import JointBatch


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
        self.batch_norms: BatchStatistics | None = None
        """The switch of the BatchNorm layers, where they use the batch's mean and variance."""
        self.median = False
        """Whether a batch's moments are around the median (MedBN)."""
        self._ruled = False
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
        self.calls = 0
        """Calls answered so far, paused ones included; it never goes back."""
        self.unfinished: Callable[[], None] | None = None
        """While the state is being changed: what brings it back to where it was."""
        self.snapshot = Snapshot()
        self.gate_open = False
        """Whether the host has seen that the method may learn (it looks until then)."""
        self.compiled: CompiledNetwork | None = None
        self.fast = FastPasses(network.module, network.head)
        self.changes = Changes()
        """What is changed on the network and here for the time of a pass or a call."""
        self.norms = NormStatistics(network.module, self.changes)
        """BatchNorm layers that keep running statistics."""
        self.image_shape: tuple[int, ...] | None = None
        """Shape of one image, once a batch has shown it: for state that holds images."""
        self.inputs: Inputs | None = None
        """The arguments of the present call where they are several: a batch then holds the numbers of its samples."""
        self._input_levels: Tensor | None = None
        self.joint: JointBatch | None = None
        """The batch of the present call where it lies in several processes: it then holds the numbers of its samples."""
        self.companions: dict[str, Any] = {}
        """Frozen helpers of the method (a diffusion model, a branch's structure): no part of the state."""
        self.doubtful: tuple[tuple[Tensor, int], ...] = ()
        """Of steps that drew random numbers: whether they learned (on the device), and how often they drew."""
        self._draws_before = 0
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
        return self.network.reference.device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which losses are computed: the head's, but at least float32."""
        return torch.promote_types(self.network.reference.dtype, torch.float32)

    @property
    def lr(self) -> float:
        """The learning rate in force, from the method's rule and the first batch's size."""
        return self.method.learning_rate(self.network.family, self.batch_size or 64)

    @property
    def batch_share(self) -> float | Tensor:
        """The size of a batch in units of 64 samples: the power of what is to happen once per 64."""
        return (self.batch_size or 64) / 64

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
        share: Tensor = (self.learnables.vector() - self.source).norm() / self.source.norm().clamp(min=1e-12)
        return share

    # -- state ---------------------------------------------------------------------------------------------------------

    def initial_state(self) -> dict[str, Tensor]:
        """The declared state before the first batch."""
        device = self.device
        state = {name: torch.zeros((), dtype=torch.int64, device=device) for name in COUNTERS}
        if self.watches_levels:
            state["input_levels"] = no_levels_yet()
        declared = self.method.declare(self)
        return {**state, **declared}

    @property
    def watches_levels(self) -> bool:
        """Whether one absurd input would spoil the answers to others, so that inputs are compared with their stream."""
        return self.network.has_batch_norm and self.method.mixes_samples(self)

    def blank_state(self) -> dict[str, Tensor]:
        """The declared state of an engine that knows nothing of the source yet (as a Fisher information)."""
        known, self.memory = self.memory, {}
        try:
            return self.initial_state()
        finally:
            self.memory = known

    def known_of_source(self) -> dict[str, Tensor]:
        """The part of the state that a reset keeps: what the method has found out from source images."""
        blank = self.blank_state()
        now = self.initial_state()
        return {name: value for name, value in now.items() if not _same(value, blank[name])}

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
        self.doubtful = ()

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """What is done within changes the state as a whole, or leaves it as it was."""
        self.snapshot.take(self)
        self.unfinished = functools.partial(self.snapshot.restore, self)
        yield
        self.unfinished = None

    def settle(self) -> None:
        """Undo a change that was broken off, if there is one."""
        if self.unfinished is not None:
            self.unfinished()
            self.unfinished = None

    def clean_up(self) -> None:
        """Between two calls: undo all that a call which was broken off left, however often its end was interrupted."""
        self.changes.take_back()
        self.settle()

    def restart(self) -> None:
        """What learning changed goes back to the initial state (an episode ends); counters and the batch size stay."""
        kept = {name: self.memory[name].clone() for name in (*COUNTERS, "input_levels") if name in self.memory}
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
        moments = median_moments if self.median else mean_moments
        # A compiled network does not look at new hooks.
        with self.changes.set(self, compiled=None, _ruled=True), self.norms.chosen(rule, moments):
            yield

    @contextlib.contextmanager
    def source_statistics(self) -> Iterator[None]:
        """Within, BatchNorm layers use the source's statistics, whatever the method prefers (a rule of its own excepted)."""
        norms = contextlib.nullcontext() if self.batch_norms is None else self.batch_norms.off(self.changes)
        with self.changes.set(self, _ruled=True), norms:
            yield

    def observed(self) -> dict[str, Tensor]:
        """What a step's report shows of the state."""
        shown = {name: self.memory[name] for name in ("resets", "skipped", "left_out")}
        return {**shown, **self.method.observed(self)}

    def count(self, **amounts: Tensor | int) -> None:
        """Add to the counters."""
        for name, amount in amounts.items():
            self.memory[name].add_(amount)

    # -- reads -----------------------------------------------------------------------------------------------------------

    def read(self, *values: Tensor) -> list[float]:
        """Small tensors as numbers on the host, flat, in one transfer: a step has one at most.

        Along come the flags of steps that drew random numbers: those of a batch that was skipped are drawn again.
        """
        flags = [learned for learned, _ in self.doubtful]
        if not values and not flags:
            return []
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        numbers: list[float] = torch.cat([value.reshape(-1).to(wide) for value in (*flags, *values)]).tolist()
        unlearned = sum(drawn for (_, drawn), learned in zip(self.doubtful, numbers, strict=False) if not learned)
        if unlearned:
            self.memory[COUNTER].sub_(unlearned)
            self._draws_before -= unlearned
        self.doubtful = ()
        return numbers[len(flags) :]

    def positions(self, mask: Tensor) -> Tensor:
        """Where ``mask`` [B] holds; how many there are is the step's one read."""
        if not self.doubtful:
            return mask.nonzero().squeeze(1)
        number = int(self.read(mask.sum())[0])
        return mask.to(torch.uint8).argsort(descending=True, stable=True)[:number]

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """A step within may draw random numbers; whether they count is known once its flag has been read."""
        if COUNTER not in self.memory:
            yield
            return
        self._draws_before, skipped = int(self.memory[COUNTER]), self.memory["skipped"].clone()
        yield
        drawn = int(self.memory[COUNTER]) - self._draws_before
        if drawn:
            self.doubtful = (*self.doubtful, (self.memory["skipped"] == skipped, drawn))

    # -- passes --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def calling(self, call: Tensor | Inputs) -> Iterator[Tensor]:
        """The batch of a call, without a graph, as the passes within take it.

        Of several arguments, those of a sample that is not finite are passed as zeros; its level still tells. Within one
        call there may be another (the guard's, on samples that it remembers).
        """
        if isinstance(call, Tensor):
            with self.changes.set(self, inputs=None, _input_levels=None):
                yield _ordinary(call)
            return
        ordinary = call.mapped(_ordinary)
        levels = levels_of(ordinary)
        inputs = blanked(ordinary, torch.isfinite(levels))
        with self.changes.set(self, inputs=inputs, _input_levels=levels):
            yield inputs.sample_numbers

    def levels(self, images: Tensor) -> Tensor:
        """How large each sample of a batch is, [B] (:mod:`wildtta.network.levels`)."""
        if self.joint is not None:
            return self.joint.levels[images]
        return levels(images) if self._input_levels is None else self._input_levels[images]

    def finite_images(self, images: Tensor, finite: Tensor) -> Tensor:
        """The batch with zeros for the samples that are not ``finite``."""
        if self.inputs is not None or self.joint is not None:
            return images
        return images.masked_fill(~finite.view([-1, *[1] * (images.dim() - 1)]), 0.0)

    def forward(self, images: Tensor, *, grad: bool) -> Output:
        """One pass: logits and features in at least float32, with a graph where ``grad``."""
        if self.joint is not None:
            return self.joint.forward(self._forward, images, grad=grad)
        return self._forward(images, grad=grad)

    def forward_scrambled(self, images: Tensor, arrangements: Tensor) -> Output:
        """A pass, without a graph, of ``images`` whose tiles are laid out anew (:mod:`wildtta.step.scrambling`)."""

        def run(own: Tensor, places: Tensor | slice) -> Output:
            return self._forward(scrambled(own, arrangements[places]), grad=False)

        return run(images, slice(None)) if self.joint is None else self.joint.forward_placed(run, images)

    def are_pictures(self, images: Tensor) -> bool:
        """Whether the samples of a batch can be cut into tiles."""
        return self.inputs is None and are_pictures(images if self.joint is None else self.joint.images)

    def _forward(self, images: Tensor, *, grad: bool) -> Output:
        if self.inputs is None and self.compiled is None and self.joint is None and not self.network.has_batch_norm:
            parts = self.fast.parts(images)
            if len(parts) > 1 and (first := self._passed(parts[0], grad=grad, is_part=True)).joins:
                others = [self._passed(part, grad=grad, is_part=True) for part in parts[1:]]
                return Output.joined(images, [first, *others])
        return self._passed(images, grad=grad)

    def _passed(self, images: Tensor, *, grad: bool, is_part: bool = False) -> Output:
        by_median = self.normalised_by(_as_they_are if self.median and not self._ruled else None)
        with torch.set_grad_enabled(grad), pass_precision(self.precision, images.device), by_median:
            raw, passes = self._run(images, is_part=is_part)
        logits = logits_of(raw)
        pixels = getattr(self.network.module, "rows_per_sample", 1) > 1 and len(logits) % len(images) == 0
        if logits.dim() != 2 or (len(logits) != len(images) and not pixels):
            raise ValueError(
                f"expected logits [batch, classes] for {len(images)} samples, got {tuple(logits.shape)}: one answer per "
                "sample is needed (segmentation: wildtta.segmentation.adapt_segmentation; no detection or generation)"
            )
        features = features_of(self.network.head, passes, logits)
        return Output(images, logits.to(self.dtype), features.to(self.dtype), raw)

    def _run(self, images: Tensor, *, is_part: bool) -> tuple[Any, HeadPasses]:
        """The network's result and what entered and left its head."""
        if self.compiled is not None:
            return self.compiled(images) if self.inputs is None else self.inputs.run(self.compiled, images)
        tap = FeatureTap()
        tapped = self.changes.hook(self.network.head, tap.keep, before=False)
        if self.inputs is not None:
            with tapped:
                return self.inputs.run(self.network.module, images), tap.take()
        with self.fast.applied(images, recording=self.fixed_shapes), tapped:
            return self.fast.run(images, is_part=is_part), tap.take()

    def forward_to(self, stage: str, images: Tensor, *, grad: bool) -> Tensor:
        """What the module named ``stage`` gives for ``images``; the network is run no further."""
        precision = pass_precision(self.precision, images.device)
        with torch.set_grad_enabled(grad), precision, self.fast.applied(images, recording=self.fixed_shapes):
            return run_to(self.network.module, stage, images, self.changes)

    def head_logits(self, features: Tensor) -> Tensor:
        """h(z): the head alone, in the losses' type."""
        return self.network.logits(features)

    @contextlib.contextmanager
    def at(self, values: Tensor, back_to: Tensor) -> Iterator[None]:
        """The parameters at ``values`` within, at ``back_to`` afterwards, whatever happens."""
        alone = self.unfinished is None
        if alone:
            self.unfinished = functools.partial(self.learnables.assign, back_to)
        self.learnables.assign(values)
        try:
            yield
        finally:
            self.learnables.assign(back_to)
            if alone:
                self.unfinished = None


def _as_they_are(place: slice, batch: Moments, count: int) -> Moments:
    """The rule that normalises by the batch's own moments."""
    return batch


COUNTERS = (
    "resets",
    "learned",
    "skipped",
    "left_out",
    "forwards",
    "backwards",
    "computed_forwards",
    "computed_backwards",
)


def _same(value: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape hold the same values; what is not a number counts as the same."""
    return bool(((value == other) | (value.isnan() & other.isnan())).all())


def _ordinary(value: Tensor) -> Tensor:
    """Without a graph, and not of inference mode: such a tensor could not be saved for a backward pass."""
    value = value.detach()
    return value.clone() if value.is_inference() else value
