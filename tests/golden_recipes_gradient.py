"""How the recorded cases of the gradient family's further methods are run: EATA, ETA, RDumb, DeYO, ReCAP, ROID."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import wildtta
from golden_cases import LN_C, Folder, Outcome, Trace, largest_difference, recipe, run_stream

Check = Callable[[int, wildtta.Adapter], list[str]]


def cumulative_selection(trace: Trace, threshold: float, distance: float) -> Check:
    """ETA's selection: entropy below the threshold, then (once there is an average) |cosine| below the distance."""
    chosen = 0

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        nonlocal chosen
        complaints = []
        reliable = trace["entropy0"][step] < threshold
        mask = reliable.copy()
        cosine = trace["cosine"][step][: reliable.sum()]
        if np.isfinite(cosine).all() and len(cosine):
            mask[reliable] = np.abs(cosine) < distance
        if not np.array_equal(model.last.mask.numpy(), mask):
            complaints.append("another selection")
        chosen += int(model.last.selected)
        if chosen != int(trace["x_n_final_cum"][step]):
            complaints.append(f"selected {chosen} so far, recorded {int(trace['x_n_final_cum'][step])}")
        if "x_probs_ema" in trace:
            ours = model.online_state()["memory/mean_prediction"].numpy()
            if largest_difference(ours, trace["x_probs_ema"][step].astype(np.float64)) > 1e-9:
                complaints.append("another average prediction")
        return complaints

    return check


def eta_options(hyper: dict[str, Any]) -> dict[str, Any]:
    return {
        "lr": hyper["lr"],
        "momentum": hyper["momentum"],
        "reliable": hyper["e_margin"] / LN_C,
        "redundant": hyper["d_margin"],
    }


def run_eta(folder: Folder, name: str, case: dict[str, Any], method: str, **options: Any) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    adapter = wildtta.adapt(folder.network(case["model"]), method, **eta_options(hyper), **options)
    check = cumulative_selection(trace, hyper["e_margin"], hyper["d_margin"])
    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("ETA", "eta")
def eta(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    return run_eta(folder, name, case, "eta")


@recipe("EATA", "eata")
def eata(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    source = torch.cat(folder.stream("fisher"))
    alpha = case["hyper"]["fisher_alpha"]
    return run_eta(folder, name, case, "eata", fisher=alpha, fisher_images=source, fisher_batch=16)


@recipe("RDumb", "rdumb")
def rdumb(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    return run_eta(folder, name, case, "rdumb", reset_every=case["hyper"]["reset_every"])
