"""What the features of the study's networks look like, and how hard each term of SAR² pulls at the start.

    python studies/tiny-imagenet/features.py --data studies/tiny-imagenet/testbed/val.zip

For a batch of corrupted images of the first half, with a bank of centroids of 512 images: how many feature dimensions are never,
rarely or mostly active; how much of the variance between centroids lies in the first direction; R in each normalisation; and the
norm of the gradient of each term, with α = 10³/D and β = 50, with respect to the parameters that learn. ``--networks
glyphs:resnet_gn,glyphs:vit`` looks at the embedded networks on the noisy glyphs of ``wildtta demo`` instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import wildtta
from wildtta.bench.datasets import open_images
from wildtta.bench.models import build_model
from wildtta.bench.streaming import split_positions, stream_of
from wildtta.cli.demo import demo_cells
from wildtta.data import corrupt, folder, input_protocol
from wildtta.methods.sar2.redundancy import NORMALISATIONS, Normalisation, inequity, redundancy

sys.path.insert(0, str(Path(__file__).parent))
import networks

BANK_IMAGES = 512
BATCH = 64


def build(name: str) -> nn.Module:
    """One of the testbed's networks, or rn26_gn with idle dimensions."""
    if name in ("dead", "rare"):
        return networks.with_idle_dimensions(name)
    named: dict[str, Callable[[], nn.Module]] = {
        "rn26_gn": networks.rn26_gn,
        "rn26_bn": networks.rn26_bn,
        "vit": networks.vit,
    }
    return named[name]()


def centroids(features: Tensor, labels: Tensor) -> Tensor:
    """One mean row per predicted class."""
    return torch.stack([features[labels == label].mean(0) for label in labels.unique()])


def glyphs(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """An embedded network, and images and labels of the demonstration's noisy stream."""
    cells = [cell for cell in demo_cells() if (cell.model, cell.method, cell.batch_size) == (name, "none", 64)]
    cell = next(cell for cell in cells if cell.corruptions == ("gaussian_noise",))
    images, network = open_images(cell, None, build_model(cell), torch.device("cpu"), loaders=0)
    stream = stream_of(cell, images.labels)
    batches, labels = torch.cat(list(images.batches(stream))), torch.as_tensor(images.labels[stream.index])
    chosen = torch.randperm(len(batches), generator=torch.Generator().manual_seed(0))[:BANK_IMAGES]
    return network, batches[chosen], labels[chosen]


def describe(name: str, network: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Print one network's figures."""
    adapter = wildtta.adapt(network, "sar2")
    engine = adapter._engine
    with torch.no_grad():
        seen = [engine.forward(part, grad=False) for part in images.split(BATCH)]
    features = torch.cat([output.features for output in seen])
    logits = torch.cat([output.logits for output in seen])
    rows = centroids(features, logits.argmax(1)).double()
    centred = rows - rows.mean(0)
    spectrum = torch.linalg.svdvals(centred).square()
    active = (features > 1e-6).float().mean(0) if (features >= 0).all() else (features.abs() > 1e-6).float().mean(0)
    variance = centred.square().mean(0)
    head = engine.network.head
    right = 100 * (logits.argmax(1) == labels).float().mean()
    print(f"\n{name}: {right:.1f} % right, D = {rows.shape[1]}, {len(rows)} centroids")
    print(
        f"  dimensions never active {100 * (active == 0).float().mean():.1f} %, on less than 2 % of the images "
        f"{100 * ((active > 0) & (active < 0.02)).float().mean():.1f} %; mean / std of a centroid dimension "
        f"{(rows.mean(0).abs() / variance.sqrt().clamp(min=1e-9)).median():.2f}; smallest variance / mean variance "
        f"{variance.min() / variance.mean():.1e}; first direction {100 * spectrum[0] / spectrum.sum():.1f} % of the variance"
    )
    batch = engine.forward(images[:BATCH], grad=True)
    marked = batch.labels
    live = centroids(batch.features, marked).double()
    mean_row = features.double().mean(0)
    overlap = torch.nn.functional.cosine_similarity(rows, mean_row[None]).mean()
    print(f"  cosine of a centroid with the mean row {overlap:.3f}")
    stored = rows[~torch.isin(logits.argmax(1).unique(), marked.unique())]
    present = torch.cat((live, stored))
    width = rows.shape[1]

    def weighted(normalisation: Normalisation, floor: float = 0.0) -> Callable[[], Tensor]:
        return lambda: 1e3 / width * redundancy(present, normalisation=normalisation, variance_floor=floor)

    terms: dict[str, Callable[[], Tensor]] = {
        "E (reliable)": lambda: batch.entropies[batch.entropies < 0.4 * torch.log(torch.tensor(200.0))].mean(),
        "E (all)": lambda: batch.entropies.mean(),
        "β I": lambda: 50 * inequity(present, head.weight.double(), None if head.bias is None else head.bias.double()),
        **{f"α R, {name}": weighted(name) for name in NORMALISATIONS},
        "α R, columns, floor 0.01": weighted("columns", 0.01),
        "α R, columns, floor 0.1": weighted("columns", 0.1),
    }
    for title, term in terms.items():
        value = term()
        gradient = engine.learnables.gradient(value, retain_graph=True)
        print(f"  {title:26} {float(value.detach()):10.3f}   gradient {float(gradient.norm()):10.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    testbed = Path(__file__).parent / "testbed" / "val.zip"
    parser.add_argument("--data", type=Path, default=testbed, help="val.zip of the testbed (not read for glyphs)")
    parser.add_argument("--networks", default="rn26_gn,vit,dead,rare")
    parser.add_argument("--corruption", default="shot_noise")
    arguments = parser.parse_args()
    names = arguments.networks.split(",")
    for name in [name for name in names if name.startswith("glyphs:")]:
        describe(name, *glyphs(name))
    names = [name for name in names if not name.startswith("glyphs:")]
    if not names:
        return
    clean = folder(arguments.data)
    half = split_positions(clean.labels, "first-half")
    chosen = half[torch.randperm(len(half), generator=torch.Generator().manual_seed(0))[:BANK_IMAGES].numpy()]
    pixels = corrupt(clean.images(chosen), arguments.corruption, 5, index=chosen.tolist())
    labels = torch.from_numpy(clean.labels[chosen])
    for name in names:
        describe(name, build(name), input_protocol("native", nn.Identity()).normalise(pixels), labels)


if __name__ == "__main__":
    main()
