"""A method of the user's own, named by its file: here, in worker processes, on Ray, in grids."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_running import Silent, numbers

import wildtta
from bench_parts.folder import NETWORK, small_cell, write_images
from toy_networks import build, images
from wildtta.bench import BenchError, launch, parse_grid
from wildtta.methods import registry
from wildtta.methods.registry import config_classes
from wildtta.report.names import method_name

FILE = Path(__file__).parent.parent / "bench_parts" / "own_method.py"
OWN = f"{FILE}:Sharpened"


@pytest.fixture(autouse=True)
def _registry_of_this_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_REGISTRY", dict(config_classes()))
    yield
    for name in [name for name in sys.modules if name.startswith("wildtta_own_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), per_class=4)


def test_adapt_takes_a_class_from_a_file() -> None:
    model = wildtta.adapt(build("ln_mlp"), OWN, temperature=0.5)
    model(images("ln_mlp", 8))
    assert bool(model.last.learned)
    assert model.method.title == "Sharpened Tent"


def test_at_a_temperature_of_1_it_is_tent_and_workers_give_the_same(folder: Path) -> None:
    tent = launch([small_cell(method="tent")], root=folder, device="cpu", observer=Silent()).rows[0]
    cells = [small_cell(method=OWN), small_cell(method=OWN, options={"temperature": 0.3})]
    here = launch(cells, root=folder, device="cpu", observer=Silent()).rows
    assert here[0]["metrics"]["nll"] == pytest.approx(tent["metrics"]["nll"], rel=1e-5)
    assert here[1]["metrics"]["nll"] != pytest.approx(tent["metrics"]["nll"], rel=1e-5)
    there = launch(cells, root=folder, device="cpu", per_device=2, observer=Silent()).rows
    assert [row["key"] for row in there] == [cell.key for cell in cells]
    assert numbers(there) == numbers(here)


@pytest.mark.slow
def test_ray_finds_the_file(folder: Path) -> None:
    ray = pytest.importorskip("ray")
    cells = [small_cell(method=OWN), small_cell(method=OWN, options={"temperature": 0.3})]
    here = launch(cells, root=folder, device="cpu", observer=Silent()).rows
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        there = launch(cells, root=folder, device="cpu", ray="auto", observer=Silent()).rows
    finally:
        ray.shutdown()
    assert numbers(there) == numbers(here)


def test_the_code_is_part_of_the_identity_and_the_place_is_not_lost(tmp_path: Path) -> None:
    """A method that was edited is another experiment: its old row must not be taken for it."""
    copy = tmp_path / "mine.py"
    shutil.copy(FILE, copy)
    before = small_cell(method=f"{copy}:Sharpened").key
    copy.write_text(copy.read_text().replace("logits / self.temperature", "logits / self.temperature / 2"))
    after = small_cell(method=f"{copy}:Sharpened")
    assert after.key != before
    assert (after.title, method_name(after.method)) == ("Sharpened", "Sharpened")


def test_a_grid_takes_the_file_from_its_own_folder(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "mine.py")
    text = f"""
    [methods.sharp]
    method = "mine.py:Sharpened"
    options = {{ temperature = 0.5 }}
    [[grid]]
    models = ["{NETWORK}"]
    methods = ["mine.py:Sharpened", "sharp"]
    scenarios = ["mild"]
    corruptions = ["fog"]
    """
    cells = parse_grid(text, folder=tmp_path)
    assert [cell.method for cell in cells] == [f"{tmp_path}/mine.py:Sharpened"] * 2
    assert [cell.config.options()["temperature"] for cell in cells] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("absent.py:Sharpened", "no file absent.py"),
        (f"{FILE}:Blunt", "has no 'Blunt'. It has Sharpened"),
        (f"{FILE}:Sharpend", "Did you mean 'Sharpened'"),
        (str(FILE), rf"name the class in the file too: {FILE}:Sharpened"),
        (f"{FILE}:NOT_A_METHOD", "is no method.*got int"),
        (f"{FILE}:NoDataclass", "must be a dataclass of its own"),
        ("no.such.module:Sharpened", "no module 'no'"),
        ("a-b:Sharpened", "neither a file"),
        ("sharpend", "file.py:Class"),
    ],
)
def test_what_is_no_method_is_answered_with_what_was_expected(method: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        _ = small_cell(method=method).config
