"""Batches of a stream as tensors on the device: decoded in parallel, copied without waiting, in order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from wildtta.data.batch_reading import BatchReader, ReadBatch, assembled, corrupt_by_domain
from wildtta.data.device_cache import kept_images
from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.image_files import EncodedImages, decode, decode_jpegs_on, stack
from wildtta.data.image_set import ImageSet, Indices, clean_set
from wildtta.data.preprocessing import InputProtocol, input_protocol
from wildtta.streams.labels import IntArray
from wildtta.streams.stream import Batch, Stream, given

_GATHERED_AT_ONCE = 1024


class LoadedBatch(NamedTuple):
    """A batch ready for the network. Broken images that were skipped are missing in all of its parts."""

    images: Tensor
    labels: Tensor
    domains: IntArray
    indices: IntArray
    reset: bool
    start: int


class StreamLoader:
    """The batches of a stream over one image set per domain.

    Args:
        sets: one per domain of the stream. `Corrupted` ones are corrupted after the crop, on the device.
        stream: what comes when.
        protocol: a preprocessing protocol or its name.
        network: for protocol "timm".
        device: where the batches shall be. To a GPU, uint8 is copied from pinned memory without blocking.
        workers: processes that read and decode; 0: this one. Their number does not change the batches.
        decoder: "cpu" (Pillow) or "gpu": JPEGs are decoded by the GPU, where torchvision can (they may differ
            from the CPU's by a grey level or two); everything else still on the CPU.
        on_error: "raise" a `BrokenImage` that names the file, or "skip" it: left out of its batch, warned of
            and listed in `broken`.
        cache: decode and corrupt every image once per process and keep it on the device, where a set takes at
            most 1 GiB. Needs decoder "cpu" and on_error "raise".
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
        cache: bool = False,
    ) -> None:
        if len(sets) != len(stream.domains):
            raise DataError(f"the stream has {len(stream.domains)} domains, but {len(sets)} image sets were given")
        for number, image_set in enumerate(sets):
            last = int(stream.index[stream.domain == number].max(initial=-1))
            if last >= len(image_set):
                asked = f"image {last} of {stream.domains[number]}"
                raise DataError(f"the stream asks for {asked}, whose set has {len(image_set)} images")
        if on_error not in ("raise", "skip") or decoder not in ("cpu", "gpu"):
            allowed = "on_error must be one of raise, skip and decoder one of cpu, gpu"
            raise DataError(f"{allowed}, got {on_error!r} and {decoder!r}")
        self.device = torch.device(device)
        if decoder == "gpu" and self.device.type != "cuda":
            raise DataError(f"decoder='gpu' needs a CUDA device, got device {str(self.device)!r}; use decoder='cpu'")
        if cache and (decoder, on_error) != ("cpu", "raise"):
            raise DataError(f"cache=True needs decoder='cpu' and on_error='raise', got {decoder!r} and {on_error!r}")
        self.sets = sets
        self.stream = stream
        self.protocol = input_protocol(protocol, network)
        self.workers = workers
        self.on_error = on_error
        self.decoder = decoder
        self.cache = cache
        self.broken: list[str] = []
        """What was wrong with the images skipped so far, by file."""

    def __len__(self) -> int:
        return self.stream.batch_count

    def __iter__(self) -> Iterator[LoadedBatch]:
        return self._batches(self.protocol.normalise)

    def pixels(self) -> Iterator[LoadedBatch]:
        """The same batches before normalisation: uint8."""
        return self._batches(lambda images: images)

    def _batches(self, finish: Callable[[Tensor], Tensor]) -> Iterator[LoadedBatch]:
        all_labels = [torch.tensor(image_set.labels) for image_set in self.sets]
        for images, batches in self._from_cache() if self.cache else self._from_files():
            sizes = [len(batch.indices) for batch in batches]
            labels = torch.split(_gathered(batches, all_labels).to(self.device), sizes)
            for batch, inputs, own in zip(batches, torch.split(finish(images), sizes), labels, strict=True):
                yield LoadedBatch(inputs, own, *batch)

    def _from_cache(self) -> Iterator[tuple[Tensor, list[Batch]]]:
        """Several batches at once: at batch size 1 many small copies would cost more than the network."""
        found = [kept_images(image_set, self.protocol, self.device) for image_set in self.sets]
        kept = [images for images in found if images is not None]
        if len(kept) < len(found):
            yield from self._from_files()
            return
        for number, images in enumerate(kept):
            images.fill(np.unique(self.stream.index[self.stream.domain == number]))
        every = range(len(self))
        at_once = -(-_GATHERED_AT_ONCE // self.stream.batch_size)
        for start in every[::at_once]:
            batches = [self.stream.batch(number) for number in every[start : start + at_once]]
            yield _gathered(batches, [images.pixels for images in kept]), batches

    def _from_files(self) -> Iterator[tuple[Tensor, list[Batch]]]:
        in_worker = self.device.type == "cpu"
        reader = BatchReader(self.sets, self.stream, self.protocol, encoded=self.decoder == "gpu", corrupt=in_worker)
        loader: DataLoader[ReadBatch] = DataLoader(
            reader,
            batch_size=None,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            # Otherwise the loader takes a base seed for its workers from the global generator.
            generator=torch.Generator(),
        )
        reset = False
        for batch, read in zip(self.stream.batches(), loader, strict=True):
            reset |= batch.reset
            places, images = self._decoded(batch, read)
            if len(places):
                left = Batch(batch.domains[places], batch.indices[places], reset, batch.start)
                if not in_worker:
                    images = corrupt_by_domain(self.sets, images, left.domains, left.indices)
                yield images, [left]
                reset = False

    def _decoded(self, batch: Batch, read: ReadBatch) -> tuple[IntArray, Tensor]:
        """Which of the batch's images there are, and they as uint8 on the device."""
        for problem in read["broken"]:
            self._report(problem)
        images = read["images"].to(self.device, non_blocking=True)
        kept = read["kept"].numpy()
        if not len(read["jpeg_kept"]):
            return kept, images
        jpegs = torch.split(read["jpegs"], read["jpeg_sizes"].tolist())
        decoded = self._decoded_jpegs(batch, dict(zip(read["jpeg_kept"].tolist(), jpegs, strict=True)))
        decoded.update(zip(kept.tolist(), images, strict=True))
        places = sorted(decoded)
        return np.array(places, dtype=np.int64), stack([decoded[place] for place in places])

    def _decoded_jpegs(self, batch: Batch, jpegs: dict[int, Tensor]) -> dict[int, Tensor]:
        """By their places in the batch. Those that are broken are left out."""
        decoded = {}
        try:
            for place, image in zip(jpegs, decode_jpegs_on(self.device, list(jpegs.values())), strict=True):
                decoded[place] = self.protocol.fit(image)
            return decoded
        except RuntimeError as error:
            warnings.warn(f"the GPU could not decode a batch of JPEGs, so the CPU does: {error}", stacklevel=5)
        # One file that the hardware can't decode (CMYK, broken) fails the whole call: Pillow tells which.
        for place, jpeg in jpegs.items():
            files = clean_set(self.sets[int(batch.domains[place])])
            assert isinstance(files, EncodedImages), "only files are handed over undecoded"
            try:
                image = decode(jpeg.numpy().tobytes(), files.where(int(batch.indices[place])))
                decoded[place] = self.protocol.fit(image.to(self.device))
            except BrokenImage as problem:
                self._report(str(problem))
        return decoded

    def _report(self, problem: str) -> None:
        if self.on_error == "raise":
            raise BrokenImage(f"{problem}; on_error='skip' leaves such images out")
        self.broken.append(problem)
        warnings.warn(f"skipped a broken image ({len(self.broken)} so far): {problem}", stacklevel=5)


def _gathered(batches: Sequence[Batch], of_sets: Sequence[Tensor]) -> Tensor:
    """What these batches take from one tensor per set, whose rows are its images."""
    indices = np.concatenate([batch.indices for batch in batches])
    domains = np.concatenate([batch.domains for batch in batches])
    return assembled(domains, lambda number, places: of_sets[number][torch.from_numpy(indices[places])])


class Loader(StreamLoader):
    """(images, labels) of one image set in a given order; the rest as in `StreamLoader`.

    >>> from wildtta.data import ArrayImages
    >>> images = ArrayImages(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), [0, 1, 2, 0, 1])
    >>> [labels.tolist() for _, labels in Loader(images, [4, 3, 2], batch_size=2, protocol="native")]
    [[1, 0], [2]]
    """

    def __init__(
        self,
        image_set: ImageSet,
        indices: Indices | None = None,
        *,
        batch_size: int = 64,
        protocol: str | InputProtocol,
        **settings: Any,
    ) -> None:
        order = np.arange(len(image_set)) if indices is None else np.asarray(indices, dtype=np.int64)
        super().__init__([image_set], given(order, batch_size), protocol=protocol, **settings)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:  # type: ignore[override]
        for batch in super().__iter__():
            yield batch.images, batch.labels
