"""A run's answers beside the unadapted network's on the same stream."""

from __future__ import annotations

from typing import Any

from wildtta.bench import Cell, Row
from wildtta.bench.unadapted import SHARE, beside_unadapted
from wildtta.bench.watching import Display
from wildtta.report.document import gather
from wildtta.report.runs import collapsed


def row(method: str, share: float, *, samples: int = 4000, **fields: Any) -> Row:
    cell = Cell(model="glyphs:vit", method=method, **{"corruptions": ("contrast",), **fields})
    metrics = {"accuracy": 30.0, "top_class_share": share, "top_class_true_share": 0.5, "samples": samples}
    return {
        "key": cell.key, "cell": cell.to_json(), "status": "ok", "reason": None, "metrics": metrics,
        "cost": {}, "series": {}, "diagnostics": {}, "wall_s": 1.0, "device": "cpu",
    }  # fmt: skip


def test_what_equals_the_unadapted_network_has_not_collapsed() -> None:
    bare, steady, tent = row("none", 46.0), row("steady", 47.0), row("tent", 95.0)
    assert collapsed(steady), "alone nothing tells it from a collapse"
    assert [collapsed(each) for each in beside_unadapted([tent, steady, bare])] == [True, False, False]
    assert SHARE not in steady["metrics"], "the journal's row stays as it is"


def test_only_the_same_stream_counts() -> None:
    steady = row("steady", 47.0)
    others: list[dict[str, Any]] = [
        {"corruptions": ("fog",)}, {"severity": 3}, {"seed": 1}, {"batch_size": 1, "scenario": "single"},
        {"data_options": {"split": "first-half"}}, {"scenario": "label_shift", "scenario_options": {"ratio": 10}},
    ]  # fmt: skip
    for other in others:
        [found] = beside_unadapted([steady], among=[row("none", 46.0, **other)])
        assert SHARE not in found["metrics"], other
    failed = {**row("none", 46.0), "status": "failed", "metrics": {}}
    assert beside_unadapted([steady], among=[failed]) == [steady]


def test_a_slow_method_on_fewer_images_is_compared_with_the_longest_run() -> None:
    memo = row("memo", 47.0, samples=320, limit=320)
    lengths = [row("none", 11.0, samples=1000, limit=1000), row("none", 46.0, limit=4000)]
    [found] = beside_unadapted([memo], among=lengths)
    assert found["metrics"][SHARE] == 46.0
    [found] = beside_unadapted([memo], among=[*lengths, row("none", 30.0, samples=320, limit=320)])
    assert found["metrics"][SHARE] == 30.0, "the same length goes before"
    sourced = row("eata", 47.0, data_options={"source_images": 500})
    assert beside_unadapted([sourced], among=[row("none", 46.0)])[0]["metrics"][SHARE] == 46.0


def test_tables_and_progress_mark_the_same_runs(capsys: Any) -> None:
    rows = [row("none", 46.0), row("steady", 47.0), row("tent", 95.0)]
    document = gather(rows)
    marked = {line.labels[1] for table in document.tables for line in table.rows for n in line.numbers if n.collapsed}
    assert marked == {"Tent"}
    display = Display([Cell.from_row(each) for each in rows])
    display.begin(3, 0, 1)
    for each in rows:
        display.finished(each)
    display.end()
    told = [line for line in capsys.readouterr().err.splitlines() if "collapsed" in line]
    assert len(told) == 1
    assert " tent " in told[0]
