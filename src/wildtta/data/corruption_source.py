"""Clean images to corrupt, and the names that their corrupted versions get."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath

from torch import Tensor

from wildtta.data.decoding import decode
from wildtta.data.encoded import is_image
from wildtta.data.errors import BrokenImage, DataError, layout_error, some_of
from wildtta.data.folder import class_root
from wildtta.data.preprocessing import IMAGENET_MEAN, IMAGENET_STD, InputProtocol
from wildtta.data.sources import Source, files_below, open_source


@dataclass(frozen=True)
class SourceImage:
    """One clean image: where to read it and where its corrupted versions go, below ``<corruption>/<severity>``."""

    member: str
    output: str


@dataclass(frozen=True)
class CorruptionSource:
    """All images of a folder or archive, in the order of ``wildtta.data.folder``.

    An image's position is its index for the random numbers, so files written from a folder equal what the same folder
    gives when it is corrupted on the fly with the same seed (up to the JPEG that the file is).
    """

    source: Source
    images: tuple[SourceImage, ...]

    def __len__(self) -> int:
        return len(self.images)

    def decode(self, position: int, size: int | None) -> Tensor:
        """The image as uint8 ``[3, H, W]``; with ``size``, its shorter side resized and the centre cut, as published."""
        member = self.images[position].member
        try:
            content = self.source.read(member)
        # Archives raise their own kinds (BadZipFile, zlib.error) besides OSError.
        except Exception as error:
            raise BrokenImage(f"{self.source.where(member)} cannot be read ({error})") from error
        pixels = decode(content, self.source.where(member))
        return pixels if size is None else resize_and_cut(pixels, size)


def list_images(path: str | os.PathLike[str]) -> CorruptionSource:
    """The images of a folder, zip or tar with one subfolder per class."""
    source = open_source(path)
    root = class_root(source)
    images = []
    for name in source.folders(root):
        members = files_below(source, f"{root}/{name}" if root else name)
        images += [
            SourceImage(member, f"{name}/{PurePosixPath(member).stem}.JPEG") for member in members if is_image(member)
        ]
    if not images:
        raise layout_error(
            f"no images to corrupt in {source.path}",
            expected="<root>/<class>/<image>, one folder per class (a zip or tar of that layout will do)",
            found=some_of(source.folders(root) + source.files(root)),
        )
    seen: dict[str, str] = {}
    for image in images:
        if image.output in seen:
            raise DataError(
                f"{seen[image.output]} and {image.member} would both be written as {image.output}; rename one of them"
            )
        seen[image.output] = image.member
    return CorruptionSource(source, tuple(images))


def resize_and_cut(pixels: Tensor, size: int) -> Tensor:
    """Resize the shorter side and cut the centre square: 256 and 224 as ImageNet-C was made, other sizes in that ratio."""
    protocol = InputProtocol("cut", IMAGENET_MEAN, IMAGENET_STD, size=size, resize=round(size * 256 / 224))
    return protocol.fit(pixels)
