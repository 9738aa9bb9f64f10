"""Batches of a stream as tensors on the device: decoded in parallel, copied without waiting, always in stream order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from wildtta.data.batch_reading import BatchReader, ReadBatch, corrupt_by_domain, encoded_set
from wildtta.data.decoding import decode, decode_jpegs_on
from wildtta.data.encoded import stack
from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.image_set import ImageSet
from wildtta.data.preprocessing import InputProtocol, input_protocol
from wildtta.streams.stream import Batch, Domain, Stream

ON_ERROR = ("raise", "skip")
DECODERS = ("cpu", "gpu")


class LoadedBatch(NamedTuple):
    """A batch ready for the network. Broken images that were skipped are missing in all of its parts."""

    images: Tensor
    labels: Tensor
    domains: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int64]
    reset: bool
    start: int


class StreamLoader:
    """The batches of a stream over one image set per domain.

    Args:
        sets: one per domain of the stream. `Corrupted` ones are corrupted after resizing and cropping, on the device.
        stream: what comes when.
        protocol: a preprocessing protocol or its name.
        network: for protocol "timm".
        device: where the batches shall be. On a GPU they come from pinned memory by non-blocking copies, as uint8.
        workers: processes that read and decode; 0: in this process. The batches are the same whatever the number.
        decoder: "cpu" (Pillow) or "gpu": JPEGs are decoded by the GPU, where torchvision can (they may differ from
            the CPU's by a grey level or two); everything else still on the CPU.
        on_error: "raise" a `BrokenImage` that names the file, or "skip" it: left out of its batch, warned of and
            listed in `broken`.
    """

    def __init__(
        self,
        sets: Sequence[ImageSet],
        stream: Stream,
        *,
        protocol: str | InputProtocol,
        network: nn.Module | None = None,
        device: str | torch.device = "cpu",
        workers: int = 0,
        decoder: str = "cpu",
        on_error: str = "raise",
    ) -> None:
        if len(sets) != len(stream.domains):
            raise DataError(f"the stream has {len(stream.domains)} domains, but {len(sets)} image sets were given")
        for number, image_set in enumerate(sets):
            own = stream.index[stream.domain == number]
            if len(own) and int(own.max()) >= len(image_set):
                raise DataError(
                    f"the stream asks for image {int(own.max())} of {stream.domains[number]}, "
                    f"whose set has {len(image_set)} images"
                )
        if on_error not in ON_ERROR or decoder not in DECODERS:
            raise DataError(
                f"on_error must be one of {', '.join(ON_ERROR)} and decoder one of {', '.join(DECODERS)}, "
                f"got {on_error!r} and {decoder!r}"
            )
        self.device = torch.device(device)
        if decoder == "gpu" and self.device.type != "cuda":
            raise DataError(f"decoder='gpu' needs a CUDA device, got device {str(self.device)!r}; use decoder='cpu'")
        self.sets = sets
        self.stream = stream
        self.protocol = input_protocol(protocol, network)
        self.workers = workers
        self.on_error = on_error
        self.decoder = decoder
        self.broken: list[str] = []
        """What was wrong with the images skipped so far, by file."""

    def __len__(self) -> int:
        """The number of batches of the stream."""
        return self.stream.batch_count

    def __iter__(self) -> Iterator[LoadedBatch]:
        reader = BatchReader(
            self.sets, self.stream, self.protocol, encoded=self.decoder == "gpu", corrupt=self.device.type == "cpu"
        )
        loader: DataLoader[ReadBatch] = DataLoader(
            reader,
            batch_size=None,
            shuffle=False,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            # Otherwise the loader takes a base seed for its workers from the global generator.
            generator=torch.Generator(),
        )
        reset_pending = False
        for batch, read in zip(self.stream.batches(), loader, strict=True):
            reset_pending |= batch.reset
            kept, images = self._finish(batch, read)
            if len(kept):
                indices, domains = batch.indices[kept], batch.domains[kept]
                yield LoadedBatch(
                    images=self.protocol.normalise(self._corrupt(images, domains, indices)),
                    labels=self._labels(domains, indices),
                    domains=domains,
                    indices=indices,
                    reset=reset_pending,
                    start=batch.start,
                )
                reset_pending = False

    def _finish(self, batch: Batch, read: ReadBatch) -> tuple[npt.NDArray[np.int64], Tensor]:
        """Which of the batch's images there are, and they as uint8 on the device."""
        for problem in read["broken"]:
            self._report(problem)
        images = read["images"].to(self.device, non_blocking=True)
        kept = read["kept"].numpy()
        if not len(read["jpeg_kept"]):
            return kept, images
        jpegs = list(torch.split(read["jpegs"], read["jpeg_sizes"].tolist()))
        positions, decoded = self._decode_on_device(batch, read["jpeg_kept"].numpy(), jpegs)
        if not decoded:
            return kept, images
        places = np.concatenate([kept, positions])
        order = np.argsort(places, kind="stable")
        parts = [*images, *decoded]
        return places[order], stack([parts[i] for i in order])

    def _decode_on_device(
        self, batch: Batch, positions: npt.NDArray[np.int64], jpegs: list[Tensor]
    ) -> tuple[npt.NDArray[np.int64], list[Tensor]]:
        try:
            return positions, [self.protocol.fit(i) for i in decode_jpegs_on(self.device, jpegs)]
        except RuntimeError as error:
            warnings.warn(f"the GPU could not decode a batch of JPEGs, so the CPU does: {error}", stacklevel=4)
            # One file that the hardware can't decode (CMYK, broken) fails the whole call: Pillow tells which is broken.
            kept, images = [], []
            for position, jpeg in zip(positions, jpegs, strict=True):
                image_set = encoded_set(self.sets[int(batch.domains[position])])
                assert image_set is not None
                try:
                    image = decode(jpeg.numpy().tobytes(), image_set.where(int(batch.indices[position])))
                except BrokenImage as problem:
                    self._report(str(problem))
                else:
                    kept.append(int(position))
                    images.append(self.protocol.fit(image.to(self.device)))
            return np.array(kept, dtype=np.int64), images

    def _report(self, problem: str) -> None:
        if self.on_error == "raise":
            raise BrokenImage(f"{problem}; on_error='skip' leaves such images out")
        self.broken.append(problem)
        warnings.warn(f"skipped a broken image ({len(self.broken)} so far): {problem}", stacklevel=3)

    def _corrupt(
        self, images: Tensor, domains: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]
    ) -> Tensor:
        if self.device.type == "cpu":  # done by the workers
            return images
        return corrupt_by_domain(self.sets, images, domains, indices)

    def _labels(self, domains: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> Tensor:
        labels = np.empty(len(indices), dtype=np.int64)
        for number in np.unique(domains):
            own = domains == number
            labels[own] = self.sets[int(number)].labels[indices[own]]
        return torch.from_numpy(labels).to(self.device)


class Loader:
    """(images, labels) of one image set in a given order; the rest as in `StreamLoader`.

    >>> from wildtta.data import ArrayImages
    >>> images = ArrayImages(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), [0, 1, 2, 0, 1])
    >>> [labels.tolist() for _, labels in Loader(images, [4, 3, 2], batch_size=2, protocol="native")]
    [[1, 0], [2]]
    """

    def __init__(
        self,
        image_set: ImageSet,
        indices: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        batch_size: int = 64,
        protocol: str | InputProtocol,
        **settings: Any,
    ) -> None:
        order = np.arange(len(image_set)) if indices is None else np.asarray(indices, dtype=np.int64)
        self._stream_loader = StreamLoader(
            [image_set],
            Stream(
                scenario="given",
                domains=(Domain("given"),),
                domain=np.zeros(len(order), dtype=np.int64),
                index=order,
                batch_size=batch_size,
            ),
            protocol=protocol,
            **settings,
        )
        self.protocol = self._stream_loader.protocol

    @property
    def broken(self) -> list[str]:
        """What was wrong with the images skipped so far, by file."""
        return self._stream_loader.broken

    def __len__(self) -> int:
        return len(self._stream_loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._stream_loader:
            yield batch.images, batch.labels
