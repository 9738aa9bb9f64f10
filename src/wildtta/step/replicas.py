"""Synchronised replicas: one stream over several processes, which learn as one adapter on the joint batch would."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wildtta.network.inputs import Inputs
from wildtta.randomness import COUNTER
from wildtta.step.joint_batch import JointBatch, blank, with_rows
from wildtta.step.peers import Peers, ReplicaLost
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Call = Tensor | Inputs


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How replicas work together: ``wildtta.adapt(model, group=wildtta.Replicas(when_lost="continue"))``.

    ``group=True`` stands for the defaults, a process group for ``Replicas(group=…)``.
    """

    group: Any = None
    """A process group of :mod:`torch.distributed`; None: the default one."""
    timeout: float = 30.0
    """Seconds after which a replica that does not answer is lost. Each must be called at least that often."""
    when_lost: Literal["stop", "continue"] = "stop"
    """``"stop"``: the others raise :class:`ReplicaLost`. ``"continue"``: they go on without it, with a warning."""

    def __post_init__(self) -> None:
        if self.group is not None and not isinstance(self.group, dist.ProcessGroup):
            raise TypeError(f"group must be a process group of torch.distributed, got {self.group!r}")
        number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if not number or not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")
        if self.when_lost not in ("stop", "continue"):
            raise ValueError(f"when_lost must be 'stop' or 'continue', got {self.when_lost!r}")

    @classmethod
    def of(cls, given: Any) -> Replicas | None:
        """From what :func:`wildtta.adapt` takes as ``group=``; None: no replicas."""
        if given is None:
            return None
        if not dist.is_available():
            raise RuntimeError("group= needs torch.distributed, which this build of torch does not have")
        if isinstance(given, Replicas):
            return given
        if given is True:
            return cls()
        if isinstance(given, dist.ProcessGroup):
            return cls(group=given)
        raise TypeError(
            "group must be True (the default process group), a process group of torch.distributed, a wildtta.Replicas, or "
            f"None, got {given!r}"
        )


class Lockstep:
    """One adapter's life among its replicas: they meet at every call, and learn from what all of them bring.

    Args:
        options: how they work together.
        engine: of this replica's adapter.
        fingerprint: gives that of the source network; it is asked for once.
    """

    def __init__(self, options: Replicas, engine: Engine, fingerprint: Callable[[], str]) -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                "group= needs a process group: call torch.distributed.init_process_group first, in every process (torchrun "
                "sets what it needs)"
            )
        refuse_unshared(engine)
        self.options = options
        self.peers = Peers(options.group, options.timeout, watched=options.when_lost == "continue")
        self._engine = engine
        self._fingerprint = fingerprint
        self._setup: int | None = None
        self._turns = 0
        """Joint batches answered so far."""
        self._levelled = True
        """Whether all members are known to have answered the same ones."""

    def __reduce__(self) -> Any:
        raise TypeError(
            "an adapter with group= cannot be copied or pickled: its replicas are connected. Save its state, and load it "
            "into another adapter"
        )

    def answer(self, call: Call, learn: Callable[[Tensor], Answer], predict: Callable[[Tensor], Answer]) -> Answer:
        """Answer this replica's part of a joint batch, and learn from all of it.

        Args:
            call: this replica's part.
            learn: answers a joint batch and learns from it.
            predict: answers samples of this replica; nothing changes.
        """
        stops = self.options.when_lost == "stop"
        if self.peers.broken and stops:
            raise ReplicaLost(
                "a replica was lost before, and this adapter does not learn without it (when_lost='stop'). paused() still "
                "answers, save() still saves; start the replicas anew to go on"
            )
        while True:
            if self.peers.broken:
                self._regroup()
            try:
                answer = None if self._levelled else self._level(call, predict)
                return self._joint_answer(call, learn) if answer is None else answer
            except ReplicaLost:
                self._engine.settle()
                if stops:
                    raise

    def _joint_answer(self, call: Call, learn: Callable[[Tensor], Answer]) -> Answer:
        engine, peers = self._engine, self.peers
        with engine.calling(call) as own:
            counts = self._roll_call(len(own))
            try:
                batch = JointBatch(peers, engine, own, counts)
                with batch.used_by(engine):
                    answer = learn(batch.numbers)
            except BaseException:
                peers.close()  # what went wrong here alone must not leave the others waiting
                raise
        self._turns += 1
        return batch.own(answer)

    def _roll_call(self, samples: int) -> list[int]:
        """How many samples each replica brings; an error, the same on all, where they do not fit together."""
        if self._setup is None:
            self._setup = setup_of(self._engine, self._fingerprint())
        told = self.peers.told(samples, self._setup, digest(self._state()))
        first = told[0]
        for rank, row in zip(self.peers.members, told, strict=True):
            if row[1] != first[1]:
                raise ValueError(
                    f"replica {rank} has another network, method or setting than replica {self.peers.members[0]}: call "
                    "wildtta.adapt with the same weights and options in every process"
                )
            if row[2] != first[2]:
                raise RuntimeError(
                    f"replica {rank} is in another state than replica {self.peers.members[0]}: reset() and load() must be "
                    "called on all of them alike, and all need the same kind of processor and number of threads. Load one "
                    "state on all of them to go on"
                )
        counts = [row[0] for row in told]
        if sum(counts) == 0:
            raise ValueError("expected at least one sample among all replicas, got an empty batch from each")
        return counts

    # -- after a loss --------------------------------------------------------------------------------------------------------

    def _regroup(self) -> None:
        """Meet the survivors."""
        peers = self.peers
        before = set(peers.members)
        peers.regroup()
        lost = sorted(before - set(peers.members))
        if lost:
            warnings.warn(
                f"replicas lost (by rank): {', '.join(map(str, lost))}; {len(peers.members)} go on. What they were sent "
                "in this batch is not learned from",
                RuntimeWarning,
                stacklevel=2,
            )
        self._levelled = False

    def _level(self, call: Call, predict: Callable[[Tensor], Answer]) -> Answer | None:
        """Bring all members to one state; the answer to ``call`` where the others have learned from its batch already.

        The last collective of a step may have succeeded on some and failed on others. These then are a step behind: they
        take over the state after it, and their part of it is answered as it would have been, by the state before it.
        """
        engine = self._engine
        turns = [row[0] for row in self.peers.told(self._turns)]
        latest = max(turns)
        answer = None
        if self._turns < latest:
            with engine.calling(call) as own:
                answer = with_rows(predict(own if len(own) else blank(own)), slice(len(own)))
        if min(turns) < latest:
            with engine.all_or_nothing():
                self._take_over(turns.index(latest))
            self._turns = latest
        self._levelled = True
        return answer

    def _take_over(self, source: int) -> None:
        """The state of the member at place ``source``, on all."""
        engine = self._engine
        share = -1.0 if engine.share is None else engine.share
        known = [engine.batch_size or 0, share, engine.host_steps, engine.gate_open]
        host = torch.tensor(known, dtype=torch.float64)
        state = self._state()
        for value in (*state, host):
            self.peers.take_over(value, source)
        if engine.learns:
            engine.learnables.assign(state[0])
        batch_size, share, steps, gate = host.tolist()
        engine.batch_size, engine.share = int(batch_size) or None, None if share < 0 else share
        engine.host_steps, engine.gate_open = int(steps), bool(gate)

    def _state(self) -> list[Tensor]:
        """The parameters that learn as one vector (a copy), and the declared state (itself)."""
        engine = self._engine
        return [*([engine.learnables.vector()] if engine.learns else []), *engine.memory.values()]


def digest(tensors: Iterable[Tensor]) -> int:
    """A number of all bits of ``tensors``: the sum of their words, modulo 2⁶⁴. One read."""
    words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    sums = [value.reshape(-1).view(words[value.element_size()]).sum() for value in tensors]
    return int(torch.stack([value.to(sums[0].device) for value in sums]).sum())


def setup_of(engine: Engine, fingerprint: str) -> int:
    """A number of everything that must be the same on every replica: network, method, options, precision."""
    method = engine.method
    facts = [fingerprint, method.name, method.plain_options(), engine.precision, engine.given_batch_size, str(engine.dtype)]
    code = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
    return int.from_bytes(code[:8], "big", signed=True)


def refuse_unshared(engine: Engine) -> None:
    """An error where replicas would not learn as one adapter does, with the reason."""
    method, module = engine.method, engine.network.module
    alone = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    reasons = {
        "samples are mixed within a pass (BatchNorm by the batch's or the stream's statistics), and each replica passes its "
        "own samples alone": engine.batch_statistics
        or engine.watches_levels
        or any(layer.running_mean is None for layer in alone),
        "it works on images themselves (views, kept or destroyed ones), and each replica has its own alone": method.needs_images,
        "it makes passes over source images of its own": method.needs_source != "no",
        "it draws random numbers": COUNTER in engine.memory,
        "pixels are samples, and images may differ in size": getattr(module, "rows_per_sample", 1) > 1,
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(
                f"{method.name} on {type(module).__name__} cannot be spread over replicas (group=): {reason}. Take a network "
                "with GroupNorm or LayerNorm and a method such as steady, sar2, sar, eta or tent; or adapt in one process"
            )
