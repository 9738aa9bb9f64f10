"""The guard's benchmark measures what it says, and goes on where it was broken off."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import guard as benchmark
import guarded_streams
from wildtta.bench.journal import read

SHORT = ["--networks", "resnet_gn", "--scenarios", "mild", "--corruptions", "fog", "--pool", "200", "--images", "192"]


def test_the_deepest_fall_is_over_windows_that_end_in_time() -> None:
    none = np.ones(5000, dtype=bool)
    adapted = np.ones(5000, dtype=bool)
    adapted[2000:2500] = False
    assert guarded_streams.fall(adapted, none, 2000) == 0
    assert guarded_streams.fall(adapted, none, 2100) == pytest.approx(10)
    assert guarded_streams.fall(adapted, none, 5000) == pytest.approx(50)
    assert guarded_streams.fall(~adapted, none, 300) == pytest.approx(30)


def test_a_finished_stream_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "benign.jsonl"
    command = ["false-alarms", *SHORT, "--severities", "3", "--batches", "12", "--batch-size", "16"]
    benchmark.main([*command, "--journal", str(journal)])
    (row,) = read(journal)
    assert row["batches"] == 12
    written = journal.read_text(encoding="utf-8")
    benchmark.main([*command, "--journal", str(journal)])
    assert journal.read_text(encoding="utf-8") == written
    capsys.readouterr()
    benchmark.main(["tables", "--journal", str(journal)])
    table = capsys.readouterr().out
    assert "| resnet_gn | mild | 1 | 12 |" in table
    assert "1 streams: 12 batches, 0 alarms" in table


def test_the_table_of_collapses_has_those_that_collapsed() -> None:
    cell = {"network": "n", "method": "tent", "scenario": "mild", "corruptions": ["fog"], "seed": 0, "lr_scale": 8.0}
    guarded = {"accuracy": 49.5, "collapsed": False, "first_alarm": 900, "fall_before_alarm": 2.5}
    rows = [
        {"cell": cell, "none": 50.0, "plain": {"accuracy": 9.0, "collapsed": True}, "guarded": guarded},
        {"cell": cell, "none": 50.0, "plain": {"accuracy": 51.0, "collapsed": False}, "guarded": guarded},
    ]
    table = benchmark.stopped_table(rows)
    assert table.count("tent × 8") == 1
    assert "| 50.0 | 9.0 | 49.5 | -0.5 | 900 | 2.5 |" in table
