"""How the recorded cases of the gradient family's further methods are run: COME, ZeroSiam, ETA and its kin, DeYO, ReCAP, ROID."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import wildtta
from golden_cases import LN_C, Folder, Outcome, Trace, largest_difference, recipe, run_stream
from wildtta.methods.deyo import permute_patches, permute_pixels

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


@recipe("COME", "come")
def come(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    """By itself, and as the objective of SAR and ETA: the opinion's entropy is thresholded, minimised and watched."""
    hyper, trace = case["hyper"], folder.trace(name)
    usual = {"lr": hyper["lr"], "momentum": hyper["momentum"]}
    if hyper["base"] == "tent":
        adapter = wildtta.adapt(folder.network(case["model"]), "come", **usual)
        return run_stream(folder, case, adapter).against(trace, case["T"])
    threshold = hyper.get("margin_e0") or hyper["e_margin"]
    options = {**usual, "objective": "conservative", "reliable": threshold / LN_C}
    if hyper["base"] == "sar":
        options |= {"sharpness": hyper["rho"], "recovery": hyper["reset_constant"]}
    else:
        options |= {"redundant": hyper["d_margin"]}
    adapter = wildtta.adapt(folder.network(case["model"]), hyper["base"], **options)
    chosen = 0

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        nonlocal chosen
        chosen += int(model.last.selected)
        if hyper["base"] == "eta":
            same = chosen == int(trace["x_n_final_cum"][step])
        else:
            watched = abs(float(model.last.e_m) - float(trace["x_ema"][step]))
            same = np.array_equal(model.last.mask.numpy(), trace["entropy0"][step] < threshold) and watched < 1e-9
        return [] if same else ["another selection, or another moving entropy"]

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("ZeroSiam", "zerosiam")
def zerosiam(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    adapter = wildtta.adapt(
        folder.network(case["model"]), "zerosiam", lr=hyper["lr"], predictor_rate=hyper["predictor_rate"]
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        length = float(model.online_state()["memory/predictor"].norm())
        return [] if abs(length / float(trace["x_predictor_norm"][step]) - 1) < 1e-9 else ["another predictor"]

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


class RecordedPatches:
    """Patch permutations as they were recorded, in their order: a public ``destruction``."""

    def __init__(self, trace: Trace) -> None:
        self.orders = torch.from_numpy(trace["perm"].astype(np.int64))
        self.at = 0

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        order = self.orders[self.at : self.at + len(images)]
        self.at += len(images)
        return permute_patches(images, order, grid=4)


class RecordedPixels:
    """One recorded pixel permutation per step that destroyed anything."""

    def __init__(self, trace: Trace) -> None:
        self.orders = iter(torch.from_numpy(trace["pixel_perm"].astype(np.int64)))

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return permute_pixels(images, next(self.orders))


def plpd_complaints(trace: Trace, step: int, model: wildtta.Adapter, candidates: np.ndarray) -> list[str]:
    """The selection against the recorded PLPD of the samples that passed the first filter."""
    recorded = trace["plpd"][step][: candidates.sum()]
    mask = candidates.copy()
    mask[candidates] = recorded > 0.2
    return [] if np.array_equal(model.last.mask.numpy(), mask) else ["another selection"]


@recipe("DeYO", "deyo")
def deyo(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    kind = hyper["aug_type"]
    destruction = {"patch": RecordedPatches, "pixel": RecordedPixels, "occ": lambda trace: "occlusion"}[kind](trace)
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "deyo",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        reliable=hyper["deyo_margin"] / LN_C,
        margin=hyper["margin_e0"] / LN_C,
        plpd=hyper["plpd_threshold"],
        destruction=destruction,
        grid=hyper["patch_len"],
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        candidates = trace["entropy0"][step] < hyper["deyo_margin"]
        complaints = plpd_complaints(trace, step, model, candidates)
        if int(model.last.forwards) != case["batch"] + int(trace["x_n_ent"][step]):
            complaints.append(f"{int(model.last.forwards)} forwards")
        if int(model.last.backwards) != int(trace["x_n_final"][step]):
            complaints.append(f"{int(model.last.backwards)} backwards")
        return complaints

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("ReCAP", "recap")
def recap(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    with np.load(folder.path / "cases" / f"recap_sigma_{case['model']}.f64.npz", allow_pickle=False) as file:
        sigma = torch.from_numpy(file["sigma"])
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "recap",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        region_reliable=hyper["margin"] / LN_C,
        margin=hyper["margin_L0"] / LN_C,
        instability=hyper["weight_reg"],
        largest_weight=hyper["reweight_threshold"],
        tau=hyper["weight_tau"],
        plpd=hyper["plpd_threshold"],
        recovery=hyper["reset_constant"],
        sigma=sigma,
        destruction=RecordedPatches(trace),
        grid=hyper["patch_len"],
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = plpd_complaints(trace, step, model, trace["x_L_RE"][step] < hyper["margin"])
        if int(model.last.resets) != int(trace["x_reset"][: step + 1].sum()):
            complaints.append("another number of resets")
        if not np.isclose(float(model.last.e_m), trace["x_ema"][step], rtol=1e-8, atol=1e-10, equal_nan=True):
            complaints.append(f"e_m {float(model.last.e_m)} recorded {trace['x_ema'][step]}")
        return complaints

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("ROID", "roid")
def roid(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "roid",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        nesterov=hyper["nesterov"],
        temperature=hyper["temperature"],
        ensembling=hyper["momentum_src"],
        prediction_keep=hyper["momentum_probs"],
        prior_correction=hyper["prior_correction"],
        consistency=hyper["consistency"] == "flip",
        augment=lambda images, generator: images.flip(-1),
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = []
        distance = 1 - trace["cosine"][step]
        distance = (distance - distance.min()) / (distance.max() - distance.min())
        if not np.array_equal(model.last.mask.numpy(), distance >= distance.mean()):
            complaints.append("another selection")
        ours = model.online_state()["memory/mean_prediction"].numpy()
        if largest_difference(ours, trace["x_class_probs_ema"][step].astype(np.float64)) > 1e-9:
            complaints.append("another average prediction")
        return complaints

    if case["batch"] == 1:
        # The recorded code divides 0 by 0 (D20): its first answer is good, then its weights are NaN. Ours stay finite.
        run = run_stream(folder, case, adapter)
        if not np.isfinite(run.norms).all() or not np.isfinite(run.logits).all():
            run.complaints.append("not finite")
        return run.against({**trace, "norms": np.asarray(run.norms)}, 1, decided="D20")
    return run_stream(folder, case, adapter, check).against(trace, case["T"])
