"""An audit file becomes a figure and a table."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from wildtta.cli.report import report
from wildtta.guard.audit import Audit, is_audit, read_audit
from wildtta.report.audits import audit_section


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    path = tmp_path / "camera.jsonl"
    diary = Audit(path)
    diary.write("start", guard={"shadow": 0.1, "false_alarms": 0.05})
    for look in range(1, 6):
        shares = {"disagreement": 0.1 * look, "top_share": 0.2, "source_top_share": 0.1, "distance": math.nan}
        diary.write("look", look=look, images=320 * look, rung="learn", evidence=10.0**look, **shares)
    diary.write("decision", action="snapshot", because="takeover", look=5, images=1600, evidence=1e5)
    return path


def test_the_section_shows_evidence_and_decisions(audit: Path) -> None:
    section = audit_section(audit)
    evidence = section.figures[0].charts[0].lines[0]
    assert list(evidence.x) == [320, 640, 960, 1280, 1600]
    assert list(evidence.y) == pytest.approx([1, 2, 3, 4, 5])
    slows_down = section.figures[0].charts[0].lines[1]
    assert list(slows_down.y) == pytest.approx([math.log10(20)] * 2)
    (row,) = section.tables[0].rows
    assert row.labels == ("snapshot", "takeover")
    assert [number.mean for number in row.numbers] == [1600, 1e5]


def test_wildtta_report_draws_it(audit: Path, tmp_path: Path) -> None:
    report([audit], out=tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "What the guard did" in page
    assert "takeover" in page
    assert len(list((tmp_path / "out" / "figures").glob("*.svg"))) == 2


@pytest.mark.parametrize(
    "broken",
    [
        "{broken",
        "[1, 2]",
        '{"format": "wildtta-guard-audit-1"}',
        '{"kind": ["look"]}',
        '{"kind": "start", "guard": {}}',
        '{"kind": "look", "images": null, "evidence": null}',
        '{"kind": "look", "images": 5, "evidence": NaN, "disagreement": 0, "top_share": 0, "source_top_share": 0}',
        '{"kind": "decision", "action": "pause", "images": 5, "evidence": 1}',
        '{"kind": "start", "guard": {"false_al{"kind": "look", "images": 5}',
        "\udcff",
    ],
)
def test_a_broken_line_is_left_out_and_counted(audit: Path, broken: str, tmp_path: Path) -> None:
    lines = audit.read_text(encoding="utf-8").splitlines()
    kept = read_audit(audit)
    text = "\n".join([*lines[:2], broken, *lines[2:]])
    audit.write_bytes(text[:-30].encode("utf-8", errors="surrogateescape"))
    assert is_audit(audit)
    assert read_audit(audit) == kept[:-1]
    report([audit], out=tmp_path / "out")
    assert "5 looks over 1,600 images; 2 broken lines left out" in (tmp_path / "out" / "report.md").read_text("utf-8")


def test_a_guard_that_starts_again_after_a_crash_goes_on_in_the_same_file(audit: Path) -> None:
    whole = audit.read_text(encoding="utf-8")
    audit.write_text(whole[:-30], encoding="utf-8")
    Audit(audit).write("start", guard={"false_alarms": 0.01})
    lines = read_audit(audit)
    assert [line["kind"] for line in lines] == ["start", *["look"] * 5, "start"]
    kept = audit.read_text(encoding="utf-8")
    Audit(audit)
    assert audit.read_text(encoding="utf-8") == kept
