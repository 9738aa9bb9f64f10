"""Recorded cases: models, streams and traces of a golden folder, and how each method's case is run through the public API."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import wildtta

CLASSES = 20
LN_C = math.log(CLASSES)
Trace = dict[str, np.ndarray]


@dataclass
class Outcome:
    """How far a run was from its trace."""

    logits: float
    norms: float
    complaints: list[str] = field(default_factory=list)
    decided: str = ""
    logit_tolerance: float = 1e-9
    norm_tolerance: float = 1e-8

    @property
    def passes(self) -> bool:
        near = self.logits <= self.logit_tolerance and self.norms <= self.norm_tolerance
        return near and not self.complaints


class Folder:
    """A folder of recorded cases."""

    def __init__(self, path: Path, index: dict[str, Any]) -> None:
        self.path = path
        self.cases: dict[str, dict[str, Any]] = index["cases"]
        self.parameter_sets: dict[str, list[tuple[str, list[int]]]] = index["param_sets"]

    def trace(self, name: str) -> Trace:
        with np.load(self.path / "cases" / f"{name}.f64.npz", allow_pickle=False) as file:
            return dict(file)

    def network(self, kind: str) -> nn.Module:
        """The small timm networks of the recordings, in float64."""
        from timm.layers import GroupNorm
        from timm.models.resnet import BasicBlock, ResNet
        from timm.models.vision_transformer import VisionTransformer

        if kind == "vit":
            network: nn.Module = VisionTransformer(
                img_size=32, patch_size=8, num_classes=CLASSES, embed_dim=48, depth=12, num_heads=3, mlp_ratio=2.0
            )
        else:
            norm = {"norm_layer": partial(GroupNorm, num_groups=8)} if kind == "gn" else {}
            network = ResNet(
                block=BasicBlock,
                layers=(1, 1, 1, 1),
                num_classes=CLASSES,
                output_stride=8,
                channels=(16, 24, 32, 64),
                **norm,
            )
        network.load_state_dict(load_file(self.path / "models" / f"{kind}.safetensors"))
        return network.double().eval()

    @cached_property
    def pool(self) -> dict[str, np.ndarray]:
        with np.load(self.path / "streams.npz", allow_pickle=False) as file:
            return dict(file)

    def images(self, pixels: np.ndarray) -> Tensor:
        return (torch.from_numpy(pixels).double() / 255 - 0.5) / 0.25

    def stream(self, name: str) -> list[Tensor]:
        pixels = self.images(self.pool["pool_u8"])
        return [pixels[torch.from_numpy(row)] for row in self.pool[f"idx_{name}"]]


Recipe = Callable[[], Outcome]
Builder = Callable[[Folder, str, dict[str, Any]], Outcome]
_BUILDERS: dict[str, tuple[str, Builder]] = {}


def recipe(recorded_method: str, needs: str) -> Callable[[Builder], Builder]:
    """Register how cases of ``recorded_method`` are run; ``needs``: the wildtta method that must exist."""

    def add(builder: Builder) -> Builder:
        _BUILDERS[recorded_method] = (needs, builder)
        return builder

    return add


def recipe_for(folder: Folder, name: str) -> Recipe | None:
    case = folder.cases[name]
    needs, builder = _BUILDERS.get(case["method"].split(" ")[0], (None, None))
    if builder is None or needs not in wildtta.methods():
        return None
    return partial(builder, folder, name, case)


# -- comparing ---------------------------------------------------------------------------------------------------------


def largest_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    if (np.isfinite(ours) != np.isfinite(theirs)).any():
        return math.inf
    good = np.isfinite(theirs)
    return float(np.abs(ours[good] - theirs[good]).max()) if good.any() else 0.0


def norms_of(network: nn.Module, names: list[str]) -> list[float]:
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return [tensors[name].detach().double().norm().item() for name in names]


@dataclass
class Run:
    """What a case produced, step by step."""

    logits: list[np.ndarray] = field(default_factory=list)
    norms: list[list[float]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def against(self, trace: Trace, steps: int, **settings: Any) -> Outcome:
        logits = largest_difference(np.stack(self.logits[:steps]), trace["logits"][:steps].astype(np.float64))
        norms = np.asarray(self.norms[:steps])
        theirs = trace["norms"][:steps]
        relative = float(np.abs(norms / theirs - 1).max()) if theirs.size else 0.0
        return Outcome(logits, relative, self.complaints, **settings)


def run_stream(
    folder: Folder,
    case: dict[str, Any],
    adapter: wildtta.Adapter,
    check: Callable[[int, wildtta.Adapter], list[str]] | None = None,
    steps: int | None = None,
) -> Run:
    """The case's stream through an adapter; ``check`` looks at each step and complains."""
    names = [name for name, _ in folder.parameter_sets[case["param_set"]]]
    run = Run()
    for step, images in enumerate(folder.stream(case["stream"])[: steps or case["T"]]):
        run.logits.append(adapter(images).numpy())
        run.norms.append(norms_of(adapter.network, names))
        if check is not None:
            run.complaints += [f"step {step}: {complaint}" for complaint in check(step, adapter)]
    return run


# -- the core methods ----------------------------------------------------------------------------------------------------


@recipe("NoAdapt", "none")
def no_adapt(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    adapter = wildtta.adapt(folder.network(case["model"]), "none")
    return run_stream(folder, case, adapter).against(folder.trace(name), case["T"])


@recipe("Tent", "tent")
def tent(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper = case["hyper"]
    adapter = wildtta.adapt(
        folder.network(case["model"]),
        "tent",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        steps=hyper.get("steps", 1),
        episodic=hyper.get("episodic", False),
    )
    return run_stream(folder, case, adapter).against(folder.trace(name), case["T"])


@recipe("InfoMax", "infomax")
def infomax(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    adapter = wildtta.adapt(folder.network(case["model"]), "infomax", lr=case["hyper"]["lr"])
    return run_stream(folder, case, adapter).against(folder.trace(name), case["T"])


@recipe("SAR", "sar")
def sar(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    hyper, trace = case["hyper"], folder.trace(name)
    network = folder.network(case["model"])
    if hyper["head_scale"] != 1:
        head = network.get_classifier()
        with torch.no_grad():
            head.weight.mul_(hyper["head_scale"])
            head.bias.mul_(hyper["head_scale"])
    adapter = wildtta.adapt(
        network,
        "sar",
        lr=hyper["lr"],
        momentum=hyper["momentum"],
        sharpness=hyper["rho"],
        reliable=hyper["margin_e0"] / LN_C,
        recovery=hyper["reset_constant"],
    )
    threshold = hyper["margin_e0"]
    resets = np.flatnonzero(trace["x_reset"])

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        last = model.last
        first = trace["entropy0"][step] < threshold
        second = first & (trace["entropy1"][step] < threshold)
        complaints = []
        if not np.array_equal(last.mask.numpy(), first):
            complaints.append("another selection")
        if int(last.selected_second) != int(second.sum()):
            complaints.append(f"second filter kept {int(last.selected_second)}, recorded {int(second.sum())}")
        if int(last.resets) != int(trace["x_reset"][: step + 1].sum()):
            complaints.append("another number of resets")
        if not trace["x_reset"][step] and not np.isclose(
            float(last.e_m), trace["x_ema"][step], rtol=1e-6, atol=1e-9, equal_nan=True
        ):
            complaints.append(f"e_m {float(last.e_m)} recorded {trace['x_ema'][step]}")
        return complaints

    steps, settings = case["T"], {}
    if len(resets):  # the recorded code resets weights alone (D5): afterwards the runs must part
        steps = int(resets[0]) + 1
        settings = {"decided": "D5", "logit_tolerance": 1e-6}
    return run_stream(folder, case, adapter, check, steps).against(trace, steps, **settings)


NORMALISATIONS = {
    "batch": "columns",
    "feature": "rows",
    "feature_center": "rows_centred",
    "feature_center_batchstd": "rows_then_columns",
}


def sar2_options(hyper: dict[str, Any]) -> dict[str, Any]:
    """A recorded ``hyper`` as wildtta's options."""
    return {
        "lr": hyper["lr"],
        "momentum": hyper["momentum"],
        "sharpness": hyper["rho"],
        "reliable": hyper["E0"] / LN_C,
        "recovery": hyper["e0"],
        "redundancy": hyper["alpha"] * hyper["D"],
        "inequity": hyper["beta"],
        "bank_rate": hyper["lam"],
        "warmup": hyper["zeta"],
        "variance_floor": 0.0,
        "normalisation": NORMALISATIONS[hyper["norm"]],
        "perturbation": {"total": "joint", "per_term": "per_term"}[hyper["sam"]],
        "bank_refresh": hyper["bank_update"],
        "bank_features": hyper["bank_from"],
        "warmup_inclusive": hyper["warm_ge"],
        "warmup_scope": {"all": "all", "reg": "regularisers"}[hyper["skip_below_zeta"]],
        "second_filter": hyper["second_filter"],
        "second_labels": hyper["labels2"],
        "centroids": "reliable" if hyper["cent_reliable"] else "all",
    }


@recipe("SAR2", "sar2")
def sar2(folder: Folder, name: str, case: dict[str, Any]) -> Outcome:
    trace = folder.trace(name)
    adapter = wildtta.adapt(folder.network(case["model"]), "sar2", **sar2_options(case["hyper"]))
    resets = np.flatnonzero(trace["x_reset"]) if "x_reset" in trace else np.array([], dtype=int)

    def check(step: int, model: wildtta.Adapter) -> list[str]:
        last, complaints = model.last, []
        if int(last.selected) != int(trace["x_n1"][step]):
            complaints.append(f"selected {int(last.selected)}, recorded {int(trace['x_n1'][step])}")
        if bool(trace["x_updated"][step]) != bool(last.learned):
            complaints.append(f"learned {bool(last.learned)}, recorded {bool(trace['x_updated'][step])}")
        if bool(last.learned):
            for ours, theirs in (("redundancy", "x_R1"), ("inequity", "x_I1")):
                value, recorded = float(getattr(last, ours)), trace[theirs][step]
                if np.isfinite(recorded) and abs(value - recorded) > 1e-7 * max(1.0, abs(recorded)):
                    complaints.append(f"{ours} {value} recorded {recorded}")
        return complaints

    steps, settings = case["T"], {}
    if len(resets):
        steps, settings = int(resets[0]) + 1, {"decided": "D5"}
    run = run_stream(folder, case, adapter, check, steps)
    if "bank" in trace and not len(resets):
        rows = adapter.online_state()["memory/bank_rows"].numpy()[trace["bank_classes"].astype(int)]
        if largest_difference(rows, trace["bank"].astype(np.float64)) > 1e-6:
            run.complaints.append("another bank")
    return run.against(trace, steps, **settings)


import golden_recipes_gradient  # noqa: E402, F401 - registers its recipes
import golden_recipes_later  # noqa: E402, F401 - registers its recipes
import golden_recipes_other  # noqa: E402, F401 - registers its recipes
