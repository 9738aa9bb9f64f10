"""The embedded set: rendered street scenes with a label for every pixel, and a small network trained on them.

It demonstrates and tests; evidence comes from real data. A scene depends on the seed and its number alone.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.randomness import derived_seed, numpy_generator
from wildtta.segmentation.metric import IGNORE
from wildtta.segmentation.pixels import resized

CLASSES = ("sky", "building", "tree", "grass", "road", "vehicle")
HEIGHT, WIDTH = 64, 96
MEAN, STD = 0.45, 0.25
"""Of the inputs: (x/255 − mean)/std."""
Pixels = npt.NDArray[np.float64]
Labels = npt.NDArray[np.uint8]


def scene(number: int, *, seed: int = 0) -> tuple[npt.NDArray[np.uint8], Labels]:
    """The scene of this number: uint8 [3, 64, 96], and labels [64, 96]; pixels between two classes are left out (255)."""
    rng = numpy_generator(derived_seed(seed, number))
    ys, xs = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    labels = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    horizon = rng.integers(22, 36)
    image = _sky(rng, ys)
    below = ys >= horizon
    _fill(image, labels, below, "grass", _rough(rng, (rng.uniform(60, 130), rng.uniform(100, 160), rng.uniform(40, 90)), 14))
    for _ in range(rng.integers(1, 5)):
        left, wide, high = rng.integers(-8, WIDTH - 8), rng.integers(10, 30), rng.integers(8, 26)
        where = (xs >= left) & (xs < left + wide) & (ys >= horizon - high) & (ys < horizon + 2)
        colour = rng.uniform(80, 200, 3) * rng.uniform(0.8, 1.0)
        windows = ((xs - left) % 5 < 2) & ((ys - horizon) % 6 < 3)
        _fill(image, labels, where, "building", _rough(rng, colour, 6) - 55 * windows)
    middle, bend = rng.uniform(0.25, 0.75) * WIDTH, rng.uniform(-20, 20)
    depth = np.clip((ys - horizon) / (HEIGHT - horizon), 0, 1)
    half = 3 + rng.uniform(20, 38) * depth
    road = below & (np.abs(xs - middle - bend * depth) < half)
    grey = rng.uniform(70, 130)
    _fill(image, labels, road, "road", _rough(rng, (grey, grey, grey + rng.uniform(-5, 10)), 5))
    for _ in range(rng.integers(1, 5)):
        x, y, radius = rng.uniform(0, WIDTH), horizon - rng.uniform(0, 8), rng.uniform(5, 10)
        crown = (xs - x) ** 2 + (ys - y) ** 2 < radius**2
        trunk = (np.abs(xs - x) < 1.5) & (ys >= y) & (ys < y + radius + 6)
        green = (rng.uniform(30, 80), rng.uniform(70, 130), rng.uniform(20, 60))
        _fill(image, labels, crown | trunk, "tree", _rough(rng, green, 22))
    for _ in range(rng.integers(0, 4)):
        near = rng.uniform(0.15, 0.9)
        y, size = horizon + near * (HEIGHT - horizon), 5 + 11 * near
        x = middle + bend * near + rng.uniform(-0.7, 0.7) * (3 + 30 * near)
        body = (np.abs(xs - x) < size) & (np.abs(ys - y) < 0.55 * size)
        glass = (np.abs(xs - x) < 0.7 * size) & (np.abs(ys - y + 0.25 * size) < 0.18 * size)
        _fill(image, labels, body, "vehicle", _rough(rng, rng.uniform(20, 255, 3), 4) * np.where(glass, 0.35, 1.0))
    image = image * rng.uniform(0.75, 1.15)
    edges = np.zeros_like(labels, dtype=bool)
    edges[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    edges[1:] |= labels[1:] != labels[:-1]
    labels[edges] = IGNORE
    return np.clip(image, 0, 255).astype(np.uint8), labels


def _sky(rng: np.random.Generator, ys: Pixels) -> Pixels:
    top, bottom = rng.uniform((90, 100, 130), (200, 210, 240)), rng.uniform(160, 250, 3)
    return top[:, None, None] + (bottom - top)[:, None, None] * (ys / HEIGHT) + rng.normal(0, 3, (3, HEIGHT, WIDTH))


def _rough(rng: np.random.Generator, colour: npt.ArrayLike, roughness: float) -> Pixels:
    """A surface: a colour with the same grain in all channels."""
    grain = rng.normal(0, roughness, (1, HEIGHT, WIDTH))
    surface: Pixels = np.asarray(colour, dtype=np.float64)[:, None, None] + grain
    return surface


def _fill(image: Pixels, labels: Labels, where: npt.NDArray[np.bool_], name: str, surface: Pixels) -> None:
    image[:, where] = surface[:, where]
    labels[where] = CLASSES.index(name)


def scenes(count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, 64, 96] and labels int64 [N, 64, 96]."""
    pairs = [scene(number, seed=seed) for number in range(count)]
    images = torch.from_numpy(np.stack([image for image, _ in pairs]))
    return images, torch.from_numpy(np.stack([labels for _, labels in pairs])).long()


def inputs(images: Tensor) -> Tensor:
    """uint8 images as the network takes them."""
    return (images.float() / 255 - MEAN) / STD


class SceneNetwork(nn.Module):
    """An encoder of four stages with GroupNorm, whose maps are joined at a quarter of the size, as SegFormer's decoder does."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 48, 64), joined: int = 64) -> None:
        super().__init__()
        before = (3, *widths)
        self.stages = nn.ModuleList(_stage(a, b) for a, b in zip(before, widths, strict=False))
        self.laterals = nn.ModuleList(nn.Conv2d(width, joined, 1) for width in widths[1:])
        self.fuse = nn.Conv2d(joined, joined, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(8, joined)
        self.classifier = nn.Conv2d(joined, len(CLASSES), 1)

    def forward(self, images: Tensor) -> Tensor:
        maps, x = [], images
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        size = maps[1].shape[-2:]
        joined = [
            F.interpolate(lateral(part), size=size, mode="bilinear", align_corners=False)
            for lateral, part in zip(self.laterals, maps[1:], strict=True)
        ]
        total = torch.stack(joined).sum(0)
        logits: Tensor = self.classifier(F.relu(self.norm(self.fuse(total))))
        return logits


def _stage(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, 2, 1, bias=False),
        nn.GroupNorm(8, after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, 1, 1, bias=False),
        nn.GroupNorm(8, after),
        nn.ReLU(),
    )


def network() -> SceneNetwork:
    """The embedded network, in evaluation mode."""
    from safetensors.torch import load

    stored = load((files("wildtta.segmentation") / "scenes.safetensors").read_bytes())
    model = SceneNetwork()
    model.load_state_dict({name: value.float() for name, value in stored.items()})
    return model.eval()


def train(*, count: int = 2000, steps: int = 2000, batch: int = 32, seed: int = 1, device: str = "cpu") -> SceneNetwork:
    """A network trained on scenes of a seed of their own: seconds on a GPU, the better part of an hour on a CPU."""
    from wildtta.progress import shown

    torch.manual_seed(seed)
    images, labels = (part.to(device) for part in scenes(count, seed=derived_seed(seed, 10**6)))
    model = SceneNetwork().train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in shown(range(steps), "training on scenes", steps):
        chosen = torch.randint(count, (batch,), device=device)
        seen, marks = images[chosen], labels[chosen]
        if torch.rand(()) < 0.5:
            seen, marks = seen.flip(-1), marks.flip(-1)
        loss = F.cross_entropy(resized(model(inputs(seen)), (HEIGHT, WIDTH)), marks, ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return model.eval().cpu()


def save(model: SceneNetwork, path: Path) -> None:
    """Weights as float16."""
    from safetensors.torch import save_file

    save_file({name: value.half().contiguous() for name, value in model.state_dict().items()}, path)
