"""How recorded cases of the methods that run their own step are reproduced through the public API."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import wildtta
from golden_cases import CLASSES, Folder, Outcome, Run, largest_difference, recipe, run_stream


@recipe("LAME", "lame")
def lame(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper = case["hyper"]
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "lame",
        affinity=hyper["affinity"],
        neighbours=hyper["knn"],
        symmetric=hyper["force_symmetry"],
        rounds=hyper["max_steps"],
    )
    run = run_stream(folder, case, adapter)
    probabilities = np.exp(np.stack(run.logits))  # the recording holds probabilities, the adapter returns their logarithms
    return Outcome(largest_difference(probabilities, folder.trace(name)["logits"]), 0.0, run.complaints)


@recipe("BN-adapt", "bn-adapt")
def bn_adapt(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    """The recorded variants predict with the batch's statistics and differ in the running averages kept beside."""
    hyper, trace = case["hyper"], folder.trace(name)
    network = folder.network(case["model"])
    keeps = not hyper.get("no_stats", False)
    adapter = wildtta.adapt(
        network,
        "bn-adapt",
        momentum=hyper["momentum"] if keeps else None,
        fresh=hyper.get("reset_stats", False),
    )
    widths = [layer.num_features for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    run = Run()
    for images in folder.stream(case["stream"])[: case["T"]]:
        run.logits.append(adapter(images).numpy())
        state = adapter.online_state()
        pieces = [state[f"memory/running_{moment}"].split(widths) for moment in ("mean", "var")] if keeps else [[], []]
        run.norms.append([piece.norm().item() for layer in zip(*pieces, strict=True) for piece in layer])
    return run.against(trace, case["T"])


def mirrored(images: Tensor, generator: torch.Generator) -> Tensor:
    """The recordings' stand-in for a random augmentation."""
    return images.flip(-1)


@recipe("RoTTA", "rotta")
def rotta(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "rotta",
        lr=hyper["lr"],
        capacity=hyper["memory"],
        every=hyper["update_frequency"],
        teacher_rate=hyper["nu"],
        norm_rate=hyper["alpha"],
        timeliness=hyper["lambda_t"],
        uncertainty=hyper["lambda_u"],
        augment=mirrored,
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        state = model.online_state()
        labels = state["memory/kept_class"].numpy()
        kept = labels >= 0
        ours = {
            "x_mem_per_class": np.bincount(labels[kept], minlength=CLASSES),
            "x_mem_age_sum": state["memory/kept_age"].numpy()[kept].sum(),
            "x_mem_uncertainty_sum": state["memory/kept_uncertainty"].numpy()[kept].sum(),
            "x_bn1_src_mean": state["memory/teacher_mean"].numpy()[:8],
        }
        return [f"another {name}" for name, value in ours.items() if not np.allclose(value, trace[name][step], atol=1e-9)]

    return run_stream(folder, case, adapter, check).against(trace, case["T"])


@recipe("CoTTA", "cotta")
def cotta(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    network = folder.network(case["model"])
    starts = np.cumsum([0, *(parameter.numel() for parameter in network.parameters())])
    steps = iter(range(case["T"]))

    def recorded_mask(size: int, generator: torch.Generator) -> Tensor:
        rows = trace["restore"][trace["restore"][:, 0] == next(steps)]
        mask = torch.zeros(size, dtype=torch.bool)
        mask[torch.from_numpy(starts[rows[:, 1]] + rows[:, 2])] = True
        return mask

    adapter = wildtta.adapt(
        network,
        "cotta",
        lr=hyper["lr"],
        optimizer=hyper["opt"],
        momentum=hyper["momentum"],
        nesterov=False,
        views=hyper["N"],
        teacher_keep=hyper["mt_alpha"],
        restore=hyper["rst_m"],
        confidence=hyper["ap"],
        symmetric=hyper["variant"] == "imagenet",
        augment=mirrored,
        restore_mask=recorded_mask,
    )

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        teacher = model.online_state()["memory/teacher"].norm().item()
        recorded = trace["x_teacher_norm"][step]
        return [] if abs(teacher / recorded - 1) < 1e-8 else [f"teacher's norm {teacher}, recorded {recorded}"]

    return run_stream(folder, case, adapter, check).against(trace, case["T"])
