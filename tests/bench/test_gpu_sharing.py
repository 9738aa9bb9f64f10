"""Several processes on one GPU: the hint to start the service that lets them run side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from wildtta.bench.launching import sharing_hint


def test_a_crowded_gpu_without_the_service_gets_the_command(tmp_path: Path) -> None:
    hint = sharing_hint(["cuda:0"], 14, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
    assert hint is not None
    assert "14 processes" in hint
    assert "nvidia-cuda-mps-control -d" in hint


def test_a_running_service_is_found_where_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "control").touch()
    assert sharing_hint(["cuda:0"], 14, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) is None


@pytest.mark.parametrize(("devices", "per_device"), [(["cpu"], 2), (["cuda:0", "cuda:1"], 1), ([], 4)])
def test_nothing_is_said_where_no_gpu_is_shared(devices: list[str], per_device: int, tmp_path: Path) -> None:
    assert sharing_hint(devices, per_device, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) is None
