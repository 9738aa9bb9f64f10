"""Where files lie: a folder, a zip or a tar. One way to list and to read them, without unpacking.

Names are relative, with forward slashes; `""` is the root. Hidden files are left out. Handles are opened per
process, so that a source may be used in worker processes, forked or spawned.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from wildtta.data.errors import DataError

MOST_BYTES = 1 << 28
"""A compressed file of an archive that would unpack to more is no image (a decompression bomb)."""


def open_source(path: str | os.PathLike[str]) -> Source:
    """The folder, `.zip` or `.tar` at `path`."""
    location = Path(path)
    if location.is_dir():
        return FolderSource(location)
    if not location.exists():
        nearest = next(parent for parent in location.parents if parent.exists())
        raise DataError(f"no data at {location}: the path does not exist (the nearest folder that does is {nearest})")
    if location.suffix.lower() == ".zip":
        return ZipSource(location)
    if location.suffix.lower() == ".tar":
        return TarSource(location)
    raise DataError(f"{location} is a file of another kind; expected a folder, a .zip or an uncompressed .tar")


def inside(under: str, name: str) -> str:
    """The full name of what is called `name` in the folder `under`."""
    return f"{under}/{name}" if under else name


def files_below(source: Source, under: str = "") -> list[str]:
    """Full names of all files below `under`: those directly in it, then folder by folder."""
    names = source.files(under)
    for folder in source.folders(under):
        names += files_below(source, inside(under, folder))
    return names


@dataclass(frozen=True)
class FolderSource:
    """Files of a folder on disk."""

    path: Path

    def folders(self, under: str = "") -> list[str]:
        """Names of the folders directly in `under`, sorted."""
        return sorted(e.name for e in self._entries(under) if e.is_dir())

    def files(self, under: str = "") -> list[str]:
        """Full names of the files directly in `under`, sorted."""
        return sorted(inside(under, e.name) for e in self._entries(under) if e.is_file())

    def _entries(self, under: str) -> list[os.DirEntry[str]]:
        with os.scandir(self.path / under) as entries:
            return [e for e in entries if not e.name.startswith(".")]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def where(self, name: str) -> str:
        """The file as a person would look for it."""
        return str(self.path / name)


class _ArchiveTree:
    """The folders of an archive, from the list of its files."""

    def __init__(self, path: Path, names: list[str]) -> None:
        self.path = path
        self._folders: dict[str, set[str]] = defaultdict(set)
        self._files: dict[str, list[str]] = defaultdict(list)
        for name in names:
            # Nothing is unpacked, so that an absolute name (/etc/x) is just one with a slash too many.
            parts = [part for part in name.split("/") if part not in ("", ".")]
            if not parts or any(part.startswith(".") or part == "__MACOSX" for part in parts):
                continue
            self._files["/".join(parts[:-1])].append(name)
            for depth in range(len(parts) - 1):
                self._folders["/".join(parts[:depth])].add(parts[depth])

    def folders(self, under: str = "") -> list[str]:
        return sorted(self._folders.get(under, ()))

    def files(self, under: str = "") -> list[str]:
        return sorted(self._files.get(under, ()))

    def where(self, name: str) -> str:
        return f"{name} in {self.path}"


class ZipSource(_ArchiveTree):
    """Files of a zip archive."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise DataError(f"{path} is no complete zip archive ({error}); fetch or copy it again") from error
        self._process = os.getpid()
        super().__init__(path, [info.filename for info in self._archive.infolist() if not info.is_dir()])

    def read(self, name: str) -> bytes:
        if self._process != os.getpid():  # a forked child shares the parent's file offset
            self._archive = zipfile.ZipFile(self.path)
            self._process = os.getpid()
        size = self._archive.getinfo(name).file_size
        if size > MOST_BYTES:
            raise DataError(f"it would unpack to {size:,} bytes; an image file has at most {MOST_BYTES:,}")
        return self._archive.read(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None, "_process": None}


class TarSource(_ArchiveTree):
    """Files of an uncompressed tar, read at their offsets."""

    def __init__(self, path: Path) -> None:
        try:
            with tarfile.open(path, "r:") as archive:
                members = archive.getmembers()
        except tarfile.TarError as error:
            raise DataError(f"{path} is no complete uncompressed tar ({error}); fetch or unpack it again") from error
        self._span = {m.name: (m.offset_data, m.size) for m in members if m.isfile()}
        super().__init__(path, list(self._span))
        size, block = path.stat().st_size, tarfile.BLOCKSIZE
        cut = [m.name for m in members if m.offset_data + m.size > size]
        # An empty block follows the last member; a file cut off between two members has none.
        end = max((m.offset_data + -(-m.size // block) * block for m in members), default=0)
        if cut or self._read_at(end, block) != bytes(block):
            place = f"in the middle of {cut[0]}" if cut else "without the end mark of a tar"
            raise DataError(f"{path} ends {place}: the file is not complete; fetch it again")

    def stored(self) -> list[str]:
        """All files in the order in which they lie in the tar."""
        listed = {file for files in self._files.values() for file in files}
        return [name for name in self._span if name in listed]

    def read(self, name: str) -> bytes:
        return self._read_at(*self._span[name])

    def _read_at(self, offset: int, size: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.read(size)


Source: TypeAlias = FolderSource | ZipSource | TarSource
