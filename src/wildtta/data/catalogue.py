"""Data by name: what a benchmark or the command line asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from wildtta.data.cifar import CIFAR_CLASSES, cifar_c
from wildtta.data.class_folders import folder
from wildtta.data.errors import DataError
from wildtta.data.image_lists import listed
from wildtta.data.image_set import Corrupted, ImageSet
from wildtta.data.imagenet_sets import (
    VARIANTS,
    corruptions_in,
    imagenet_c,
    imagenet_classes,
    imagenet_variant,
    potpourri,
)
from wildtta.data.shards import shards
from wildtta.streams.stream import Domain, DomainLike, as_domains

CLEAN = "clean"
"""The domain that is a data set as it is."""

STORED_BY_CORRUPTION = ("imagenet-c", *CIFAR_CLASSES)
"""Sets that exist under corruptions alone."""

DATA_NAMES: tuple[str, ...] = ("glyphs", *STORED_BY_CORRUPTION, *VARIANTS, "potpourri", "ccc", "folder", "shards")

Root = str | os.PathLike[str]


def open_data(name: str, root: Root | None = None, *, count: int = 4000, seed: int = 0) -> ImageSet:
    """The clean data set of this name at `root`; "glyphs" needs no root: `count` are rendered by `seed`."""
    if name == "glyphs":
        from wildtta.glyphs import Glyphs

        return Glyphs(count, seed=seed)
    known = [clean for clean in DATA_NAMES if clean not in STORED_BY_CORRUPTION]
    if name not in known:
        raise DataError(f"no clean data set is called {name!r}; known: {', '.join(known)}")
    if root is None:
        raise DataError(f"data {name!r} lies in files: name its folder, zip or tar as the data root")
    if name in VARIANTS:
        return imagenet_variant(name, root)
    if name == "potpourri":
        return potpourri(root)
    if name == "ccc":
        return shards(root, classes=imagenet_classes())
    return folder(root) if name == "folder" else shards(root)


def open_domains(
    name: str,
    root: Root | None,
    domains: Iterable[DomainLike],
    *,
    count: int = 4000,
    seed: int = 0,
    corruption_seed: int = 0,
    images: str | None = None,
) -> list[ImageSet]:
    """One image set per domain: stored corruptions, or the clean set corrupted on the fly.

    Stored are those of "imagenet-c", "cifar-10-c" and "cifar-100-c", and those of a "folder" in ImageNet-C's
    layout, as ``wildtta corrupt`` writes it.
    A domain without severity, or called "clean", is the data set itself (in a folder of stored corruptions:
    ``<root>/clean``). `corruption_seed` decides the corruptions' random numbers, which are part of the data:
    they stay the same when the seed of a stream changes. `images` names a published list
    (`wildtta.data.image_lists.IMAGE_LISTS`): ImageNet's files on it alone.
    """
    wanted = as_domains(domains)
    distinct = dict.fromkeys(wanted)  # gradual streams meet a severity twice
    found = corruptions_in(root) if name == "folder" and root is not None and Path(root).is_dir() else {}
    # By name: a folder of classes that are called 0, 1, 2 … looks like a corruption with severities too.
    stored = {name: levels for name, levels in found.items() if name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)}
    opened: dict[Domain, ImageSet]
    if name in STORED_BY_CORRUPTION:
        opened = {domain: _stored_set(name, root, domain, images) for domain in distinct}
    elif root is not None and stored:
        opened = {domain: _stored_domain(Path(root), stored, domain) for domain in distinct}
    else:
        clean = open_data(name, root, count=count, seed=seed)
        if images is not None:
            clean = listed(clean, images)
        opened = {
            domain: clean
            if domain.name == CLEAN or domain.severity is None
            else Corrupted(clean, domain.name, domain.severity, seed=corruption_seed)
            for domain in distinct
        }
    return [opened[domain] for domain in wanted]


def _stored_set(name: str, root: Root | None, domain: Domain, images: str | None) -> ImageSet:
    """One domain of a published set that is stored by corruption and severity."""
    if root is None:
        raise DataError(f"data {name!r} lies in files: name the folder that holds its corruptions as the data root")
    if domain.severity is None:
        raise DataError(f"{name} is stored by corruption and severity; {domain.name!r} came without a severity")
    if name in CIFAR_CLASSES:
        if images is not None:
            raise DataError(f"the list {images!r} names files of ImageNet's validation set; {name} has none")
        return cifar_c(name, root, domain.name, domain.severity)
    found = imagenet_c(root, domain.name, domain.severity)
    return found if images is None else listed(found, images)


def _stored_domain(root: Path, stored: dict[str, list[int]], domain: Domain) -> ImageSet:
    """One domain of a folder that ``wildtta corrupt`` wrote; clean images lie in ``clean`` beside it."""
    found = ", ".join(f"{name} ({'/'.join(map(str, levels))})" for name, levels in stored.items())
    if domain.severity is None:
        if (root / domain.name).is_dir():
            return folder(root / domain.name)
        raise DataError(
            f"{root} has no clean images; it has {found}. Put them (or a link to them) into "
            f"{root}/{domain.name}/<class>/<image>"
        )
    if domain.severity not in stored.get(domain.name, ()):
        raise DataError(f"{root} has no {domain.name} of severity {domain.severity}; it has {found}")
    return folder(root / domain.name / str(domain.severity))
