"""The paper's Algorithm 1, as written in algorithm.py, and the fast form that runs in production: the same numbers."""

from __future__ import annotations

import ast
import inspect
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wildtta
from wildtta.methods.sar2 import algorithm
from wildtta.methods.sar2.algorithm import SAR2Algorithm

PAPER = json.loads((Path(__file__).parent / "hyperparameters.json").read_text())


def test_the_algorithm_is_one_short_file_that_needs_nothing_else() -> None:
    source = inspect.getsource(algorithm)
    assert len(source.splitlines()) <= 150
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not [name for name in imported if name and name.startswith("wildtta")]


@pytest.mark.parametrize("kind", ["gn", "vit"])
@pytest.mark.parametrize("regularised", [True, False])
def test_algorithm_and_fast_form_agree_over_200_batches_with_a_recovery(
    kind: str, regularised: bool, golden: Any
) -> None:
    """float64, 200 batches of 16. After 100 of every kind come 30 of easy images, whose entropy calls for a recovery."""
    pool = golden.images(golden.pool["pool_u8"])
    fast_network, plain_network = golden.network(kind), golden.network(kind)
    with torch.no_grad():
        easy = algorithm.entropy(plain_network(pool)).argsort()[:60].numpy()
    draw = np.random.default_rng(0)
    rows = draw.integers(0, len(pool), (200, 16))
    rows[100:130] = easy[draw.integers(0, len(easy), (30, 16))]
    settings = {("gn", True): (5e-4, 0.5), ("gn", False): (1e-3, 0.35), ("vit", True): (5e-3, 0.4), ("vit", False): (5e-3, 0.4)}
    lr, recovery = settings[kind, regularised]
    method = wildtta.SAR2(lr=lr, recovery=recovery) if regularised else wildtta.SAR(lr=lr, recovery=recovery)
    fast = wildtta.adapt(fast_network, method)
    names = fast.learned_parameters
    for name, parameter in plain_network.named_parameters():
        parameter.requires_grad_(name in names)
    parameters = [parameter for name, parameter in plain_network.named_parameters() if name in names]
    weights = {} if regularised else {"alpha": None, "beta": None}
    along = kind == "gn"
    assert not regularised or fast.resolved["normalisation"] == ("rows" if along else "columns")
    plain = SAR2Algorithm(
        plain_network, plain_network.get_classifier(), parameters, lr=lr, zeta=10, recovery=recovery,
        along_features=along, **weights,
    )  # fmt: skip
    resets = []
    for step, row in enumerate(rows):
        batch = pool[torch.from_numpy(row)]
        assert (fast(batch) - plain(batch)).abs().max() < 1e-9, step
        assert int(fast.last.resets) == plain.resets
        if plain.resets > len(resets):
            resets.append(step)
        if regularised:
            assert int(fast.last.bank_rows) == len(plain.bank)
    assert resets
    assert 100 <= resets[0] < 130
    theirs = dict(plain_network.named_parameters())
    for name in names:
        assert (dict(fast_network.named_parameters())[name] - theirs[name]).abs().max() < 1e-9


# -- the paper's numbers -------------------------------------------------------------------------------------------------

FROM_THE_PAPER: dict[str, Any] = {
    "momentum": PAPER["SAR2"]["momentum"],
    "sharpness": PAPER["SAR2"]["rho"],
    "inequity": float(PAPER["SAR2"]["beta"]),
    "bank_rate": PAPER["SAR2"]["lambda_bank"],
    "recovery": PAPER["SAR2"]["recovery"]["e0"],
    "recovery_keep": PAPER["SAR2"]["recovery"]["e_m_moving_average_factor"],
    "reliable": 0.4,  # E0 = 0.4 ln C
    "redundancy": 1e3,  # α = 10³/D
    "entropy": 1.0,  # S(x)·E has no weight of its own
}
DECIDED: dict[str, Any] = {
    "lr": None,  # the paper's by family and batch size, below
    "lr_scale": 1.0,
    "nesterov": False,  # plain SGD with momentum
    "clip_value": None,
    "clip_norm": None,
    "steps": 1,
    "episodic": False,
    "objective": "entropy",
    "second_filter": True,  # D2
    "step_without_samples": True,  # D1
    "variance_floor": 0.0,
    "bank": True,
    "normalisation": "auto",  # D29
    "warmup": None,  # D28
    "warmup_inclusive": True,  # D28
    "warmup_scope": "all",  # D28
    "perturbation": "joint",  # D26
    "second_labels": "first",  # D30
    "bank_refresh": "after",  # D30
    "bank_features": "first",  # D30
}


@pytest.mark.parametrize(("cls", "centroids"), [(wildtta.SAR2, "all"), (wildtta.SAR2Efficient, "reliable")])
def test_every_field_is_the_papers(cls: type[wildtta.SAR2], centroids: str) -> None:
    assert cls().options() == {**FROM_THE_PAPER, **DECIDED, "centroids": centroids}
    for family, name in (("convolutional", "ResNet"), ("transformer", "Vit")):
        rates = PAPER["SAR2"]["lr"][name]
        assert cls().learning_rate(family, 64) == rates["bs64"]
        assert cls().learning_rate(family, 1) == pytest.approx(float(rates["bs1"].rpartition("= ")[2]), rel=1e-12)
    assert "0.4*ln(1000)" in PAPER["SAR2"]["E0"]
    assert "10^3 / D" in PAPER["SAR2"]["alpha"]["main"]
    assert cls().warmup_rows(1000) == cls().warmup_rows(200) == PAPER["SAR2"]["zeta"]  # ImageNet-C, and ImageNet-R
    assert cls().warmup_rows(199) == 99  # D28: at most half of the classes


def test_r_is_over_rows_where_features_come_from_group_norm_and_relu(golden: Any) -> None:
    """D29, and what a caller chooses wins."""
    found = {kind: wildtta.adapt(golden.network(kind), "sar2").resolved["normalisation"] for kind in ("gn", "bn", "vit")}
    assert found == {"gn": "rows", "bn": "columns", "vit": "columns"}
    chosen = wildtta.adapt(golden.network("gn"), "sar2", normalisation="columns")
    assert chosen.resolved["normalisation"] == "columns"
    assert wildtta.adapt(golden.network("gn")).resolved["normalisation"] == "columns"  # ours takes what measures best
    assert math.isclose(chosen.resolved["lr"], 1e-3)
