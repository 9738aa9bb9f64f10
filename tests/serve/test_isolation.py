"""What one tenant sends does not reach another, to the last bit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch
from service_parts import ask, glyphs, replica_of, settings_for, told

import wildtta
from wildtta.glyphs import network
from wildtta.glyphs.networks import normalise


def test_what_an_attacker_sends_does_not_change_a_bit_of_anothers_answers() -> None:
    """In the same groups, with ordinary or with hostile images of the other tenant; both learn."""
    answers = []
    for hostile in (False, True):
        fleet = wildtta.Fleet(network("resnet_gn"), "tent", guard=wildtta.Guard(shadow=1.0, sample=8, memory=16))
        own = []
        for number in range(12):
            victim = normalise(torch.from_numpy(glyphs(3, first=5 * number)))
            other = normalise(torch.from_numpy(glyphs(5, first=900)))
            if hostile:
                other = (torch.randn(5, 3, 32, 32), torch.full((5, 3, 32, 32), 1e37), 1e4 * other)[number % 3]
            logits = fleet(torch.cat([victim, other]), ["victim"] * 3 + ["other"] * 5)
            own.append(logits[:3])
        answers.append(torch.cat(own))
    assert torch.equal(answers[0], answers[1])


def test_with_groups_of_one_tenant_nobody_else_changes_a_bit(tmp_path: Path) -> None:
    answers = []
    for attacked in (False, True):
        with replica_of(settings_for(tmp_path / str(attacked), alone=True)) as replica:
            over = threading.Event()

            def attack(replica: Any = replica, over: threading.Event = over) -> None:
                draw, number = np.random.default_rng(0), 0
                while not over.is_set():
                    ask(replica, "attacker", str(number), draw.integers(0, 256, (8, 3, 32, 32), dtype=np.uint8))
                    number += 1

            thread = threading.Thread(target=attack)
            if attacked:
                thread.start()
            answers.append([ask(replica, "victim", str(i), glyphs(2, first=3 * i)) for i in range(15)])
            over.set()
            if attacked:
                thread.join()
                assert told(replica, "attacker")["learned"] > 0
    assert all(np.array_equal(first, second) for first, second in zip(*answers, strict=True))
