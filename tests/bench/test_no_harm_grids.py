"""The no-harm study's files: its grid of all methods is what its script writes, and its page does its sums right."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import wildtta
from printed_journal import empty_row
from wildtta.bench import Cell, Row, load_grid, read

STUDIES = Path(__file__).parent.parent.parent / "studies"
CORE = STUDIES / "no-harm" / "core.toml"
NEED_PARTS_OF_THEIR_OWN = {"ttt", "dda"}
TOO_SLOW = {"memo"}


def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("no_harm_page", STUDIES / "no-harm" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def written(*words: str) -> str:
    script = STUDIES / "later-methods" / "core.py"
    return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", ["further", "singles", "many-classes"])
def test_the_smaller_grids_are_what_their_script_writes(kind: str) -> None:
    path = STUDIES / "no-harm" / f"{kind}.toml"
    assert written(kind) == path.read_text()
    told = re.search(r"; (\d+) cells", path.read_text())
    assert told is not None
    assert len(load_grid(path)) == int(told[1])


def test_the_core_grid_is_what_its_script_writes_and_has_every_method() -> None:
    assert written() == CORE.read_text()
    cells = load_grid(CORE)
    methods = {cell.method for cell in cells}
    assert methods == set(wildtta.methods()) - NEED_PARTS_OF_THEIR_OWN - TOO_SLOW
    assert {cell.method for cell in cells if cell.options.get("recovery") == "asr"} == {"tent", "eta"}
    seven = {
        (cell.scenario, str(cell.scenario_options), cell.corruptions) for cell in cells if cell.model_name == "rn26_bn"
    }
    assert len(seven) == 7
    # Every network has every method but those that mean nothing on it.
    missing = {
        name: methods - {cell.method for cell in cells if cell.model_name == name}
        for name in {c.model_name for c in cells}
    }
    assert missing == {
        "resnet18": {"foa"}, "rn26_bn": {"foa"}, "wide2048": {"foa", "bn-adapt"}, "rn26_gn@50": {"foa", "bn-adapt"},
        "post128": {"bn-adapt"}, "vit@50": {"bn-adapt"},
    }  # fmt: skip
    battery = {cell.key for cell in load_grid(STUDIES / "no-harm" / "battery.toml")}
    assert all(cell.key in battery for cell in cells if cell.method in ("none", "steady"))


def test_the_fresh_grid_repeats_nothing_and_its_journal_is_whole() -> None:
    """Images, orders and a corruption of its own, and each stream with and without Steady."""
    study = STUDIES / "no-harm"
    cells = load_grid(study / "fresh.toml")
    earlier = [cell for name in ("core", "further", "battery") for cell in load_grid(study / f"{name}.toml")]
    assert {cell.seed for cell in cells} == {3, 4}
    assert "gaussian_blur" not in {corruption for cell in earlier for corruption in cell.corruptions}
    # 2 networks × 2 seeds × (4 scenarios × 4 corruptions + 2 of all six), and 2 seeds × 4 × 4 with two classes.
    assert Counter(cell.method for cell in cells) == {"none": 104, "steady": 104}
    stream_of = page().stream_of
    ran = [Cell.from_row(row) for row in read([study / "results" / "fresh.jsonl.gz"]) if row["status"] == "ok"]
    asked, done = ({(cell.method, stream_of(cell)) for cell in some} for some in (cells, ran))
    assert len(ran) == 208
    assert done == asked


def row(method: str, accuracy: float, network: str = "one", *, clean: bool = False, **fields: object) -> Row:
    made: dict[str, object] = {
        "model": "glyphs:vit", "model_name": network, "method": method, "scenario": "runs",
        "scenario_options": {"run": 1, "length": 100}, "corruptions": () if clean else ("frost",),
    }  # fmt: skip
    cell = Cell(**{**made, **fields})  # type: ignore[arg-type]
    filled = empty_row(cell)
    filled["metrics"] = {
        "accuracy": accuracy,
        "collapsed": accuracy < 10,
        "top_class_share": 100 - accuracy,
        "samples": 100,
    }
    filled["cost"] = {"forwards": 200, "backwards": 50}
    return filled


def test_the_page_names_each_methods_worst_case_and_price() -> None:
    runs = {"scenario_options": {"run": 400, "length": 100}}
    rows = [
        row("none", 50.0), row("none", 60.0, **runs), row("none", 80.0, clean=True), row("none", 20.0, batch_size=1),
        row("tent", 57.0), row("tent", 5.0, **runs), row("tent", 79.0, clean=True),
        row("tent", 52.0, options={"recovery": "asr"}),
        row("steady", 53.0), row("steady", 60.5, **runs), row("steady", 80.0, clean=True), row("steady", 10.5, batch_size=1),
        row("sar", 99.0, network="without none"),
    ]  # fmt: skip
    shown = page()
    found = shown.scores(rows)
    core = shown.shared_by_methods(found)
    verdicts = shown.verdicts(core).split("\n")[2:]
    assert verdicts == [
        # 57 − 50 and 5 − 60 are shifted: −24; 79 − 80 clean. Batch 1 was run by Steady alone.
        "| Tent + ASR | +2.0 | `one`, shuffled | +2.0 | 0 of 1 | 0 of 1 | +2.0 | – | 2.00 | 0.50 |",
        "| Steady (ours) | +0.0 | `one`, clean | +0.0 | 0 of 3 | 0 of 3 | +1.8 | +0.0 | 2.00 | 0.50 |",
        "| Tent | −55.0 | `one`, long runs | −55.0 | 2 of 3 | 1 of 3 | −24.0 | −1.0 | 2.00 | 0.50 |",
    ]
    ours = [score for score in found if score.method == "Steady (ours)"]
    assert shown.table(ours, "network", "scenario", shown.SCENARIOS).split("\n") == [
        "| network | clean | shuffled | long runs | batch 1 |",
        "|---|---|---|---|---|",
        "| one | +0.0 | +3.0 | +0.5 | −9.5 |",
    ]


def test_rows_of_a_network_that_was_trained_twice_are_not_mixed() -> None:
    rows = [row("none", 50.0), row("tent", 57.0), row("none", 30.0, clean=True)]
    for made, weights in zip(rows, ("new", "new", "old"), strict=True):
        made["versions"] = {"weights": weights}
    assert page().of_one_network(rows) == rows[:2]


def test_methods_are_compared_with_those_of_their_cost_on_the_same_networks() -> None:
    rows = [
        row("none", 50.0), row("none", 60.0, network="two"), row("none", 80.0, clean=True),
        row("steady", 53.0), row("steady", 69.0, network="two"), row("steady", 80.0, clean=True),
        row("tent", 57.0), row("tent", 40.0, clean=True),
        row("shot", 51.0), row("shot", 62.0, network="two"), row("shot", 80.0, clean=True),
        row("sar2", 99.0), row("sar2", 99.0, network="two"), row("sar2", 99.0, clean=True),
    ]  # fmt: skip
    for made in rows:
        made["cost"] = (
            {"forwards": 200, "backwards": 200}
            if made["cell"]["method"] == "sar2"
            else {"forwards": 100, "backwards": 50}
        )
    shown = page()
    # Tent: 57 − 50 on one network, where Steady has 53 − 50; it loses 40 on clean images. SHOT: (1 + 2) / 2, Steady (3 + 9) / 2.
    assert shown.comparison(shown.shared_by_methods(shown.scores(rows))).split("\n")[2:] == [
        "| shuffled | 2 | +6.0 | Tent +7.0 (+3.0 on 1) | SHOT +1.5 (+6.0 on 2) |"
    ]


def test_tables_go_between_their_marks() -> None:
    before = "a\n<!-- core -->\nold\n<!-- end -->\nb\n<!-- further -->\n<!-- end -->\n"
    assert page().filled(before, {"core": "| x |"}) == before.replace("old\n", "\n| x |\n\n")
