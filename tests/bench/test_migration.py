"""Rows of version 0.1 in today's names: which setting becomes which, what stays, and that no measured value changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wildtta.bench import BenchError, Cell
from wildtta.bench.migration import Today, deviating, methods_0_1, migrated, title, translated


def _setting(method: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return translated(method, {**methods_0_1()[method]["options"], **options}, 200)


def _today(method: str) -> Today:
    """Methods as this migration expects them: ours and the paper's by name, no guards anywhere else."""
    same = {"steady": "sar2-single", "sar2": "sar2-paper", "sar2-efficient": "sar2-paper"}.get(method, method)
    options = translated(same, methods_0_1()[same]["options"], 200)[1]
    gone = {"warm_start", "class_limit", "ensembling", "clip_ratio"} | ({"entropy"} if method == "steady" else set())
    changed = {"warmup": None, "normalisation": "auto"} if method.startswith("sar2") else {}
    return Today(
        title=method.upper(),
        options={**{name: value for name, value in options.items() if name not in gone}, **changed},
        needs={"normalisation": ("redundancy",)},
        learning_rates=methods_0_1()[same].get("learning_rates", {}),
    )


def _deviating(method: str, **options: Any) -> dict[str, Any]:
    today, translation = _setting(method, **options)
    return deviating(_today(today), today, translation)


@pytest.mark.parametrize(
    ("method", "options", "became", "differs"),
    [
        ("sar2-single", {}, "steady", {}),
        ("sar2", {}, "steady", {"sharpness": 0.05}),
        ("sar2-efficient", {}, "steady", {"sharpness": 0.05, "centroids": "reliable"}),
        ("sar2-paper", {}, "sar2", {"warmup": 20, "normalisation": "columns"}),
        ("sar2-paper", {"warmup": 100, "reading": "rows"}, "sar2", {"warmup": 100, "normalisation": "rows"}),
        ("sar2-paper", {"centroids": "reliable"}, "sar2-efficient", {"warmup": 20, "normalisation": "columns"}),
        ("sar2-paper", {"redundancy": None}, "sar2", {"warmup": 20, "redundancy": None}),
        ("sar2-paper", {"entropy": 0.0}, "sar2", {"warmup": 20, "normalisation": "columns", "entropy": 0.0}),
        ("sar2-single", {"inequity": None, "ensembling": 0.94}, "steady", {"inequity": None, "source_pull": 0.06}),
        (
            "sar2-single",
            {"entropy": 20.0, "clip_norm": 60.0, "clip_ratio": None},
            "steady",
            {"lr_scale": 20, "redundancy": 1e4, "inequity": 200, "clip_norm": 3, "gradient_bound": None},
        ),
        (
            "sar2-paper",
            {"class_limit": 10.0, "ensembling": 0.96, "entropy": 4.0, "lr_scale": 2.0, "coast": False},
            "steady",
            {
                "sharpness": 0.05, "lr_scale": 8, "redundancy": 250, "inequity": 12.5, "momentum": 0.9,
                "gradient_bound": None, "step_without_samples": False,
            },
        ),
        ("tent", {"lr_scale": 2.0, "coast": False}, "tent", {"lr_scale": 2.0, "step_without_samples": False}),
        ("none", {}, "none", {}),
    ],
)  # fmt: skip
def test_settings_of_0_1_in_todays_names(
    method: str, options: dict[str, Any], became: str, differs: dict[str, Any]
) -> None:
    assert _setting(method, **options)[0] == became
    assert _deviating(method, **options) == differs


def test_ours_has_numbers_that_stand_alone() -> None:
    _, options = _setting("sar2")
    wanted = {"lr_scale": 40, "redundancy": 5000, "inequity": 100, "gradient_bound": 0.045, "entropy": 1}
    assert {name: options[name] for name in wanted} == wanted
    assert (options["source_pull"], options["class_cap"], options["momentum"]) == (0.04, 10, 0)


@pytest.mark.parametrize(("classes", "warmup"), [(10, 5), (30, 10), (200, 20), (1000, 100)])
def test_the_warm_up_of_0_1_follows_the_classes(classes: int, warmup: int) -> None:
    assert translated("sar2-paper", methods_0_1()["sar2-paper"]["options"], classes)[1]["warmup"] == warmup


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("tent", {"class_limit": 10.0}, "tent has no option 'class_limit' any more"),
        ("sar", {"warm_start": 5}, "sar has no option 'warm_start' any more"),
        ("sar2-single", {"entropy": 0.0}, "steady has no option 'entropy' any more"),
    ],
)
def test_what_no_method_does_any_more_is_said(method: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(LookupError, match=reason):
        _deviating(method, **options)


def test_other_learning_rates_are_another_setting() -> None:
    faster = replace(_today("tent"), learning_rates={"convolutional": [1, 2], "transformer": [1, 2]})
    with pytest.raises(LookupError, match="other learning rates"):
        deviating(faster, *_setting("tent"))
    assert deviating(faster, *_setting("tent", lr=0.1)) == {"lr": 0.1}


def test_the_rates_of_0_1_between_batches_of_1_and_64_are_another_setting() -> None:
    cell = {**Cell(model="-", method="tent", corruptions=("fog",)).to_json(), "options": {}}
    rows = [
        {"key": str(size), "status": "ok", "cell": {**cell, "batch_size": size}, "metrics": {}} for size in (1, 16, 64)
    ]
    new, report = migrated(rows)
    assert [row["cell"]["name"] for row in new] == [None, "Tent of 0.1", None]
    assert [row["key"] == old["key"] for row, old in zip(new, rows, strict=True)] == [False, True, False]
    assert any("another learning rate at a batch of 16" in line for line in report)


def test_titles_tell_what_differs() -> None:
    assert title("SAR²", {"normalisation": "columns", "warmup": 20}) == "SAR² (ζ = 20, R over columns)"
    assert title("Steady (ours)", {}) == "Steady (ours)"
    assert title("Steady (ours)", {"inequity": None, "steps": 2}) == "Steady (without I, steps = 2)"


def _row(method: str, name: str | None = None, **options: Any) -> dict[str, Any]:
    cell = Cell(model="glyphs:vit", corruptions=("fog",), seed=3, name=name).to_json()
    del cell["regularise"]
    cell |= {"method": method, "options": {"precision": "tf32", **options}}
    metrics = {"accuracy": 1 / 3, "per_class": [1e-17] * 200, "running": [[64, 12.345678901234567]]}
    return {"key": f"0.1 {method} {options}", "cell": cell, "status": "ok", "metrics": metrics, "series": {"batch": [1]}}


def test_rows_keep_every_value_and_get_todays_key() -> None:
    rows = [_row("sar"), _row("tent", "Tent, 2 lr", lr_scale=2.0), {**_row("none"), "resolved": {}}, _row("my-own")]
    result, report = migrated(rows)
    for old, new in zip(rows, result, strict=True):
        same = {name: value for name, value in new.items() if name not in ("key", "cell", "resolved", "migrated")}
        assert same == {name: value for name, value in old.items() if name not in ("key", "cell", "resolved")}
    assert result[0]["key"] == Cell.from_json(result[0]["cell"]).key
    assert result[0]["resolved"]["reliable"] == 0.4
    assert result[0]["migrated"]["options"] == methods_0_1()["sar"]["options"]
    assert result[1]["cell"]["name"] == "Tent, 2 lr"
    assert result[1]["migrated"]["key"] == rows[1]["key"]
    assert result[2:] == rows[2:], "neither a row of today nor one of a method of the user's own changes"
    assert len(report) == 4
    assert migrated(result)[0] == result, "twice is as once"


def test_a_setting_that_is_gone_stays_readable_under_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wildtta.bench.migration._today", _today)
    old = _row("tent", "Tent with guards", class_limit=10.0)
    (row,), (line,) = migrated([old])
    assert row["key"] == old["key"]
    assert row["metrics"] == old["metrics"]
    assert row["cell"]["method"] == "tent"
    assert row["cell"]["options"] == {"precision": "tf32", **row["migrated"]["options"]}
    assert row["cell"]["name"] == "Tent of 0.1 (class_limit = 10)"
    assert "no option 'class_limit'" in line
    assert "class_limit = 10" in Cell.from_row(row).describe()


def test_a_new_name_that_this_version_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from wildtta.methods.registry import config_classes

    without = {name: cls for name, cls in config_classes().items() if name != "steady"}
    monkeypatch.setattr("wildtta.bench.migration.config_classes", lambda: without)
    with pytest.raises(BenchError, match="'steady', and this version has no such method"):
        migrated([_row("sar2")])
