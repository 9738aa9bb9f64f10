"""Streams of corrupted glyphs for the tests of fleets, and a fleet beside one adapter per stream."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import wildtta
from wildtta.corruptions.apply import corrupt
from wildtta.glyphs import Glyphs, network

CORRUPTIONS = (
    *("gaussian_noise", "contrast", "defocus_blur", "fog"),
    *("jpeg_compression", "snow", "pixelate", "motion_blur"),
)
CLEAR = ("impulse_noise", "saturate", "spatter", "snow")
"""Shifts that Steady's evidence sees on both networks within a few hundred images. (In the others the ViT rests.)"""
IMAGES = 200

# Rates and thresholds that make everything happen within a few batches: learning, warm-up, recoveries.
METHODS: dict[str, dict[str, Any]] = {
    "tent": {},
    "eta": {"recovery": 0.5},
    "sar": {"lr_scale": 5.0, "recovery": 1.0},
    "sar2": {"warmup": 8, "recovery": 0.7},
    "sar2-efficient": {"warmup": 8, "lr_scale": 2.0},
    "steady": {},
    # One pass: with sharpness the ViT in low contrast is so sensitive that a last bit of its inputs (4e-16) moves the answers of
    # a plain adapter by 3e-7 after 300 batches.
    "steady always": {"evidence": False, "batch_size": 16},
}
"""By the first word: the method."""


@functools.cache
def trained(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """An embedded network; ``name@k``: with the first k of its classes alone."""
    base, _, classes = name.partition("@")
    found = network(base).to(dtype)
    if classes:
        (place,) = (place for place, module in found.named_children() if isinstance(module, nn.Linear))
        whole = found.get_submodule(place)
        part = nn.Linear(whole.in_features, int(classes), dtype=dtype)
        part.load_state_dict({key: value[: int(classes)] for key, value in whole.state_dict().items()})
        setattr(found, place, part)
    return found


@functools.cache
def pool(stream: int, dtype: torch.dtype = torch.float64, *, clear: bool = False) -> Tensor:
    """Images of one stream: a corruption of its own (``clear``: one that nobody overlooks), classes shuffled."""
    raw = Glyphs((stream + 1) * IMAGES).images(range(stream * IMAGES, (stream + 1) * IMAGES))
    corruption = CLEAR[stream % len(CLEAR)] if clear else CORRUPTIONS[stream]
    images = corrupt(raw, corruption, 5 if clear or stream % 2 else 3, seed=stream)
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(stream))
    return ((images[order].to(dtype) / 255) - 0.5) / 0.25


def mixed_batches(
    number: int, *, streams: int = 8, most: int = 32, seed: int = 0, clear: bool = False
) -> Iterator[tuple[Tensor, list[str]]]:
    """Batches of 1 to ``most`` images of up to five streams; streams are absent for long, one image in 60 is not finite."""
    draw = random.Random(seed)
    used = [0] * streams
    for step in range(number):
        # A third of the time is without the last three streams.
        present = range(streams - 3) if step % 30 >= 20 else range(streams)
        live = draw.sample(list(present), draw.randint(1, min(5, len(present))))
        chosen = [draw.choice(live) for _ in range(draw.randint(1, most))]
        images = []
        for stream in chosen:
            image = pool(stream, clear=clear)[used[stream] % IMAGES].clone()
            used[stream] += 1
            if draw.random() < 1 / 60:
                image[0, 3, 3] = draw.choice([float("nan"), float("inf")])
            images.append(image)
        yield torch.stack(images), [f"s{stream}" for stream in chosen]


def noisy_beside_clean(number: int) -> Iterator[tuple[Tensor, list[str]]]:
    """Batches of 8 noisy images of one stream and 8 clean ones of another."""
    images = 8 * number
    order = torch.randperm(images, generator=torch.Generator().manual_seed(3))
    drawn = Glyphs(images).images(order)
    clean, noisy = (((kind.double() / 255) - 0.5) / 0.25 for kind in (drawn, corrupt(drawn, "gaussian_noise", 5)))
    for step in range(0, images, 8):
        yield torch.cat((noisy[step : step + 8], clean[step : step + 8])), ["noisy"] * 8 + ["clean"] * 8


class Beside:
    """A fleet and an adapter for each of its streams, given the same images; keeps the largest difference of answers.

    ``setting`` is one of :data:`METHODS`.
    """

    def __init__(self, net: str, setting: str, **settings: Any) -> None:
        method, options = setting.split()[0], METHODS[setting]
        self.fleet = wildtta.Fleet(copy.deepcopy(trained(net)), method, **options, **settings)
        self._make = lambda: wildtta.adapt(copy.deepcopy(trained(net)), method, **options)
        self.adapters: dict[str, wildtta.Adapter] = {}
        self.worst = 0.0

    def difference(self) -> float:
        """The largest so far, of answers and of states."""
        return max(self.worst, self.state_difference())

    def feed(self, images: Tensor, names: list[str]) -> None:
        answers = self.fleet(images, names)
        for name in dict.fromkeys(names):
            rows = [row for row, other in enumerate(names) if other == name]
            adapter = self.adapters.setdefault(name, self._make()) if name not in self.adapters else self.adapters[name]
            expected = adapter(images[rows])
            assert torch.equal(expected.isnan(), answers[rows].isnan())
            self.worst = max(self.worst, float((expected - answers[rows]).abs().nan_to_num().max()))

    def state_difference(self) -> float:
        """The largest difference between the states of a stream and of its adapter, counters included."""
        worst = 0.0
        for name, adapter in self.adapters.items():
            expected, found = adapter.online_state(), self.fleet[name].online_state()
            assert expected.keys() == found.keys()
            for key, value in expected.items():
                assert torch.equal(value.double().isnan(), found[key].double().isnan()), (name, key)
                difference = (value.double() - found[key].double()).abs().nan_to_num()
                scale = max(1.0, float(value.double().abs().nan_to_num().max())) if value.is_floating_point() else 1.0
                worst = max(worst, float(difference.max()) / scale)
        return worst

    def total(self, counter: str) -> int:
        """Of all adapters: resets, learned …"""
        return sum(int(getattr(adapter.cost, counter)) for adapter in self.adapters.values())
