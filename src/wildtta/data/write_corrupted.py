"""Write a corrupted copy of a data set in the layout of ImageNet-C: ``<corruption>/<severity>/<class>/<name>.JPEG``.

Every file is written under another name and moved into place, so a file that exists is complete. A run that was killed
continues where it stopped; since an image's result depends on its position and the seed only, the outcome equals that of an
uninterrupted run, whatever the number of workers.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_process
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from wildtta.corruptions import CORRUPTIONS, corrupt
from wildtta.corruptions.frost_textures import find_folder
from wildtta.data.corruption_source import CorruptionSource, list_images
from wildtta.data.errors import BrokenImage, DataError

SETTINGS_FILE = "corruption-settings.json"
_PARTIAL_FOLDER = ".partial"
_IMAGES_PER_JOB = 32
_JPEG_QUALITY = 85


@dataclass(frozen=True)
class Settings:
    """Everything that a written file depends on besides its name."""

    seed: int = 0
    size: int | None = None
    constants: Literal["auto", "imagenet", "tiny"] = "auto"
    frost_dir: str | None = None
    device: str = "cpu"

    def fingerprint(self, source: CorruptionSource) -> dict[str, object]:
        """What must not change between a run and its continuation."""
        return {
            "seed": self.seed,
            "size": self.size,
            "constants": self.constants,
            "frost": "generated" if find_folder(self.frost_dir) is None else "original",
            "device": torch.device(self.device).type,
            "images": len(source),
        }


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


@dataclass(frozen=True)
class _Job:
    corruption: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Plan:
    source: CorruptionSource
    destination: Path
    severities: tuple[int, ...]
    settings: Settings
    broken: Literal["fatal", "skip"]


@dataclass(frozen=True)
class _JobResult:
    written: int
    kept: int
    broken: tuple[str, ...]


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

    Args:
        source: folder with one subfolder per class, or a zip archive of one.
        destination: folder of the result; an unfinished one is continued if it was begun with the same settings.
        workers: processes that decode, corrupt and encode; 1 works in this process.
        broken: whether an image that cannot be decoded stops the run or is left out and named in the result.
        report: called after each finished piece of work.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    settings = settings or Settings()
    images = list_images(source)
    target = Path(destination)
    jobs = [
        _Job(corruption, start, min(start + _IMAGES_PER_JOB, len(images)))
        for corruption in corruptions
        for start in range(0, len(images), _IMAGES_PER_JOB)
    ]
    progress = Progress(total=len(images) * len(corruptions) * len(severities))
    with _exclusive(target):
        _check_settings(target, settings.fingerprint(images))
        plan = _Plan(images, target, tuple(severities), settings, broken)
        for result in _run(plan, jobs, workers):
            progress.written += result.written
            progress.kept += result.kept
            progress.broken += [name for name in result.broken if name not in progress.broken]
            if report is not None:
                report(progress)
    return progress


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
                raise DataError(
                    f"another run is writing to {target}; wait for it or choose another folder"
                ) from error
        for leftover in partial.iterdir():
            leftover.unlink()
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        yield


def _check_settings(target: Path, fingerprint: dict[str, object]) -> None:
    """Refuse to mix files of different settings in one folder."""
    path = target / SETTINGS_FILE
    if path.exists():
        found = json.loads(path.read_text())
        changed = [
            f"{name}: {found.get(name)!r}, now {value!r}"
            for name, value in fingerprint.items()
            if found.get(name) != value
        ]
        if changed:
            raise DataError(
                f"{target} was begun with other settings ({'; '.join(changed)}); repeat those or choose another folder"
            )
        return
    temporary = target / _PARTIAL_FOLDER / SETTINGS_FILE
    temporary.write_text(json.dumps(fingerprint, indent=1) + "\n")
    os.replace(temporary, path)


def _run(plan: _Plan, jobs: list[_Job], workers: int) -> Iterator[_JobResult]:
    if workers == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for job in jobs:
                yield _do(plan, job)
        finally:
            torch.set_num_threads(threads)
        return
    # "spawn": a fork of a process that holds a CUDA context or running threads is not usable.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(plan,)) as pool:
        waiting: set[Future[_JobResult]] = set()
        remaining = iter(jobs)
        try:
            while True:
                waiting |= {
                    pool.submit(_do_in_worker, job) for job in itertools.islice(remaining, 2 * workers - len(waiting))
                }
                if not waiting:
                    return
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_worker_plan: _Plan | None = None


def _start_worker(plan: _Plan) -> None:
    global _worker_plan
    _worker_plan = plan
    torch.set_num_threads(1)
    # An interruption from the keyboard reaches all processes; the parent alone decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on writing next to the run that continues the work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_process([parent.sentinel])
        os._exit(1)


def _do_in_worker(job: _Job) -> _JobResult:
    assert _worker_plan is not None, "the pool's initializer has run before any job"
    return _do(_worker_plan, job)


def _do(plan: _Plan, job: _Job) -> _JobResult:
    """Write the missing files of one corruption for a range of images."""
    positions = range(job.start, job.stop)
    missing = {
        severity: [position for position in positions if not _output(plan, job.corruption, severity, position).exists()]
        for severity in plan.severities
    }
    needed = sorted({position for absent in missing.values() for position in absent})
    decoded: dict[int, Tensor] = {}
    broken: list[str] = []
    for position in needed:
        image = _decode(plan, position)
        if isinstance(image, BrokenImage):
            broken.append(str(image))
        else:
            decoded[position] = image
    written = 0
    for severity, absent in missing.items():
        same_size: dict[torch.Size, list[int]] = defaultdict(list)
        for position in absent:
            if position in decoded:
                same_size[decoded[position].shape].append(position)
        for group in same_size.values():
            _write_group(plan, job.corruption, severity, group, torch.stack([decoded[position] for position in group]))
            written += len(group)
    kept = len(positions) * len(plan.severities) - sum(len(absent) for absent in missing.values())
    return _JobResult(written, kept, tuple(broken))


def _decode(plan: _Plan, position: int) -> Tensor | BrokenImage:
    try:
        return plan.source.decode(position, plan.settings.size)
    except BrokenImage as error:
        if plan.broken == "fatal":
            raise
        return error


def _output(plan: _Plan, corruption: str, severity: int, position: int) -> Path:
    return plan.destination / corruption / str(severity) / plan.source.images[position].output


def _write_group(plan: _Plan, corruption: str, severity: int, positions: list[int], images: Tensor) -> None:
    from PIL import Image

    settings = plan.settings
    corrupted = corrupt(
        images.to(settings.device),
        corruption,
        severity,
        seed=settings.seed,
        index=positions,
        constants=settings.constants,
        frost_dir=settings.frost_dir,
    )
    for position, pixels in zip(positions, corrupted.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
        output = _output(plan, corruption, severity, position)
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = plan.destination / _PARTIAL_FOLDER / f"{os.getpid()}.JPEG"
        Image.fromarray(pixels).save(temporary, quality=_JPEG_QUALITY, optimize=True)
        os.replace(temporary, output)
