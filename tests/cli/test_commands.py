"""The command line: results as a table, mistakes as one line, exit codes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench_parts.folder import NETWORK, write_images
from wildtta.bench import Cell, read

GRID = f"""
[defaults]
data = "folder"

[[grid]]
models = ["{NETWORK}"]
methods = ["none", "tent"]
scenarios = ["mild"]
corruptions = ["fog", "snow"]
seeds = [0, 1, 2, 3]
batch_sizes = [16]
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--method", "nope"), "unknown method 'nope'"),
        (("run", "--model", "timm:nope"), "timm has no model 'nope'"),
        (("run", "--corruption", "rain"), "unknown corruption 'rain'"),
        (("run", "--on", "folder"), "name their folder with --data"),
        (("run", "--option", "lr"), "--option takes name=value, got 'lr'"),
        (("run", "--device", "abacus"), "no device 'abacus' here"),
        (("bench", "absent.toml", "--journal", "j.jsonl"), "cannot read the grid absent.toml: No such file"),
        (("merge", "absent.jsonl", "--into", "m.jsonl"), "cannot read the journal absent.jsonl"),
        (("methods", "saar"), "Did you mean 'sar'?"),
    ],
)
def test_mistakes_are_one_line(
    wildtta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = wildtta(*arguments)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert message in errors
    assert list(tmp_path.iterdir()) == []


def test_run_prints_a_table_and_tells_of_failures_by_its_exit_code(wildtta: Any, images: Path, tmp_path: Path) -> None:
    common = ("--on", "folder", "--data", images, "--device", "cpu", "--corruption", "fog", "--batch-size", 16)
    code, output, _ = wildtta("run", "--model", NETWORK, "--method", "none", "--method", "tent", *common)
    assert code == 0
    lines = [line for line in output.splitlines() if "fog 5" in line]
    assert len(lines) == 2
    assert lines[1].startswith("tent ")
    broken = NETWORK.replace(":network", ":exploding_network")
    code, output, errors = wildtta("run", "--model", broken, "--method", "none", *common)
    assert code == 1
    assert "non-finite" in errors.strip().splitlines()[-1]


def test_a_folder_with_999_classes_is_refused_with_both_numbers(wildtta: Any, tmp_path: Path) -> None:
    pytest.importorskip("timm")
    root = write_images(tmp_path / "images", classes=999, per_class=1, side=8)
    code, _, errors = wildtta(
        "run", "--model", "timm:resnet18", "--model-option", "pretrained=false", "--on", "folder", "--data", root,
        "--device", "cpu",
    )  # fmt: skip
    assert code == 1
    assert "999 classes, but the network has 1000 outputs" in errors.strip().splitlines()[-1]


def test_bench_goes_on_where_it_was_and_says_what_it_would_do(wildtta: Any, images: Path, tmp_path: Path) -> None:
    grid, journal = tmp_path / "grid.toml", tmp_path / "j.jsonl"
    grid.write_text(GRID)
    common = (grid, "--journal", journal, "--data", images, "--device", "cpu")
    code, output, _ = wildtta("bench", *common, "--dry-run")
    assert (code, output.count("to do"), journal.exists()) == (0, 16, False)
    code, output, _ = wildtta("bench", *common)
    assert code == 0
    assert "16 cells" in output.strip().splitlines()[-1]
    assert "16 run now (0 failed), 0 found" in output.strip().splitlines()[-1]
    code, output, _ = wildtta("bench", *common, "--no-table")
    assert "0 run now (0 failed), 16 found" in output
    code, output, _ = wildtta("merge", journal, "--into", tmp_path / "m.jsonl.gz")
    assert len(read(tmp_path / "m.jsonl.gz")) == 16
    small = tmp_path / "small.jsonl"
    code, output, _ = wildtta("merge", journal, "--into", small, "--no-series")
    assert any(row["series"] for row in read(journal))
    assert read(small) == [{**row, "series": {}} for row in read(journal)]
    for path in (journal, small):
        assert wildtta("report", path, "--out", tmp_path / path.stem)[0] == 0
    assert (tmp_path / "small" / "numbers.csv").read_bytes() == (tmp_path / "j" / "numbers.csv").read_bytes()


def test_migrate_translates_a_journal_and_says_what_it_did(wildtta: Any, tmp_path: Path) -> None:
    cell = Cell(model="glyphs:vit", method="tent", corruptions=("fog",)).to_json()
    row = {"key": "of-0.1", "cell": cell, "status": "ok", "metrics": {"accuracy": 1 / 3}}
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl.gz"
    old.write_text(json.dumps(row) + "\n")
    code, output, _ = wildtta("migrate", old, new)
    assert code == 0
    assert "1 tent -> Tent" in output
    assert f"1 rows in {new}" in output
    (translated,) = read(new)
    assert translated["key"] == Cell.from_json(cell).key
    assert translated["metrics"] == row["metrics"]
    assert old.read_text() == json.dumps(row) + "\n"


def test_a_file_that_is_no_journal_stops_a_grid_and_is_left_alone(wildtta: Any, images: Path, tmp_path: Path) -> None:
    grid, journal = tmp_path / "grid.toml", tmp_path / "j.jsonl"
    grid.write_text(GRID)
    journal.write_text("dear diary\nnothing happened today\n")
    code, _, errors = wildtta("bench", grid, "--journal", journal, "--data", images, "--device", "cpu")
    assert code == 2
    assert len(errors.strip().splitlines()) == 1
    assert "line 1 is not a row of a journal" in errors
    assert journal.read_text() == "dear diary\nnothing happened today\n"


def test_a_full_disk_stops_a_grid_with_one_line_and_it_goes_on_later(
    wildtta: Any, images: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk can only be mounted by root; tests/bench/test_journal.py has the same with a file size limit")
    try:
        grid, journal = tmp_path / "grid.toml", disk / "j.jsonl"
        grid.write_text(GRID)
        alone = ("--device", "cpu", "--per-device", 1)
        common = ("bench", grid, "--journal", journal, "--data", images, *alone, "--no-table")
        code, _, errors = wildtta(*common)
        assert code == 2
        assert errors.strip().splitlines()[-1].startswith(f"wildtta: cannot write to the journal {journal}: No space")
        kept = read(journal)
        assert 0 < len(kept) < 16
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        code, output, _ = wildtta(*common)
        assert code == 0
        assert f"{16 - len(kept)} run now (0 failed), {len(kept)} found" in output
        assert read(journal)[: len(kept)] == kept
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def test_methods_are_listed_and_explained(wildtta: Any) -> None:
    import wildtta as library

    code, output, _ = wildtta("methods")
    assert code == 0
    assert all(f"{name} " in output for name in library.methods())
    assert f"{len(library.methods())} methods" in output
    code, output, _ = wildtta("methods", "sar")
    assert "sharpness = 0.05" in output


def test_the_demo_prints_its_table_and_writes_its_report(
    wildtta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command on the real networks and glyphs, with streams cut to a few images."""
    from wildtta.cli import demo

    monkeypatch.setattr(demo, "LENGTHS", {"noise": 200, "contrast": 200, "single": 8, "mixed": 64})
    out = tmp_path / "report"
    code, output, errors = wildtta("demo", "--out", out, "--device", "cpu", "--workers", 1)
    assert code == 0, errors
    assert "every corruption at severity 5" in output
    for name in (*demo.METHODS.values(), *demo.NETWORKS.values()):
        assert name in output
    rows = read(out / "demo.jsonl")
    assert len(rows) == len(demo.NETWORKS) * len(demo.METHODS) * len(demo.SCENARIOS)
    assert {row["status"] for row in rows} == {"ok"}
    assert str(out / "index.html") in output
    page = (out / "index.html").read_text()
    assert all(name in page for name in demo.METHODS.values())
