"""Several cells on one GPU: whether their kernels can run at the same time, or take turns.

Without NVIDIA's multi-process service the processes on a GPU get time slices, and small networks leave it idle most of
the time: the study of small networks ran several times slower without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

DEFAULT_PIPES = "/tmp/nvidia-mps"


def service_runs(environment: Mapping[str, str]) -> bool:
    """Whether the multi-process service listens where this environment's processes would look for it."""
    return (Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPES)) / "control").exists()


def sharing_hint(devices: Sequence[str], per_device: int, environment: Mapping[str, str] | None = None) -> str | None:
    """What to do for several processes on one GPU to run side by side; None where nothing is amiss."""
    crowded = per_device > 1 and any(name.startswith("cuda") for name in devices)
    if not crowded or service_runs(os.environ if environment is None else environment):
        return None
    return (
        f"{per_device} processes share a GPU and take turns on it: small networks run several times faster side by side. "
        "Start NVIDIA's multi-process service first: nvidia-cuda-mps-control -d"
    )
