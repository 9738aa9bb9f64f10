"""Launching: who asked for a row, rows of an older version, what people are told meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_running import Silent

from bench_parts.folder import small_cell, write_images
from wildtta.bench import Cell, launch, read
from wildtta.bench.launching import sharing_hint
from wildtta.bench.watching import Display


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


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def test_rows_say_who_asked_for_them_also_later(images: Path, tmp_path: Path) -> None:
    cells = [small_cell(method="none"), small_cell(method="none", seed=1)]
    journal, first, second = tmp_path / "j.jsonl", {"experiment": "table-1"}, {"experiment": "table-2", "setting": {}}

    def asked(by: dict[str, list[dict[str, object]]]) -> list[object]:
        outcome = launch(cells, journal=journal, root=images, device="cpu", observer=Silent(), asked_by=by)
        assert outcome.rows == read(journal)
        return [row.get("asked_by") for row in outcome.rows]

    assert asked({cells[0].key: [first]}) == [[first], None]
    assert asked({cell.key: [first, second] for cell in cells}) == [[first, second], [first, second]]
    lines = journal.read_bytes().count(b"\n")
    assert asked({}) == [[first, second], [first, second]]
    assert journal.read_bytes().count(b"\n") == lines == 4


def test_rows_of_version_0_1_are_pointed_out(images: Path, tmp_path: Path) -> None:
    journal, watching = tmp_path / "j.jsonl", Silent()
    journal.write_text('{"key": "old", "cell": {"model": "a:b"}, "status": "ok"}\n')
    launch([small_cell(method="none")], journal=journal, root=images, device="cpu", observer=watching)
    assert any("1 rows are of version 0.1" in notice and "wildtta migrate" in notice for notice in watching.notices)


def test_lines_tell_cells_apart(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [Cell(model="glyphs:vit", method="sar", limit=limit) for limit in (10, 20)]
    display = Display(cells)
    display.begin(2, 0, 1)
    for cell in cells:
        display.finished({"key": cell.key, "cell": cell.to_json(), "status": "failed", "reason": "no reason"})
    display.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "2 cells, 0 finished before, 2 to run"
    assert "limit 10: no reason" in lines[1]
    assert "limit 20: no reason" in lines[2]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_cell_begins_when_the_time_is_up_and_the_next_run_goes_on(tmp_path: Path, workers: int) -> None:
    cells = [Cell(model="glyphs:resnet_gn", limit=8, batch_size=8, seed=seed) for seed in range(3)]
    journal = tmp_path / "journal.jsonl"
    late = launch(cells, journal=journal, device="cpu", per_device=workers, seconds=0)
    assert (late.ran, late.left, late.rows) == (0, 3, [])
    rest = launch(cells, journal=journal, device="cpu", per_device=workers, seconds=600)
    assert (rest.ran, rest.left, rest.failed) == (3, 0, 0)
    assert [row["cell"]["seed"] for row in rest.rows] == [0, 1, 2]
