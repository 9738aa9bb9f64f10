"""``wildtta check`` from end to end: the embedded glyphs, a folder of the user's own, mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench_parts.folder import NETWORK, write_images
from wildtta.checkup import SHIFTS, TRIALS


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer trials, all of them real: single images take most of the time."""
    from wildtta.cli import check

    monkeypatch.setattr(check, "TRIALS", [trial for trial in TRIALS if trial.batch_size > 1])


@pytest.mark.usefixtures("short")
def test_glyphs_need_no_data(wildtta: Any, tmp_path: Path) -> None:
    told = tmp_path / "checkup.json"
    code, output, errors = wildtta(
        "check", "--model", "glyphs:resnet_gn", "--images", 64, "--device", "cpu", "--json", told
    )
    assert code == 0, errors
    assert "17 GroupNorm; 14 of them may learn with steady" in output
    assert "Recommendation. Cannot tell: 64 images are too few." in output
    assert all(len(line) <= 120 for line in output.splitlines())
    found = json.loads(told.read_text())
    assert (found["images"], found["labelled"], found["advice"]["verdict"]) == (64, True, "cannot tell")
    assert [each["name"] for each in found["inputs"]] == ["clean", *map(str, SHIFTS)]
    assert found["inputs"][0]["score"] > 0.9
    assert {entry["trial"]["method"] for entry in found["trials"]} == {"steady", "tent", "sar"}
    assert "about" in errors.splitlines()[0]


@pytest.mark.usefixtures("short")
def test_a_folder_with_and_without_classes(wildtta: Any, tmp_path: Path) -> None:
    root = write_images(tmp_path / "classes", per_class=3)
    common = ("check", "--model", NETWORK, "--images", 30, "--device", "cpu")
    code, labelled, errors = wildtta(*common, "--data", root)
    assert code == 0, errors
    assert "30 images, labelled" in labelled
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(root.rglob("*.png"))):
        file.rename(flat / f"{number:03d}.png")
    code, unlabelled, errors = wildtta(*common, "--data", flat)
    assert code == 0, errors
    assert "30 images, unlabelled" in unlabelled
    assert "points of agreement with the network's answers on the clean images" in " ".join(unlabelled.split())
    rows = [
        [line for line in text.splitlines() if line.startswith(("steady ", "tent ", "sar "))]
        for text in (labelled, unlabelled)
    ]
    assert len(rows[0]) == len(rows[1]) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "glyphs:nope"), "glyphs has no network 'nope'"),
        (("--model", NETWORK), "name a folder of images with --data"),
        (("--model", NETWORK, "--data", "absent"), "no data at absent"),
        (("--model", "glyphs:vit", "--json", "absent/c.json"), "--json: there is no folder"),
        (("--model", "glyphs:vit", "--minutes", "0"), "minutes must be above 0"),
        (("--model", "glyphs:vit", "--device", "abacus"), "no device 'abacus' here"),
    ],
)
def test_mistakes_are_one_line(
    wildtta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = wildtta("check", *arguments)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert message in errors
