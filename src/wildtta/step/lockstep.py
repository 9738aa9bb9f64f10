"""Synchronised replicas: one stream over several processes, which learn as one adapter on the joint batch would."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from itertools import starmap
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from wildtta.network.inputs import Inputs
from wildtta.step.joint_batch import JointBatch, blank, with_rows
from wildtta.step.peers import Peers, ReplicaLost
from wildtta.step.replicas import Replicas, refuse_unshared
from wildtta.step.report import Answer

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Call = Tensor | Inputs


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
                "a replica was lost before, or failed within a step, and this adapter does not go on after that "
                "(when_lost='stop'). paused() still answers, save() still saves; start the replicas anew to learn on"
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
        peers = self.peers
        counts, setups, states = zip(*peers.told(samples, self._setup, digest(self._state())), strict=True)
        first = peers.members[0]
        for rank, setup in zip(peers.members, setups, strict=True):
            if setup != setups[0]:
                raise ValueError(
                    f"replica {rank} has another network, method or setting than replica {first}: call wildtta.adapt with "
                    "the same weights and options in every process"
                )
        if len(set(states)) > 1:
            self._follow_first()
        if sum(counts) == 0:
            raise ValueError("expected at least one sample among all replicas, got an empty batch from each")
        return list(counts)

    def _follow_first(self) -> None:
        """Take over the first replica's state, where all others differ from it by rounding alone; else an error on all.

        (Different processors, or numbers of threads, sum in different orders.)
        """
        peers, own = self.peers, self._state()
        theirs = [value.clone() for value in own]
        for value in theirs:
            peers.take_over(value, 0)
        near = all(starmap(differ_by_rounding, zip(own, theirs, strict=True)))
        for rank, (is_near,) in zip(peers.members, peers.told(near), strict=True):
            if not is_near:
                raise RuntimeError(
                    f"replica {rank} is in another state than replica {peers.members[0]}: reset() and load() must be called "
                    "on all of them alike. Load one state on all of them, or reset them all, to go on"
                )
        self._assign(theirs)

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
                stacklevel=7,
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
        self._assign(state)
        batch_size, share, steps, gate = host.tolist()
        engine.batch_size, engine.share = int(batch_size) or None, None if share < 0 else share
        engine.host_steps, engine.gate_open = int(steps), bool(gate)

    def _state(self) -> list[Tensor]:
        """The declared state (itself) and, as one vector (a copy), the parameters that learn."""
        engine = self._engine
        return [*engine.memory.values(), *([engine.learnables.vector()] if engine.learns else [])]

    def _assign(self, state: list[Tensor]) -> None:
        engine = self._engine
        if engine.learns:
            engine.learnables.assign(state[-1])
        for value, fresh in zip(engine.memory.values(), state, strict=False):
            value.copy_(fresh)


def digest(tensors: Iterable[Tensor]) -> int:
    """A number of all bits of ``tensors``: the sum of their words, modulo 2⁶⁴. One read."""
    words = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    sums = [value.reshape(-1).view(words[value.element_size()]).sum() for value in tensors]
    return int(torch.stack([value.to(sums[0].device) for value in sums]).sum())


def differ_by_rounding(one: Tensor, other: Tensor) -> bool:
    """Whether two states of a tensor are as near as the sums of one step in another order: √ε of the largest value."""
    if not one.is_floating_point():
        return torch.equal(one, other)
    nearness = torch.finfo(one.dtype).eps ** 0.5
    largest = float(other.nan_to_num(0.0).abs().amax()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=nearness, atol=nearness * largest, equal_nan=True)


def setup_of(engine: Engine, fingerprint: str) -> int:
    """A number of everything that must be the same on every replica: network, method, options, precision."""
    method = engine.method
    facts = [
        fingerprint,
        method.name,
        method.plain_options(),
        engine.precision,
        engine.given_batch_size,
        str(engine.dtype),
    ]
    code = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
    return int.from_bytes(code[:8], "big", signed=True)
