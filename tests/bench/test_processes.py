"""Real processes: grids that are killed, workers that die, a Ray cluster; the numbers stay the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_running import Silent, numbers

from bench_parts.folder import NETWORK, small_cell, write_images
from wildtta.bench import Cell, launch, load_grid, read

GRID = f"""
[defaults]
data = "folder"

[[grid]]
models = ["{NETWORK}"]
methods = ["none", "tent", "sar", "sar2"]
scenarios = ["mild", {{ scenario = "label_shift", draws = 12 }}]
corruptions = ["fog", "gaussian_noise"]
batch_sizes = [1]
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def wildtta(*arguments: object, **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from wildtta.cli import main; main()", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **{**pipes, **settings})


def test_a_grid_killed_three_times_ends_as_if_it_had_not_been(images: Path, tmp_path: Path) -> None:
    grid, journal, log = tmp_path / "grid.toml", tmp_path / "killed.jsonl", tmp_path / "log"
    grid.write_text(GRID)
    cells = load_grid(grid)
    assert len(cells) == 16
    alone = ("--device", "cpu", "--per-device", 1)
    command = ("bench", grid, "--journal", journal, "--data", images, *alone, "--no-table")
    environment = {**os.environ, "WILDTTA_TEST_LOG": str(log)}
    chance = random.Random(time.time_ns())
    lines = 0
    for _ in range(3):
        process = wildtta(*command, env=environment)
        target = lines + chance.randint(1, 4)
        while lines < target and process.poll() is None:
            time.sleep(0.005)
            lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
        time.sleep(chance.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "the grid was finished before it could be killed"
        lines = journal.read_bytes().count(b"\n")
    # A kill in the middle of a write leaves half a line; the disk decides whether it happens, so here it is made.
    with journal.open("ab") as file:
        file.write(b'{"key":"0123","cell":{"model"')
    process = wildtta(*command, env=environment)
    _, messages = process.communicate()
    assert process.returncode == 0, messages
    assert "the last line was torn (29 bytes); it was cut off" in messages
    keys = [json.loads(line)["key"] for line in journal.read_text().splitlines()]
    assert sorted(keys) == sorted(cell.key for cell in cells), "a cell is missing or was written twice"
    # A run that was killed before its row was written has to be repeated: one for each kill at most.
    assert 16 <= len(log.read_text().splitlines()) <= 19
    again = wildtta(*command, env=environment)
    again.communicate()
    assert again.returncode == 0
    assert len(log.read_text().splitlines()) <= 19, "finished cells were run again"
    uninterrupted = launch(cells, root=images, device="cpu", observer=Silent())
    assert numbers(read(journal)) == numbers(uninterrupted.rows)


def _descendants(of: int, wanted: str) -> list[int]:
    """Processes below ``of`` whose command line contains ``wanted``."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except (OSError, IndexError):
                continue
    found = []
    for process, command in commands.items():
        ancestor = process
        while ancestor in parents and ancestor != of:
            ancestor = parents[ancestor]
        if ancestor == of and process != of and wanted in command:
            found.append(process)
    return found


class Killer(Silent):
    """Kills one of this process's workers, once, when the first cells are finished."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.wanted = wanted
        self.killed: list[int] = []

    def finished(self, row: dict[str, Any]) -> None:
        super().finished(row)
        if len(self.rows) == 2:
            threading.Thread(target=self._kill).start()

    def _kill(self) -> None:
        for _ in range(200):
            for process in _descendants(os.getpid(), self.wanted):
                os.kill(process, signal.SIGKILL)
                self.killed.append(process)
                return
            time.sleep(0.01)


def _longer_cells() -> list[Cell]:
    """Long enough to be hit."""
    return [
        small_cell(method=method, scenario="label_shift", scenario_options={"draws": 25}, batch_size=1, seed=seed)
        for method in ("tent", "sar")
        for seed in range(3)
    ]


@pytest.fixture(scope="module")
def expected(images: Path) -> dict[str, Any]:
    """The numbers of the cells in this very process."""
    return numbers(launch(_longer_cells(), root=images, device="cpu", observer=Silent()).rows)


def test_worker_processes_give_the_same_numbers_and_may_die(
    images: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    killer, journal = Killer("wildtta.bench.worker"), tmp_path / "j.jsonl"
    outcome = launch(_longer_cells(), journal=journal, root=images, device="cpu", per_device=2, observer=killer)
    assert len(killer.killed) == 1
    assert any("died (signal 9); trying again" in notice for notice in killer.notices)
    assert outcome.failed == 0
    assert numbers(outcome.rows) == expected
    assert numbers(read(journal)) == expected
    assert _descendants(os.getpid(), "wildtta.bench.worker") == []


def test_workers_end_with_their_driver(images: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID.replace("draws = 12", "draws = 2000"))
    process = wildtta(
        "bench", grid, "--journal", tmp_path / "j.jsonl", "--data", images, "--device", "cpu", "--per-device", 2
    )
    deadline = time.monotonic() + 60
    workers: list[int] = []
    while len(workers) < 2 and time.monotonic() < deadline:
        workers = _descendants(process.pid, "wildtta.bench.worker")
        time.sleep(0.05)
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_ray_gives_the_same_numbers_and_survives_a_killed_worker(
    images: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        killer, journal = Killer("ray::_run_on_worker"), tmp_path / "j.jsonl"
        outcome = launch(_longer_cells(), journal=journal, root=images, device="cpu", ray="auto", observer=killer)
        assert len(killer.killed) == 1
        assert any("trying again" in notice for notice in killer.notices)
        assert outcome.failed == 0
        assert numbers(read(journal)) == expected
    finally:
        ray.shutdown()
