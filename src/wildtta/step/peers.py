"""The connection between replicas: collectives that fail when a replica is lost, and a new start without it.

The groups are private ones beside the caller's, so that the time limit is ours and a broken one can be left behind. Who is
still there is agreed on in the store that the processes met in.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

_adapters: Counter[str] = Counter()
"""How many adapters of this process have been spread over the same ranks: replicas meet under the same number."""


class ReplicaLost(RuntimeError):
    """A replica ended, or did not come in time. The state is the one from before the broken step."""


class Peers:
    """The replicas of one adapter, by their ranks in ``group``; those that still answer are ``members``.

    Args:
        group: a process group, None for the default one.
        timeout: seconds after which a replica that does not answer is lost.
        watched: whether this process tells the others that it lives when they look for survivors (by a thread).
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float, *, watched: bool) -> None:
        self._timeout = timeout
        self._by_nccl = dist.is_nccl_available() and dist.get_backend(group) != "gloo"
        self.me = dist.get_rank(group)
        self.members = list(range(dist.get_world_size(group)))
        ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
        self._store: Any = PrefixStore(
            f"wildtta/{ranks}/{_adapters[ranks]}", dist.distributed_c10d._get_default_store()
        )
        _adapters[ranks] += 1
        self._generation = 0
        self._links: dict[str, Any] | None = {}
        """Groups by backend, each made when it is first needed; None: closed."""
        if watched:
            over = threading.Event()
            arguments = self._store, self.me, self._moment, over
            thread = threading.Thread(target=_answer_alarms, args=arguments, name="wildtta-replica", daemon=True)
            thread.start()
            weakref.finalize(self, _end, thread, over)

    @property
    def place(self) -> int:
        """This replica's place among the members."""
        return self.members.index(self.me)

    @property
    def _moment(self) -> float:
        """Seconds between two looks into the store."""
        return min(1.0, self._timeout / 40)

    # -- collectives -------------------------------------------------------------------------------------------------------

    def gather(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Everyone's ``rows``, in the members' order; ``counts``: how many each of them has."""
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        self._run(rows.device, lambda link: link.allgather([found], [padded]))
        return torch.cat([part[:count] for part, count in zip(found, counts, strict=True)])

    def mean(self, values: Tensor) -> Tensor:
        """The mean of everyone's ``values``: the same bits everywhere."""
        total = values.clone()
        self._run(values.device, lambda link: link.allreduce([total]))
        return total / len(self.members)

    def take_over(self, value: Tensor, source: int) -> None:
        """``value`` becomes that of the member at place ``source``, in place."""
        sent = value.to(torch.uint8) if value.dtype == torch.bool else value.contiguous()
        self._run(value.device, lambda link: link.broadcast([sent], _from(source)))
        value.copy_(sent)

    def told(self, *numbers: int) -> list[list[int]]:
        """What every member tells at this point: as many whole numbers each."""
        return self.gather(torch.tensor([numbers], dtype=torch.int64), [1] * len(self.members)).tolist()

    def _run(self, device: torch.device, start: Callable[[Any], Any]) -> None:
        try:
            work = start(self._link(device))
            deadline = time.monotonic() + self._timeout
            # On a CUDA device ``wait`` only orders the streams: whether the others came is seen by asking.
            while device.type == "cuda" and not work.is_completed():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"nothing came within {self._timeout:g} s")
                time.sleep(1e-4)
            work.wait()
            return
        except RuntimeError as error:
            why = _first_line(error)
        self.close()
        raise ReplicaLost(
            f"a replica of this adapter was lost, or did not come within {self._timeout:g} s ({why}). The state is the one "
            "from before this batch"
        )

    # -- groups ------------------------------------------------------------------------------------------------------------

    def _link(self, device: torch.device) -> Any:
        if self._links is None:
            raise RuntimeError("the connection is closed")
        backend = "nccl" if device.type == "cuda" and self._by_nccl else "gloo"
        if backend not in self._links:
            store: Any = PrefixStore(f"{self._generation}/{backend}", self._store)
            if backend == "gloo":
                limit = timedelta(seconds=self._timeout)
                self._links[backend] = dist.ProcessGroupGloo(store, self.place, len(self.members), limit)
            else:
                self._links[backend] = self._connected_by_nccl(store, device)
        return self._links[backend]

    def _connected_by_nccl(self, store: Any, device: torch.device) -> Any:
        """A group of NCCL whose GPUs are connected; RuntimeError where somebody does not come in time.

        The first collective connects them, and waits for whoever is missing without a limit: a thread does that, and is left
        behind where nobody comes.
        """
        options: Any = dist.ProcessGroupNCCL.Options()
        # Torch ends the process when this time is over. Ours comes first: see _run.
        options._timeout = timedelta(seconds=10 * self._timeout + 600)
        with _errors_left_to_us():
            made: Any = dist.ProcessGroupNCCL(store, self.place, len(self.members), options)
        failures: list[RuntimeError] = []

        def connect() -> None:
            try:
                made.allreduce([torch.zeros(1, device=device)]).wait()
            except RuntimeError as error:
                failures.append(error)

        thread = threading.Thread(target=connect, name="wildtta-nccl", daemon=True)
        thread.start()
        thread.join(self._timeout)
        if thread.is_alive():
            raise RuntimeError(f"not all GPUs were connected within {self._timeout:g} s")
        if failures:
            raise failures[0]
        return made

    @property
    def broken(self) -> bool:
        """Whether the connection was closed."""
        return self._links is None

    def close(self) -> None:
        """Leave the group: the others' collectives fail at once, and do not wait for this replica."""
        if self._links is None:
            return
        links, self._links = self._links, None
        self._generation += 1
        for link in links.values():
            if hasattr(link, "abort"):  # gloo's came late; without it the connection goes with the last reference
                link.abort()

    def regroup(self) -> None:
        """Connect those who are still there, after the connection broke; ReplicaLost where it cannot be done."""
        self.close()
        for _ in list(self.members):
            try:
                self.members = self._survivors()
            except ReplicaLost:
                raise
            except RuntimeError as error:
                raise ReplicaLost(
                    f"a replica was lost, and the others cannot meet without it: {_first_line(error)}. Where the store of "
                    "torch.distributed lives in one of the processes, all depend on that one; start them by torchrun, or "
                    "with init_method='file://…'"
                ) from error
            self._links = {}
            with contextlib.suppress(ReplicaLost):  # another one was lost meanwhile
                self.told(0)
                return
        raise ReplicaLost("replicas were lost one after the other, and the connection could not be made anew")

    def _survivors(self) -> list[int]:
        """The ranks that go on: this one's and those that come here, too, while they show that they live."""
        store: Any = PrefixStore(str(self._generation), self._store)
        store.set("alarm", "1")
        store.set(f"here/{self.me}", "1")
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            missing = [rank for rank in self.members if not store.check([f"here/{rank}"])]
            if waited > self._timeout / 4:  # time enough to answer the alarm
                missing = [rank for rank in missing if store.check([f"alive/{rank}"])]
            if not missing or waited > 1.5 * self._timeout or store.check(["members"]):
                break
            time.sleep(self._moment / 4)
        present = [rank for rank in self.members if store.check([f"here/{rank}"])]
        agreed: list[int] = json.loads(store.compare_set("members", "", json.dumps(present)))
        if self.me not in agreed:
            raise ReplicaLost(
                f"this replica (rank {self.me}) came too late and was counted as lost; the others went on without it. "
                "Start it anew, or call replicas at least once in every timeout= seconds (an empty batch will do)"
            )
        return agreed


@contextlib.contextmanager
def _errors_left_to_us() -> Iterator[None]:
    """A group of NCCL that is made within ends no process when a collective fails: who waits for it is told."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _answer_alarms(store: Any, me: int, moment: float, over: threading.Event) -> None:
    """Say in the store that this process lives, whenever somebody looks for survivors."""
    generation = 1
    with contextlib.suppress(RuntimeError):  # the store is gone: nobody can ask any more
        while not over.wait(moment):
            while store.check([f"{generation}/alarm"]):
                store.set(f"{generation}/alive/{me}", "1")
                generation += 1


def _end(thread: threading.Thread, over: threading.Event) -> None:
    """Wait for the thread: one that is within torch when the interpreter ends would take the process down with it."""
    over.set()
    if thread is not threading.current_thread():
        thread.join(5)


def _from(place: int) -> Any:
    options: Any = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = place, 0
    return options


def _first_line(error: BaseException) -> str:
    """What an error of torch.distributed says, without the place in its source and its advice."""
    return re.sub(r"^\[\S+:\d+\]\s*", "", str(error).strip()).split("\n")[0].split(". ")[0].rstrip(".")
