"""Images cut into tiles that are laid out anew."""

from __future__ import annotations

import pytest
import torch

from wildtta.step.scrambling import (
    NUMBER,
    SIDE,
    SIZES,
    are_pictures,
    arrangements,
    next_arrangements,
    scrambled,
    size_of,
)

CPU = torch.device("cpu")


def test_every_arrangement_moves_all_tiles_and_loses_none() -> None:
    found = arrangements(CPU)
    assert found.shape == (NUMBER, SIDE**2)
    assert torch.equal(found.sort(1).values, torch.arange(SIDE**2).expand(NUMBER, -1))
    assert (found != torch.arange(SIDE**2)).all()
    assert len(found.unique(dim=0)) > NUMBER / 2  # there are six ways to move four quarters


@pytest.mark.parametrize("number", range(3))
def test_blocks_of_a_size_are_moved_whole(number: int) -> None:
    """By plain loops: each block of the outcome is one block of the image."""
    image = torch.rand(1, 2, 24, 40)
    found = scrambled(image, torch.tensor([number]))
    size = SIZES[int(size_of(torch.tensor(number)))]
    high, wide = 3 * size, 5 * size

    def blocks(picture: torch.Tensor) -> list[bytes]:
        places = [(top, left) for top in range(0, 24, high) for left in range(0, 40, wide)]
        return [picture[..., top : top + high, left : left + wide].contiguous().numpy().tobytes() for top, left in places]

    before, after = blocks(image), blocks(found)
    assert sorted(before) == sorted(after)
    assert not any(one == other for one, other in zip(before, after, strict=True))


def test_what_the_sides_leave_over_stays() -> None:
    image = torch.rand(2, 3, 19, 25)
    found = scrambled(image, torch.tensor([0, 1]))
    inner = (..., slice(1, 17), slice(0, 24))
    outside = torch.ones(19, 25, dtype=torch.bool)
    outside[inner[1:]] = False
    assert torch.equal(found[..., outside], image[..., outside])
    assert torch.equal(found[inner].flatten(1).sort(1).values, image[inner].flatten(1).sort(1).values)
    assert not torch.equal(found, image)


def test_arrangements_come_in_turn_and_begin_anew() -> None:
    assert next_arrangements(torch.tensor(float(NUMBER - 2)), 4).tolist() == [NUMBER - 2, NUMBER - 1, 0, 1]


def test_what_can_be_cut() -> None:
    assert are_pictures(torch.zeros(2, 3, 8, 9))
    for other in (torch.zeros(2, 3, 7, 9), torch.zeros(2, 3, 64), torch.zeros(2, 5), torch.zeros(2, 3, 8, 8).long()):
        assert not are_pictures(other)
