"""What a network is called with, where that is more than one tensor of images: several arguments, by place or by name.

The loop and the methods cut a batch by samples and need one tensor to cut. For such a call this tensor holds the numbers
of the samples, and :class:`Inputs` puts together the arguments of those samples when the network runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wildtta.network.levels import largest


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call. Tensors as long as the batch are per sample; everything else belongs to the whole call."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor in the call, by a name for messages; the first one tells the batch's length."""
        return dict(_tensors((*enumerate(self.arguments, start=1), *self.named.items())))

    @property
    def sample_numbers(self) -> Tensor:
        """0, 1, 2 … for the samples of the call, on their device."""
        first = next(iter(self.tensors.values()))
        return torch.arange(len(first), device=first.device)

    def run(self, network: Callable[..., Any], samples: Tensor) -> Any:
        """``network`` on the arguments of ``samples``."""
        length = len(next(iter(self.tensors.values())))

        def part(value: Tensor) -> Tensor:
            return value[samples] if value.dim() and len(value) == length else value

        arguments = [_mapped(value, part) for value in self.arguments]
        return network(*arguments, **{name: _mapped(value, part) for name, value in self.named.items()})

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same call with every tensor changed."""
        return Inputs(
            tuple(_mapped(value, change) for value in self.arguments),
            {name: _mapped(value, change) for name, value in self.named.items()},
        )


def gathered(network: nn.Module, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | Inputs:
    """A call as the adapter works with it: the tensor itself where there is no other argument, else :class:`Inputs`.

    One tensor under the name of the network's first parameter (``pixel_values=images``) is that tensor.
    """
    if len(arguments) == 1 and not named and not isinstance(arguments[0], Mapping | tuple | list):
        return arguments[0]  # type: ignore[no-any-return]  # whether it is a tensor is checked with its shape and type
    if not arguments and len(named) == 1:
        ((name, value),) = named.items()
        if isinstance(value, Tensor) and name == next(iter(inspect.signature(network.forward).parameters), None):
            return value
    call = Inputs(arguments, dict(named))
    if not call.tensors:
        kinds = ", ".join(type(value).__name__ for value in (*arguments, *named.values())) or "nothing"
        raise TypeError(f"expected a tensor of images or tokens, or arguments with tensors in them, got {kinds}")
    return call


def as_call(example: Any) -> Tensor | Inputs:
    """An example of a call, as :func:`wildtta.adapt` takes it: a tensor, a mapping (by name) or a sequence (by place)."""
    if isinstance(example, Tensor):
        return example
    if isinstance(example, Mapping):
        return Inputs((), {str(name): value for name, value in example.items()})
    if isinstance(example, tuple | list):
        return Inputs(tuple(example), {})
    raise TypeError(
        f"example= must be a tensor, a mapping of named inputs or a tuple of inputs, got {type(example).__name__}"
    )


def called(network: Callable[..., Any], call: Tensor | Inputs) -> Any:
    """``network`` on the whole call."""
    return call.run(network, call.sample_numbers) if isinstance(call, Inputs) else network(call)


def levels_of(inputs: Inputs) -> Tensor:
    """max |x| of each sample over all its floating-point values, [B].

    Nothing finite is too large here: masks that are added hold the most negative number on purpose.
    """
    samples = inputs.sample_numbers
    found = [torch.zeros(len(samples), device=samples.device)]
    found += [
        largest(value.reshape(len(samples), -1)) for value in inputs.tensors.values() if _holds(value, len(samples))
    ]
    return torch.stack([value.to(torch.promote_types(value.dtype, torch.float32)) for value in found]).amax(0)


def blanked(inputs: Inputs, finite: Tensor) -> Inputs:
    """The call with zeros for the samples that are not ``finite``."""

    def blank(value: Tensor) -> Tensor:
        if not _holds(value, len(finite)):
            return value
        return value.masked_fill(~finite.view([-1, *[1] * (value.dim() - 1)]), 0.0)

    return inputs.mapped(blank)


def _holds(value: Tensor, samples: int) -> bool:
    """Whether a tensor holds numbers of each sample that may be infinite or undefined."""
    return value.is_floating_point() and value.dim() > 0 and len(value) == samples


def _tensors(items: Any) -> Iterator[tuple[str, Tensor]]:
    for name, value in items:
        if isinstance(value, Tensor):
            yield str(name), value
        elif isinstance(value, Mapping):
            yield from ((f"{name}[{key!r}]", tensor) for key, tensor in _tensors(value.items()))
        elif isinstance(value, tuple | list):
            yield from ((f"{name}[{place}]", tensor) for place, tensor in _tensors(enumerate(value)))


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _mapped(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
