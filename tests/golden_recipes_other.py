"""How recorded cases of the methods that run their own step are reproduced through the public API."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import wildtta
from golden_cases import CLASSES, Folder, Outcome, Run, largest_difference, norms_of, recipe, run_stream


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
        **({"momentum": hyper["momentum"], "nesterov": False} if hyper["opt"] == "sgd" else {}),
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


@recipe("MEMO", "memo")
def memo(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    """One image at a time with its recorded views; weights are looked at when the adapted network predicts."""
    hyper = case["hyper"]
    with np.load(folder.path / "memo_aug.npz", allow_pickle=False) as file:
        views, positions = file["aug_u8"], file["pool_idx"]
    network = folder.network(case["model"])
    names = [name for name, _ in folder.parameter_sets[case["param_set"]]]
    recorded = iter(views)
    adapter = wildtta.adapt(
        network,
        "memo",
        lr=hyper["lr"],
        optimizer=hyper["opt"],
        weight_decay=hyper["weight_decay"],
        steps=hyper["niter"],
        views=hyper["batch_size"],
        prior=hyper["prior_strength"],
        carry=True,
        augment=lambda image, number, generator: folder.images(next(recorded)),
    )
    seen: list[list[float]] = []
    network.register_forward_pre_hook(lambda module, inputs: seen.append(norms_of(module, names)))
    run = Run()
    for position in positions:
        run.logits.append(adapter(folder.images(folder.pool["pool_u8"][[position]])).numpy())
        run.norms.append(seen[-1])
        if (int(adapter.last.forwards), int(adapter.last.backwards)) != (17, 16):
            run.complaints.append(f"passes {int(adapter.last.forwards)} / {int(adapter.last.backwards)}, expected 17 / 16")
    return run.against(folder.trace(name), case["T"])


TTT_TRUNK = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2"}


@recipe("TTT-rotation", "ttt")
def ttt(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    network = folder.network(case["model"])
    stages = [copy.deepcopy(network.layer3), copy.deepcopy(network.layer4)]
    branch = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)).double()
    branch.load_state_dict(load_file(folder.path / "models" / "ttthead.safetensors"))
    recorded = iter(torch.from_numpy(trace["rot_labels"]))
    adapter = wildtta.adapt(
        network,
        "ttt",
        branch=branch,
        lr=hyper["lr"],
        copies=hyper["batch_size"],
        steps=hyper["niter"],
        episodic=not hyper["online"],
        augment=lambda copies, generator: copies,
        turns=lambda number, generator: next(recorded),
    )
    assert hyper["shared"] == "layer2"
    sizes = {name: parameter.numel() for name, parameter in branch.named_parameters()}
    run = Run()
    for images in folder.stream(case["stream"])[: case["T"]]:
        run.logits.append(adapter(images).numpy())
        trunk = dict(network.named_parameters())
        head = dict(zip(sizes, adapter.online_state()["memory/branch"].split(list(sizes.values())), strict=True))
        norms = []
        for full, _ in folder.parameter_sets[case["param_set"]]:
            part, place = full.split(".", 1)
            if part == "head":
                norms.append(head[place].norm().item())
            else:
                number, rest = place.split(".", 1)
                norms.append(trunk[f"{TTT_TRUNK[number]}.{rest}"].detach().norm().item())
        run.norms.append(norms)
    return run.against(trace, case["T"])
