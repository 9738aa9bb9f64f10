"""Networks with 1000 outputs on sets with 200 of the classes."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildtta.data.errors import DataError


def restrict_classes(network: nn.Module, outputs: npt.NDArray[np.int64]) -> nn.Module:
    """A copy of the network whose head has only these outputs, in this order.

    Its logits are the network's own at these positions: softmax, entropy, thresholds in ln C and everything else that
    counts classes then speak of the subset. The head is the network's last linear layer.
    """
    restricted = copy.deepcopy(network)
    linear = [(name, layer) for name, layer in restricted.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise DataError(f"{type(network).__name__} has no linear layer whose outputs could be restricted to a subset")
    name, head = linear[-1]
    if int(outputs.max()) >= head.out_features:
        raise DataError(
            f"cannot take output {int(outputs.max())} of {type(network).__name__}: its last linear layer {name!r} has "
            f"{head.out_features} outputs"
        )
    rows = torch.as_tensor(outputs, device=head.weight.device)
    head.weight = nn.Parameter(head.weight.detach()[rows].clone(), requires_grad=head.weight.requires_grad)
    if head.bias is not None:
        head.bias = nn.Parameter(head.bias.detach()[rows].clone(), requires_grad=head.bias.requires_grad)
    head.out_features = len(outputs)
    return restricted
