"""The corruptions equal the recorded outputs of the official scripts, and the comparison can fail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from corruption_parity import Case, cases, structural_similarity
from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from wildtta.corruptions.constants import CONSTANT_SETS, level

RECORDED = Path(__file__).parent / "recordings"


@pytest.mark.parametrize("corruption", CORRUPTIONS + EXTRA_CORRUPTIONS)
def test_recorded_outputs_and_statistics_are_met(corruption: str) -> None:
    found = list(cases(RECORDED, only={corruption}))
    assert {case.severity for case in found if case.size == 64} == {1, 3, 5}
    assert [str(case) for case in found if not case.passed] == []


def _copy_one(target: Path, corruption: str) -> Path:
    for name in ("images_64.npz", f"golden_64_{corruption}.npz"):
        shutil.copy(RECORDED / name, target / name)
    recorded = json.loads((RECORDED / "stats.json").read_text())
    only = {"64": {corruption: recorded["stats"]["64"][corruption]}}
    (target / "stats.json").write_text(json.dumps({"stats": only}))
    return target


def _run_script(folder: Path) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).parent.parent / "corruption_parity.py"
    return subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)


def test_script_fails_on_other_outputs(tmp_path: Path) -> None:
    folder = _copy_one(tmp_path, "contrast")
    path = folder / "golden_64_contrast.npz"
    with np.load(path) as archive:
        content = {name: archive[name] for name in archive.files}
    content["out"][0, :, :2] ^= 4  # 3 % of the values of severity 1, by 4 levels
    np.savez_compressed(path, **content)
    done = _run_script(folder)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "2 passed, 1 failed"
    assert done.stdout.startswith("FAIL   64 contrast           1")


def test_statistics_off_by_more_than_the_allowance_fail(tmp_path: Path) -> None:
    folder = _copy_one(tmp_path, "gaussian_noise")
    recorded = json.loads((folder / "stats.json").read_text())
    recorded["stats"]["64"]["gaussian_noise"]["3"]["ssim"]["avg"] *= 1.05
    (folder / "stats.json").write_text(json.dumps(recorded))
    failed = {case.severity: case.failures for case in cases(folder) if not case.passed}
    assert list(failed) == [3]
    assert failed[3][0].startswith("ssim")


def test_case_without_a_check_does_not_pass() -> None:
    assert not Case(64, "fog", 1).passed


def test_structural_similarity_of_known_pictures() -> None:
    noise = torch.randint(0, 256, (2, 3, 20, 20))
    assert structural_similarity(noise, noise).tolist() == pytest.approx([1.0, 1.0])
    # Flat pictures a and b: variances vanish, so SSIM is the luminance term (2ab + c1) / (a^2 + b^2 + c1).
    flat = structural_similarity(torch.full((1, 3, 9, 9), 100), torch.full((1, 3, 9, 9), 150))
    c1 = 2.55**2
    assert float(flat) == pytest.approx((2 * 100 * 150 + c1) / (100**2 + 150**2 + c1))


def test_both_constant_sets_name_every_corruption_at_five_severities() -> None:
    for constants in CONSTANT_SETS.values():
        assert set(constants) == set(CORRUPTIONS + EXTRA_CORRUPTIONS)
        assert {len(levels) for levels in constants.values()} == {5}
    assert level("gaussian_noise", 5, 224, 224) == (0.38,)
    assert level("gaussian_noise", 5, 64, 64) == level("gaussian_noise", 5, 32, 32) == (0.18,)
    assert level("gaussian_noise", 5, 32, 32, "imagenet") == (0.38,)
