"""Groups: within their bounds, in order for each tenant, fair between tenants; overload names who has too much."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wildtta.serve.refusal import Refusal
from wildtta.serve.routing import replica_of
from wildtta.serve.waiting import Request, Waiting


def request(tenant: str, number: int, images: int = 1) -> Request:
    return Request(tenant, f"{tenant}{number}", np.zeros((images, 3, 1, 1), np.uint8))


def waiting(**changes: float) -> Waiting:
    told = {"batch": 8, "wait": 0.0, "busy": 1000, "most": 1000, "tenants": 64, **changes}
    return Waiting(**told)  # type: ignore[arg-type]


def groups_of(queue: Waiting) -> list[list[Request]]:
    found = []
    while queue.images:
        _, group = queue.take(0.0)
        assert group is not None
        found.append(group.requests)
    return found


@given(
    sent=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 8)), min_size=1, max_size=40),
    tenants=st.integers(1, 5),
    alone=st.booleans(),
)
def test_every_request_is_in_one_group_and_a_tenants_stay_in_order(
    sent: list[tuple[str, int]], tenants: int, alone: bool
) -> None:
    queue = waiting(tenants=tenants, alone=alone)
    requests = [request(tenant, number, images) for number, (tenant, images) in enumerate(sent)]
    for one in requests:
        queue.put(one)
    groups = groups_of(queue)
    assert sorted(r.id for group in groups for r in group) == sorted(r.id for r in requests)
    for tenant in "abcde":
        came = [r.id for r in requests if r.tenant == tenant]
        assert [r.id for group in groups for r in group if r.tenant == tenant] == came
    for group in groups:
        assert sum(len(r.images) for r in group) <= 8
        assert len({r.tenant for r in group}) <= (1 if alone else tenants)


def test_a_flood_delays_nobody_else() -> None:
    queue = waiting()
    for number in range(100):
        queue.put(request("flood", number))
    queue.put(request("quiet", 0))
    _, group = queue.take(0.0)
    assert group is not None
    assert "quiet" in {r.tenant for r in group.requests}


def test_under_overload_only_those_with_more_than_their_share_do_not_learn() -> None:
    queue = waiting(busy=20)
    for number in range(30):
        queue.put(request("flood", number))
    queue.put(request("quiet", 0))
    _, group = queue.take(0.0)
    assert group is not None
    assert group.overloaded == {"flood"}
    for _ in groups_of(queue):
        pass
    queue.put(request("flood", 99))
    _, group = queue.take(0.0)
    assert group is not None
    assert not group.overloaded


def test_a_request_waits_for_others_but_not_longer_than_told() -> None:
    queue = waiting(wait=0.2)
    queue.put(request("a", 0))
    threading.Timer(0.05, lambda: queue.put(request("b", 0))).start()
    began = time.monotonic()
    _, group = queue.take(1.0)
    assert group is not None
    assert [r.tenant for r in group.requests] == ["a", "b"]
    assert time.monotonic() - began >= 0.19
    # A full group goes at once.
    for number in range(8):
        queue.put(request("a", number))
    _, group = queue.take(1.0)
    assert group is not None
    assert len(group.requests) == 8


def test_too_much_of_one_tenant_is_told_to_come_again() -> None:
    queue = waiting(most=10)
    queue.put(request("a", 0, images=8))
    with pytest.raises(Refusal) as refused:
        queue.put(request("a", 1, images=8))
    assert refused.value.status == 429
    assert refused.value.retry_after
    queue.put(request("b", 0, images=8))
    queue.close()
    with pytest.raises(Refusal) as refused:
        queue.put(request("c", 0))
    assert refused.value.status == 503
    assert len(groups_of(queue)) == 2, "what waited is still answered"


def test_commands_come_between_two_groups() -> None:
    queue = waiting()
    queue.put(request("a", 0))
    queue.run(lambda: None)
    commands, group = queue.take(0.0)
    assert len(commands) == 1
    assert group is None
    assert queue.take(0.0)[1] is not None


def test_tenants_are_spread_and_few_move_when_a_replica_is_added() -> None:
    names = [f"tenant-{number}" for number in range(4000)]
    before, after = ([replica_of(name, replicas) for name in names] for replicas in (4, 5))
    for replica in range(4):
        assert before.count(replica) == pytest.approx(1000, abs=150)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(moved) == pytest.approx(800, abs=150)
    assert set(moved) == {4}, "a tenant moves to the new replica or not at all"
