"""What all tests share: one thread (the same sums everywhere), fixed seeds, the recorded trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The machine's speed is no property of the code, and a failure must be found again by the next run.
settings.register_profile("wildtta", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("wildtta")

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden():
    """The recorded cases that the repository carries."""
    from golden_cases import Folder

    return Folder(GOLDEN, json.loads((GOLDEN / "cases.json").read_text()))
