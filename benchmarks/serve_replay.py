"""A recorded run of a service once more, by the fleet directly: are the answers, and the states, the same?"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import wildtta
from serve_callers import Array, images_of
from wildtta.bench.cell import Cell
from wildtta.bench.models import build_model
from wildtta.fleet.packing import unpack
from wildtta.fleet.state_folder import StateFolder
from wildtta.serve.record import Turn, read_record
from wildtta.serve.settings import Settings


def fresh_fleet(settings: Settings) -> wildtta.Fleet:
    """The fleet that a replica with these settings has, without a folder."""
    torch.set_num_threads(settings.threads)
    network = build_model(Cell(model=settings.model, method="none"))
    return wildtta.Fleet(
        network,
        settings.method,
        guard=settings.guard,
        active=settings.active,
        resident=settings.resident,
        **settings.options,
    )


def prepared(settings: Settings, ids: Iterable[str]) -> torch.Tensor:
    return settings.protocol.normalise(torch.from_numpy(np.concatenate([images_of(request_id) for request_id in ids])))


@dataclass
class Comparison:
    """Answers of a service beside those of the fleet."""

    compared: int = 0
    unequal: int = 0
    largest: float = 0.0
    missing: int = 0


def compare_answers(settings: Settings, answers: dict[str, Array]) -> Comparison:
    """Every answer against the fleet's on the recorded groups, in their order."""
    assert settings.record is not None
    found = Comparison()
    seen: set[str] = set()
    for file in sorted(Path(settings.record).glob("replica-*.jsonl")):
        fleet = fresh_fleet(settings)
        for turn in read_record(file):
            streams = [t for t, n in zip(turn.tenants, turn.images, strict=True) for _ in range(n)]
            flags = [flag for flag, n in zip(turn.learn, turn.images, strict=True) for _ in range(n)]
            with fleet.turn(prepared(settings, turn.ids), streams, learn=flags) as answered:
                logits = answered.logits.float().numpy()
                if turn.learned:
                    answered.learn()
            start = 0
            for request_id, number in zip(turn.ids, turn.images, strict=True):
                own, start = logits[start : start + number], start + number
                if request_id not in answers:
                    continue  # answered, and the caller's time was up
                seen.add(request_id)
                found.compared += 1
                found.unequal += not np.array_equal(own, answers[request_id])
                found.largest = max(found.largest, float(np.abs(own - answers[request_id]).max()))
    found.missing = len(answers.keys() - seen)
    return found


@dataclass
class Life:
    """One tenant in one process of a replica: the call it began at, and its turns."""

    start: int
    turns: list[tuple[list[str], bool]]
    """Ids, and whether they were learned from."""


def lives_of(settings: Settings) -> dict[str, list[Life]]:
    """Each tenant's lives in order, from the record and from what the log says of each taking-up."""
    assert settings.record is not None
    assert settings.log is not None
    begun: dict[tuple[str, int], int] = {}
    for line in Path(settings.log).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "tenant taken up":
            begun[event["tenant"], event["process"]] = event["calls"]
    lives: dict[str, dict[int, Life]] = defaultdict(dict)
    for file in sorted(Path(settings.record).glob("replica-*.jsonl")):
        for turn in read_record(file):
            for tenant in dict.fromkeys(turn.tenants):
                life = lives[tenant].setdefault(turn.process, Life(begun[tenant, turn.process], []))
                life.turns.append(_own(turn, tenant))
    return {tenant: list(own.values()) for tenant, own in lives.items()}


def _own(turn: Turn, tenant: str) -> tuple[list[str], bool]:
    own = [(i, flag) for i, t, flag in zip(turn.ids, turn.tenants, turn.learn, strict=True) if t == tenant]
    return [i for i, _ in own], turn.learned and all(flag for _, flag in own)


@dataclass
class Kept:
    """What a tenant's state holds in the end."""

    turns: list[tuple[list[str], bool]]
    most_lost: int
    """Learned steps that one kill cost, at most."""


def kept_turns(lives: list[Life]) -> Kept:
    """The turns whose effect survived: a life that began at call c kept that many calls of those before it."""
    turns: list[tuple[list[str], bool]] = []
    most_lost = 0
    for life in lives:
        most_lost = max(most_lost, sum(learned for _, learned in turns[life.start :]))
        turns = turns[: life.start] + life.turns
    return Kept(turns, most_lost)


def learned_twice(kept: Kept) -> int:
    """Requests that the state learned from more than once."""
    counts = Counter(request_id for ids, learned in kept.turns if learned for request_id in ids)
    return sum(number > 1 for number in counts.values())


def state_difference(settings: Settings, tenant: str, kept: Kept, stored: Path) -> tuple[float, float]:
    """Weights in the folder against those after the kept turns alone; and how far a step twice would have been.

    Both as ‖Δ‖ / ‖θ − θ₀‖. Beside one another the two say whether something was learned twice or lost: a tenant's share of a
    group is repeated without the rest of the group, so that the last digits may differ.
    """
    fleet = fresh_fleet(settings)
    stream = fleet[tenant]
    source = _weights(stream.online_state())
    for ids, learned in kept.turns:
        if learned:
            images = prepared(settings, ids)
            fleet(images, [tenant] * len(images))
    replayed = _weights(stream.online_state())
    last = next(ids for ids, learned in reversed(kept.turns) if learned)
    images = prepared(settings, last)
    fleet(images, [tenant] * len(images))
    once_more = _weights(stream.online_state())
    found = fresh_fleet(settings)
    folder = StateFolder(stored)
    folder.claim(tenant)
    held = folder.read(tenant)
    folder.close()
    assert held is not None
    with found.working_on(tenant) as engine:
        unpack(held[0], engine)
    saved = _weights(found[tenant].online_state())
    moved = float((replayed - source).norm())
    return float((saved - replayed).norm()) / moved, float((once_more - replayed).norm()) / moved


def _weights(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.double().reshape(-1) for name, value in state.items() if name.startswith("parameters/")])
