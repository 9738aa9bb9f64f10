"""Published lists of images, by name: the parts of ImageNet's validation set that papers report on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

import numpy as np

from wildtta.data.errors import DataError, layout_error
from wildtta.data.image_files import EncodedImages
from wildtta.data.image_set import ImageSet

IMAGE_LISTS: tuple[str, ...] = ("robustbench-5000",)
"""``robustbench-5000``: the 5,000 images of RobustBench, on which CoTTA, ROID, CMF and others report ImageNet-C."""


@cache
def image_numbers(name: str) -> tuple[int, ...]:
    """The numbers of the listed images (ILSVRC2012_val_<number>.JPEG), in the list's order."""
    if name not in IMAGE_LISTS:
        raise DataError(f"no list of images is called {name!r}; known: {', '.join(IMAGE_LISTS)}")
    text = (files("wildtta.data") / "lists" / f"{name}.txt").read_text(encoding="ascii")
    return tuple(map(int, text.split()))


def listed(images: ImageSet, name: str) -> EncodedImages:
    """The listed images of ImageNet's validation set, or of one corruption of it, in the list's order."""
    if not isinstance(images, EncodedImages):
        raise DataError(f"the list {name!r} names files of ImageNet's validation set; {type(images).__name__} has none")
    places = {PurePosixPath(file).stem: position for position, (_, file) in enumerate(images.files)}
    wanted = [f"ILSVRC2012_val_{number:08d}" for number in image_numbers(name)]
    missing = [stem for stem in wanted if stem not in places]
    if missing:
        raise layout_error(
            f"{len(missing)} of the {len(wanted)} images of the list {name!r} are missing, for instance {missing[0]}.JPEG",
            expected="<wnid>/ILSVRC2012_val_<8 digits>.JPEG, as ImageNet and ImageNet-C have them",
            found=f"{len(images)} images, for instance {images.where(0)}" if len(images) else "no images",
            remedy="use the complete set, with the files' own names",
        )
    chosen = [places[stem] for stem in wanted]
    return replace(
        images,
        files=[images.files[position] for position in chosen],
        labels=images.labels[np.asarray(chosen, dtype=np.int64)],
        note="; ".join(filter(None, (images.note, f"the list {name}"))),
    )
