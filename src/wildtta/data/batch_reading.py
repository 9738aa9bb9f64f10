"""The part of loading that runs in worker processes: read, decode, resize and crop a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from wildtta.data.errors import BrokenImage
from wildtta.data.image_files import EncodedImages, check_size, decode, stack
from wildtta.data.image_set import Corrupted, ImageSet, Indices, clean_set
from wildtta.data.preprocessing import InputProtocol
from wildtta.streams.labels import IntArray
from wildtta.streams.stream import Stream


def read_fitted(image_set: ImageSet, positions: Indices, protocol: InputProtocol) -> Tensor:
    """Images at the protocol's size, uint8 [n, 3, H, W]; without a size they must be of one size."""
    if isinstance(image_set, EncodedImages):
        return stack([protocol.fit(image_set.decoded(int(position))) for position in positions])
    return protocol.fit(image_set.images(positions))


def by_domain(domains: IntArray) -> Iterator[tuple[int, IntArray]]:
    """The number of each domain that occurs, and its places."""
    for number in np.unique(domains):
        yield int(number), np.flatnonzero(domains == number)


def assembled(domains: IntArray, part: Callable[[int, IntArray], Tensor]) -> Tensor:
    """What `part` gives for the places of each domain, as one tensor in the order of `domains`."""
    places = dict(by_domain(domains))
    parts = [part(number, own) for number, own in places.items()]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts)[torch.from_numpy(np.argsort(np.concatenate([*places.values()])))]


def corrupt_by_domain(sets: Sequence[ImageSet], images: Tensor, domains: IntArray, indices: IntArray) -> Tensor:
    """Images of `Corrupted` sets corrupted where they are; the others as they were."""

    def part(number: int, places: IntArray) -> Tensor:
        image_set, own = sets[number], images[torch.from_numpy(places)]
        return image_set.apply(own, indices[places]) if isinstance(image_set, Corrupted) else own

    return assembled(domains, part)


class ReadBatch(TypedDict):
    """What a worker hands over: tensors and text only, so that it can be shared and pinned."""

    images: Tensor  # uint8 [n, 3, H, W], fitted
    kept: Tensor  # int64 [n]: their places in the batch
    jpegs: Tensor  # uint8: the bytes of the files that the GPU is to decode, one after the other
    jpeg_sizes: Tensor  # int64
    jpeg_kept: Tensor  # int64: their places in the batch
    broken: list[str]


@dataclass
class BatchReader(Dataset[ReadBatch]):
    """Batch after batch of a stream."""

    sets: Sequence[ImageSet]
    stream: Stream
    protocol: InputProtocol
    encoded: bool
    """Leave JPEGs as they are: the GPU decodes them."""
    corrupt: bool
    """Corrupt the images of `Corrupted` sets here, in the worker."""

    def __len__(self) -> int:
        return self.stream.batch_count

    def __getitem__(self, number: int) -> ReadBatch:
        batch = self.stream.batch(number)
        images: dict[int, Tensor] = {}
        jpegs: dict[int, bytes] = {}
        broken: list[str] = []
        for domain, places in by_domain(batch.domains):
            clean = clean_set(self.sets[domain])
            if not isinstance(clean, EncodedImages):
                fitted = read_fitted(clean, batch.indices[places], self.protocol)
                images.update(zip(places.tolist(), fitted, strict=True))
                continue
            for place in places.tolist():
                position = int(batch.indices[place])
                try:
                    content = clean.encoded(position)
                    # By its first bytes: a file may be called otherwise than it is.
                    if self.encoded and content.startswith(b"\xff\xd8\xff"):
                        check_size(content, clean.where(position))
                        jpegs[place] = content
                    else:
                        images[place] = self.protocol.fit(decode(content, clean.where(position)))
                except BrokenImage as problem:
                    broken.append(str(problem))
        kept = np.array(sorted(images), dtype=np.int64)
        together = stack([images[i] for i in kept])
        if self.corrupt and len(kept):
            together = corrupt_by_domain(self.sets, together, batch.domains[kept], batch.indices[kept])
        return {
            "images": together,
            "kept": torch.from_numpy(kept),
            "jpegs": torch.frombuffer(bytearray(b"".join(jpegs.values()) or b"\0"), dtype=torch.uint8),
            "jpeg_sizes": torch.tensor([len(j) for j in jpegs.values()], dtype=torch.int64),
            "jpeg_kept": torch.tensor(list(jpegs), dtype=torch.int64),
            "broken": broken,
        }
