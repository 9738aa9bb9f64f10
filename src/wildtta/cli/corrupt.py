"""``wildtta corrupt``: write a corrupted copy of a data set in the layout of ImageNet-C."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from wildtta.cli.launching import one_line_errors
from wildtta.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from wildtta.data.write_corrupted import Progress as Files
from wildtta.data.write_corrupted import Settings, write_corrupted
from wildtta.progress import Progress

CONSTANTS = ("auto", "imagenet", "tiny", "cifar")
BROKEN = ("fatal", "skip")


def register(app: typer.Typer) -> None:
    app.command("corrupt")(corrupt)


def corrupt(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="Folder with a subfolder of images per class, or its .zip or .tar.")
    ],
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="Result: <corruption>/<severity>/<class>/<name>.JPEG below it.")
    ],
    severity: Annotated[str, typer.Option(help='Severities, such as "1-5", "3" or "1,3,5".')] = "1-5",
    corruption: Annotated[
        list[str] | None,
        typer.Option(help='Only this one (may be repeated); "all" adds the 4 extra ones. Default: the 15.'),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that work at the same time.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    size: Annotated[
        int | None,
        typer.Option(min=16, help="Resize and cut the centre to this side first (ImageNet: 224). Default: as it is."),
    ] = None,
    constants: Annotated[str, typer.Option(help="Severity constants: auto (by size), imagenet, tiny or cifar.")] = "auto",
    device: Annotated[str, typer.Option(help="Where to corrupt: cpu or cuda.")] = "cpu",
    frost_dir: Annotated[
        Path | None, typer.Option(help="Folder with the original frost photographs. Default: generated textures.")
    ] = None,
    broken: Annotated[
        str, typer.Option(help="An image that cannot be decoded: fatal, or skip and name it at the end.")
    ] = "fatal",
) -> None:
    """Write a corrupted copy of a data set in the layout of ImageNet-C. Run it again to resume."""
    started, display = time.monotonic(), Progress("corrupting", "files")

    def show(files: Files) -> None:
        display.total, display.found = files.total, files.kept
        display.update(files.done)

    with one_line_errors():
        settings = Settings(
            seed=seed,
            size=size,
            constants=cast(Literal["auto", "imagenet", "tiny", "cifar"], _one_of("--constants", constants, CONSTANTS)),
            frost_dir=None if frost_dir is None else str(frost_dir),
            device=device,
        )
        try:
            files = write_corrupted(
                source,
                destination,
                corruptions=parse_corruptions(corruption or []),
                severities=parse_severities(severity),
                settings=settings,
                workers=workers,
                broken=cast(Literal["fatal", "skip"], _one_of("--broken", broken, BROKEN)),
                report=show,
            )
        finally:
            display.end()
    for name in files.broken:
        typer.echo(f"left out: {name}", err=True)
    rate = files.written / max(time.monotonic() - started, 1e-9)
    typer.echo(f"{files.written} files written ({rate:.0f}/s), {files.kept} were there, in {destination}")


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
