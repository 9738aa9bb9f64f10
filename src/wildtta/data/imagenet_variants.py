"""ImageNet's validation set and its natural variants: -R, -A, -V2, -Sketch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from wildtta.data.encoded import EncodedImages
from wildtta.data.errors import DataError
from wildtta.data.folder import class_root, read_classes
from wildtta.data.imagenet_classes import imagenet_classes, outputs_of
from wildtta.data.sources import Source, open_source


@dataclass(frozen=True)
class Variant:
    """A published set: its title, class list, the folder its archive unpacks to, and what its classes look like."""

    title: str
    subset: str = ""
    folders: tuple[str, ...] = ()
    numbered: bool = False
    """Class folders are called 0..999 (ImageNet-V2) instead of by wnid."""
    per_class: int | None = None
    """Images per class, where all classes have equally many."""

    @property
    def layout(self) -> str:
        count = 200 if self.subset else 1000
        kind = "number 0..999" if self.numbered else "wnid"
        return f"<root>/<{kind}>/<image>, {count} class folders" + (
            f" of {self.per_class} images" if self.per_class else ""
        )


VARIANTS: dict[str, Variant] = {
    "imagenet": Variant("ImageNet validation", folders=("val", "validation"), per_class=50),
    "imagenet-r": Variant("ImageNet-R", subset="r", folders=("imagenet-r",)),
    "imagenet-a": Variant("ImageNet-A", subset="a", folders=("imagenet-a",)),
    "imagenet-v2": Variant(
        "ImageNet-V2",
        folders=(
            "imagenetv2-matched-frequency-format-val",
            "imagenetv2-threshold0.7-format-val",
            "imagenetv2-top-images-format-val",
        ),
        numbered=True,
        per_class=10,
    ),
    "imagenet-sketch": Variant("ImageNet-Sketch", folders=("sketch", "imagenet-sketch")),
}
"""The sets by the name under which a benchmark asks for them."""


def imagenet_variant(name: str, root: str | os.PathLike[str]) -> EncodedImages:
    """The set of this name; `root` is its folder or the one around it, a zip or a tar.

    Labels count the set's own classes; where these are a subset of the 1000 (-R, -A), `outputs` holds their positions
    among a network's outputs (`restrict_classes` masks a network to them).
    """
    if name not in VARIANTS:
        raise DataError(f"unknown ImageNet variant {name!r}; known: {', '.join(VARIANTS)}")
    variant = VARIANTS[name]
    source = open_source(root)
    wnids = imagenet_classes(variant.subset)
    folders = tuple(str(i) for i in range(len(wnids))) if variant.numbered else wnids
    return read_classes(
        source,
        _root_of(source, variant, folders),
        folders,
        what=f"{variant.title} in {source.path}",
        expected=variant.layout,
        class_names=wnids,
        outputs=outputs_of(wnids) if variant.subset else None,
        equal_counts=variant.per_class is not None,
        usual_count=variant.per_class,
    )


def _root_of(source: Source, variant: Variant, folders: tuple[str, ...]) -> str:
    """Where the class folders are: in the root itself, in the archive's folder, or in folders that only wrap them."""
    top = source.folders()
    if set(top) & set(folders):
        return ""
    named = [name for name in variant.folders if name in top]
    return named[0] if named else class_root(source)


def _reader(name: str) -> Callable[[str | os.PathLike[str]], EncodedImages]:
    def read(root: str | os.PathLike[str]) -> EncodedImages:
        return imagenet_variant(name, root)

    read.__name__ = read.__qualname__ = name.replace("-", "_")
    read.__doc__ = f"{VARIANTS[name].title}: {VARIANTS[name].layout}."
    return read


imagenet = _reader("imagenet")
imagenet_r = _reader("imagenet-r")
imagenet_a = _reader("imagenet-a")
imagenet_v2 = _reader("imagenet-v2")
imagenet_sketch = _reader("imagenet-sketch")
