"""One stream over several processes: each answers its part of every batch, and they learn as one.

torchrun --standalone --nproc-per-node 2 docs/examples/replicas.py
"""

import torch
from dataloader import noisy_glyphs
from torch import distributed

import wildtta
from wildtta.glyphs import network


def adapted_accuracy(method: str = "steady", count: int = 600) -> float:
    """Online accuracy over all processes of the default group."""
    rank, number = distributed.get_rank(), distributed.get_world_size()
    model = wildtta.adapt(network("resnet_gn"), method, group=wildtta.Replicas(when_lost="continue"))
    totals = torch.zeros(2)
    for images, labels in noisy_glyphs(count):
        own = slice(rank, None, number)  # this process's part of the batch
        predicted = model(images[own]).argmax(1)
        totals += torch.tensor([int((predicted == labels[own]).sum()), len(predicted)])
    model.unload()
    distributed.all_reduce(totals)
    return float(totals[0] / totals[1])


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for name in ("none", "steady"):
        accuracy = adapted_accuracy(name)
        if distributed.get_rank() == 0:
            print(f"{name}: {accuracy:.1%} in {distributed.get_world_size()} processes")
    distributed.destroy_process_group()
