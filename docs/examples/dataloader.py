"""A DataLoader loop: predict, learn and count, with batches as torch gives them.

python docs/examples/dataloader.py
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wildtta
from wildtta.data import corrupt, open_data, preprocess
from wildtta.glyphs import network


def adapted_accuracy(bare: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], method: str = "steady") -> float:
    """Online accuracy over the batches; the network is given back as it was."""
    model = wildtta.adapt(bare, method)
    seen = correct = 0
    for images, labels in batches:
        predicted = model(images).argmax(1)  # from before this batch's update
        correct += int((predicted == labels).sum())
        seen += len(labels)
    model.unload()
    return correct / seen


def noisy_glyphs(count: int = 600, batch_size: int = 64) -> DataLoader[tuple[Tensor, ...]]:
    """The embedded images with noise; put your own data set here."""
    data = open_data("glyphs", count=count)
    index = torch.randperm(count, generator=torch.Generator().manual_seed(0)).numpy()
    images = preprocess(corrupt(data.images(index), "gaussian_noise", 5, seed=0, index=index), "glyphs")
    # Not shuffled again: the stream's order is what adaptation sees.
    return DataLoader(TensorDataset(images, torch.from_numpy(data.labels[index])), batch_size=batch_size)


if __name__ == "__main__":
    loader = noisy_glyphs()
    for method in ("none", "steady"):
        print(f"{method}: {adapted_accuracy(network('resnet_gn'), loader, method):.1%}")
