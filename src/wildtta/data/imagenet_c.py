"""ImageNet-C as published: one folder per corruption and severity, one archive per group of corruptions."""

from __future__ import annotations

import os

from wildtta.data.encoded import EncodedImages
from wildtta.data.errors import layout_error, some_of
from wildtta.data.folder import read_classes
from wildtta.data.imagenet_classes import imagenet_classes
from wildtta.data.sources import Source, open_source

ARCHIVES = ("noise", "blur", "weather", "digital", "extra")
"""The published archives; each unpacks into corruptions, often kept in a folder of the archive's name."""

LAYOUT = (
    "<root>/<corruption>/<severity>/<wnid>/*.JPEG with 1000 wnids of 50 images, "
    "or the same below <root>/noise, blur, weather, digital, extra"
)


def imagenet_c(root: str | os.PathLike[str], corruption: str, severity: int) -> EncodedImages:
    """One corruption at one severity; `root` is a folder, a zip or a tar.

    An equal number of images in every class other than 50 is taken as a deliberate subset and noted; unequal numbers
    are an error, since the published set has none.
    """
    source = open_source(root)
    where = _corruption_folder(source, corruption)
    severities = source.folders(where)
    if str(severity) not in severities:
        raise layout_error(
            f"ImageNet-C in {source.path}: {corruption} has no severity {severity}",
            expected=LAYOUT,
            found=f"severities {some_of(severities)} in {where}",
            remedy="unpack the archive again, completely",
        )
    return read_classes(
        source,
        f"{where}/{severity}",
        imagenet_classes(),
        what=f"ImageNet-C {corruption} {severity} in {source.path}",
        expected=LAYOUT,
        equal_counts=True,
        usual_count=50,
    )


def corruptions_in(root: str | os.PathLike[str]) -> dict[str, list[int]]:
    """The corruptions found below `root`, each with its severities."""
    source = open_source(root)
    return {
        place.rpartition("/")[2]: sorted(int(s) for s in source.folders(place) if s.isdigit())
        for place in _corruption_folders(source)
    }


def _corruption_folders(source: Source) -> list[str]:
    """Every folder that holds severities: directly in the root, or in an archive's folder."""
    top = source.folders()
    in_archives = [f"{archive}/{name}" for archive in ARCHIVES if archive in top for name in source.folders(archive)]
    return [place for place in (*top, *in_archives) if any(s.isdigit() for s in source.folders(place))]


def _corruption_folder(source: Source, corruption: str) -> str:
    places = _corruption_folders(source)
    for place in places:
        if place.rpartition("/")[2] == corruption:
            return place
    raise layout_error(
        f"ImageNet-C in {source.path}: no corruption {corruption!r}",
        expected=LAYOUT,
        found=f"corruptions {some_of(places, shown=20)}; folders {some_of(source.folders())}",
        remedy="unpack the archive with this corruption there, or name the folder that holds the corruptions",
    )
