"""Room for requests in flight: never more than there is, given back in full, a share for everybody."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wildtta.serve.refusal import Refusal
from wildtta.serve.room import Room


@given(
    sent=st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 60), min_size=1, max_size=4)), max_size=20)
)
def test_what_is_held_is_what_was_taken_and_all_is_given_back(sent: list[tuple[str, list[int]]]) -> None:
    room = Room(100)
    held: dict[int, int] = {}
    with ExitStack() as places:
        for number, (tenant, sizes) in enumerate(sent):
            place = places.enter_context(room.place(tenant))
            for size in sizes:
                with suppress(Refusal):
                    place.hold(size)
                    held[number] = size
            assert room.held == sum(held.values())
    assert room.held == 0


def test_one_tenant_gets_all_there_is_and_no_more() -> None:
    room = Room(100)
    with room.place("a") as first, room.place("a") as second:
        first.hold(60)
        second.hold(40)
        with pytest.raises(Refusal):
            second.hold(41)
        first.hold(10)
        second.hold(90)


def test_where_nothing_is_left_those_go_on_that_hold_less_than_their_share() -> None:
    room = Room(100)
    with room.place("loud") as loud, room.place("quiet") as quiet:
        loud.hold(100)
        quiet.hold(50)
        with pytest.raises(Refusal):
            quiet.hold(51)
        with pytest.raises(Refusal):
            loud.hold(101)


def test_invented_names_take_the_logarithm_of_their_number() -> None:
    """The k-th of them finds a share of 1/k: 1 + 1/2 + … + 1/k of the room in all."""
    room = Room(1_000_000)
    with ExitStack() as places:
        for number in range(1, 1001):
            place = places.enter_context(room.place(str(number)))
            place.hold(1_000_000 // number)
            with pytest.raises(Refusal):
                place.hold(1_000_000 // number + 1)
        assert room.held <= 1_000_000 * (1 + math.log(1000))
