"""The same cell, the same numbers: seeds, threads and algorithms fixed for the time of a cell, then put back."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# cuBLAS reads this when its handle is made; without it some matrix products differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def repeatable(seed: int, *, threads: int, device: torch.device) -> Iterator[None]:
    """Everything random starts from ``seed``; sums are split over ``threads`` on the CPU, in a fixed order on a GPU.

    The number of threads changes the order of float32 sums, and adaptation carries such differences on, so it is fixed
    rather than left to the machine.
    """
    devices = [device] if device.type == "cuda" else []
    threads_before = torch.get_num_threads()
    python_before, numpy_before = random.getstate(), np.random.get_state()  # noqa: NPY002 - put back, not used
    deterministic_before = torch.are_deterministic_algorithms_enabled()
    warn_only_before = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn_before = (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
    fill_before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices):
        try:
            torch.set_num_threads(threads)
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002 - for methods of the user's own that use the global generator
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
            torch.use_deterministic_algorithms(True, warn_only=True)
            # Uninitialised memory is never read here, so filling it would only cost time.
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
            yield
        finally:
            torch.set_num_threads(threads_before)
            random.setstate(python_before)
            np.random.set_state(numpy_before)  # noqa: NPY002
            torch.use_deterministic_algorithms(deterministic_before, warn_only=warn_only_before)
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = cudnn_before
            torch.utils.deterministic.fill_uninitialized_memory = fill_before  # type: ignore[attr-defined]
