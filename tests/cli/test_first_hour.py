"""What a new user meets in the first hour: the version, weights of torch.save, all cores, a time that can be believed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import wildtta as library
from bench_parts.folder import NETWORK, small_cell, write_images
from bench_parts.small_network import network
from wildtta import progress
from wildtta.bench import cells_at_a_time, launching
from wildtta.bench.launching import idle_cores_hint
from wildtta.bench.watching import Display

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), per_class=4)


def test_the_version(wildtta: Any) -> None:
    code, output, _ = wildtta("--version")
    assert code == 0
    assert output.startswith(f"wildtta {library.__version__} (torch {torch.__version__}, Python 3.")


def test_the_command_line_runs_as_a_module() -> None:
    """Where pip's scripts are not on the path."""
    ended = subprocess.run([sys.executable, "-m", "wildtta", "--version"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"wildtta {library.__version__} ")


def test_the_version_is_the_packages() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', pyproject, re.MULTILINE)[1] == library.__version__  # type: ignore[index]


@pytest.mark.parametrize("wrapped", [False, True], ids=["state_dict", "checkpoint"])
def test_weights_of_torch_save_are_converted_by_the_command_that_the_error_names(
    wildtta: Any, images: Path, tmp_path: Path, wrapped: bool
) -> None:
    torch.manual_seed(3)
    weights = network().state_dict()
    file = tmp_path / "x.pt"
    torch.save({"epoch": 3, "state_dict": {f"module.{n}": v for n, v in weights.items()}} if wrapped else weights, file)
    common = ("run", "--model", NETWORK, "--on", "folder", "--data", images, "--method", "none", "--device", "cpu")
    code, _, errors = wildtta(*common, "--weights", file)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    command = re.search(r"convert it once: (wildtta convert-weights .+)", errors)
    assert command is not None
    assert wildtta(*shlex.split(command[1])[1:])[0] == 0
    code, _, errors = wildtta(*common, "--weights", tmp_path / "x.safetensors")
    assert code == 0, errors


def test_a_pickle_with_more_than_weights_is_not_read(wildtta: Any, tmp_path: Path) -> None:
    torch.save(network(), tmp_path / "whole.pt")
    code, _, errors = wildtta("convert-weights", tmp_path / "whole.pt")
    assert code == 2
    assert "cannot be read without running code in it; save the network's state_dict() alone" in errors
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    assert (
        "holds no weights: expected tensors by name, got epoch" in wildtta("convert-weights", tmp_path / "empty.pt")[2]
    )


# -- all cores -----------------------------------------------------------------------------------------------------------


def test_as_many_cells_at_a_time_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "available_cores", lambda: 6)
    many = [small_cell(seed=seed) for seed in range(20)]
    assert cells_at_a_time(many, "cpu", 1) == 6
    assert cells_at_a_time(many, "cpu", 2) == 3
    assert cells_at_a_time(many[:2], "cpu", 1) == 2
    assert cells_at_a_time(many, "cpu", 8) == 1
    assert idle_cores_hint(20, ["cpu"] * 6, 1) is None
    assert "1 of 6 cores at work; --threads 6" in str(idle_cores_hint(1, ["cpu"], 1))


def test_run_uses_them_and_the_numbers_stay(wildtta: Any, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "available_cores", lambda: 2)
    common = ("run", "--model", NETWORK, "--on", "folder", "--data", images, "--device", "cpu", "--batch-size", 16)
    both = ("--method", "none", "--method", "tent")
    code, side_by_side, errors = wildtta(*common, *both)
    assert code == 0
    assert "2 to run, 2 at a time" in errors
    _, one_by_one, errors = wildtta(*common, *both, "--per-device", 1)
    assert "at a time" not in errors

    def without_times(table: str) -> list[list[str]]:
        return [line.split()[:-1] for line in table.splitlines() if "│" in line]

    assert without_times(side_by_side) == without_times(one_by_one)


def test_bench_uses_them_too(wildtta: Any, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "available_cores", lambda: 2)
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'[[grid]]\nmodels = ["{NETWORK}"]\nmethods = ["none", "tent"]\nscenarios = ["mild"]\n'
        'corruptions = ["fog"]\ndata = "folder"\nbatch_size = 16\n'
    )
    journal = tmp_path / "rows.jsonl"
    code, _, errors = wildtta("bench", grid, "--data", images, "--device", "cpu", "--journal", journal)
    assert code == 0, errors
    assert "2 to run, 2 at a time" in errors
    assert len(journal.read_text(encoding="utf-8").splitlines()) == 2


# -- what is not installed -----------------------------------------------------------------------------------------------


def _without(packages: tuple[str, ...], *arguments: object, cwd: Path) -> tuple[int, list[str]]:
    """A command in a process of its own in which some packages cannot be found: exit code, lines of stderr."""
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {packages}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name, *rest: None if name in {packages} else found(name, *rest)\n"
        "from wildtta.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stderr.strip().splitlines()


@pytest.mark.parametrize(
    ("packages", "command", "told"),
    [
        (("jinja2", "markdown_it"), ("demo",), "reports need jinja2, markdown-it-py: pip install 'wildtta[report]'"),
        (("jinja2",), ("reproduce", "table-9", "--quick"), "reports need jinja2: pip install 'wildtta[report]'"),
        (("matplotlib",), ("run",), "matplotlib is not installed: pip install 'wildtta[data]'"),
        (("typer",), ("methods",), "the command line needs typer and rich: pip install 'wildtta[cli]'"),
    ],
)
def test_a_missing_package_is_named_before_anything_runs(
    tmp_path: Path, packages: tuple[str, ...], command: tuple[str, ...], told: str
) -> None:
    code, errors = _without(packages, *command, cwd=tmp_path)
    assert code != 0
    assert len(errors) == 1
    assert told in errors[0]
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -u -m wildtta methods steady | head -n 1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert ended.stdout == "steady: Steady (ours)\n"
    assert ended.stderr == ""


# -- set-up --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torch_build", ["default", "cpu"])
def test_set_up_shows_progress_and_says_how_long_and_how_big(torch_build: str, tmp_path: Path) -> None:
    """What `make setup` would do, as make itself tells it (-n): nothing is installed."""
    if shutil.which("make") is None:
        pytest.skip("no make here to ask what `make setup` would do")
    command = ["make", "-n", "--no-print-directory", "setup", f"TORCH={torch_build}", f"VENV={tmp_path / 'absent'}"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    told = " ".join(line for line in lines if "echo" in line)
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    sizes = re.findall(r"[\d.]+ GB", told)
    assert len(sizes) == 2
    assert all(size in page for size in sizes)
    assert "5 to 15 minutes" in told
    assert "TORCH=cpu" in told
    assert "du -sh" in lines[-2]
    installs = [line for line in lines if "pip" in line and " install " in line]
    assert all("--progress-bar on" in line and "--quiet" not in line for line in installs)
    from_cpu_index = [bool(re.search(r"torch .*--index-url \S+/cpu\b", line)) for line in installs]
    assert from_cpu_index == ([True, False] if torch_build == "cpu" else [False])


# -- a time that can be believed -----------------------------------------------------------------------------------------


def test_the_first_time_left_is_within_a_factor_of_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixteen cells, four of each method, that take as long as their passes; workers start for 20 s before the first one."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    seconds = {"none": 10.0, "tent": 20.0, "sar": 22.0, "sar2": 40.0}
    cells = [small_cell(method=method, seed=seed) for seed in range(4) for method in seconds]
    end = 20.0 + 4 * sum(seconds.values())
    display = Display(cells)
    display.begin(len(cells), 0, 1)
    now[0] = 20.0
    told: list[tuple[float, str]] = []
    for cell in cells:
        for percent in range(0, 100, 5):
            now[0] += seconds[cell.method] / 20
            display.running(cell, percent / 100)
            told += [(now[0], line) for line in capsys.readouterr().err.splitlines()]
        display.finished({"key": cell.key, "status": "failed", "reason": "only a clock"})
        told += [(now[0], line) for line in capsys.readouterr().err.splitlines()]
    estimates = [(at, re.search(r"about ([\d.]+) (s|min|h) left", line)) for at, line in told]
    in_seconds = {"s": 1.0, "min": 60.0, "h": 3600.0}
    known = [(end - at, float(found[1]) * in_seconds[found[2]]) for at, found in estimates if found and end - at > 60]
    assert len(known) > 10
    assert all(truth / 2 < estimate < 2 * truth for truth, estimate in known), known


def test_no_time_left_is_told_from_a_first_glimpse(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display = progress.Progress("cells", "cells")
    display.begin(100)
    for done in (0.5, 1.0, 1.5):
        now[0] += 30
        display.update(done)
    assert "left" not in capsys.readouterr().err
