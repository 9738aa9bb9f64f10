"""Steps of R and I alone before a stream begins (the paper's table 9).

They are taken on random batches of the cell's corrupted images, outside the stream and not scored. The cell's
method then starts from the weights that they lead to: those are the source to which it recovers and resets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import wildtta
from wildtta.bench.cell import OF_ADAPT, Cell
from wildtta.bench.datasets import Images
from wildtta.bench.streaming import split_positions
from wildtta.randomness import derived_seed, numpy_generator
from wildtta.streams import Stream

REGULARISER = "sar2"
"""The method whose R, I and learning rate are used."""
_ALONE: dict[str, Any] = {"bank": False, "entropy": 0.0, "reliable": None, "sharpness": None, "recovery": None}
"""R and I of the batch, nothing else."""
_DRAW = 9
"""Tells these random numbers from those of the stream."""


def take_regularising_steps(
    cell: Cell, network: nn.Module, images: Images, stream: Stream, options: Mapping[str, Any]
) -> None:
    """Move what the cell's method (with ``options``) learns by ``cell.regularise`` steps of R and I."""
    method = wildtta.adapt(network, cell.method, **options)
    names = method.learned_parameters
    method.unload()
    common = {name: value for name, value in options.items() if name in OF_ADAPT}
    model = wildtta.adapt(network, REGULARISER, **{**common, "parameters": names or "auto"}, **_ALONE)
    for inputs in images.batches(random_batches(cell, images.labels, stream)):
        model(inputs)
    learned = {name: value.detach().clone() for name, value in network.named_parameters()}
    model.unload()
    with torch.no_grad():
        for name, value in network.named_parameters():
            value.copy_(learned[name])


def random_batches(cell: Cell, labels: np.ndarray[Any, Any], stream: Stream) -> Stream:
    """``cell.regularise`` random batches, by the cell's seed, of the images that its stream is made of."""
    positions = split_positions(labels, str(cell.data_options.get("split", "all")))
    there, wanted = len(stream.domains) * len(positions), cell.regularise * cell.batch_size
    generator = numpy_generator(derived_seed(cell.seed, _DRAW))
    drawn = generator.choice(there, size=wanted, replace=wanted > there)
    return Stream(
        scenario="random",
        domains=stream.domains,
        domain=drawn // len(positions),
        index=positions[drawn % len(positions)],
        batch_size=cell.batch_size,
    )
