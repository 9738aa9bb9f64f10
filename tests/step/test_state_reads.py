"""A state that is read again and again, as a fleet does, leaves nothing behind."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch

from toy_networks import build
from wildtta import adapt
from wildtta.step.state_file import read_state


def test_reading_a_state_leaves_no_objects_behind(tmp_path: Path) -> None:
    """By the interpreter's count of blocks. (`safe_open(...).get_tensor` of safetensors 0.8.0 leaves two per tensor.)"""
    model = adapt(build("gn_resnet"), "steady")
    model(torch.randn(8, 3, 16, 16))
    path = tmp_path / "state.safetensors"
    model.save(path)

    def blocks_after(reads: int) -> int:
        for _ in range(reads):
            read_state(path)
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks_after(20)
    assert blocks_after(100) - before < 100
