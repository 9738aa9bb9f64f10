"""Cityscapes and ACDC as published: images and label maps with the 19 classes of Cityscapes' benchmark."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from wildtta.data.errors import BrokenImage, layout_error, some_of
from wildtta.data.image_files import decode

CLASSES = (
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign", "vegetation", "terrain",
    "sky", "person", "rider", "car", "truck", "bus", "train", "motorcycle", "bicycle",
)  # fmt: skip
CONDITIONS = ("fog", "night", "rain", "snow")
"""ACDC's, in the order of CoTTA's table (fog, night, rain, snow, again and again)."""
SPLITS = ("train", "val")
"""Parts with public labels."""

_CITYSCAPES = "<root>/leftImg8bit/<split>/<city>/*_leftImg8bit.png and <root>/gtFine/<split>/<city>/*_gtFine_labelTrainIds.png"
_ACDC = "<root>/rgb_anon/<condition>/<split>/<sequence>/*_rgb_anon.png and <root>/gt/…/*_gt_labelTrainIds.png"


@dataclass(frozen=True)
class LabelledImages:
    """Pairs of files: an image, and a map of labels (0 to 18; 255 does not count) of the same size."""

    pairs: tuple[tuple[Path, Path], ...]
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        """The image, uint8 [3, H, W], and its labels, int64 [H, W]."""
        image, labels = self.pairs[position]
        return decode(image.read_bytes(), str(image)), _label_map(labels)


def _label_map(path: Path) -> Tensor:
    from PIL import Image

    try:
        with Image.open(path) as stored:
            values = np.array(stored)
    except Exception as error:
        raise BrokenImage(f"{path} is no image that can be decoded ({type(error).__name__}: {error})") from error
    if values.ndim != 2:
        raise BrokenImage(f"{path} has {values.ndim} dimensions; expected one number per pixel (…_labelTrainIds.png)")
    return torch.from_numpy(values.astype(np.int64))


def cityscapes(root: str | os.PathLike[str], split: str = "val") -> LabelledImages:
    """Cityscapes' fine annotations with train ids (made by its own ``createTrainIdLabelImgs``)."""
    place = Path(root)
    return _paired(
        "Cityscapes", place / "leftImg8bit" / split, place / "gtFine" / split, "_leftImg8bit.png", "_gtFine_labelTrainIds.png",
        _CITYSCAPES,
    )  # fmt: skip


def acdc(root: str | os.PathLike[str], condition: str, split: str = "val") -> LabelledImages:
    """One condition of ACDC: fog, night, rain or snow."""
    if condition not in CONDITIONS:
        raise ValueError(f"ACDC has the conditions {', '.join(CONDITIONS)}, got {condition!r}")
    place = Path(root)
    images, labels = place / "rgb_anon" / condition / split, place / "gt" / condition / split
    return _paired(f"ACDC {condition}", images, labels, "_rgb_anon.png", "_gt_labelTrainIds.png", _ACDC)


def _paired(what: str, images: Path, labels: Path, ending: str, label_ending: str, expected: str) -> LabelledImages:
    """Every image below a folder with its label map, in the order of their names."""
    found = sorted(images.rglob(f"*{ending}")) if images.is_dir() else []
    pairs = [
        (image, labels / image.relative_to(images).with_name(image.name.removesuffix(ending) + label_ending))
        for image in found
    ]
    missing = [str(label) for _, label in pairs if not label.is_file()]
    if missing or not pairs:
        raise layout_error(
            f"{what}: {len(missing)} of {len(pairs)} images have no labels" if pairs else f"{what}: no images in {images}",
            expected=expected,
            found=f"missing {some_of(missing)}" if missing else some_of(_entries(images)),
            remedy="unpack images and labels into one folder; Cityscapes' train ids are made by createTrainIdLabelImgs.py",
        )
    return LabelledImages(tuple(pairs))


def _entries(folder: Path) -> list[str]:
    """What lies in the nearest folder that exists."""
    there = next((place for place in (folder, *folder.parents) if place.is_dir()), None)
    return [] if there is None else sorted(entry.name for entry in there.iterdir())
