"""ImageNet's validation set, its natural variants (-R, -A, -V2, -Sketch), ImageNet-C, and a mixture of them, as published."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wildtta.corruptions import CORRUPTIONS
from wildtta.data.class_folders import class_root, read_classes
from wildtta.data.errors import layout_error, some_of
from wildtta.data.image_files import EncodedImages
from wildtta.data.sources import Source, open_source


@cache
def imagenet_classes(variant: str = "") -> tuple[str, ...]:
    """The wnids in the order of a network's outputs: all 1000, or the 200 of variant "a" or "r"."""
    # Found without importing timm, which takes seconds.
    package = importlib.util.find_spec("timm")
    if package is None or not package.submodule_search_locations:
        raise ImportError("ImageNet's class lists come with timm: pip install 'wildtta[zoo]'")
    name = f"imagenet_{variant}_synsets.txt" if variant else "imagenet_synsets.txt"
    listed = Path(package.submodule_search_locations[0], "data", "_info", name)
    return tuple(listed.read_text(encoding="utf-8").split())


class Variant(NamedTuple):
    """A published set: title, the folders its archive unpacks to, and what its classes look like."""

    title: str
    folders: tuple[str, ...]
    subset: str = ""
    """The letter of its list of 200 classes; empty: all 1000."""
    numbered: bool = False
    """Class folders are called 0..999 (ImageNet-V2) instead of by wnid."""
    per_class: int | None = None
    """Images per class, where all classes have equally many."""


_V2_FOLDERS = tuple(f"imagenetv2-{kind}-format-val" for kind in ("matched-frequency", "threshold0.7", "top-images"))

VARIANTS: dict[str, Variant] = {
    "imagenet": Variant("ImageNet validation", ("val", "validation"), per_class=50),
    "imagenet-r": Variant("ImageNet-R", ("imagenet-r",), subset="r"),
    "imagenet-a": Variant("ImageNet-A", ("imagenet-a",), subset="a"),
    "imagenet-v2": Variant("ImageNet-V2", _V2_FOLDERS, numbered=True, per_class=10),
    "imagenet-sketch": Variant("ImageNet-Sketch", ("sketch", "imagenet-sketch")),
}
"""The sets by the name under which a benchmark asks for them."""


def imagenet_variant(name: str, root: str | os.PathLike[str]) -> EncodedImages:
    """The set of this name; `root` is its folder or the one around it, a zip or a tar.

    Labels count the set's own classes; where these are a subset of the 1000 (-R, -A), `outputs` holds their
    positions among a network's outputs (`restrict_classes` cuts a network down to them).
    """
    variant = VARIANTS[name]
    source = open_source(root)
    wnids, every = imagenet_classes(variant.subset), imagenet_classes()
    folders = tuple(map(str, range(len(wnids)))) if variant.numbered else wnids
    top = source.folders()
    if set(top) & set(folders):
        place = ""
    else:
        place = next((known for known in variant.folders if known in top), None) or class_root(source)
    kind = "number 0..999" if variant.numbered else "wnid"
    count = "" if variant.per_class is None else f" of {variant.per_class} images"
    return read_classes(
        source,
        place,
        folders,
        what=f"{variant.title} in {source.path}",
        expected=f"<root>/<{kind}>/<image>, {len(wnids)} class folders{count}",
        class_names=wnids,
        outputs=np.array([every.index(wnid) for wnid in wnids], dtype=np.int64) if variant.subset else None,
        per_class=variant.per_class,
    )


ARCHIVES = ("noise", "blur", "weather", "digital", "extra")
"""The published archives of ImageNet-C; each unpacks into corruptions, often in a folder of its own name."""

CORRUPTED_LAYOUT = (
    "<root>/<corruption>/<severity>/<wnid>/*.JPEG with 1000 wnids of 50 images, "
    "or the same below <root>/noise, blur, weather, digital, extra"
)


def imagenet_c(root: str | os.PathLike[str], corruption: str, severity: int) -> EncodedImages:
    """One corruption at one severity; `root` is a folder, a zip or a tar.

    An equal number of images in every class other than 50 is taken as a deliberate subset and noted; unequal
    numbers are an error, since the published set has none.
    """
    source = open_source(root)
    places = _corruption_folders(source)
    if corruption not in places:
        raise layout_error(
            f"ImageNet-C in {source.path}: no corruption {corruption!r}",
            expected=CORRUPTED_LAYOUT,
            found=f"corruptions {some_of(list(places.values()), shown=20)}; folders {some_of(source.folders())}",
            remedy="unpack the archive with this corruption there, or name the folder that holds the corruptions",
        )
    severities = source.folders(places[corruption])
    if str(severity) not in severities:
        raise layout_error(
            f"ImageNet-C in {source.path}: {corruption} has no severity {severity}",
            expected=CORRUPTED_LAYOUT,
            found=f"severities {some_of(severities)} in {places[corruption]}",
            remedy="unpack the archive again, completely",
        )
    return read_classes(
        source,
        f"{places[corruption]}/{severity}",
        imagenet_classes(),
        what=f"ImageNet-C {corruption} {severity} in {source.path}",
        expected=CORRUPTED_LAYOUT,
        per_class=50,
    )


def corruptions_in(root: str | os.PathLike[str]) -> dict[str, list[int]]:
    """The corruptions found below `root`, each with its severities."""
    source = open_source(root)
    return {
        name: sorted(int(s) for s in source.folders(place) if s.isdigit())
        for name, place in _corruption_folders(source).items()
    }


def _corruption_folders(source: Source) -> dict[str, str]:
    """Every folder that holds severities, by its own name: in the root, or in an archive's folder."""
    top = source.folders()
    places = {f"{archive}/{name}": name for archive in ARCHIVES if archive in top for name in source.folders(archive)}
    places |= {name: name for name in top}
    return {name: place for place, name in places.items() if any(s.isdigit() for s in source.folders(place))}


POTPOURRI = ("imagenet-c", "imagenet-r", "imagenet-a", "imagenet-sketch")
"""The parts of the mixture "potpourri", each in a folder of its name (MoETTA, arXiv 2511.13760)."""


def potpourri(root: str | os.PathLike[str], severity: int = 5) -> EncodedImages:
    """All images of ImageNet-C (15 corruptions at one severity), -R, -A and -Sketch as one set over the 1000 classes."""
    folder = Path(root)
    missing = [part for part in POTPOURRI if not (folder / part).exists()]
    if missing:
        raise layout_error(
            f"potpourri in {folder}: {', '.join(missing)} missing",
            expected=f"<root>/{{{','.join(POTPOURRI)}}}, each as its reader expects it",
            found=some_of(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else "no such folder",
            remedy="put the sets, or links to them, into one folder",
        )
    parts = {f"{name}-{severity}": imagenet_c(folder / "imagenet-c", name, severity) for name in CORRUPTIONS}
    parts |= {name: imagenet_variant(name, folder / name) for name in POTPOURRI[1:]}
    labels = [part.labels if part.outputs is None else part.outputs[part.labels] for part in parts.values()]
    counts = [f"{len(part)} of {name}" for name, part in parts.items()]
    return EncodedImages(
        [file for part in parts.values() for file in part.files],
        np.concatenate(labels),
        list(imagenet_classes()),
        note=f"potpourri: {', '.join(counts)}",
    )
