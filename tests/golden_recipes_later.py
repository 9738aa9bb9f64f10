"""How the recorded cases of the methods after the paper are run: NEO, T3A, CMF, SHOT, POEM, SPA, ASR, FOA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import wildtta
from golden_cases import LN_C, Folder, Outcome, largest_difference, recipe, run_stream


def differs(model: wildtta.Adapter, name: str, recorded: np.ndarray, tolerance: float = 1e-9) -> list[str]:
    """A complaint where a part of the state is not what was recorded."""
    ours = model.online_state()[f"memory/{name}"].double().numpy()
    far = largest_difference(np.asarray(ours), np.asarray(recorded, dtype=np.float64)) > tolerance
    return [f"another {name}"] if far else []


@recipe("NEO", "neo")
def neo(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    trace = folder.trace(name)
    adapter = wildtta.adapt(folder.network(case["model"]), "neo", rate=case["hyper"]["rate"])

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        return differs(model, "feature_mean", trace["x_center"][step])

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("T3A", "t3a")
def t3a(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    trace = folder.trace(name)
    adapter = wildtta.adapt(folder.network(case["model"]), "t3a", supports=case["hyper"]["filter_K"])

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        held = int(torch.isfinite(model.online_state()["memory/support_entropies"]).sum())
        recorded = int(trace["x_supports"][step])
        return [] if held == recorded else [f"{held} supports, recorded {recorded}"]

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("CMF", "cmf")
def cmf(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "cmf",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        nesterov=hyper["nesterov"],
        temperature=hyper["temperature"],
        ensembling=hyper["gamma"],
        filter_keep=hyper["alpha"],
        process_noise=hyper["q"],
        prediction_keep=hyper["momentum_probs"],
        prior_correction=hyper["prior_correction"],
        consistency=hyper["consistency"],
        augment=lambda images, generator: images.flip(-1),
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = differs(model, "filter_variance", trace["x_hidden_var"][step])
        length = float(model.online_state()["memory/filtered"].norm())
        if abs(length / trace["x_hidden_norm"][step] - 1) > 1e-9:
            complaints.append("another filtered model")
        return complaints

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("SHOT", "shot")
def shot(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "shot",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        nesterov=hyper["nesterov"],
        weight_decay=hyper["weight_decay"],
        pseudo_labels=hyper["cls_par"],
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        return [] if abs(float(model.last.loss) - trace["loss"][step, 0]) < 1e-9 else ["another loss"]

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("POEM", "poem")
def poem(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    source: Any = folder.stream("fisher")
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "poem",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        reliable=hyper["e0"] / LN_C if hyper["vanilla_loss"] else None,
        stake_rate=hyper["gamma"],
        largest_stake=hyper["eps_clip"],
        delay=hyper["delayed_start"],
        temperature=hyper["temperature"],
        source_images=source,
        source_batch=16,
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = differs(model, "stake", trace["x_epsilon"][step])
        wealth = float(model.online_state()["memory/wealth"])
        if abs(wealth / trace["x_martingale"][step] - 1) > 1e-9:
            complaints.append(f"wealth {wealth}, recorded {trace['x_martingale'][step]}")
        return complaints

    recorded = {**trace, "logits": trace["logits"] * hyper["temperature"]}
    return run_stream(folder, case, adapter, check).against(recorded, case["T"])


@recipe("SPA", "spa")
def spa(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    low = slice(hyper["low_start"], hyper["low_start"] + hyper["low_side"])
    recorded_masks, recorded_noise = iter(trace["kept_low"]), iter(trace["noise"])

    def kept(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        mask = torch.ones(shape, dtype=torch.float64)
        mask[..., low, low] = torch.from_numpy(next(recorded_masks))
        return mask

    def noise(
        shape: torch.Size, generator: torch.Generator, draws: Iterator[np.ndarray] = recorded_noise
    ) -> torch.Tensor:
        return torch.from_numpy(next(draws))

    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "spa",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        predictor_rate=hyper["predictor_lr"] / hyper["lr"],
        masked=hyper["freq_mask_ratio"],
        noise=hyper["noise_ratio"],
        patch=hyper["patch_size"],
        kept_frequencies=kept,
        noise_draws=noise,
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = differs(model, "noise_amounts", trace["x_alpha"][step])
        if abs(float(model.last.loss) - trace["loss"][step, 0]) > 1e-9:
            complaints.append(f"loss {float(model.last.loss)}, recorded {trace['loss'][step, 0]}")
        length = float(model.online_state()["memory/predictor"].norm())
        if abs(length / trace["x_predictor_norm"][step] - 1) > 1e-9:
            complaints.append("another predictor")
        return complaints

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("ASR", "eta")
def asr(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    numbers = {key: hyper[key] for key in ("rate", "penalty", "start", "kept", "depth")}
    options: dict[str, Any] = {"lr": hyper["lr"], "momentum": hyper["momentum"], "nesterov": hyper["nesterov"]}
    if hyper["base"] == "eta":
        options |= {"reliable": hyper["e_margin"] / LN_C, "redundant": hyper["d_margin"]}
    else:
        options["augment"] = lambda images, generator: images.flip(-1)
    network = folder.network(case["model"])
    adapter = wildtta.adapt(network, hyper["base"], recovery=wildtta.ASR(**numbers), **options)

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = differs(model, "asr_threshold", trace["x_threshold"][step])
        if int(model.last.resets) != int(trace["x_resets"][step]):
            complaints.append(f"{int(model.last.resets)} resets, recorded {int(trace['x_resets'][step])}")
        return complaints

    steps, decided = case["T"], ""
    if hyper["base"] == "roid":  # the recorded code resets its copy of the source instead of the network (D39)
        steps, decided = int(np.flatnonzero(trace["x_resets"])[0]), "D39"
    return run_stream(folder, case, adapter, check, steps).against(trace, steps, decided=decided)


@recipe("FOA", "foa")
def foa(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    recorded = iter(trace["draws"])
    source: Any = folder.stream("fisher")
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "foa",
        prompts=hyper["num_prompts"],
        population=hyper["popsize"],
        discrepancy=hyper["fitness_lambda"],
        source_images=source,
        first_prompts=torch.from_numpy(trace["first_prompts"]),
        draws=lambda shape, generator: torch.from_numpy(next(recorded)),
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        complaints = differs(model, "cma_sigma", trace["x_sigma"][step], 1e-8)
        complaints += differs(model, "shifted_mean", trace["x_hist"][step], 1e-8)
        if abs(float(model.last.loss) - trace["x_loss"][step]) > 1e-7:
            complaints.append(f"loss {float(model.last.loss)}, recorded {trace['x_loss'][step]}")
        return complaints

    return run_stream(folder, case, adapter, check).against(trace, case["T"])
