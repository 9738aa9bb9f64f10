"""The part of loading that runs in worker processes: read, decode, resize and crop a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from wildtta.data.corrupted import Corrupted
from wildtta.data.decoding import decode, is_jpeg
from wildtta.data.encoded import EncodedImages, stack
from wildtta.data.errors import BrokenImage
from wildtta.data.image_set import ImageSet
from wildtta.data.preprocessing import InputProtocol
from wildtta.streams.stream import Stream


class ReadBatch(TypedDict):
    """What a worker hands over: tensors and text only, so that it can be shared and pinned."""

    images: Tensor  # uint8 [n, 3, H, W], fitted
    kept: Tensor  # int64 [n]: their places in the batch
    jpegs: Tensor  # uint8: the bytes of the files that the GPU is to decode, one after the other
    jpeg_sizes: Tensor  # int64
    jpeg_kept: Tensor  # int64: their places in the batch
    broken: list[str]


class BatchReader(Dataset[ReadBatch]):
    """Reads, decodes, resizes and crops batch after batch; runs in the workers."""

    def __init__(
        self,
        sets: Sequence[ImageSet],
        stream: Stream,
        protocol: InputProtocol,
        *,
        encoded: bool,
        corrupt: bool,
    ) -> None:
        self._sets = sets
        self._stream = stream
        self._protocol = protocol
        self._encoded = encoded
        self._corrupt = corrupt

    def __len__(self) -> int:
        return self._stream.batch_count

    def __getitem__(self, number: int) -> ReadBatch:
        batch = self._stream.batch(number)
        images: dict[int, Tensor] = {}
        jpegs: dict[int, bytes] = {}
        broken: list[str] = []
        for domain in np.unique(batch.domains):
            places = np.flatnonzero(batch.domains == domain)
            image_set = self._sets[int(domain)]
            files = encoded_set(image_set)
            if files is None:
                clean = image_set.clean if isinstance(image_set, Corrupted) else image_set
                fitted = self._protocol.fit(clean.images(batch.indices[places]))
                images.update(zip(places.tolist(), fitted, strict=True))
                continue
            for place in places.tolist():
                read = self._read_file(files, int(batch.indices[place]))
                if isinstance(read, Tensor):
                    images[place] = read
                elif isinstance(read, bytes):
                    jpegs[place] = read
                else:
                    broken.append(str(read))
        kept = np.array(sorted(images), dtype=np.int64)
        together = stack([images[i] for i in kept]) if len(kept) else torch.empty(0, 3, 0, 0, dtype=torch.uint8)
        if self._corrupt and len(kept):
            together = corrupt_by_domain(self._sets, together, batch.domains[kept], batch.indices[kept])
        return {
            "images": together,
            "kept": torch.from_numpy(kept),
            "jpegs": torch.frombuffer(bytearray(b"".join(jpegs.values()) or b"\0"), dtype=torch.uint8),
            "jpeg_sizes": torch.tensor([len(j) for j in jpegs.values()], dtype=torch.int64),
            "jpeg_kept": torch.tensor(list(jpegs), dtype=torch.int64),
            "broken": broken,
        }

    def _read_file(self, files: EncodedImages, position: int) -> Tensor | bytes | BrokenImage:
        """The fitted image, the bytes of a JPEG that the GPU is to decode, or what is wrong with the file."""
        try:
            encoded = files.encoded(position)
            if self._encoded and is_jpeg(encoded):
                return encoded
            return self._protocol.fit(decode(encoded, files.where(position)))
        except BrokenImage as problem:
            return problem


def encoded_set(image_set: ImageSet) -> EncodedImages | None:
    """The files behind a set, if it is made of files."""
    behind = image_set.clean if isinstance(image_set, Corrupted) else image_set
    return behind if isinstance(behind, EncodedImages) else None


def corrupt_by_domain(
    sets: Sequence[ImageSet], images: Tensor, domains: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]
) -> Tensor:
    """Images of `Corrupted` sets corrupted where they are; the others as they were."""
    result = images
    for number in np.unique(domains):
        image_set = sets[int(number)]
        if isinstance(image_set, Corrupted):
            own = np.flatnonzero(domains == number)
            places = torch.from_numpy(own).to(images.device)
            result = result.index_copy(0, places, image_set.apply(images[places], indices[own]))
    return result
