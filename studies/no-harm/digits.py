"""Steady on networks, images and corruptions that have nothing to do with the battery: scikit-learn's digits, on a CPU.

    python studies/no-harm/digits.py                  # trains three networks and adapts them: two minutes
    python studies/no-harm/digits.py --images 500     # shorter streams

Prints a Markdown table: accuracy without adaptation in %, then what Steady gains over it, per network, order of the
classes and corruption. Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta

CLASSES, WIDTH, TOKEN = 10, 32, 48
TRAINED_ON = 900
BATCH = 64
ORDERS = ("shuffled", "class order", "runs of 16", "one class")


def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 images [N, 1, 16, 16] in [0, 1] with their labels, in a fixed random order."""
    found = load_digits()
    images = F.interpolate(
        torch.tensor(found.images, dtype=torch.float32)[:, None] / 16, scale_factor=2, mode="bilinear"
    )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return images[order], torch.tensor(found.target)[order]


def normalised(images: Tensor) -> Tensor:
    return (images - 0.3) / 0.35


def convolutional(norm: Callable[[int], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    widths = (1, WIDTH, WIDTH, 2 * WIDTH, 2 * WIDTH)
    for depth, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] * (depth == 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


class Transformer(nn.Module):
    """Blocks with LayerNorm after each part (or before), on patches of 4 × 4 pixels."""

    def __init__(self, classes: int = CLASSES, *, blocks: int = 4, norm_first: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, TOKEN, 4, 4)
        self.places = nn.Parameter(torch.randn(16, TOKEN) * 0.02)
        shape = {"d_model": TOKEN, "nhead": 4, "dim_feedforward": 2 * TOKEN, "dropout": 0.0}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(**shape, batch_first=True, activation="gelu", norm_first=norm_first)
            for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(TOKEN)
        self.head = nn.Linear(TOKEN, classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            tokens = block(tokens)
        logits: Tensor = self.head(self.norm(tokens.mean(1)))
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: convolutional(nn.BatchNorm2d),
    "GroupNorm": lambda: convolutional(lambda channels: nn.GroupNorm(4, channels)),
    "post-norm ViT": Transformer,
}


def trained(network: nn.Module, images: Tensor, labels: Tensor, epochs: int = 25, batch: int = 60) -> nn.Module:
    steps = epochs * (len(images) // batch)
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            shift = torch.randint(-1, 2, (2,)).tolist()
            seen = torch.roll(images[chosen] + 0.05 * torch.randn_like(images[chosen]), shift, (2, 3))
            F.cross_entropy(network(normalised(seen)), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return network.eval()


def blurred(images: Tensor) -> Tensor:
    line = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
    return F.conv2d(images, (line[:, None] * line)[None, None], padding=2)


def fogged(images: Tensor, generator: torch.Generator) -> Tensor:
    fog = F.interpolate(torch.rand(len(images), 1, 4, 4, generator=generator), size=16, mode="bilinear")
    return 0.55 * images + 0.45 * fog


CORRUPTIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise": lambda images, generator: (images + 0.3 * torch.randn(images.shape, generator=generator)).clamp(0, 1),
    "contrast": lambda images, _: (images - 0.3) * 0.35 + 0.3,
    "brightness": lambda images, _: (images * 0.7 + 0.35).clamp(0, 1),
    "blur": lambda images, _: blurred(images),
    "fog": fogged,
}


def ordered(order: str, labels: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Which images a stream shows, drawn with repetition."""
    if order == "shuffled":
        return torch.randint(len(labels), (length,), generator=generator)
    of_class = [torch.nonzero(labels == label)[:, 0] for label in range(CLASSES)]

    def drawn(label: int, number: int) -> Tensor:
        return of_class[label][torch.randint(len(of_class[label]), (number,), generator=generator)]

    if order == "one class":
        return drawn(3, length)
    run = 16 if order == "runs of 16" else length // CLASSES
    rounds = -(-length // (run * CLASSES))
    labels_in_turn = [label for _ in range(rounds) for label in torch.randperm(CLASSES, generator=generator).tolist()]
    return torch.cat([drawn(label, run) for label in labels_in_turn])[:length]


def mixed(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image with a corruption of its own."""
    kinds = torch.stack([corrupt(images, generator) for corrupt in CORRUPTIONS.values()])
    return kinds[torch.randint(len(kinds), (len(images),), generator=generator), torch.arange(len(images))]


def accuracy(model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> float:
    """In percent."""
    given = torch.cat([model(batch).argmax(1) for batch in normalised(images).split(BATCH)])
    return 100 * float((given == labels).float().mean())


def outcome(network: nn.Module, images: Tensor, labels: Tensor) -> str:
    with torch.no_grad():
        bare = accuracy(network, images, labels)
    gain = accuracy(wildtta.adapt(copy.deepcopy(network), "steady", batch_size=BATCH), images, labels) - bare
    return f"{bare:.0f}: {gain + 0.0:+.1f}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="per stream")
    length = parser.parse_args().images
    images, labels = digits()
    print("| network | order | clean | " + " | ".join(CORRUPTIONS) + " | mixture |")
    print("|---|---|" + "---|" * (len(CORRUPTIONS) + 2), flush=True)
    held, truth = images[TRAINED_ON:], labels[TRAINED_ON:]
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        network = trained(make(), images[:TRAINED_ON], labels[:TRAINED_ON])
        for order in ORDERS:
            generator = torch.Generator().manual_seed(5)
            shown = ordered(order, truth, length, generator)
            streams = [held[shown], *(corrupt(held[shown], generator) for corrupt in CORRUPTIONS.values())]
            cells = [outcome(network, stream, truth[shown]) for stream in streams]
            mixture = outcome(network, mixed(held[shown], generator), truth[shown]) if order == "shuffled" else "–"
            print(f"| {name} | {order} | " + " | ".join([*cells, mixture]) + " |", flush=True)


if __name__ == "__main__":
    main()
