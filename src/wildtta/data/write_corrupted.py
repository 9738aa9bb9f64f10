"""Write a corrupted copy of a data set: ``<corruption>/<severity>/<class>/<name>.JPEG``, as ImageNet-C.

Every file is written under another name and moved into place, so a file that exists is complete. A run that
was killed continues where it stopped. An image's result depends on its position and the seed only, so the
outcome equals that of an uninterrupted run, whatever the number of workers.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

import torch
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, Constants, corrupt
from wildtta.corruptions.frost_textures import find_folder
from wildtta.data.class_folders import LAYOUT, class_root, list_classes
from wildtta.data.errors import BrokenImage, DataError, layout_error, some_of
from wildtta.data.image_files import EncodedImages
from wildtta.data.preprocessing import PROTOCOLS
from wildtta.data.sources import open_source

SETTINGS_FILE = "corruption-settings.json"
_PARTIAL_FOLDER = ".partial"
_IMAGES_PER_JOB = 32
_JPEG_QUALITY = 85

Job = tuple[str, range]
"""A corruption, and the positions of the images to write under it."""


@dataclass(frozen=True)
class Settings:
    """Everything that a written file depends on besides its name."""

    seed: int = 0
    size: int | None = None
    """Resize the shorter side and cut the centre square, in ImageNet-C's ratio of 256 to 224."""
    constants: Constants = "auto"
    frost_dir: str | None = None
    device: str = "cpu"


@dataclass
class Progress:
    """Counts of output files; ``total`` covers all corruptions and severities asked for."""

    total: int
    written: int = 0
    kept: int = 0
    broken: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
        return self.written + self.kept


def write_corrupted(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    settings: Settings | None = None,
    workers: int = 1,
    broken: Literal["fatal", "skip"] = "fatal",
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Corrupt all images of ``source`` and write what ``destination`` does not hold yet.

    An image's position in ``source``, as :func:`wildtta.data.folder` counts, is its index for the random
    numbers. What is written therefore equals what the same folder gives when it is corrupted on the fly with
    the same seed, up to the JPEG.

    Args:
        source: folder with one subfolder per class, or a zip archive of one.
        destination: folder of the result; one that was begun with the same settings is continued.
        workers: processes that decode, corrupt and encode; 1 works in this process.
        broken: whether an image that cannot be decoded stops the run or is left out and named in the result.
        report: called after each finished piece of work.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    settings = settings or Settings()
    images = _clean_images(source)
    writer = _Writer(images, _output_names(images), Path(destination), severities, settings, broken)
    every = range(len(images))
    parts = [every[start : start + _IMAGES_PER_JOB] for start in every[::_IMAGES_PER_JOB]]
    jobs = [(name, part) for name in corruptions for part in parts]
    progress = Progress(total=len(images) * len(corruptions) * len(severities))
    with _exclusive(writer.destination):
        _check_settings(writer)
        for result in _results(writer, jobs, workers):
            progress.written += result.written
            progress.kept += result.kept
            progress.broken += [name for name in result.broken if name not in progress.broken]
            if report is not None:
                report(progress)
    return progress


def _clean_images(path: str | os.PathLike[str]) -> EncodedImages:
    source = open_source(path)
    root = class_root(source)
    images = list_classes(source, root, source.folders(root))
    if not len(images):
        found = some_of(source.folders(root) + source.files(root))
        raise layout_error(f"no images to corrupt in {source.path}", expected=LAYOUT, found=found)
    return images


def _output_names(images: EncodedImages) -> list[str]:
    """Where the corrupted versions of every image go, below ``<corruption>/<severity>``."""
    member_of: dict[str, str] = {}
    for (_, member), label in zip(images.files, images.labels, strict=True):
        output = f"{images.classes[label]}/{PurePosixPath(member).stem}.JPEG"
        if output in member_of:
            raise DataError(f"{member_of[output]} and {member} would both be written as {output}; rename one of them")
        member_of[output] = member
    return list(member_of)


@contextlib.contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Hold the folder of unfinished files: one run at a time, leftovers of a killed run removed."""
    partial = target / _PARTIAL_FOLDER
    partial.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if os.name == "posix":
            import fcntl

            handle = os.open(partial, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                # The system releases the lock when its process ends, also by a kill.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                message = f"another run is writing to {target}; wait for it or choose another folder"
                raise DataError(message) from error
        for leftover in partial.iterdir():
            leftover.unlink()
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        yield


def _check_settings(writer: _Writer) -> None:
    """Refuse to mix files of different settings in one folder."""
    settings, target = writer.settings, writer.destination
    current = asdict(settings) | {"device": torch.device(settings.device).type, "images": len(writer.images)}
    current["frost"] = "generated" if find_folder(current.pop("frost_dir")) is None else "original"
    path = target / SETTINGS_FILE
    if not path.exists():
        temporary = target / _PARTIAL_FOLDER / SETTINGS_FILE
        temporary.write_text(json.dumps(current, indent=1) + "\n")
        os.replace(temporary, path)
    found = json.loads(path.read_text())
    changed = [f"{name}: {found.get(name)!r}, now {now!r}" for name, now in current.items() if found.get(name) != now]
    if changed:
        raise DataError(
            f"{target} was begun with other settings ({'; '.join(changed)}); repeat those or choose another folder"
        )


def _results(writer: _Writer, jobs: list[Job], workers: int) -> Iterator[Progress]:
    if workers == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from map(writer.write, jobs)
        finally:
            torch.set_num_threads(threads)
        return
    # "spawn": a fork of a process that holds a CUDA context or running threads is not usable.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (writer,)) as pool:
        yield from pool.map(_write_in_worker, jobs)


_worker: _Writer
"""Of a worker process, set before its first job."""


def _start_worker(writer: _Writer) -> None:
    global _worker
    _worker = writer
    torch.set_num_threads(1)
    # An interruption from the keyboard reaches all processes; the parent alone decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on writing next to the run that continues the work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _write_in_worker(job: Job) -> Progress:
    return _worker.write(job)


@dataclass(frozen=True)
class _Writer:
    """Writes the files of a job that are not there yet."""

    images: EncodedImages
    outputs: list[str]
    destination: Path
    severities: Sequence[int]
    settings: Settings
    broken: Literal["fatal", "skip"]

    def write(self, job: Job) -> Progress:
        from PIL import Image

        corruption, positions = job
        outputs = {
            (severity, position): self.destination / corruption / str(severity) / self.outputs[position]
            for severity in self.severities
            for position in positions
        }
        missing = [place for place, output in outputs.items() if not output.exists()]
        done = Progress(total=len(outputs), kept=len(outputs) - len(missing))
        decoded = self._decoded(sorted({position for _, position in missing}), done)
        same_size: dict[tuple[int, torch.Size], list[int]] = defaultdict(list)
        for severity, position in missing:
            if position in decoded:
                same_size[severity, decoded[position].shape].append(position)
        for (severity, _), group in same_size.items():
            corrupted = corrupt(
                torch.stack([decoded[position] for position in group]).to(self.settings.device),
                corruption,
                severity,
                seed=self.settings.seed,
                index=group,
                constants=self.settings.constants,
                frost_dir=self.settings.frost_dir,
            )
            for position, pixels in zip(group, corrupted.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
                outputs[severity, position].parent.mkdir(parents=True, exist_ok=True)
                temporary = self.destination / _PARTIAL_FOLDER / f"{os.getpid()}.JPEG"
                Image.fromarray(pixels).save(temporary, quality=_JPEG_QUALITY, optimize=True)
                os.replace(temporary, outputs[severity, position])
            done.written += len(group)
        return done

    def _decoded(self, positions: list[int], done: Progress) -> dict[int, Tensor]:
        size = self.settings.size
        protocol = replace(PROTOCOLS["native"], size=size, resize=None if size is None else round(size * 256 / 224))
        decoded = {}
        for position in positions:
            try:
                image = self.images.decoded(position)
            except BrokenImage as problem:
                if self.broken == "fatal":
                    raise
                done.broken.append(str(problem))
                continue
            decoded[position] = protocol.fit(image)
        return decoded
