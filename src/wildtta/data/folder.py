"""Any labelled set with one folder per class, on disk or inside a zip or tar."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from wildtta.data.announcing import announced
from wildtta.data.encoded import EncodedImages, is_image
from wildtta.data.errors import layout_error, some_of
from wildtta.data.sources import Source, files_below, open_source


def folder(path: str | os.PathLike[str], *, classes: Sequence[str] | int | None = None) -> EncodedImages:
    """Images in `<path>/<class>/**`, where `path` is a folder, a zip or a tar; classes in sorted order.

    `classes` says what must be there: the class folders in the order of the network's outputs, or just their number.
    Folders that only wrap the class folders (`val/` inside `val.zip`) are passed through.
    """
    source = open_source(path)
    root = class_root(source)
    found = source.folders(root)
    expected = "<root>/<class>/<image>, one folder per class (a zip or tar of that layout will do)"
    if isinstance(classes, int):
        if len(found) != classes:
            raise layout_error(
                f"{source.path}: expected {classes} classes, found {len(found)} class folders",
                expected=expected,
                found=some_of(found),
                remedy="complete the folder, or use a network for the classes that are there",
            )
        names: Sequence[str] = found
    else:
        names = found if classes is None else classes
    return read_classes(source, root, names, what=str(source.path), expected=expected)


def class_root(source: Source, under: str = "") -> str:
    """The folder that holds the class folders: passes through folders that hold nothing but one folder of folders."""
    folders = source.folders(under)
    if len(folders) == 1 and not any(map(is_image, source.files(under))):
        inner = f"{under}/{folders[0]}" if under else folders[0]
        if source.folders(inner) and not any(map(is_image, source.files(inner))):
            # A class folder may keep its files in a folder of its own (Tiny-ImageNet's <wnid>/images/): not a wrapper.
            if source.folders(inner) == ["images"]:
                return under
            return class_root(source, inner)
    return under


def read_classes(
    source: Source,
    root: str,
    classes: Sequence[str],
    *,
    what: str,
    expected: str,
    class_names: Sequence[str] | None = None,
    outputs: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None = None,
    equal_counts: bool = False,
    usual_count: int | None = None,
) -> EncodedImages:
    """The images of these class folders, in this order; an error for any that is missing or empty.

    `class_names`: what the classes are called, where the folders are called otherwise.
    `equal_counts`: the published set has equally many images in every class, so unequal ones mean that unpacking
    stopped on the way. `usual_count`: how many those are; another number is noted, not refused.
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
    files, labels = [], []
    for label, name in enumerate(announced(classes, f"{what}: listing class folders")):
        images = [f for f in files_below(source, f"{root}/{name}" if root else name) if is_image(f)]
        files += [(source, image) for image in images]
        labels += [label] * len(images)
    counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=len(classes))
    if counts.min() == 0 or (equal_counts and counts.min() != counts.max()):
        fewest = [f"{classes[i]} ({counts[i]})" for i in np.argsort(counts, kind="stable") if counts[i] < counts.max()]
        problem = "without images" if counts.min() == 0 else "with fewer images than the others"
        lacking = int((counts == 0).sum() if counts.min() == 0 else len(fewest))
        raise layout_error(
            f"{what}: {lacking} of {len(classes)} class folders {problem}: {some_of(fewest)}; "
            f"the fullest has {counts.max()}",
            expected=expected,
            found=f"{len(files)} images, {counts.min()} to {counts.max()} per class",
            remedy="the set is half-unpacked: unpack the archive again, completely",
        )
    note = "" if usual_count in (None, counts.max()) else f"{counts.max()} images per class instead of {usual_count}"
    return EncodedImages(files, labels, class_names or classes, outputs=outputs, note=note)
