"""Cells, grids, splits: what decides a cell's identity and its stream."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from wildtta.bench import BenchError, Cell, parse_grid
from wildtta.bench.cell import told_apart
from wildtta.bench.launching import check_cells
from wildtta.bench.streaming import split_positions, stream_of


def _cell(**changes: object) -> Cell:
    return Cell(**{"model": "glyphs:vit", "method": "sar", "corruptions": ("fog",), **changes})  # type: ignore[arg-type]


def test_the_key_is_the_same_in_another_process_and_after_json() -> None:
    cell = _cell(options={"lr": 0.001, "reliable": None}, scenario="label_shift", scenario_options={"ratio": math.inf})
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import json, sys; from wildtta.bench import Cell; print(Cell.from_json(json.load(sys.stdin)).key)",
        ],
        input=json.dumps(cell.to_json(), allow_nan=False),
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == cell.key


@pytest.mark.parametrize(
    "change",
    [
        {"model": "glyphs:resnet_gn"},
        {"method": "tent"},
        {"options": {"lr": 1.0}},
        {"options": {"precision": "tf32"}},
        {"scenario": "single"},
        {"scenario": "label_shift", "scenario_options": {"draws": 5}},
        {"data": "folder"},
        {"data_options": {"split": "first-half"}},
        {"corruptions": ("snow",)},
        {"severity": 3},
        {"batch_size": 16},
        {"seed": 1},
        {"limit": 10},
        {"regularise": 2},
        {"protocol": "paper"},
        {"measure": ("health",)},
        {"weights": "w.safetensors"},
        {"model_options": {"pretrained": False}},
    ],
)
def test_everything_that_decides_the_numbers_changes_the_key(change: dict[str, object]) -> None:
    assert _cell(**change).key != _cell().key


def test_titles_and_spelling_of_numbers_do_not_change_the_key() -> None:
    assert _cell(name="SAR!", model_name="ours").key == _cell().key
    assert _cell(options={"lr": 1, "lr_scale": 2.0}).key == _cell(options={"lr_scale": 2, "lr": 1.0}).key


def test_an_option_at_its_default_is_the_same_cell_given_or_left_out() -> None:
    assert _cell(options={"sharpness": 0.05, "momentum": 0.9}).key == _cell().key
    assert _cell(options={"sharpness": 0.06}).key != _cell().key


def test_another_default_is_another_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    from wildtta.methods.registry import config_classes, get_method

    sar = config_classes()["sar"]
    before, explicit = _cell().key, _cell(options={"lr": 0.1}).key
    monkeypatch.setattr(sar, "learning_rates", {"convolutional": (1.0, 2.0), "transformer": (1.0, 2.0)})
    assert _cell().key != before
    assert _cell(options={"lr": 0.1}).key == explicit, "the table is not used where a rate is given"
    monkeypatch.undo()
    monkeypatch.setattr(sar.__init__, "__kwdefaults__", {**sar.__init__.__kwdefaults__, "reliable": 0.5})
    assert get_method("sar").options()["reliable"] == 0.5
    assert _cell().key != before
    assert _cell(options={"reliable": 0.4}).key == before


def test_a_row_of_a_method_that_is_gone_keeps_its_key() -> None:
    cell = _cell(method="gone", options={"strength": 1})
    with pytest.raises(BenchError, match="unknown method 'gone'"):
        _ = cell.key
    row = {"key": "0123456789abcdef", "cell": cell.to_json()}
    assert Cell.from_row(row).key == "0123456789abcdef"
    assert Cell.from_row(row) == Cell.from_row(row)
    assert "gone" in Cell.from_row(row).describe()


def test_cells_that_look_alike_are_told_apart() -> None:
    cells = [_cell(), _cell(limit=10), _cell(options={"lr": 1.0}), _cell(seed=1), _cell(name="SAR, 1 lr", limit=10)]
    lines = told_apart(cells)
    assert len(set(lines.values())) == len(lines) == 4
    assert lines[cells[3].key] == cells[3].describe()
    assert "lr=1.0" in lines[cells[2].key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scenario": "wild"}, "unknown scenario 'wild'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"measure": ("soul",)}, "unknown measure 'soul'"),
        ({"corruptions": ("fog", "snow")}, "takes one corruption per cell"),
        ({"options": {"f": object()}}, "options.f must be made of numbers"),
    ],
)
def test_a_cell_that_makes_no_sense_says_why(change: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        _cell(**change)


GRID = """
[defaults]
data = "folder"
data_options = { split = "second-half" }

[models.gn]
model = "nets/load.py:classifier"
model_options = { name = "rn26_gn" }

[methods.only-I]
method = "sar2"
options = { redundancy = "null" }
title = "SAR² without R"

[[grid]]
models = ["gn", "glyphs:vit"]
methods = ["none", "tent", "only-I", { method = "sar", lr = 1e-3, title = "fast SAR" }]
scenarios = ["mild", { scenario = "label_shift", draws = 25, ratio = inf }, "mixed", "single"]
corruptions = ["fog", "snow"]
severities = [3, 5]
seeds = [0, 1]

[[grid.override]]
match = { method = ["tent", "fast SAR"], scenario = "label_shift" }
set = { options = { momentum = 0.5 }, limit = 100 }

[[grid.override]]
match = { scenario = "single", severity = 3 }
skip = true

[[grid]]
models = ["gn"]
methods = ["none"]
scenarios = ["mild"]
corruptions = "clean"
"""


def test_a_grid_is_every_combination_once(tmp_path) -> None:
    cells = parse_grid(GRID, folder=tmp_path)
    # 2 models, 4 methods, 2 seeds; streams of one corruption: mild and label shift at 2 severities x 2 corruptions,
    # single at one severity; mixed once per severity; and one clean cell.
    assert len(cells) == 2 * 4 * 2 * (2 * 2 + 2 * 2 + 2 + 2) + 1
    assert len({cell.key for cell in cells}) == len(cells)
    mixed = [cell for cell in cells if cell.scenario == "mixed"]
    assert {cell.corruptions for cell in mixed} == {("fog", "snow")}
    assert all(cell.batch_size == 1 for cell in cells if cell.scenario == "single")
    assert {cell.model for cell in cells} == {f"{tmp_path}/nets/load.py:classifier", "glyphs:vit"}
    assert {cell.title for cell in cells} == {"none", "tent", "SAR² without R", "fast SAR"}
    assert {cell.options["redundancy"] for cell in cells if cell.title == "SAR² without R"} == {None}
    fast = [cell for cell in cells if cell.title == "fast SAR"]
    for cell in fast:
        shifted = cell.scenario == "label_shift"
        assert dict(cell.options) == ({"lr": 1e-3, "momentum": 0.5} if shifted else {"lr": 1e-3})
        assert cell.limit == (100 if shifted else None)
    assert all(dict(cell.data_options) == {"split": "second-half"} for cell in cells)
    assert cells[-1].corruptions == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "not valid TOML"),
        ("", "no \\[\\[grid\\]\\]"),
        ("[[grid]]\nmodels = ['a:b']\nmethods = ['none']", "needs a list of scenarios"),
        ("[[grid]]\nmodel = 'a:b'", "unknown entry 'model'"),
        ("[[grid]]\nmodels=['a:b']\nmethods=['none']\nscenarios=['mild']\nseeds=[0.5]", "seeds of .* whole numbers"),
        ("[[grid]]\nmodels=['a:b']\nmethods=['none']\nscenarios=[{scenario=['mild']}]", "a scenario of .* must be a name"),
        (
            "[[grid]]\nmodels=[{model='a:b', weights=5}]\nmethods=['none']\nscenarios=['mild']",
            "weights must be a non-empty text or absent, got 5",
        ),
    ],
)
def test_a_wrong_grid_says_where(text: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse_grid(text)


FIELDS = """
[defaults]
severity = 3
batch_size = 16
seed = 7
{defaults}
[[grid]]
models = ["glyphs:vit"]
methods = ["none"]
scenarios = ["mild", "single"]
corruptions = ["fog"]
{grid}
"""


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ("", {(3, 16, 7), (3, 1, 7)}),
        ("seed = 8", {(3, 16, 8), (3, 1, 8)}),
        ("seeds = [1, 2]\nseverities = [5]", {(5, 16, 1), (5, 1, 1), (5, 16, 2), (5, 1, 2)}),
        ("batch_sizes = [32]\nbatch_size = 8", {(3, 32, 7), (3, 1, 7)}),
    ],
)
def test_severity_batch_size_and_seed_may_be_fields_and_the_lists_win(grid: str, expected: set[object]) -> None:
    cells = parse_grid(FIELDS.format(defaults="", grid=grid))
    assert {(cell.severity, cell.batch_size, cell.seed) for cell in cells} == expected


@pytest.mark.parametrize(
    ("defaults", "grid", "message"),
    [
        ("", "batch_size = -3", "batch_size must be a whole number of at least 1, got -3"),
        ("", "seed = 1.5", "seed must be a whole number"),
        ("", "severities = [-1]", "severity must be a whole number"),
        ("regularise = -1", "", "regularise must be a whole number"),
        ("options = { strength = 1 }", "", "none has no option 'strength'"),
        ("options = 5", "", r"options of \[defaults\] must be a table, such as .*, got 5"),
        ("", 'options = "nonsense"', r"options of \[\[grid\]\] 1 must be a table, such as .*, got 'nonsense'"),
        ("", "scenario_options = [1]", r"scenario_options of \[\[grid\]\] 1 must be a table, such as .*, got \[1\]"),
        ("data_options = { split = 'all' }", "data_options = 'all'", "data_options of .* must be a table"),
        ("", "measure = 5", "measure must be a list of names, got 5"),
        ("measure = { health = 1 }", "", "measure must be a list of names"),
        ("", "override = 5", r"overrides of .* \[\[grid.override\]\] after it; got override = 5"),
        ("", "[grid.override]\nskip = true", r"overrides of .* \[\[grid.override\]\] after it"),
        ("", "[[grid.override]]\nskip = 'no'", "skip in an override of .* must be true or false, without quotes, got 'no'"),
        (
            "",
            "[[grid.override]]\nset = { corruptions = 5 }\n[[grid.override]]\nmatch = { corruptions = 'fog' }",
            "corruptions must be a list of names, got 5",
        ),
        ("", "[[grid.override]]\nset = { options = 5 }", r"options of set in \[\[grid\]\] 1 must be a table"),
        (
            "",
            "[[grid.override]]\nmatch = { method = 'stedy' }\nset = { limit = 5 }",
            r"override 1 of \[\[grid\]\] 1 matches no cell .*'stedy'.* does nothing",
        ),
        ("", "[[grid.override]]\nset = { weights = 3 }", "weights must be a non-empty text or absent, got 3"),
        ("", "[[grid.override]]\nset = { name = [] }", "name must be a non-empty text or absent"),
        ("", "limit = " + "[" * 2000 + "]" * 2000, "not valid TOML"),
        ("", "seed = 100000000000000000000000", r"seed must be below 2\^63, got 100000000000000000000000"),
    ],
)
def test_nonsense_in_a_grid_is_refused(defaults: str, grid: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse_grid(FIELDS.format(defaults=defaults, grid=grid))


@pytest.mark.parametrize("weights", ["3", "[1]", "{ a = 1 }", "true", "''"])
def test_weights_of_a_model_are_a_text(weights: str) -> None:
    with pytest.raises(BenchError, match="weights must be a non-empty text or absent"):
        parse_grid(
            f"[models.own]\nmodel = 'glyphs:vit'\nweights = {weights}\n[[grid]]\nmodels = ['own']\nmethods = ['none']\n"
            "scenarios = ['mild']\n"
        )


@pytest.mark.parametrize("kind", ["half", "classes"])
def test_opposite_splits_share_nothing_and_make_the_whole(kind: str) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 100)
    first, second = split_positions(labels, f"first-{kind}"), split_positions(labels, f"second-{kind}")
    assert sorted([*first, *second]) == list(range(100))
    if kind == "classes":
        assert set(labels[first]).isdisjoint(labels[second])
    else:
        counts = [np.bincount(labels[part], minlength=7) for part in (first, second)]
        assert (counts[0] - counts[1] >= 0).all()
        assert (counts[0] - counts[1] <= 1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"scenario": "mild"},
        {"scenario": "label_shift", "scenario_options": {"draws": 3, "ratio": math.inf}},
        {"scenario": "mixed", "corruptions": ("fog", "snow", "frost")},
        {"scenario": "continual_label_shift", "corruptions": ("fog", "snow"), "scenario_options": {"draws": 2}},
    ],
)
def test_a_held_out_stream_uses_its_part_alone(changes: dict[str, object]) -> None:
    labels = np.repeat(np.arange(10), 8)
    part = set(split_positions(labels, "second-half").tolist())
    stream = stream_of(_cell(data_options={"split": "second-half"}, **changes), labels)
    assert set(stream.index.tolist()) <= part
    again = stream_of(_cell(method="tent", model="timm:x", data_options={"split": "second-half"}, **changes), labels)
    np.testing.assert_array_equal(stream.index, again.index)
    np.testing.assert_array_equal(stream.domain, again.domain)


def test_limit_counts_the_images_of_the_whole_stream() -> None:
    labels = np.repeat(np.arange(10), 8)
    mild = stream_of(_cell(limit=20), labels)
    assert len(mild) == 20
    assert np.bincount(labels[mild.index]).tolist() == [2] * 10
    mixed = stream_of(_cell(scenario="mixed", corruptions=("fog", "snow"), limit=40), labels)
    assert len(mixed) == 40
    assert np.bincount(mixed.domain).tolist() == [20, 20]
    assert len(stream_of(_cell(scenario="label_shift", limit=33), labels)) == 33


@pytest.mark.parametrize(
    ("method", "line", "message"),
    [
        ("options = 5", "", "options of the method 'sar2' of .* must be a table"),
        ('lr = "fast"', "", "lr must be float or None"),
        ("warmup = -3", "", "warmup must be a number at least 0"),
        ("lr = inf", "", "lr must be a number above 0"),
        ("batch_size = -3", "", "batch_size must be at least 1"),
        ("batch_size = inf", "", "batch_size must be at least 1"),
        ('precision = "fp8"', "", "precision must be None or one of"),
        ('statistics = "mode"', "", "statistics must be 'mean' or 'median'"),
        ("lr = 1e-3", "batch_size = -3", "batch_size must be a whole number of at least 1"),
        ("lr = 1e-3", "seed = inf", "seed must be a whole number"),
        ("lr = 1e-3", "limit = inf", "limit must be a number of images"),
        ("lr = 1e-3", "limit = true", "limit must be a number of images"),
        ("lr = 1e-3", 'measure = ["health"]\nmeasure_options = { health = { images = inf } }', "finite number above 0"),
        ("lr = 1e-3", 'measure = ["health"]\nmeasure_options = { health = 5 }', "measure_options.health must be a table"),
        ("lr = 1e-3", 'protocol = "x"', "unknown preprocessing protocol 'x'; known: paper"),
        ("lr = 1e-3", 'protocol = "custom:size=-5"', "size must be a number of pixels, at least 1, got -5"),
        ("lr = 1e-3", 'data_options = { count = "x" }', "count in data_options must be a whole number"),
        ("lr = 1e-3", "data_options = { split = 5 }", "unknown split 5"),
    ],
)
def test_nonsense_in_a_grid_is_refused_before_anything_runs(method: str, line: str, message: str) -> None:
    text = f"""
        [[grid]]
        models = ["glyphs:resnet_gn"]
        methods = [{{ method = "sar2", {method} }}]
        scenarios = ["mild"]
        corruptions = ["fog"]
        {line}
    """
    with pytest.raises(BenchError, match=message):
        check_cells(parse_grid(text), None)


def test_numbers_of_the_defaults_and_of_a_grid_reach_its_cells() -> None:
    text = """
        [defaults]
        seed = 3
        severity = 2
        batch_size = 16
        [[grid]]
        models = ["glyphs:resnet_gn"]
        methods = ["none"]
        scenarios = ["mild"]
        corruptions = ["fog"]
        [[grid]]
        models = ["glyphs:resnet_gn"]
        methods = ["none"]
        scenarios = ["mild"]
        corruptions = ["fog"]
        seed = 4
        severity = 1
        batch_size = 8
    """
    found = [(cell.seed, cell.severity, cell.batch_size) for cell in parse_grid(text)]
    assert found == [(3, 2, 16), (4, 1, 8)]
