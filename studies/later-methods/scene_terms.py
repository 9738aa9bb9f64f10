"""What each term of Steady's loss does on scenes: with labels, by the length of its gradient, alone and together.

python studies/later-methods/scene_terms.py runs/scene-terms.json [--into studies/later-methods/README.md]

Three networks: the embedded one, a narrower one, and a wider one with LayerNorm; the two others are trained first (three
minutes on a CPU). Scenes of seeds that scenes.py does not report.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from cells import show
from scenes import BATCH, mean_iou, ordered, shown
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.segmentation import IGNORE, adapt_segmentation, resized
from wildtta.segmentation.scenes import SceneNetwork, inputs, network, scenes

SEEDS = (10, 11, 12, 13)
CORRUPTIONS = ("fog", "contrast", "gaussian_noise", "snow", "brightness", "defocus_blur", "clean")
TERMS: dict[str, dict[str, Any]] = {
    "E alone": {"redundancy": None, "inequity": None, "bank": False},
    "R alone": {"entropy": 0.0, "inequity": None},
    "I alone": {"entropy": 0.0, "redundancy": None},
    "all, E by 1": {"entropy": 1.0},
    "all, E as R": {},
    "E as R, no I": {"inequity": None},
}
"""Options that leave a part of the loss; "E as R" is the weight that segmentation has by default."""
TRAINED_ON, TRAINING_STEPS, LABELLED = 7, 1000, 20


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each pixel, as in ConvNeXt."""

    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def with_layer_norm(model: nn.Module) -> nn.Module:
    """The same network with LayerNorm and GELU in place of GroupNorm and ReLU."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(module, name, ChannelNorm(child.num_channels))
            elif isinstance(child, nn.ReLU):
                setattr(module, name, nn.GELU())
    return model


def fitted(model: nn.Module, seed: int, corruption: str, steps: int, rate: float, learned: list[nn.Parameter]) -> nn.Module:
    """``model`` after training some of its parameters with the labels of 1,000 scenes."""
    images, labels = shown(seed, corruption, "cpu", 1000)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(learned, lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        chosen = torch.randint(len(images), (16,), generator=generator)
        loss = F.cross_entropy(resized(model(inputs(images[chosen])), labels.shape[-2:]), labels[chosen], ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def trained(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(TRAINED_ON)
    model = make().train()
    return fitted(model, TRAINED_ON * 10**6, "clean", TRAINING_STEPS, 4e-3, list(model.parameters()))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "embedded (D = 64)": network,
    "narrower (D = 32)": lambda: trained(lambda: SceneNetwork((8, 16, 32, 48), 32)),
    "LayerNorm (D = 128)": lambda: trained(lambda: with_layer_norm(SceneNetwork((16, 32, 48, 64), 128))),
}


def with_labels(source: nn.Module, corruption: str, seed: int) -> float:
    """mIoU after the parameters that Steady learns were trained with labels: what there is to gain."""
    model = copy.deepcopy(source)
    names = adapt_segmentation(copy.deepcopy(source), "steady", example=inputs(scenes(1)[0])).learned_parameters
    learned = [dict(model.named_parameters())[name.removeprefix("network.")] for name in names]
    fitted(model, LABELLED, corruption, 300, 2e-2, learned)
    return mean_iou(model, "none", *shown(seed, corruption, "cpu"))


def gradient_length(source: nn.Module, images: Tensor, **options: Any) -> float:
    """Mean length of the gradient over twenty batches, before any bound, at the source's weights."""
    model = adapt_segmentation(copy.deepcopy(source), "steady", example=inputs(images[:1]), lr_scale=1e-9, **options)
    lengths = []
    for batch in images.split(BATCH)[:20]:
        model(inputs(batch))
        lengths.append(float(model.last.gradient_norm))
    return mean(lengths)


def measured(source: nn.Module, corruption: str) -> dict[str, Any]:
    """None, the terms' gains on ordered scenes for each seed, what labels reach, and the lengths of the gradients."""
    streams = []
    for seed in SEEDS:
        images, labels = shown(seed, corruption, "cpu")
        positions = ordered(labels)
        streams.append((images[positions], labels[positions]))
    none = [mean_iou(copy.deepcopy(source), "none", *stream) for stream in streams]
    gains = {}
    for name, options in TERMS.items():
        found = [mean_iou(copy.deepcopy(source), "steady", *stream, **options) for stream in streams]
        gains[name] = [value - base for value, base in zip(found, none, strict=True)]
    singles = {"E": TERMS["E alone"] | {"entropy": 1.0}, "R": TERMS["R alone"], "I": TERMS["I alone"]}
    lengths = {name: gradient_length(source, streams[0][0], **options) for name, options in singles.items()}
    return {"none": none, "gains": gains, "lengths": lengths, "labels": with_labels(source, corruption, SEEDS[0])}


def table(rows: list[dict[str, Any]]) -> str:
    heads = ["network", "corruption", "none", *TERMS, "with labels", "‖∇E‖ : α‖∇R‖ : β‖∇I‖"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        told = [
            f"{mean(gains):+.2f} ± {stdev(gains) / math.sqrt(len(gains)):.2f}".replace("-0.00", "0.00").replace("-", "−")
            for gains in row["gains"].values()
        ]
        length = row["lengths"]
        relative = f"1 : {length['R'] / length['E']:,.0f} : {length['I'] / length['E']:,.0f}"
        place = [row["network"], row["corruption"].replace("_", " "), f"{mean(row['none']):.1f}"]
        lines.append("| " + " | ".join([*place, *told, f"{row['labels']:.1f}", relative]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What each term of Steady's loss does on scenes.")
    parser.add_argument("out", type=Path, help="JSON file of the measurements; those that it has are not made again")
    parser.add_argument("--into", type=Path, help="page that takes the table in place of its old one")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    known = {(row["network"], row["corruption"]) for row in rows}
    for name, make in NETWORKS.items():
        wanted = [corruption for corruption in CORRUPTIONS if (name, corruption) not in known]
        source = make() if wanted else nn.Identity()
        for corruption in wanted:
            rows.append({"network": name, "corruption": corruption, **measured(source, corruption)})
            given.out.write_text(json.dumps(rows))
    show(table(rows), "scene terms", given.into)


if __name__ == "__main__":
    main()
