"""The networks of these studies: the no-harm battery's, by name, as cells call them."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "no-harm"))


def battery(name: str, folder: str) -> nn.Module:
    """A network of ``studies/no-harm/networks.py`` with its weights from ``folder``."""
    import networks  # the battery's module, found by the line above

    network: nn.Module = networks.load(name, Path(folder))
    return network
