"""One replica: a fleet, the requests that wait for it, and a thread that answers them group by group.

Answers first: a group's answers go out as soon as they are there, and the group is learned from afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from wildtta.bench.cell import Cell
from wildtta.bench.models import build_model
from wildtta.serve.answers import Answers, digest
from wildtta.serve.bare import BareFleet
from wildtta.serve.logs import log, set_up
from wildtta.serve.npy import Array
from wildtta.serve.record import Recorder
from wildtta.serve.refusal import Refusal
from wildtta.serve.settings import Settings
from wildtta.serve.tenants import Tenants
from wildtta.serve.waiting import Group, Request, Waiting

Result = TypeVar("Result")
_LONGEST_SLEEP = 0.5


class Replica:
    """Answers requests of the tenants that are routed here. Any thread may call it."""

    def __init__(self, settings: Settings, index: int = 0) -> None:
        set_up(settings.log, settings.log_level)
        torch.set_num_threads(settings.threads)
        self.settings, self.index = settings, index
        self._device = _device(settings.device)
        network = build_model(
            Cell(model=settings.model, model_options=settings.model_options, weights=settings.weights, method="none")
        ).to(self._device)
        self._fleet: Any = _fleet(network, settings)
        self._tenants = Tenants(self._fleet, settings)
        self._answers = Answers(settings.kept_answers)
        self._pending: dict[tuple[str, str], Request] = {}
        self._lock, self._closing, self._closed = threading.Lock(), threading.Lock(), False
        self._recorder = None if settings.record is None else Recorder(Path(settings.record), index)
        self._waiting = Waiting(
            batch=settings.batch,
            wait=settings.wait,
            busy=settings.busy,
            most=settings.limits.waiting,
            tenants=settings.active,
            alone=settings.alone,
        )
        self.started = time.time()
        self.groups, self.busy_seconds = 0, 0.0
        self._thread = threading.Thread(target=self._work, name="wildtta-replica", daemon=True)
        self._thread.start()
        log("replica started", replica=index, model=settings.model, method=settings.method, device=str(self._device))

    # -- from any thread -------------------------------------------------------------------------------------------------

    def submit(self, tenant: str, request_id: str, images: Array, *, learn: bool = True) -> Future[Array]:
        """The logits, some time: from the cache where this request was answered before."""
        fingerprint, key = digest(images), (tenant, request_id)
        with self._lock:
            if (known := self._pending.get(key)) is not None:
                _check_same(known.fingerprint, fingerprint, request_id)
                return known.answer
            if (answered := self._answers.get(tenant, request_id)) is not None:
                _check_same(answered[0], fingerprint, request_id)
                found: Future[Array] = Future()
                found.set_result(answered[1])
                return found
            request = Request(tenant, request_id, images, fingerprint, learn and self.settings.learn)
            self._waiting.put(request)
            self._pending[key] = request
        return request.answer

    def act(self, tenant: str, verb: str) -> Future[dict[str, Any]]:
        """Pause, resume, roll back or reset a tenant, between two groups."""
        return self._between(lambda: self._tenants.act(tenant, verb))

    def status(self, names: Sequence[str] | None = None, since: float | None = None) -> Future[dict[str, Any]]:
        """What is known of some tenants (None: of all), and of the replica itself."""

        def tell() -> dict[str, Any]:
            return {"replica": self.facts(), "tenants": self._tenants.told(names, since)}

        return self._between(tell)

    def facts(self) -> dict[str, Any]:
        """The replica's own state; does not wait for a turn."""
        saver = self._tenants.saver
        return {
            "index": self.index,
            "process": os.getpid(),
            "started": self.started,
            "waiting": self._waiting.images,
            "groups": self.groups,
            "busy_seconds": self.busy_seconds,
            "kept_answers": self._answers.held,
            "alarm": saver.alarm,
            "saves": saver.saves,
            "save_failures": saver.failures,
            "learns": self.settings.learn,
            "alive": self._thread.is_alive(),
        }

    def close(self) -> None:
        """Answer what waits, save every state, release them."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._waiting.close()
        self._thread.join()
        if self._recorder is not None:
            self._recorder.close()
        self._tenants.close()
        log("replica stopped", replica=self.index)

    def _between(self, command: Callable[[], Result]) -> Future[Result]:
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(command())
            except BaseException as error:
                done.set_exception(error)

        self._waiting.run(run)
        return done

    # -- in the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        saver = self._tenants.saver
        while True:
            commands, group = self._waiting.take(min(_LONGEST_SLEEP, saver.patience))
            for command in commands:
                command()
            if group is not None:
                began = time.monotonic()
                self._answer(group)
                self.groups += 1
                self.busy_seconds += time.monotonic() - began
            elif not commands and self._waiting.closed:
                return
            saver.tick()

    def _answer(self, group: Group) -> None:
        """Answer a group; where it cannot be answered as a whole, each tenant on its own, so that one harms no other."""
        try:
            self._turns(group)
        except Exception as error:
            left = [request for request in group.requests if not request.answer.done()]
            tenants = list(dict.fromkeys(request.tenant for request in left))
            if not left:
                # Everybody has an answer: what failed is the learning.
                log("a group could not be learned from", level=logging.ERROR, error=True, replica=self.index)
            elif len(tenants) == 1:
                refusal = _refusal_of(error)
                # A stranger who is refused again and again must not fill the disk with tracebacks.
                if refusal is not error:
                    log("a tenant could not be answered", level=logging.ERROR, error=True, tenant=tenants[0])
                for request in left:
                    self._finish(request, refusal)
            else:
                for tenant in tenants:
                    own = [request for request in left if request.tenant == tenant]
                    self._answer(Group(own, group.overloaded))

    def _turns(self, group: Group) -> None:
        """One turn of the fleet, or two: a stream learns from all of its images in a turn or from none."""
        learn = [
            (request, self._tenants.may_learn(request, overloaded=request.tenant in group.overloaded))
            for request in group.requests
        ]
        learners = {request.tenant for request, flag in learn if flag}
        apart = [(request, flag) for request, flag in learn if request.tenant in learners and not flag]
        together = [(request, flag) for request, flag in learn if request.tenant not in learners or flag]
        for part in (apart, together):
            if part:
                self._turn([request for request, _ in part], [flag for _, flag in part])

    def _turn(self, requests: list[Request], learn: list[bool]) -> None:
        images = torch.cat([self._normalised(request.images) for request in requests])
        streams = [request.tenant for request in requests for _ in request.images]
        tenants = self._tenants
        flags = [flag for request, flag in zip(requests, learn, strict=True) for _ in request.images]
        with self._fleet.turn(images, streams, learn=flags) as turn:
            logits = turn.logits.detach().float().cpu().numpy()
            start = 0
            for request in requests:
                stop = start + len(request.images)
                # A copy: a part would keep the answers of the whole group, and torch's, for as long as it is kept.
                self._finish(request, logits[start:stop].copy())
                start = stop
            # What a guard holds back is not learned from; the guard looks at it all the same.
            learns = [flag and request.tenant in turn.learners for request, flag in zip(requests, learn, strict=True)]
            written = any(learn) and tenants.note_ids(requests, learns)
            if self._recorder is not None:
                self._recorder.write(requests, learn, learned=written)
            if written:
                turn.learn()
        tenants.answered(requests, logits, learns if written else [False] * len(learns))

    def _finish(self, request: Request, result: Array | Refusal) -> None:
        key = (request.tenant, request.id)
        with self._lock:
            self._pending.pop(key, None)
            if isinstance(result, np.ndarray):
                self._answers.put(request.tenant, request.id, request.fingerprint, result)
        if isinstance(result, Refusal):
            request.answer.set_exception(result)
        else:
            request.answer.set_result(result)

    def _normalised(self, images: Array) -> torch.Tensor:
        # Arrays that came through shared memory cannot be written to; torch wants to know that nobody does.
        values = torch.from_numpy(images if images.flags.writeable else images.copy()).to(self._device)
        return self.settings.protocol.normalise(values) if values.dtype == torch.uint8 else values


def _fleet(network: torch.nn.Module, settings: Settings) -> Any:
    if not settings.learn:
        return BareFleet(network)
    import wildtta

    return wildtta.Fleet(
        network,
        settings.method,
        guard=settings.guard,
        folder=settings.folder,
        active=settings.active,
        resident=settings.resident,
        **settings.options,
    )


def _device(named: str) -> torch.device:
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if named == "auto" else named)


def _check_same(before: bytes, now: bytes, request_id: str) -> None:
    if before != now:
        raise Refusal(
            409, f"the request id {request_id!r} was used for other images; every request needs an id of its own"
        )


def _refusal_of(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BlockingIOError):
        return Refusal(
            503, f"another process holds this tenant's state ({error}); send the request again", retry_after=1.0
        )
    return Refusal(500, f"the network could not answer ({type(error).__name__}: {str(error)[:200]})")
