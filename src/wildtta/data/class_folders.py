"""Any labelled set with one folder per class, on disk or inside a zip or tar."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from wildtta.data.errors import layout_error, some_of
from wildtta.data.image_files import EncodedImages, is_image
from wildtta.data.sources import Source, files_below, inside, open_source
from wildtta.progress import shown

LAYOUT = "<root>/<class>/<image>, one folder per class (a zip or tar of that layout will do)"


def folder(path: str | os.PathLike[str], *, classes: Sequence[str] | int | None = None) -> EncodedImages:
    """Images in `<path>/<class>/**`, where `path` is a folder, a zip or a tar; classes in sorted order.

    `classes` says what must be there: the class folders in the order of the network's outputs, or just their
    number. Folders that only wrap the class folders (`val/` inside `val.zip`) are passed through.
    """
    source = open_source(path)
    root = class_root(source)
    found = source.folders(root)
    if isinstance(classes, int) and len(found) != classes:
        raise layout_error(
            f"{source.path}: expected {classes} classes, found {len(found)} class folders",
            expected=LAYOUT,
            found=some_of(found),
            remedy="complete the folder, or use a network for the classes that are there",
        )
    names = found if classes is None or isinstance(classes, int) else classes
    return read_classes(source, root, names, what=str(source.path), expected=LAYOUT)


def class_root(source: Source, under: str = "") -> str:
    """The folder that holds the class folders, below folders that hold nothing but one folder of folders."""
    folders = source.folders(under)
    if len(folders) == 1 and not any(map(is_image, source.files(under))):
        inner = inside(under, folders[0])
        if source.folders(inner) and not any(map(is_image, source.files(inner))):
            # Files may lie in a folder of the class folder (Tiny-ImageNet's <wnid>/images/): no wrapper.
            return under if source.folders(inner) == ["images"] else class_root(source, inner)
    return under


def list_classes(source: Source, root: str, classes: Sequence[str]) -> EncodedImages:
    """The images of these class folders, class after class; some may be empty."""
    files, counts = [], []
    for name in shown(classes, f"{source.path}: listing class folders", len(classes)):
        images = [(source, file) for file in files_below(source, inside(root, name)) if is_image(file)]
        files += images
        counts.append(len(images))
    return EncodedImages(files, np.repeat(np.arange(len(classes)), counts), list(classes))


def read_classes(
    source: Source,
    root: str,
    classes: Sequence[str],
    *,
    what: str,
    expected: str,
    class_names: Sequence[str] | None = None,
    outputs: npt.NDArray[np.int64] | None = None,
    per_class: int | None = None,
) -> EncodedImages:
    """The images of these class folders, in this order; an error for any that is missing or empty.

    `class_names`: what the classes are called, where the folders are called otherwise. `per_class`: how many
    images every class has in the published set. Another number is noted, not refused, but unequal numbers
    mean that unpacking stopped on the way.
    """
    found = source.folders(root)
    missing = sorted(set(classes) - set(found))
    if missing or not classes:
        loose = [name for name in source.files(root) if is_image(name)]
        raise layout_error(
            f"{what}: {len(classes) - len(missing)} of {len(classes) or 'at least 1'} class folders found"
            + (f", missing {some_of(missing)}" if missing else ""),
            expected=expected,
            found=f"folders {some_of(found)}; {len(loose)} images outside of class folders",
            remedy="unpack the archive again, completely"
            + (", and sort the loose images into their class folders" if loose else ""),
        )
    images = list_classes(source, root, classes)
    counts = np.bincount(images.labels, minlength=len(classes))
    most, fewest = int(counts.max()), int(counts.min())
    if fewest == 0 or (per_class is not None and fewest < most):
        problem = "without images" if fewest == 0 else "with fewer images than the others"
        lacking = int((counts == 0).sum() if fewest == 0 else (counts < most).sum())
        named = [f"{classes[i]} ({counts[i]})" for i in np.argsort(counts, kind="stable") if counts[i] < most]
        raise layout_error(
            f"{what}: {lacking} of {len(classes)} class folders {problem}: {some_of(named)}; the fullest has {most}",
            expected=expected,
            found=f"{len(images)} images, {fewest} to {most} per class",
            remedy="the set is half-unpacked: unpack the archive again, completely",
        )
    note = "" if per_class in (None, most) else f"{most} images per class instead of {per_class}"
    return replace(images, classes=list(class_names or classes), outputs=outputs, note=note)
