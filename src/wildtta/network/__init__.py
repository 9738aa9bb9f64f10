"""A classifier as adaptation sees it: where its head begins, which norms it has, which parameters may learn."""

from wildtta.network.inspection import Network, inspect_network
from wildtta.network.norms import is_batch_norm, is_norm
from wildtta.network.parameters import choose_parameters

__all__ = ["Network", "choose_parameters", "inspect_network", "is_batch_norm", "is_norm"]
