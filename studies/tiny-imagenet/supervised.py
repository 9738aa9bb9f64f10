"""How much could be learned at all: the same streams, the same parameters, one step a batch, but with the true labels.

    python studies/tiny-imagenet/supervised.py studies/tiny-imagenet/main.toml --data tiny-imagenet-c --device cuda

Every batch is answered first and learned from afterwards, as in adaptation; the loss is cross-entropy with the labels that no
method of test-time adaptation has. Its best learning rate out of several is a yardstick (no proof of a bound: it is plain SGD)
for what the affine parameters of the norm layers can gain within a stream of this length.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import wildtta
from wildtta.bench.cell import Cell
from wildtta.bench.datasets import Images, open_images
from wildtta.bench.grid import load_grid
from wildtta.bench.models import build_model
from wildtta.bench.streaming import stream_of
from wildtta.streams import Stream

RATES = (1.0, 4.0, 16.0, 64.0)
"""Multiples of SAR²'s learning rate for the network's family, with momentum 0.9. Steady's 40 without momentum are about 4."""
SEVERITY = 5


def unadapted(cells: Iterable[Cell], scenarios: list[str]) -> list[Cell]:
    """The grid's cells without adaptation, one for each network and stream."""
    chosen = [
        cell for cell in cells if cell.method == "none" and cell.scenario in scenarios and cell.severity == SEVERITY
    ]
    return list({(cell.model_name, cell.scenario, *cell.corruptions): cell for cell in chosen}.values())


def learn_with_labels(
    network: nn.Module, images: Images, stream: Stream, *, multiple: float, device: torch.device
) -> float:
    """Accuracy in percent over the stream, each answer given before its label is learned from."""
    engine = wildtta.adapt(network, "sar2", batch_size=stream.batch_size)._engine
    parameters = engine.learnables.parameters
    optimizer = torch.optim.SGD(parameters, lr=multiple * engine.lr, momentum=0.9)
    truth = torch.as_tensor(images.labels[stream.index], device=device)
    right = torch.zeros((), device=device)
    seen = 0
    for batch in images.batches(stream):
        labels = truth[seen : seen + len(batch)]
        logits = engine.forward(batch, grad=True).logits
        right += (logits.detach().argmax(1) == labels).sum()
        gradients = torch.autograd.grad(cross_entropy(logits, labels), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        seen += len(batch)
    return 100 * float(right) / seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scenarios", default="mixed,continual_label_shift")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    print(
        "| network | stream | images | rate (× the paper's for SAR²) | with labels |\n|---|---|---|---|---|", flush=True
    )
    for cell in unadapted(load_grid(arguments.grid), arguments.scenarios.split(",")):
        for multiple in RATES:
            network = build_model(cell)
            images, network = open_images(cell, str(arguments.data), network, device, loaders=0)
            stream = stream_of(cell, images.labels)
            accuracy = learn_with_labels(network.to(device), images, stream, multiple=multiple, device=device)
            print(
                f"| {cell.model_name} | {cell.scenario} | {len(stream)} | {multiple:g} | {accuracy:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
