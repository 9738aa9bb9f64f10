"""The adapted network: an ``nn.Module`` that predicts and learns on every call."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wildtta.methods.base import Method
from wildtta.methods.gradient import GradientMethod
from wildtta.methods.losses import entropy
from wildtta.network import Network
from wildtta.network.norms import BatchStatistics
from wildtta.network.output import logits_of, with_logits, without_graph
from wildtta.step.compiling import CompiledNetwork
from wildtta.step.engine import Engine
from wildtta.step.graphs import GraphRunner
from wildtta.step.learnables import Learnables
from wildtta.step.precision import Precision, fastest_precision, step_precision
from wildtta.step.report import Answer, StepReport
from wildtta.step.state_file import fingerprint, read_state, write_state


@dataclasses.dataclass(frozen=True)
class Cost:
    """Totals over the life of an adapter, in samples, as the paper counts them; ``computed_*``: as they really ran."""

    forwards: int
    backwards: int
    computed_forwards: int
    computed_backwards: int
    resets: int
    """Recoveries."""
    skipped: int
    """Batches that could not be learned from."""


class Adapter(nn.Module):
    """A network that adapts: ``adapter(images)`` returns logits and learns from the batch.

    Made by :func:`wildtta.adapt`. The network is changed in place (only what learns, see ``repr``);
    :meth:`unload` gives it back bit for bit.
    """

    network: nn.Module

    def __init__(
        self,
        facts: Network,
        names: list[str],
        method: Method,
        *,
        batch_size: int | None = None,
        precision: Precision | Literal["auto"] = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.network = facts.module
        self.method = method
        self._facts = facts
        self.cuda_graphs = True
        """Whether steps of one shape may be recorded and replayed as CUDA graphs: faster, at the price of memory."""
        self.replayed = False
        """Whether the last batch was answered by replaying a recorded step."""
        self._paused = False
        self._precision_open = precision == "auto"
        self._rank = facts.input_rank
        self._last: StepReport | None = None
        self._training_before = {name: module.training for name, module in self.network.named_modules()}
        self._grad_before = {name: parameter.requires_grad for name, parameter in self.network.named_parameters()}
        parameters = dict(self.network.named_parameters())
        learnables = Learnables(names, [parameters[name] for name in names]) if names else None
        self._engine = Engine(facts, learnables, method, None if precision == "auto" else precision)
        self._engine.fastest = precision == "auto"
        self._engine.given_batch_size = self._engine.batch_size = batch_size
        self._graphs = self._new_graphs()
        self._batch_statistics: BatchStatistics | None = None
        self._arrange()
        source = self._engine.source
        self._fingerprint = fingerprint(self.network, {} if source is None else self._engine.learnables.split(source))
        if compiled:
            self._engine.compiled = CompiledNetwork(self.network, facts.head)

    def _arrange(self) -> None:
        """Evaluation mode everywhere; only what learns has gradients; batch statistics where the method uses them."""
        learns = set() if not self._engine.learns else set(map(id, self._engine.learnables.parameters))
        for parameter in self.network.parameters():
            parameter.requires_grad_(id(parameter) in learns)
        for module in self.network.modules():
            module.training = False
        if self._engine.batch_statistics:
            self._batch_statistics = BatchStatistics(self.network)

    def _new_graphs(self) -> GraphRunner | None:
        learns_by_gradient = isinstance(self.method, GradientMethod) and self._engine.learns
        return GraphRunner(self.method, self._engine) if learns_by_gradient else None  # type: ignore[arg-type]

    # -- the call ------------------------------------------------------------------------------------------------------

    def forward(self, images: Tensor) -> Any:
        """Logits for ``images`` (without a graph), then one update. Same kind of object as the bare network returns."""
        self._check_in_use()
        self._validate(images)
        engine = self._engine
        with torch.inference_mode(False), torch.enable_grad(), self._first_batch(images):
            images = images.detach()
            if images.is_inference():
                images = images.clone()
            if self._precision_open:
                engine.precision = fastest_precision(self._one_prediction, images)
                self._precision_open = False
            with step_precision(engine.precision, images.device):
                answer = self._answer(images)
        self._rank = images.dim()
        self._last = answer.report
        return without_graph(answer.output.raw)

    @contextlib.contextmanager
    def _first_batch(self, images: Tensor) -> Iterator[None]:
        """The first batch sets batch size and image shape; one that fails sets nothing, a paused one no batch size."""
        engine = self._engine
        before = engine.batch_size, engine.image_shape
        if engine.batch_size is None and not self._paused:
            engine.batch_size = len(images)
        engine.see(tuple(images.shape[1:]))
        try:
            yield
        except BaseException:
            engine.batch_size, engine.image_shape = before
            raise

    def _one_prediction(self, images: Tensor, precision: Precision) -> None:
        """One forward pass at ``precision``, for timing (without a graph: it must not need more memory than a step)."""
        engine = self._engine
        before, engine.precision = engine.precision, precision
        try:
            engine.forward(images, grad=False)
        finally:
            engine.precision = before

    def _answer(self, images: Tensor) -> Answer:
        engine = self._engine
        if self.method.mixes_samples(engine):
            finite = torch.isfinite(images).flatten(1).all(1)
            if not bool(finite.all()):
                return self._answer_without(images, finite)
        if self._paused:
            return self.method.predict(engine, images)
        self._graphs = self._graphs or self._new_graphs()
        self.replayed = False
        if self.cuda_graphs and self._graphs is not None and self._graphs.ready_for(images):
            answer = self._graphs.run(images)
            if answer is not None:
                self.replayed = True
                return answer
        return self.method.step(engine, images)

    def _answer_without(self, images: Tensor, finite: Tensor) -> Answer:
        """Where samples see each other, one that is not finite would spoil all others: it is left out, its row is NaN."""
        engine = self._engine
        kept = finite.nonzero().squeeze(1)
        source = images[kept] if len(kept) else torch.zeros_like(images[:1])
        answer = self.method.predict(engine, source)
        rows = torch.full((len(images), answer.output.logits.shape[1]), torch.nan, device=images.device)
        rows = rows.to(answer.output.logits.dtype)
        if len(kept):
            rows[kept] = answer.output.logits.detach()
        answer.output.logits = rows
        answer.output.raw = with_logits(answer.output.raw, rows.to(logits_of(answer.output.raw).dtype))
        report = answer.report
        report.seen = torch.tensor(len(images))
        report.entropies = entropy(rows)
        report.mask = torch.zeros_like(report.entropies, dtype=torch.bool)
        report.forwards = report.computed_forwards = torch.tensor(len(kept))
        if not len(kept):
            report.used_redundancy = report.used_inequity = torch.full((), torch.nan)
        if not self._paused:
            engine.count(skipped=1, forwards=len(kept), computed_forwards=len(kept))
            report.skipped = engine.memory["skipped"].clone()
        return answer

    def _validate(self, images: Tensor) -> None:
        if not isinstance(images, Tensor):
            raise TypeError(
                f"expected a tensor of images [batch, channels, height, width], got {type(images).__name__}"
            )
        if not images.is_floating_point():
            raise TypeError(
                f"expected floating-point images, got {images.dtype}; convert and normalise them first, "
                "for instance (images / 255 - mean) / std"
            )
        facts, reference = self._facts, self._facts.head.weight
        if self._rank is not None and images.dim() != self._rank:
            raise ValueError(
                f"expected a batch of rank {self._rank}, got shape {tuple(images.shape)}"
                + ("; add the batch dimension with images[None]" if images.dim() == self._rank - 1 else "")
            )
        if images.dim() < 2 or images.shape[0] == 0 or images.numel() == 0:
            raise ValueError(f"expected at least one image, got an empty batch of shape {tuple(images.shape)}")
        if facts.input_channels is not None and images.dim() > 2 and images.shape[1] != facts.input_channels:
            raise ValueError(
                f"expected {facts.input_channels} channels in dimension 1, got shape {tuple(images.shape)}; "
                "the order is [batch, channels, height, width]"
            )
        if facts.input_width is not None and images.dim() == 2 and images.shape[1] != facts.input_width:
            raise ValueError(f"expected samples of {facts.input_width} values, got shape {tuple(images.shape)}")
        if images.device != reference.device:
            raise ValueError(
                f"the images are on {images.device}, the network on {reference.device}; "
                f"move them with images.to({str(reference.device)!r})"
            )
        casts = (
            torch.is_autocast_enabled(images.device.type) or self._engine.precision == "bf16" or self._precision_open
        )
        if not casts and images.dtype != reference.dtype:
            raise TypeError(
                f"the images are {images.dtype}, the network is {reference.dtype}; convert them with "
                f"images.to({reference.dtype}), or use autocast"
            )

    # -- what a caller can ask -------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The network, what learns and the state, as a method sees them: for authors of methods."""
        self._check_in_use()
        return self._engine

    @property
    def resolved(self) -> dict[str, Any]:
        """The method's options with the values in force on this network: learning rate, warm-up, normalisation …"""
        self._check_in_use()
        return self.method.resolved(self._facts, self._engine.batch_size or 64)

    @property
    def last(self) -> StepReport:
        """What happened in the last call. Tensors: reading one is what synchronises."""
        if self._last is None:
            raise RuntimeError("there is no last step yet: call the adapter on a batch first")
        return self._last

    @property
    def cost(self) -> Cost:
        """Forward and backward passes so far, in samples; reading it synchronises with the device."""
        self._check_in_use()
        return Cost(**{item.name: int(self._engine.memory[item.name]) for item in dataclasses.fields(Cost)})

    @property
    def learning_rate(self) -> float:
        """The learning rate in force (the method's rule, once the first batch has told the batch size)."""
        self._check_in_use()
        return self._engine.lr

    @property
    def learned_parameters(self) -> list[str]:
        """Names of the parameters that learn."""
        self._check_in_use()
        return list(self._engine.learnables.names) if self._engine.learns else []

    @contextlib.contextmanager
    def paused(self) -> Iterator[Adapter]:
        """Predict only, as long as the context lasts."""
        before, self._paused = self._paused, True
        try:
            yield self
        finally:
            self._paused = before

    def reset(self) -> None:
        """Back to the initial state: parameters, momentum, bank, averages, counters."""
        self._check_in_use()
        with torch.inference_mode(False):
            self._engine.reset()
        self._last = None
        self._rank = self._facts.input_rank

    def unload(self) -> nn.Module:
        """The untouched network back, bit for bit; the adapter cannot be used afterwards."""
        self._check_in_use()
        engine = self._engine
        if engine.learns and engine.source is not None:
            with torch.inference_mode(False):
                engine.learnables.assign(engine.source)
        if self._batch_statistics is not None:
            self._batch_statistics.remove()
        if engine.compiled is not None:
            engine.compiled.remove()
        for name, module in self.network.named_modules():
            module.training = self._training_before[name]
        for name, parameter in self.network.named_parameters():
            parameter.requires_grad_(self._grad_before[name])
        network = self.network
        self._graphs = None
        del self._engine
        return network

    def _check_in_use(self) -> None:
        if "_engine" not in self.__dict__:
            raise RuntimeError("this adapter was unloaded; adapt the network again with wildtta.adapt(network, method)")

    # -- state -------------------------------------------------------------------------------------------------------------

    def online_state(self) -> dict[str, Tensor]:
        """All that learning changed: the learned parameters and the method's declared state."""
        self._check_in_use()
        engine = self._engine
        learned = engine.learnables.split(engine.learnables.vector()) if engine.learns else {}
        return {
            **{f"parameters/{name}": value for name, value in learned.items()},
            **{f"memory/{name}": value for name, value in engine.memory.items()},
        }

    def save(self, path: str | Path) -> None:
        """Write the online state alone (safetensors, atomically); a run that loads it goes on bit for bit."""
        self._check_in_use()
        engine = self._engine
        facts = {
            "method": self.method.name,
            "options": self.method.plain_options(),
            "network": self._fingerprint,
            "batch_size": engine.batch_size,
            "share": None if engine.share is None else engine.share.hex(),
            "host_steps": engine.host_steps,
            "gate_open": engine.gate_open,
            "image_shape": engine.image_shape,
            "precision": engine.precision,
        }
        write_state(path, self.online_state(), facts)

    def load(self, path: str | Path) -> None:
        """Continue where :meth:`save` left off; a state of another method, network or format is refused with the reason."""
        self._check_in_use()
        with torch.inference_mode(False):
            self._resume(path)

    def _resume(self, path: str | Path) -> None:
        tensors, facts = read_state(path)
        if facts["method"] != self.method.name:
            raise ValueError(f"{path} is a state of {facts['method']!r}, this adapter runs {self.method.name!r}")
        if facts["network"] != self._fingerprint:
            raise ValueError(
                f"{path} was saved from another network (or other weights, or other parameters that learn): "
                f"its fingerprint is {facts['network'][:8]}, this network's is {self._fingerprint[:8]}"
            )
        engine = self._engine
        if facts["image_shape"] is not None:
            engine.see(tuple(facts["image_shape"]))
        present = self.online_state()
        if set(tensors) != set(present) or any(tensors[name].shape != present[name].shape for name in present):
            odd = sorted(set(tensors) ^ set(present)) or [n for n in present if tensors[n].shape != present[n].shape]
            raise ValueError(f"{path} does not fit this adapter's options: {', '.join(odd[:4])} differ")
        mine = self.method.plain_options()
        changed = [name for name, value in mine.items() if facts["options"].get(name) != value]
        if changed:
            warnings.warn(
                f"{path} was saved with other values of {', '.join(changed)}; this adapter's are used",
                stacklevel=3,
            )
        if engine.learns:
            values = {name: tensors[f"parameters/{name}"] for name in engine.learnables.names}
            engine.learnables.assign(engine.learnables.join(values))
        for name, value in engine.memory.items():
            value.copy_(tensors[f"memory/{name}"])
        if self._precision_open and facts["precision"] is not None:
            engine.precision, self._precision_open = facts["precision"], False
        engine.batch_size = facts["batch_size"]
        engine.share = None if facts["share"] is None else float.fromhex(facts["share"])
        engine.host_steps, engine.gate_open = facts["host_steps"], facts["gate_open"]

    # -- nn.Module's verbs ---------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Adapter:
        """Marks the adapter; the network itself stays in evaluation mode (dropout off), whatever the mark."""
        self.training = mode
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adapter:
        """``.to``, ``.cuda``, ``.double``…: the online state follows the network; float16 is refused before it happens."""
        if "_engine" in self.__dict__ and fn(torch.empty_like(self._facts.head.weight[:0])).dtype == torch.float16:
            raise TypeError(_HALF_ADVICE.format("this would make the parameters float16"))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if "_engine" in self.__dict__:
            with torch.inference_mode(False):
                self._engine.moved()
            self._graphs = self._new_graphs()
        return self

    def __repr__(self) -> str:
        if "_engine" not in self.__dict__:
            return f"Adapter(unloaded, {type(self.network).__name__})"
        facts, names = self._facts, self.learned_parameters
        total = sum(parameter.numel() for parameter in self.network.parameters())
        size = self._engine.learnables.size if names else 0
        shown = ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])}, …, {', '.join(names[-2:])}"
        frozen = [name for name in facts.norm_names if not any(learned.startswith(f"{name}.") for learned in names)]
        lines = [
            f"method={self.method.name}",
            f"network={type(self.network).__name__} ({facts.family}, {facts.classes} classes)",
            f"head={facts.head_name} ({facts.feature_width} features)",
            f"learns={len(names)} parameters, {size:,} of {total:,} values: {shown or 'none'}",
            f"frozen norms={', '.join(frozen) or 'none'}",
            f"statistics={'batch' if self._engine.batch_statistics else 'source' if facts.has_batch_norm else 'per sample'}",
        ]
        return "Adapter(\n  " + "\n  ".join(lines) + "\n)"


_HALF_ADVICE = (
    "{}: updates of norm parameters vanish in it. Use network.float() with precision='bf16' "
    "(or torch.autocast with bfloat16)"
)


def refuse_half_precision(network: nn.Module) -> None:
    """float16 parameters lose small updates and overflow in entropies: they are refused with advice."""
    halves = [name for name, parameter in network.named_parameters() if parameter.dtype == torch.float16]
    if halves:
        raise TypeError(_HALF_ADVICE.format(f"{len(halves)} parameters are float16 (for instance {halves[0]})"))
