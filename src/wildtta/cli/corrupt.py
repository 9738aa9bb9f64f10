"""``wildtta corrupt``: write a corrupted copy of a data set in the layout of ImageNet-C."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from wildtta.cli.launching import one_line_errors

if TYPE_CHECKING:
    from wildtta.data.write_corrupted import Progress

_SECONDS_BETWEEN_LINES = 5.0

Source = Annotated[
    Path, typer.Argument(metavar="SRC", help="Folder with one subfolder of images per class, or a .zip or .tar of one.")
]
Destination = Annotated[
    Path, typer.Argument(metavar="DST", help="Result: <corruption>/<severity>/<class>/<name>.JPEG below it.")
]
Severity = Annotated[str, typer.Option(help='Severities, such as "1-5", "3" or "1,3,5".')]
CorruptionNames = Annotated[
    list[str] | None,
    typer.Option("--corruption", help='Only this one (may be repeated); "all" adds the 4 extra ones. Default: the 15.'),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that work at the same time.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
Size = Annotated[
    int | None,
    typer.Option(min=16, help="Resize and cut the centre to this side first (224 for ImageNet). Default: as it is."),
]
Constants = Annotated[str, typer.Option(help="Severity constants: auto (by image size), imagenet or tiny.")]
Device = Annotated[str, typer.Option(help="Where to corrupt: cpu or cuda.")]
FrostDir = Annotated[
    Path | None, typer.Option(help="Folder with the original frost photographs. Default: generated textures.")
]
Broken = Annotated[str, typer.Option(help="An image that cannot be decoded: fatal, or skip and name it at the end.")]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("corrupt")(corrupt)


def corrupt(
    source: Source,
    destination: Destination,
    severity: Severity = "1-5",
    corruptions: CorruptionNames = None,
    workers: Workers = 1,
    seed: Seed = 0,
    size: Size = None,
    constants: Constants = "auto",
    device: Device = "cpu",
    frost_dir: FrostDir = None,
    broken: Broken = "fatal",
) -> None:
    """Write a corrupted copy of a data set in the layout of ImageNet-C. Run it again to continue after a kill."""
    from wildtta.data.write_corrupted import Settings, write_corrupted

    started = time.monotonic()
    with one_line_errors(), _reporter() as report:
        settings = Settings(
            seed=seed,
            size=size,
            constants=cast(
                Literal["auto", "imagenet", "tiny"], _one_of("--constants", constants, ("auto", "imagenet", "tiny"))
            ),
            frost_dir=None if frost_dir is None else str(frost_dir),
            device=device,
        )
        progress = write_corrupted(
            source,
            destination,
            corruptions=parse_corruptions(corruptions or []),
            severities=parse_severities(severity),
            settings=settings,
            workers=workers,
            broken=cast(Literal["fatal", "skip"], _one_of("--broken", broken, ("fatal", "skip"))),
            report=report,
        )
    for name in progress.broken:
        typer.echo(f"left out: {name}", err=True)
    rate = progress.written / max(time.monotonic() - started, 1e-9)
    typer.echo(f"{progress.written} files written ({rate:.0f}/s), {progress.kept} were there, in {destination}")


def parse_severities(text: str) -> tuple[int, ...]:
    """Severities of ``"1-5"``, ``"3"`` or ``"1,3,5"``."""
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(f'--severity: expected something like "1-5", "3" or "1,3,5", got {text!r}')
        chosen += range(int(first), int(last or first) + 1)
    if not chosen or not set(chosen) <= {1, 2, 3, 4, 5}:
        raise ValueError(f"--severity: severities run from 1 to 5, got {text!r}")
    return tuple(dict.fromkeys(chosen))


def parse_corruptions(names: list[str]) -> tuple[str, ...]:
    """The corruptions asked for: none named means the 15, ``all`` means these and the 4 extra ones."""
    from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

    known = CORRUPTIONS + EXTRA_CORRUPTIONS
    if "all" in names:
        return known
    for name in names:
        _one_of("--corruption", name, (*known, "all"))
    return tuple(dict.fromkeys(names)) or CORRUPTIONS


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{option}: expected one of {', '.join(allowed)}; got {value!r}")
    return value


@contextlib.contextmanager
def _reporter() -> Iterator[Callable[[Progress], None]]:
    """A progress bar on a terminal, a line every few seconds elsewhere; both with the rate."""
    started = time.monotonic()

    def rate(progress: Progress) -> float:
        return progress.written / max(time.monotonic() - started, 1e-9)

    if sys.stderr.isatty():
        from rich import progress as rich_progress
        from rich.console import Console

        columns = (
            rich_progress.TextColumn("corrupting"),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TextColumn("{task.fields[rate]:.0f}/s"),
            rich_progress.TimeRemainingColumn(),
        )
        with rich_progress.Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("", total=None, rate=0.0)
            yield lambda progress: bar.update(task, total=progress.total, completed=progress.done, rate=rate(progress))
        return

    last = started

    def print_line(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            print(
                f"{progress.done}/{progress.total} files, {rate(progress):.0f} written/s", file=sys.stderr, flush=True
            )

    yield print_line
