"""A classifier as adaptation sees it: where its head begins, which norms it has, which parameters may learn."""

from wildtta.network.inspection import Network, inspect_network
from wildtta.network.parameters import choose_parameters

__all__ = ["Network", "choose_parameters", "inspect_network"]
