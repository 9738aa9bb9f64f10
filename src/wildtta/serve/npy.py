"""Arrays as bytes, in numpy's .npy format; the header is read without Python's parser.

numpy reads the header as a Python literal. That is more than a stranger's text should be given, and in several threads at
once Python 3.11 sometimes fails at it ("AST constructor recursion depth mismatch").
"""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 4096
_TYPES = ("|u1", "<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "<i8")
# A blank fits one place of the pattern. Where it fits two, blanks between three entries take a time of their third power.
_ENTRY = re.compile(r"\s*'(\w{1,20})'\s*:\s*('[^']{0,20}'|True|False|\([\d,\s]{0,200}\))(?:\s*,)?")
_HEADER = re.compile(rf"\{{(?:{_ENTRY.pattern}){{3}}\s*\}}\s*")


@dataclass(frozen=True)
class Header:
    """What an array is said to be, and where its numbers begin."""

    dtype: np.dtype[Any]
    fortran: bool
    shape: tuple[int, ...]
    start: int
    held: int
    """Bytes that follow."""

    @property
    def promised(self) -> int:
        """Bytes that should."""
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self, body: bytes) -> Array:
        """The array itself, as a view of the body."""
        flat = np.frombuffer(body, self.dtype, offset=self.start)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


def read_header(body: bytes) -> Header:
    """The header of an .npy file; a ValueError that says what is wrong with it."""
    start = 10 if body[6:7] == b"\x01" else 12
    length = int.from_bytes(body[8:start], "little")
    text = body[start : start + length].decode("latin-1") if length <= _LONGEST_HEADER else ""
    if not body.startswith(MAGIC) or not _HEADER.fullmatch(text):
        raise ValueError("the .npy header cannot be read; expected one as numpy.save writes it")
    told = {entry[1]: entry[2] for entry in _ENTRY.finditer(text)}
    if set(told) != {"descr", "fortran_order", "shape"}:
        raise ValueError("the .npy header should tell descr, fortran_order and shape")
    if (kind := told["descr"].strip("'")) not in _TYPES:
        raise ValueError(f"expected an .npy array of one of the types {', '.join(_TYPES)}, got {kind!r}")
    shape = tuple(int(side) for side in re.findall(r"\d+", told["shape"]))
    return Header(np.dtype(kind), told["fortran_order"] == "True", shape, start + length, len(body) - start - length)


def from_bytes(body: bytes) -> Array:
    """The array in an .npy file."""
    header = read_header(body)
    if header.promised != header.held:
        raise ValueError(f"the .npy header promises {header.promised:,} bytes and {header.held:,} follow")
    return header.array(body)


def to_bytes(array: Array) -> bytes:
    """An array as an .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
