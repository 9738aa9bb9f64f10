"""WebDataset shards: tar files in which the files of one sample share a name (`00017.jpg`, `00017.cls`).

Streams are index streams, so samples are reached at random: the shards' headers are read once and images at
their offsets. (The webdataset library itself reads shards from front to back only.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from wildtta.data.errors import DataError, layout_error, some_of
from wildtta.data.image_files import EncodedImages, is_image
from wildtta.data.image_set import class_names
from wildtta.data.sources import TarSource
from wildtta.progress import shown

LAYOUT = "tar files with <key>.jpg (png, webp ...) and <key>.cls (the class index as text) or <key>.json with a 'label'"


def shards(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, classes: Sequence[str] | None = None
) -> EncodedImages:
    """The samples of WebDataset shards in shard order.

    `path` is a folder of `.tar` files, one tar, a pattern with braces (`val-{0000..0049}.tar`), or several of
    these. `classes` names the classes; without it they are called by their numbers.
    """
    paths = _shard_paths(path)
    sources = map(TarSource, shown(paths, f"{path}: listing shards", len(paths)))
    samples = [(source, image, label) for source in sources for image, label in _samples(source)]
    if not samples:
        raise layout_error(f"{path}: no samples in the shards", expected=LAYOUT, found="shards without images")
    labels = np.array([label for *_, label in samples], dtype=np.int64)
    return EncodedImages([(source, image) for source, image, _ in samples], labels, class_names(labels, classes))


def _shard_paths(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    if not isinstance(path, str | os.PathLike):
        return [shard for part in path for shard in _shard_paths(part)]
    if "{" in str(path):
        try:
            from braceexpand import braceexpand
        except ImportError as error:
            raise ImportError("patterns of shards need webdataset: pip install 'wildtta[data]'") from error
        found = [Path(name) for name in braceexpand(str(path))]
    elif Path(path).is_dir():
        found = sorted(Path(path).glob("*.tar"))
    else:
        found = [Path(path)]
    missing = [str(shard) for shard in found if not shard.is_file()]
    if missing or not found:
        raise layout_error(
            f"{path}: {len(missing) or 'all'} of the shards are missing",
            expected=LAYOUT,
            found=f"{len(found) - len(missing)} shards; missing {some_of(missing)}" if missing else "no .tar file",
        )
    return found


def _samples(source: TarSource) -> Iterator[tuple[str, int]]:
    """(name of the image file, label) of every sample in a shard, in the shard's order."""
    by_key: dict[str, dict[str, str]] = {}
    for name in source.stored():
        folder, _, last = name.rpartition("/")
        key, _, kind = last.partition(".")  # a sample's key ends at the first dot of the file's name
        # What the file is for may stand before its kind, as in CCC's <key>.input.jpg and <key>.output.cls.
        by_key.setdefault(f"{folder}/{key}", {})[kind.lower().rpartition(".")[2]] = name
    for parts in by_key.values():
        image = next(filter(is_image, parts.values()), None)
        if image is not None:
            yield image, _label(source, image, parts)


def _label(source: TarSource, image: str, parts: dict[str, str]) -> int:
    try:
        if "cls" in parts:
            return int(source.read(parts["cls"]))
        if "json" in parts:
            return int(json.loads(source.read(parts["json"]))["label"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"the label of {source.where(image)} cannot be read: {error!r}; expected {LAYOUT}") from error
    raise layout_error(
        f"{source.where(image)} has no label", expected=LAYOUT, found=f"files {some_of(sorted(parts.values()))}"
    )
