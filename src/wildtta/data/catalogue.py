"""Data by name: what a benchmark or the command line asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from wildtta.data.corrupted import Corrupted
from wildtta.data.errors import DataError
from wildtta.data.folder import folder
from wildtta.data.image_set import ImageSet
from wildtta.data.imagenet_c import imagenet_c
from wildtta.data.imagenet_variants import VARIANTS, imagenet_variant
from wildtta.data.shards import shards
from wildtta.streams.stream import Domain, DomainLike, as_domains

CLEAN = "clean"
"""The domain that is a data set as it is."""

DATA_NAMES: tuple[str, ...] = ("glyphs", "imagenet-c", *VARIANTS, "folder", "shards")


def open_data(name: str, root: str | os.PathLike[str] | None = None, *, count: int = 4000, seed: int = 0) -> ImageSet:
    """The clean data set of this name. `root` is where it lies; "glyphs" needs none: `count` are rendered by `seed`."""
    if name == "glyphs":
        from wildtta.glyphs import Glyphs

        return Glyphs(count, seed=seed)
    if name not in DATA_NAMES or name == "imagenet-c":
        known = ", ".join(n for n in DATA_NAMES if n != "imagenet-c")
        raise DataError(f"no clean data set is called {name!r}; known: {known}")
    if root is None:
        raise DataError(f"data {name!r} lies in files: name its folder, zip or tar as the data root")
    if name in VARIANTS:
        return imagenet_variant(name, root)
    return folder(root) if name == "folder" else shards(root)


def open_domains(
    name: str,
    root: str | os.PathLike[str] | None,
    domains: Iterable[DomainLike],
    *,
    count: int = 4000,
    seed: int = 0,
    corruption_seed: int = 0,
) -> list[ImageSet]:
    """One image set per domain: stored corruptions ("imagenet-c"), or the clean set corrupted on the fly.

    A domain without severity, or called "clean", is the data set itself. `corruption_seed` decides the corruptions'
    random numbers, which are part of the data: they stay the same when the seed of a stream changes.
    """
    listed = as_domains(domains)
    if name == "imagenet-c":
        return _stored_corruptions(root, listed)
    clean = open_data(name, root, count=count, seed=seed)
    return [
        clean
        if domain.name == CLEAN or domain.severity is None
        else Corrupted(clean, domain.name, domain.severity, seed=corruption_seed)
        for domain in listed
    ]


def _stored_corruptions(root: str | os.PathLike[str] | None, domains: Sequence[Domain]) -> list[ImageSet]:
    if root is None:
        raise DataError("data 'imagenet-c' lies in files: name the folder that holds its corruptions as the data root")
    opened: dict[Domain, ImageSet] = {}
    for domain in domains:
        if domain.severity is None:
            raise DataError(f"ImageNet-C is stored by corruption and severity; {domain.name!r} came without a severity")
        if domain not in opened:  # gradual streams meet a severity twice
            opened[domain] = imagenet_c(root, domain.name, domain.severity)
    return [opened[domain] for domain in domains]
