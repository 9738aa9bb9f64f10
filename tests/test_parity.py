"""The recorded trajectories, case by case, and the tool that compares with a whole folder of them.

Cases of methods that do not exist are left out by the tool's own rule (a recipe is missing); every case with a recipe
must pass. The quick run takes the cases that differ most from each other, the slow one all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import parity
from conftest import GOLDEN
from golden_cases import Folder, recipe_for

TOOL = Path(__file__).parent / "parity.py"
FOLDER = Folder(GOLDEN, json.loads((GOLDEN / "cases.json").read_text()))
CORE = ("noadapt", "tent", "infomax", "sar", "sar2")
# One case per model, per switch and per awkward stream; what is left differs in the network alone.
QUICK = {
    "noadapt_bn_mix",
    "tent_gn_bs1_hi",
    "tent_gn_mix_hi_episodic",
    "tent_gn_mix_hi_steps2",
    "tent_bn_mix_hi",
    "tent_vit_mix_hi",
    "infomax_gn_mix_hi",
    "infomax_vit_mix_hi",
    "sar_bn_mix_hi",
    "sar_gn_bs1_hi",
    "sar_gn_easy_collapse",
    "sar_vit_easy_collapse",
    "sar_gn_unrel_hi",
    "sar_vit_mix_hi",
    "sar2_gn_bs1_base",
    "sar2_gn_unrel_base",
    "sar2_gn_easy_skipreg_lowzeta",
    "sar2_gn_mix_hilr_base",
    "sar2_gn_mix_paperlr_alpha1e3",
    "sar2_gn_mix_paperlr_bankbefore_labels2second",
    "sar2_gn_mix_paperlr_bankpost",
    "sar2_gn_mix_paperlr_batchnorm",
    "sar2_gn_mix_paperlr_centreliable",
    "sar2_gn_mix_paperlr_featcenter",
    "sar2_gn_mix_paperlr_featcenterbatchstd",
    "sar2_gn_mix_paperlr_labels2second",
    "sar2_gn_mix_paperlr_nosecondfilter",
    "sar2_gn_mix_paperlr_perterm",
    "sar2_gn_mix_paperlr_zeta18",
    "sar2_gn_mix_paperlr_zeta18_skipreg",
    "sar2_gn_mix_paperlr_zetaK0_gt",
    "sar2_vit_mix_hilr_base",
}


def _cases() -> list[object]:
    """Every case with a recipe; of the other methods the first case of each method and model runs with the quick ones."""
    names = [name for name in FOLDER.cases if name.split("_")[0] in CORE or recipe_for(FOLDER, name) is not None]
    firsts = {(name.split("_")[0], FOLDER.cases[name]["model"]): name for name in reversed(names)}
    quick = QUICK | {name for (method, _), name in firsts.items() if method not in CORE}
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", _cases())
def test_case_equals_its_recording(name: str) -> None:
    recipe = recipe_for(FOLDER, name)
    assert recipe is not None, "a method of the core lost its recipe"
    outcome = recipe()
    assert outcome.complaints == []
    assert outcome.logits <= outcome.logit_tolerance
    assert outcome.norms <= outcome.norm_tolerance
    if name.split("_")[0] in CORE:
        assert outcome.decided == ("D5" if "easy_collapse" in name else "")


def test_all_core_cases_are_there_and_the_quick_ones_exist() -> None:
    names = [name for name in FOLDER.cases if name.split("_")[0] in CORE]
    assert len(names) == 66
    assert set(names) >= QUICK


def test_parameters_equal_the_recording_entry_by_entry(golden: Folder) -> None:
    """Norms could agree where entries do not: the recorded vectors (float32) settle it."""
    import wildtta

    case = golden.cases["tent_gn_mix_hi"]
    adapter = wildtta.adapt(golden.network("gn"), "tent", lr=case["hyper"]["lr"], momentum=case["hyper"]["momentum"])
    trace = golden.trace("tent_gn_mix_hi")
    names = [name for name, _ in golden.parameter_sets[case["param_set"]]]
    for step, images in enumerate(golden.stream(case["stream"])[: case["T"]]):
        adapter(images)
        if step == 0:
            learned = dict(adapter.network.named_parameters())
            first = np.concatenate([learned[name].detach().numpy().ravel() for name in names])
    last = np.concatenate([learned[name].detach().numpy().ravel() for name in names])
    np.testing.assert_allclose(first, trace["p1"], rtol=2e-7, atol=1e-7)
    np.testing.assert_allclose(last, trace["pT"], rtol=2e-7, atol=1e-7)


# -- the tool ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another folder of the same format: three good cases and one whose recording is spoilt."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(GOLDEN / "models", folder / "models")
    shutil.copy(GOLDEN / "streams.npz", folder)
    index = json.loads((GOLDEN / "cases.json").read_text())
    names = ("noadapt_gn_mix", "tent_gn_mix_paper", "sar_gn_easy_collapse")
    cases = {name: index["cases"][name] for name in names}
    cases["tent_gn_spoilt"] = index["cases"]["tent_gn_mix_paper"]
    cases["unheard_of"] = {**index["cases"]["noadapt_gn_mix"], "method": "NeverHeardOf"}
    (folder / "cases").mkdir()
    for name in names:
        shutil.copy(GOLDEN / "cases" / f"{name}.f64.npz", folder / "cases")
    with np.load(GOLDEN / "cases" / "tent_gn_mix_paper.f64.npz", allow_pickle=False) as file:
        trace = dict(file)
    trace["logits"] = trace["logits"].copy()
    trace["logits"][-1, 0, 0] += 1e-6
    np.savez(folder / "cases" / "tent_gn_spoilt.f64.npz", **trace)
    (folder / "cases.json").write_text(json.dumps({"cases": cases, "param_sets": index["param_sets"]}))
    return folder


def test_tool_reports_every_case_and_fails_on_a_difference(other_folder: Path) -> None:
    command = [sys.executable, str(TOOL), str(other_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    verdicts = {line.split()[1]: line.split()[0] for line in lines[:-1]}
    assert verdicts == {
        "noadapt_gn_mix": "PASS",
        "tent_gn_mix_paper": "PASS",
        "sar_gn_easy_collapse": "PASS",
        "tent_gn_spoilt": "FAIL",
        "unheard_of": "SKIP",
    }
    assert next(line for line in lines if "easy_collapse" in line).endswith("(decided D5)")
    assert lines[-1] == "3 passed, 1 failed, 1 skipped"
    assert done.returncode == 1


def test_tool_selects_cases_by_pattern(
    other_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["parity.py", str(other_folder), "--match", "noadapt*"])
    assert parity.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 passed, 0 failed, 0 skipped"
    _, _, difference, norms = lines[0].split()
    assert float(difference) <= 1e-9
    assert float(norms) <= 1e-8


@pytest.mark.parametrize("arguments", [["{empty}"], ["{folder}", "--match", "nothing*"]])
def test_tool_says_what_is_wrong_with_its_arguments(
    arguments: list[str],
    tmp_path: Path,
    other_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [part.format(empty=tmp_path, folder=other_folder) for part in arguments]
    monkeypatch.setattr(sys, "argv", ["parity.py", *filled])
    with pytest.raises(SystemExit) as stopped:
        parity.main()
    assert stopped.value.code == 2
    assert ("nothing*" if "--match" in arguments else "cases.json") in capsys.readouterr().err
