"""From the body of a request to images: PNG, JPEG, .npy or JSON, told apart by their first bytes.

A stranger wrote the body. What it promises (pixels, shapes) is checked before anything is allocated for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch

from wildtta.data.errors import BrokenImage, DataError
from wildtta.data.image_files import decode
from wildtta.data.preprocessing import InputProtocol
from wildtta.serve.json_array import array_of, shape_of
from wildtta.serve.npy import MAGIC, Array, read_header
from wildtta.serve.refusal import Refusal
from wildtta.serve.settings import MIB

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_SCAN, _MOST_SCANS = b"\xff\xda", 100
"""Of a JPEG: a progressive one has about ten. Each goes over the whole image, however few bytes it has."""
_PROFILE = b"iCCP"
"""Of a PNG: the one chunk that may be given once, and is unpacked as often as it comes."""
_FORMATS = "a PNG or JPEG file, an .npy array or a JSON object with 'images'"


@dataclass(frozen=True)
class Decoder:
    """Bodies to uint8 images, or to float32 ones that are normalised already: [n, 3, size, size]."""

    protocol: InputProtocol
    size: int
    most_pixels: int
    most_images: int
    most_json: int = 4 * MIB
    """Bytes of a body in JSON: as Python's objects it is about twenty times as large, and nobody else runs meanwhile."""

    def __call__(self, body: bytes) -> Array:
        if not body:
            raise Refusal(400, f"the body is empty; expected {_FORMATS}")
        if body.startswith((_PNG, _JPEG)):
            return self._fitted(self._picture(body)[None])
        if body.startswith(MAGIC):
            return self._checked(self._npy(body))
        if body.lstrip()[:1] in (b"{", b"["):
            return self._checked(self._json(body))
        raise Refusal(415, f"the body is none of these: {_FORMATS}")

    # -- formats ---------------------------------------------------------------------------------------------------------

    def _picture(self, body: bytes) -> Array:
        _refuse_work(body)
        try:
            image: Array = decode(body, "the body", most_pixels=self.most_pixels, formats=("PNG", "JPEG")).numpy()
        except BrokenImage as error:
            raise Refusal(422, str(error)) from error
        return image

    def _npy(self, body: bytes) -> Array:
        try:
            header = read_header(body)
        except ValueError as error:
            raise Refusal(422, str(error)) from error
        if header.dtype.kind not in "uf":
            raise Refusal(422, f"expected an .npy array of uint8 or floating-point numbers, got {header.dtype}")
        self._check_shape(header.shape)
        if header.promised != header.held:
            raise Refusal(422, f"the .npy header promises {header.promised:,} bytes and {header.held:,} follow")
        return header.array(body)

    def _json(self, body: bytes) -> Array:
        if len(body) > self.most_json:
            raise Refusal(413, f"JSON of {len(body):,} bytes; at most {self.most_json:,} are taken, send an .npy array")
        try:
            told = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refusal(422, f"the body is no JSON ({type(error).__name__}: {str(error)[:100]})") from error
        normalised = isinstance(told, dict) and told.get("normalised") is True
        values = told.get("images") if isinstance(told, dict) else told
        if not isinstance(values, list):
            raise Refusal(422, "expected a JSON object with a list 'images': [n][3][height][width]")
        shape = shape_of(values)
        self._check_shape(shape)
        try:
            array = array_of(values, shape)
        except ValueError as error:
            raise Refusal(422, str(error)) from error
        if normalised:
            return array.astype(np.float64)
        if array.dtype.kind == "f" or array.min() < 0 or array.max() > 255:
            raise Refusal(
                422,
                'expected whole numbers from 0 to 255; for inputs that are normalised already, add "normalised": true',
            )
        return array.astype(np.uint8)

    # -- arrays ----------------------------------------------------------------------------------------------------------

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if len(shape) not in (3, 4) or shape[-3] != 3 or min(shape) < 1:
            raise Refusal(422, f"expected images of shape [n, 3, height, width], got {list(shape)[:8]}")
        number = shape[0] if len(shape) == 4 else 1
        if number > self.most_images:
            raise Refusal(
                413, f"{number} images in one request; at most {self.most_images} are taken, send the rest apart"
            )
        if shape[-1] * shape[-2] > self.most_pixels:
            raise Refusal(413, f"{shape[-2]} × {shape[-1]} pixels; at most {self.most_pixels:,} are taken")

    def _checked(self, array: Array) -> Array:
        batch = array if array.ndim == 4 else array[None]
        if batch.dtype == np.uint8:
            return self._fitted(batch)
        if batch.shape[-2:] != (self.size, self.size):
            raise Refusal(
                422,
                f"expected normalised images of {self.size} × {self.size}, got {batch.shape[-2]} × {batch.shape[-1]}",
            )
        # A float64 may be beyond float32: it becomes infinite here, and is refused with the others.
        with np.errstate(over="ignore"):
            values = batch.astype(np.float32)
        if not np.isfinite(values).all():
            raise Refusal(422, "the images hold numbers that are not finite")
        return np.ascontiguousarray(values)

    def _fitted(self, images: Array) -> Array:
        """Resized and cropped by the network's protocol."""
        height, width = images.shape[-2:]
        if self.protocol.resize is not None:
            # A strip of 1 × 1,000,000 pixels is small, and large once its shorter side is 256.
            scaled = self.protocol.resize**2 * max(height, width) / min(height, width)
            if scaled > self.most_pixels:
                raise Refusal(422, f"an image of {height} × {width} is too long and narrow to be resized")
        try:
            fitted = self.protocol.fit(torch.from_numpy(np.array(images)))  # a copy: a body cannot be written to
        except DataError as error:
            raise Refusal(422, str(error)) from error
        if fitted.shape[-2:] != (self.size, self.size):
            raise Refusal(422, f"expected images of {self.size} × {self.size} pixels, got {height} × {width}")
        return np.ascontiguousarray(fitted.numpy())


def _refuse_work(body: bytes) -> None:
    """Pictures whose few bytes keep a decoder busy: 300,000 scans fit into 16 MiB and take most of an hour."""
    if body.startswith(_JPEG) and (scans := body.count(_SCAN)) > _MOST_SCANS:
        raise Refusal(422, f"a JPEG of {scans:,} scans; at most {_MOST_SCANS} are decoded")
    if body.startswith(_PNG) and body.count(_PROFILE) > 1:
        raise Refusal(422, "a PNG with more than one colour profile")
