"""Whether a network's outputs are a data set's classes, and networks cut down to some of their classes."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildtta.data.errors import DataError
from wildtta.data.image_set import ImageSet
from wildtta.network import inspect_network


def require_classes(image_set: ImageSet, outputs: int) -> None:
    """An error if a network with so many outputs cannot name this set's classes one for one."""
    if len(image_set.classes) != outputs:
        raise DataError(
            f"the data set has {len(image_set.classes)} classes, but the network has {outputs} outputs; they must be "
            "the same classes in the same order (restrict_classes takes a subset of a network's outputs)"
        )


def restrict_classes(network: nn.Module, outputs: npt.NDArray[np.int64]) -> nn.Module:
    """A copy of the network whose head has only these outputs, in this order.

    Its logits are the network's own at these positions, so that softmax, entropy, thresholds in ln C and
    everything else that depends on the number of classes refer to the subset.
    """
    restricted = copy.deepcopy(network)
    inspected = inspect_network(restricted)
    head = inspected.head
    if not isinstance(head, nn.Linear):
        raise DataError(
            f"only a linear head can be cut down to some classes, and {inspected.head_name!r} of "
            f"{type(network).__name__} is a {type(head).__name__}"
        )
    if int(outputs.max()) >= head.out_features:
        raise DataError(
            f"cannot take output {int(outputs.max())} of {type(network).__name__}: "
            f"its head {inspected.head_name!r} has {head.out_features} outputs"
        )
    rows = torch.as_tensor(outputs, device=head.weight.device)
    for name, parameter in list(head.named_parameters()):
        kept = nn.Parameter(parameter.detach()[rows].clone(), requires_grad=parameter.requires_grad)
        setattr(head, name, kept)
    head.out_features = len(outputs)
    return restricted
