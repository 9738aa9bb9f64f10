"""Trains the battery's own networks in minutes on one GPU: on CIFAR-10 (30,000 images), and `glyph-1000` on glyphs.

    python train.py <folder with cifar_train.npz, glyphs-1000.npz> <folder for weights> [names …] [--seconds 90]

Every network has a process of its own, all at once. A learning rate that follows the larger of steps and time
done ends every run on CIFAR-10 in time. Weights are rounded and packed as the testbed's are, so that they travel.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from networks import RECIPES, Recipe, build
from prepare import load_images, masks_of, pack
from torch import Tensor, nn

BATCH = 250
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GLYPH_STEPS = 1_500
"""Steps of 1,024 glyphs for 1,000 classes; the package's 200 take 522."""


def normalised(images: Tensor) -> Tensor:
    """uint8 [..., 3, H, W] to the networks' input."""
    mean = torch.tensor(MEAN, device=images.device).view(3, 1, 1)
    std = torch.tensor(STD, device=images.device).view(3, 1, 1)
    return (images.float() / 255 - mean) / std


def augmented(images: Tensor) -> Tensor:
    """One random crop (4 pixels of padding) for the whole batch, a flip for each image."""
    shift = torch.randint(0, 9, (2,)).tolist()
    padded = nn.functional.pad(images, (4, 4, 4, 4), mode="reflect")
    cut = padded[..., shift[0] : shift[0] + 32, shift[1] : shift[1] + 32]
    flip = torch.rand(len(cut), device=cut.device) < 0.5
    return torch.where(flip[:, None, None, None], cut.flip(3), cut)


def learning_rate(done: float, peak: float) -> float:
    """Up over the first fifth, then down to 0 in a straight line."""
    return peak * min(done / 0.2, (1 - done) / 0.8)


def labels_for(recipe: Recipe, labels: Tensor) -> Tensor:
    """CIFAR-10's labels as the network's."""
    return labels if recipe.classes is None else torch.tensor(recipe.classes)[labels]


def train(name: str, data: Path, out: Path, seconds: float, device: str) -> None:
    """Train one network and save it; prints its accuracy on its own training images."""
    recipe = RECIPES[name]
    torch.manual_seed(sorted(RECIPES).index(name))
    images, labels = load_images(data / "cifar_train.npz")
    images, labels = images[: recipe.images].to(device), labels_for(recipe, labels)[: recipe.images].to(device)
    network = build(name).to(device, memory_format=torch.channels_last).train()
    if recipe.transformer:
        peak, optimizer = 1e-3, torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    else:
        peak = 0.2
        optimizer = torch.optim.SGD(network.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)
    total = recipe.epochs * 30_000 // BATCH
    static_x = torch.zeros(BATCH, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    static_y = torch.zeros(BATCH, dtype=torch.long, device=device)
    torch.backends.cudnn.benchmark = True

    def passes() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.cross_entropy(network(static_x).float(), static_y)
        loss.backward()

    graph = None
    if device == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            static_x.normal_()
            for _ in range(4):
                optimizer.zero_grad(set_to_none=True)
                passes()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            passes()
    start, step = time.time(), 0
    while (done := max(step / total, (time.time() - start) / seconds)) < 1:
        if step % max(1, len(images) // BATCH) == 0:
            order = torch.randperm(len(images), device=device)
        picked = order[(step * BATCH) % (len(images) - BATCH + 1) :][:BATCH]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(done, peak)
        static_x.copy_(augmented(normalised(images[picked])))
        static_y.copy_(labels[picked])
        if graph is None:
            optimizer.zero_grad(set_to_none=True)
            passes()
        else:
            for parameter in network.parameters():
                assert parameter.grad is not None
            torch._foreach_zero_([p.grad for p in network.parameters()])
            graph.replay()
        nn.utils.clip_grad_norm_(network.parameters(), 2.0)
        optimizer.step()
        step += 1
    network.eval()
    with torch.no_grad():
        guesses = torch.cat([network(normalised(piece)).argmax(1) for piece in images[:3_000].split(500)])
    print(
        f"{name}: {step} of {total} steps in {time.time() - start:.0f} s, "
        f"{(guesses == labels[:3_000]).float().mean():.3f} on training images",
        flush=True,
    )
    save(network, name, out)


def train_glyphs(name: str, data: Path, out: Path, steps: int, device: str) -> None:
    """Train a glyph network on another atlas by the package's own recipe, and save it; prints its accuracy."""
    from wildtta.glyphs import training

    started, atlas = time.time(), masks_of(data / f"{RECIPES[name].data}.npz").to(device)
    plan = training.TrainingPlan(steps=steps, device=device)
    network = training.train("resnet_gn", plan, atlas, lambda line: None)
    score = training.accuracy(network, atlas, 4_000)
    print(f"{name}: {steps} steps in {time.time() - started:.0f} s, {score:.1f} % of clean test images", flush=True)
    save(network, name, out)


def save(network: nn.Module, name: str, out: Path) -> None:
    """Rounded to int8 with a scale per row: what is used afterwards is what can be sent elsewhere."""
    weights = {key: value.detach().cpu() for key, value in network.state_dict().items()}
    pack({key: value for key, value in weights.items() if not key.endswith("num_batches_tracked")}, name, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--glyph-steps", type=int, default=GLYPH_STEPS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    trained = ("cifar", "glyphs-1000")
    names = options.names or [name for name, recipe in RECIPES.items() if recipe.data in trained]
    if len(names) == 1 and RECIPES[names[0]].data == "glyphs-1000":
        train_glyphs(names[0], options.data, options.out, options.glyph_steps, options.device)
    elif len(names) == 1:
        train(names[0], options.data, options.out, options.seconds, options.device)
    else:
        shared = [
            "--seconds",
            str(options.seconds),
            "--device",
            options.device,
            "--glyph-steps",
            str(options.glyph_steps),
        ]
        command = [sys.executable, __file__, str(options.data), str(options.out)]
        children = [subprocess.Popen([*command, name, *shared]) for name in names]
        sys.exit(max(child.wait() for child in children))
