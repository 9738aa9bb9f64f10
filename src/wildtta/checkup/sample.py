"""Images drawn at random from what the user has: class folders, a flat folder of images, or the embedded glyphs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from wildtta.data import DataError, EncodedImages, ImageSet, InputProtocol, input_protocol, open_data
from wildtta.data.batch_reading import read_fitted
from wildtta.data.class_folders import class_root, list_classes
from wildtta.data.errors import layout_error, some_of
from wildtta.data.image_files import is_image, stack
from wildtta.data.sources import files_below, open_source
from wildtta.progress import shown
from wildtta.randomness import numpy_generator
from wildtta.streams.labels import IntArray

LAYOUT = "a folder (zip or tar) of images, or of one folder of images per class"
_READ_AT_ONCE = 50


@dataclass(frozen=True)
class Sample:
    """Where images come from, in a random order that the seed decides: the first n are the sample of n."""

    images: ImageSet
    labelled: bool
    order: IntArray
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.order)

    def pixels(self, number: int, protocol: InputProtocol) -> Tensor:
        """The first images at the protocol's size, uint8 [n, 3, H, W]."""
        chosen = self.order[:number]
        starts = range(0, len(chosen), _READ_AT_ONCE)
        parts = [
            read_fitted(self.images, chosen[start : start + _READ_AT_ONCE], protocol)
            for start in shown(starts, "reading images", len(starts))
        ]
        return stack([image for part in parts for image in part])

    def labels(self, number: int) -> npt.NDArray[np.int64] | None:
        """Their labels, where there are any."""
        return np.asarray(self.images.labels)[self.order[:number]] if self.labelled else None


def glyph_sample(number: int, *, seed: int = 0, use_labels: bool = True) -> Sample:
    """Rendered glyphs of 200 classes."""
    glyphs = open_data("glyphs", count=number, seed=seed)
    order = numpy_generator(seed).permutation(number).astype(np.int64)
    return Sample(glyphs, use_labels, order, ["rendered glyphs: a demonstration"])


def folder_sample(path: str | os.PathLike[str], classes: int, *, seed: int = 0, use_labels: bool = True) -> Sample:
    """Images of a folder, a zip or a tar for a network with so many ``classes``.

    Class folders give labels where there are as many as the network has outputs; any other layout is unlabelled, and a
    note says why.
    """
    source = open_source(path)
    root = class_root(source)
    folders = source.folders(root)
    loose = [name for name in source.files(root) if is_image(name)]
    labelled = use_labels and len(folders) == classes and not loose
    if labelled:
        found = list_classes(source, root, folders)
        notes = []
    else:
        names = [(source, name) for name in files_below(source, root) if is_image(name)]
        found = EncodedImages(names, np.zeros(len(names), dtype=np.int64), ["unlabelled"])
        notes = _why_unlabelled(len(folders), len(loose), classes, use_labels)
    if len(found) < 2:
        raise layout_error(
            f"{source.path} holds {len(found)} images; a checkup takes some hundreds",
            expected=LAYOUT,
            found=some_of([*folders, *source.files(root)]),
        )
    drawn = numpy_generator(seed).permutation(len(found)).astype(np.int64)
    return Sample(found, labelled, drawn, notes)


def _why_unlabelled(folders: int, loose: int, classes: int, use_labels: bool) -> list[str]:
    if not use_labels or not folders:
        return []
    if loose:
        return [f"labels not used: {loose} images lie outside of the {folders} folders"]
    return [f"labels not used: {folders} class folders, but the network has {classes} outputs"]


def protocol_for(model: str, protocol: str, network: nn.Module) -> InputProtocol:
    """The preprocessing that is asked for, or with ``auto`` the one that belongs to the network's name.

    Glyphs have their own; timm networks say it (``timm``); torchvision's ImageNet networks take ``paper`` (256, 224,
    ImageNet's mean and std); all others ``native``, as in ``wildtta run`` on a folder.
    """
    if protocol != "auto":
        return input_protocol(protocol, network)
    kind = model.partition(":")[0]
    if kind in ("glyphs", "torchvision"):
        return input_protocol("glyphs" if kind == "glyphs" else "paper")
    if getattr(network, "pretrained_cfg", None):
        try:
            return input_protocol("timm", network)
        except DataError as error:
            raise DataError(f"{error}; give it with --protocol") from error
    return input_protocol("native")
