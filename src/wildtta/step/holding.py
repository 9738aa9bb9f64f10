"""Which adapter holds which network: the weights of a held one are not the source's."""

from __future__ import annotations

import contextlib
import warnings
import weakref

from torch import nn

_held: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]] = weakref.WeakKeyDictionary()
"""Networks that were not given back, with their adapters (which may be gone)."""


def hold(network: nn.Module, adapter: nn.Module) -> None:
    """``network`` belongs to ``adapter`` until it is given back."""
    _held[network] = weakref.ref(adapter)


def give_back(network: nn.Module) -> None:
    """``network`` is as it was and belongs to nobody."""
    _held.pop(network, None)


def refuse_held(network: nn.Module) -> None:
    """An error where an adapter holds ``network`` or a part of it; a warning where it was never given back."""
    ours = _places(network)
    for other, holder in list(_held.items()):
        if ours.isdisjoint(_places(other)):
            continue
        if holder() is not None:
            raise ValueError(
                f"{type(network).__name__} (or a part of it) is held by another adapter, so that its weights are not the "
                "source's; give it back first with that adapter's unload(), or adapt a copy that was made before, or "
                "copy.deepcopy(that adapter).unload()"
            )
        warnings.warn(
            f"{type(network).__name__} was adapted before, and that adapter is gone without unload(): the weights as they "
            "are now count as the source",
            stacklevel=3,
        )


def _places(network: nn.Module) -> set[tuple[str, int]]:
    """Where the parameters are: as objects, and as numbers in memory, which several objects may share."""
    places = set()
    for parameter in network.parameters():
        places.add(("object", id(parameter)))
        with contextlib.suppress(RuntimeError):  # some kinds of tensors have no memory of their own
            if address := parameter.data_ptr():
                places.add((str(parameter.device), address))
    return places
