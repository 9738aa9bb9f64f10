"""The adapted network: an ``nn.Module`` that predicts and learns on every call."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.guard.guard import Guard
from wildtta.guard.senders import Quotas, ids_of
from wildtta.guard.watch import Watch
from wildtta.methods.base import Method, is_plain
from wildtta.methods.gradient import GradientMethod
from wildtta.network import Network
from wildtta.network.inputs import Inputs, gathered
from wildtta.network.norms import BatchStatistics
from wildtta.network.output import without_graph
from wildtta.step.callers import Block, PerCaller, is_paused
from wildtta.step.compiling import CompiledNetwork
from wildtta.step.engine import Engine
from wildtta.step.graphs import GraphRunner
from wildtta.step.holding import give_back, hold
from wildtta.step.interrupts import Held
from wildtta.step.learnables import Learnables
from wildtta.step.left_out import answer_apart, left_out, remember_levels, sample_levels
from wildtta.step.lockstep import Lockstep
from wildtta.step.online_state import facts_of, resume, state_of
from wildtta.step.precision import Precision, fastest_precision, step_precision
from wildtta.step.replicas import Replicas
from wildtta.step.report import Answer, StepReport
from wildtta.step.save_order import Save
from wildtta.step.silence import Silence
from wildtta.step.state_file import fingerprint, read_state, unsaved_fingerprint, write_state
from wildtta.step.undo import Snapshot
from wildtta.step.window import AnswerWindow

SENDER_SHARE = 0.25
"""Of the latest images that one sender's may be learned from, unless a guard says otherwise."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Totals over the life of an adapter, in samples, as the paper counts them; ``computed_*``: as they really ran."""

    forwards: int
    backwards: int
    computed_forwards: int
    computed_backwards: int
    resets: int
    """Recoveries."""
    learned: int
    """Batches that changed something."""
    skipped: int
    """Batches that could not be learned from."""
    left_out: int
    """Samples that were left out of their batch: not finite, or absurd in their stream."""


class Adapter(nn.Module):
    """A network that adapts: ``adapter(images)`` returns logits and learns from the batch.

    Made by :func:`wildtta.adapt`. The network is changed in place (only what learns, see ``repr``);
    :meth:`unload` gives it back bit for bit. Any number of threads may share an adapter: calls, saves, loads and resets
    happen one at a time.
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
        median: bool = False,
        compiled: bool = False,
        guard: Guard | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        super().__init__()
        self.network = facts.module
        self.method = method
        self._facts = facts
        self.cuda_graphs = True
        """Whether steps of one shape may be recorded and replayed as CUDA graphs: faster, at the price of memory."""
        self.replayed = False
        """Whether the last batch was answered by replaying a recorded step."""
        self._silence = Silence()
        self._precision_open = precision == "auto"
        self._rank = facts.input_rank
        self._window = AnswerWindow()
        self._watch = None if guard is None else Watch(guard, facts, names)
        self._quotas = Quotas(SENDER_SHARE if guard is None else guard.sender_share)
        self._share()
        self._training_before = {name: module.training for name, module in self.network.named_modules()}
        self._grad_before = {name: parameter.requires_grad for name, parameter in self.network.named_parameters()}
        parameters = dict(self.network.named_parameters())
        learnables = Learnables(names, [parameters[name] for name in names]) if names else None
        self._engine = Engine(facts, learnables, method, None if precision == "auto" else precision)
        self._engine.fastest = precision == "auto"
        self._engine.given_batch_size = self._engine.batch_size = batch_size
        self._engine.median = median
        if median and not self._engine.batch_statistics:
            raise ValueError(
                f"statistics='median' has no effect: {type(self.network).__name__} has no BatchNorm layer, or "
                f"{method.name} keeps the source's statistics; leave it out"
            )
        self._fingerprint: str | None = None
        self._unsaved = unsaved_fingerprint(self.network)
        self._lockstep = None if replicas is None else Lockstep(replicas, self._engine, self._source_fingerprint)
        self._graphs = self._new_graphs()
        self._arrange()
        if compiled:
            self._engine.compiled = CompiledNetwork(self.network, facts.head)
        hold(self.network, self)

    def _arrange(self) -> None:
        """Evaluation mode everywhere; only what learns has gradients; batch statistics where the method uses them."""
        learns = set() if not self._engine.learns else set(map(id, self._engine.learnables.parameters))
        for parameter in self.network.parameters():
            parameter.requires_grad_(id(parameter) in learns)
        self._evaluate()
        if self._engine.batch_statistics and not self._engine.median:
            self._engine.batch_norms = BatchStatistics(self.network)

    def _evaluate(self) -> None:
        """Evaluation mode everywhere: no dropout, and no BatchNorm layer writes its buffers."""
        for module in self.network.modules():
            module.training = False

    def _new_graphs(self) -> GraphRunner | None:
        learns_by_gradient = isinstance(self.method, GradientMethod) and self._engine.learns
        recordable = learns_by_gradient and self._lockstep is None  # a collective that waits is no part of a recording
        return GraphRunner(self.method, self._engine) if recordable else None  # type: ignore[arg-type]

    # -- one at a time -------------------------------------------------------------------------------------------------

    def _share(self) -> None:
        """What several callers of one adapter need; made anew in a copy."""
        self._turn = threading.RLock()
        self._answering = False
        self._number = 0
        """Of the present call; it counts once, also where a part of the batch is learned from and the rest answered."""
        self._last: PerCaller[StepReport] = PerCaller()
        self._stream: Any = None
        """The CUDA stream that the state was last changed on."""

    @contextlib.contextmanager
    def _alone(self) -> Iterator[Engine]:
        """The adapter to oneself: other threads and signals wait; what was broken off before is undone first."""
        self._refuse_own_step()
        with Held(), self._turn:
            self._check_in_use()
            engine = self._engine
            engine.clean_up()
            self._check_in_use()  # what was broken off may have been an unload, which is then completed
            if self.network.training:  # a train() that was meant for a module around it, or for all of a program
                self._evaluate()
            try:
                yield engine
            except BaseException:
                engine.clean_up()
                raise

    def _clean_up(self) -> None:
        if "_engine" in self.__dict__:
            self._engine.clean_up()

    def _refuse_own_step(self) -> None:
        if self._answering and self._turn._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                "the adapter was used from within its own step (a hook, or the handler of a second signal); "
                "wait until the call is over"
            )

    def _follow_stream(self, device: torch.device) -> None:
        """Work on the state of a caller with another CUDA stream comes after that of the caller before."""
        if device.type != "cuda":
            return
        stream: Any = torch.cuda.current_stream(device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    # -- the call ------------------------------------------------------------------------------------------------------

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Logits for a batch (without a graph), then one update; called like the bare network, it returns the same kind.

        Usually ``adapter(images)``. Several arguments, or named ones (``adapter(input_ids=…, attention_mask=…)``), go to
        the network as they are; every tensor as long as the batch is taken to hold its samples.
        """
        with self._alone() as engine:
            call = gathered(self.network, arguments, named)
            self._validate(call)
            self._number = engine.calls + 1
            self._answering = True
            try:
                with torch.inference_mode(False), torch.enable_grad():
                    answer = self._answer_to(call)
            finally:
                self._answering = False
            self._rank = call.dim() if isinstance(call, Tensor) else self._rank
            answer.report.step = engine.calls
            self._window.add(answer)
            self._last.set(answer.report)
            told = self._silence.take()
        for message in told:
            warnings.warn(message, stacklevel=4)
        return without_graph(answer.output.raw)

    def _answer_to(self, call: Tensor | Inputs) -> Answer:
        """A call's answer; replicas learn from it together, and each predicts alone while it is paused."""
        if self._lockstep is not None and not is_paused(self):
            return self._lockstep.answer(call, self._answered, self._predict)
        with self._engine.calling(call) as images:
            return self._answered(images)

    def _answered(self, images: Tensor) -> Answer:
        engine = self._engine
        self._follow_stream(images.device)
        if self._precision_open:
            self._settle_precision(images)
        with step_precision(engine.precision, images.device):
            if is_paused(self):
                return (
                    self._predict(images) if self._watch is None else self._watch.predict(engine, images, self._predict)
                )
            answer = self._guarded(images)
            self._silence.after(engine, images, answer)
            return answer

    def _settle_precision(self, images: Tensor) -> None:
        """``precision="auto"``: the fastest for what will really run.

        On a GPU that is a whole step, recorded where it will be: a pass that is launched kernel by kernel can be slower at the
        precision at which the recorded one is faster. The state is put back. While the adapter only predicts passes are
        timed, and steps once it learns.
        """
        engine, cuda = self._engine, images.device.type == "cuda"
        if not cuda or is_paused(self):
            if engine.precision is None:
                run = functools.partial(self._one_prediction, images)
                engine.precision = fastest_precision(run, images.device, passes=True)
            self._precision_open = cuda
            return

        def one_step(precision: Precision) -> None:
            if precision != engine.precision:
                engine.precision, self._graphs = precision, None  # recordings of two precisions would need twice the memory
            self._learn(images)

        before = Snapshot()
        before.take(engine)
        try:
            chosen = fastest_precision(one_step, images.device, passes=False)
        finally:
            engine.settle()
            before.restore(engine)
            engine.precision, self._graphs = None, None
        engine.precision, self._precision_open = chosen, False

    def _one_prediction(self, images: Tensor, precision: Precision) -> None:
        """One forward pass at ``precision``, for timing (without a graph: it must not need more memory than a step)."""
        engine = self._engine
        with engine.changes.set(engine, precision=precision):
            engine.forward(images, grad=False)

    def _predict(self, images: Tensor) -> Answer:
        engine = self._engine
        found = sample_levels(engine, images)
        answer = answer_apart(engine, images, found, self.method.predict, learning=False)
        engine.calls = self._number
        return answer

    def _guarded(self, images: Tensor) -> Answer:
        """One step, as far as the guard and the senders' quotas let it."""
        engine = self._engine
        learn = functools.partial(self._quotas.answer, engine, learn=self._learn, predict=self._predict)
        return learn(images) if self._watch is None else self._watch.answer(engine, images, learn, self._predict)

    def _learn(self, images: Tensor) -> Answer:
        """One step: by replaying a recorded one, else eagerly. A first batch that fails sets neither size nor shape."""
        engine = self._engine
        self._refuse_frozen()
        found = sample_levels(engine, images)
        self._graphs = self._graphs or self._new_graphs()
        replayed = None
        if self.cuda_graphs and self._graphs is not None and self._graphs.ready_for(images):
            replayed = None if any(left_out(engine, found)) else self._graphs.run(images)
        self.replayed = replayed is not None
        if replayed is not None:
            remember_levels(engine, found)
            engine.calls = self._number
            return replayed
        with engine.all_or_nothing(), engine.drawing():
            if engine.batch_size is None:
                engine.batch_size = len(images)
            engine.see(tuple(images.shape[1:]))
            answer = answer_apart(engine, images, found, self.method.step, learning=True)
            remember_levels(engine, found)
            engine.calls = self._number
        return answer

    def _refuse_frozen(self) -> None:
        """What learns must ask for gradients: without them nothing would be learned, and nothing would tell."""
        learnables = self._engine.learnables if self._engine.learns else None
        frozen = [] if learnables is None else [p for p in learnables.parameters if not p.requires_grad]
        if learnables is not None and frozen:
            raise RuntimeError(
                f"{len(frozen)} of {len(learnables.parameters)} parameters that learn ask for no gradient any more "
                "(requires_grad_(False), a freeze()). To predict only call the adapter within model.paused(); to learn, "
                "give them back with model.get_parameter('network.' + name).requires_grad_() for each name in "
                "model.learned_parameters"
            )

    def _validate(self, call: Tensor | Inputs) -> None:
        facts, reference = self._facts, self._facts.reference
        if reference.dtype == torch.float16:
            raise TypeError(_HALF_ADVICE.format("the network's parameters were made float16"))
        if self.method.needs_images and (isinstance(call, Inputs) or facts.takes_tokens):
            raise TypeError(
                f"{self.method.name} works on images themselves, and this network was called with "
                f"{', '.join(call.tensors) if isinstance(call, Inputs) else 'tokens'}; give it one tensor of images, or "
                "take a method that leaves its inputs alone, such as tent, sar, sar2 or steady"
            )
        if isinstance(call, Inputs):
            for name, value in call.tensors.items():
                self._check_place_and_type(value, f"the input {name}", reference)
            if not len(call.sample_numbers):
                raise ValueError("expected at least one sample, got an empty batch")
            return
        images = call
        if not isinstance(images, Tensor):
            raise TypeError(
                f"expected a tensor of images [batch, channels, height, width], got {type(images).__name__}"
            )
        if images.layout is not torch.strided:
            raise TypeError(f"expected a dense tensor, got one of layout {images.layout}; give images.to_dense()")
        if not images.is_floating_point() and not facts.takes_tokens:
            raise TypeError(
                f"expected floating-point images, got {images.dtype}; convert and normalise them first, "
                "for instance (images / 255 - mean) / std"
            )
        if self._rank is not None and images.dim() != self._rank:
            raise ValueError(
                f"expected a batch of rank {self._rank}, got shape {tuple(images.shape)}"
                + ("; add the batch dimension with images[None]" if images.dim() == self._rank - 1 else "")
            )
        may_be_empty = self._lockstep is not None and not is_paused(self)
        if images.dim() < 2 or (images.shape[0] == 0 and not may_be_empty) or 0 in images.shape[1:]:
            raise ValueError(f"expected at least one image, got an empty batch of shape {tuple(images.shape)}")
        if facts.input_channels is not None and images.dim() > 2 and images.shape[1] != facts.input_channels:
            raise ValueError(
                f"expected {facts.input_channels} channels in dimension 1, got shape {tuple(images.shape)}; "
                "the order is [batch, channels, height, width]"
            )
        if facts.input_width is not None and images.dim() == 2 and images.shape[1] != facts.input_width:
            raise ValueError(f"expected samples of {facts.input_width} values, got shape {tuple(images.shape)}")
        self._check_place_and_type(images, "the images", reference)

    def _check_place_and_type(self, value: Tensor, name: str, reference: Tensor) -> None:
        """On the network's device; floating-point numbers in its type, unless something casts them."""
        if value.device != reference.device:
            raise ValueError(
                f"{name} are on {value.device}, the network on {reference.device}; "
                f"move them with images.to({str(reference.device)!r})"
            )
        casts = torch.is_autocast_enabled(value.device.type) or self._engine.precision == "bf16" or self._precision_open
        if not casts and value.is_floating_point() and value.dtype != reference.dtype:
            raise TypeError(
                f"{name} are {value.dtype}, the network is {reference.dtype}; convert them with "
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
        """What happened in the last call of this thread (or asyncio task). Tensors: reading one is what synchronises."""
        report = self._last.get()
        if report is None:
            raise RuntimeError(
                "there is no last step yet: call the adapter on a batch first. Every thread and asyncio task has its own; "
                "where a call runs in another thread (asyncio.to_thread), read model.last there"
            )
        return report

    @property
    def cost(self) -> Cost:
        """Forward and backward passes so far, in samples; reading it synchronises with the device."""
        with self._alone() as engine:
            return Cost(**{item.name: int(engine.memory[item.name]) for item in dataclasses.fields(Cost)})

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

    def paused(self) -> AbstractContextManager[Adapter]:
        """Predict only, as long as the context lasts: for this caller, other threads and asyncio tasks go on learning."""
        return Block(self, None, self)

    def senders(self, ids: Sequence[Hashable] | Tensor | npt.NDArray[Any]) -> AbstractContextManager[Adapter]:
        """Who sent each image of the calls within: no sender is learned from beyond its share of the latest 1,024 images.

        One number or text for each image, in a list, an array or a tensor. What is beyond it is answered and not learned
        from. ``wildtta.Guard(sender_share=...)`` sets the share.
        """
        if self._lockstep is not None:
            raise RuntimeError(
                "senders are not counted over replicas (group=); count them before the batches are dealt out"
            )
        return Block(self._quotas, ids_of(ids), self)

    @property
    def replicas(self) -> list[int]:
        """Ranks in the group of the replicas that learn together now."""
        if self._lockstep is None:
            raise RuntimeError("this adapter has no replicas; make it with wildtta.adapt(model, group=True)")
        return list(self._lockstep.peers.members)

    @property
    def guard(self) -> Watch:
        """The guard at work: its decisions, its evidence, its last look."""
        if self._watch is None:
            raise RuntimeError("this adapter has no guard; make it with wildtta.adapt(model, guard=wildtta.Guard())")
        return self._watch

    def labelled(self, images: Tensor, labels: Sequence[int] | Tensor | npt.NDArray[Any]) -> None:
        """Tell the guard the labels of some images: both networks are scored on them, nothing is learned."""
        with self._alone() as engine, torch.inference_mode(False):
            self._validate(images)
            self.guard.labelled(engine, images.detach(), labels)

    def reset(self) -> None:
        """Back to the initial state: parameters, momentum, bank, averages, counters."""
        with self._alone() as engine, torch.inference_mode(False), engine.all_or_nothing():
            engine.reset()
            self._rank = self._facts.input_rank
            self._forget_stream()

    def _forget_stream(self) -> None:
        """The state is another one: what was seen of the stream says nothing about it."""
        self._window.clear()
        if self._watch is not None:
            self._watch.restart()

    def unload(self) -> nn.Module:
        """The untouched network back, bit for bit; the adapter cannot be used afterwards."""
        with self._alone() as engine:
            # A half unloaded adapter could neither answer nor go back: an unload that is broken off is completed.
            engine.unfinished = functools.partial(self._return_network, engine)
            engine.settle()
        return self.network

    def _return_network(self, engine: Engine) -> None:
        """The network as it was before adaptation. It may be interrupted and done again."""
        if engine.learns and engine.source is not None:
            with torch.inference_mode(False):
                engine.learnables.assign(engine.source)
        if engine.batch_norms is not None:
            engine.batch_norms.remove()
        if engine.compiled is not None:
            engine.compiled.remove()
        for name, module in self.network.named_modules():
            module.training = self._training_before.get(name, module.training)
        for name, parameter in self.network.named_parameters():  # a part that was put in meanwhile stays as it is
            parameter.requires_grad_(self._grad_before.get(name, parameter.requires_grad))
        self._graphs = None
        if self._lockstep is not None:
            self._lockstep.peers.close()
        give_back(self.network)
        self.__dict__.pop("_engine", None)

    def _check_in_use(self) -> None:
        if "_engine" not in self.__dict__:
            raise RuntimeError("this adapter was unloaded; adapt the network again with wildtta.adapt(network, method)")

    # -- state -------------------------------------------------------------------------------------------------------------

    def online_state(self) -> dict[str, Tensor]:
        """All that learning changed: copies of the learned parameters and of the method's declared state."""
        with self._alone(), torch.inference_mode(False):
            return self._state()

    def _state(self) -> dict[str, Tensor]:
        return state_of(self._engine)

    def save(self, path: str | Path) -> None:
        """Write the online state alone (safetensors, atomically); a run that loads it goes on bit for bit."""
        with self._alone() as engine, torch.inference_mode(False):
            tensors, facts = self._state(), facts_of(engine, self._source_fingerprint())
            order = Save(path)
        write_state(path, tensors, facts, order)

    def load(self, path: str | Path) -> None:
        """Continue where :meth:`save` left off; a state of another method, network or format is refused with the reason."""
        self._check_in_use()
        tensors, facts = read_state(path)
        with self._alone() as engine, torch.inference_mode(False), engine.all_or_nothing():
            for message in resume(engine, path, tensors, facts, self._source_fingerprint()):
                warnings.warn(message, stacklevel=2)
            if self._precision_open and facts["precision"] is not None:
                engine.precision, self._precision_open = facts["precision"], False
            self._forget_stream()

    def _source_fingerprint(self) -> str:
        """Of every weight and buffer from before adaptation; found when it is first needed."""
        if self._fingerprint is None:
            engine, source = self._engine, {}
            if engine.learns and engine.source is not None:
                values = engine.learnables.split(engine.source).values()
                source = dict(zip(engine.learnables.parameters, values, strict=True))
            self._fingerprint = fingerprint(self.network, source, self._unsaved)
        return self._fingerprint

    # -- nn.Module's verbs ---------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Adapter:
        """Marks the adapter; the network itself stays in evaluation mode (dropout off), whatever the mark."""
        self.training = mode
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Adapter:
        """``.to``, ``.cuda``, ``.double``…: the online state follows the network; float16 is refused before it happens."""
        self._refuse_own_step()
        with Held(), self._turn:
            self._clean_up()
            if "_engine" in self.__dict__:
                before = self._facts.reference.dtype
                after = fn(torch.empty_like(self._facts.reference[:0])).dtype
                if after == torch.float16:
                    raise TypeError(_HALF_ADVICE.format("this would make the parameters float16"))
                if after != before:
                    self._source_fingerprint()  # of the weights as they came
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            if "_engine" in self.__dict__:
                with torch.inference_mode(False):
                    self._engine.moved()
                    if self._watch is not None:
                        self._watch.moved(fn)
                self._graphs = self._new_graphs()
        return self

    # Copies and pickles are made between two steps, and without what belongs to this process: recordings, reports, locks.

    def __getstate__(self) -> dict[str, Any]:
        return self._copied({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Adapter:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(self._copied(memo))
        return twin

    def _copied(self, memo: dict[int, Any]) -> dict[str, Any]:
        self._refuse_own_step()
        with self._turn:
            self._clean_up()
            left = ("_turn", "_last", "_stream", "_graphs")
            return copy.deepcopy({name: value for name, value in vars(self).items() if name not in left}, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._share()
        self._graphs = None
        if "_engine" in self.__dict__:
            hold(self.network, self)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Refused: what learns is compiled by ``adapt(network, compile=True)``."""
        raise RuntimeError(_COMPILE_ADVICE)

    @property
    def _initialize_hook(self) -> None:
        """Where :func:`torch.compile` looks whether a module is a lazy one: the place to answer that it is an adapter."""
        raise RuntimeError(_COMPILE_ADVICE)

    def __getattr__(self, name: str) -> Any:
        """What the adapter lacks is the network's: ``config``, ``pretrained_cfg``, ``device`` …"""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "network" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.network, name)

    def __repr__(self) -> str:
        if "_engine" not in self.__dict__:
            return f"Adapter(unloaded, {type(self.network).__name__})"
        engine, facts, names = self._engine, self._facts, self.learned_parameters
        total = sum(parameter.numel() for parameter in self.network.parameters())
        size = engine.learnables.size if names else 0
        shown = ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])}, …, {', '.join(names[-2:])}"
        frozen = [name for name in facts.norm_names if not any(learned.startswith(f"{name}.") for learned in names)]
        batch = "batch median" if engine.median else "batch"
        statistics = batch if engine.batch_statistics else "source" if facts.has_batch_norm else "per sample"
        usual = {item.name: item.default for item in dataclasses.fields(self.method)}
        options = {name: value for name, value in self.method.options().items() if is_plain(value)}
        changed = [f"{name}={value!r}" for name, value in options.items() if value != usual[name]]
        resolved = self.resolved
        guess = "" if engine.batch_size else " (if batches are of 64; the first one tells)"
        lines = [
            f"method={self.method.name}",
            f"options={', '.join(changed) or 'the defaults'}",
            *([f"learning rate={self.learning_rate:g}{guess}"] if "lr" in options else []),
            *([f"warm-up={resolved['warmup']} classes"] if resolved.get("warmup") is not None else []),
            f"network={type(self.network).__name__} ({facts.family}, {facts.classes} classes)",
            f"head={facts.head_name} ({facts.feature_width} features)",
            f"learns={len(names)} parameters, {size:,} of {total:,} values: {shown or 'none'}",
            f"frozen norms={', '.join(frozen) or 'none'}",
            f"statistics={statistics}",
            *([f"replicas={len(self.replicas)}"] if self._lockstep is not None else []),
        ]
        return "Adapter(\n  " + "\n  ".join(lines) + "\n)"


_COMPILE_ADVICE = (
    "an adapter cannot be compiled as a whole: it changes its weights in every call. Compile the network in it with "
    "wildtta.adapt(network, compile=True)"
)


_HALF_ADVICE = (
    "{}: updates of norm parameters vanish in it. Use network.float() with precision='bf16' "
    "(or torch.autocast with bfloat16)"
)


def refuse_half_precision(network: nn.Module) -> None:
    """float16 parameters lose small updates and overflow in entropies: they are refused with advice."""
    halves = [name for name, parameter in network.named_parameters() if parameter.dtype == torch.float16]
    if halves:
        raise TypeError(_HALF_ADVICE.format(f"{len(halves)} parameters are float16 (for instance {halves[0]})"))
