"""Bodies become images, or are refused with a status and a reason; what they promise costs nothing before it is checked."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wildtta.data.preprocessing import PROTOCOLS, input_protocol
from wildtta.serve.decoding import Decoder
from wildtta.serve.refusal import Refusal

DECODER = Decoder(PROTOCOLS["glyphs"], 32, most_pixels=1_000_000, most_images=8)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)


def encoded(array: np.ndarray[Any, Any], kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def refused(body: bytes, decoder: Decoder = DECODER) -> Refusal:
    with pytest.raises(Refusal) as caught:
        decoder(body)
    return caught.value


def test_every_format_gives_the_same_pixels() -> None:
    picture = PIXELS[0].transpose(1, 2, 0)
    assert np.array_equal(DECODER(encoded(picture))[0], PIXELS[0])
    assert np.array_equal(DECODER(npy(PIXELS)), PIXELS)
    assert np.array_equal(DECODER(npy(np.asfortranarray(PIXELS))), PIXELS)
    assert np.array_equal(DECODER(json.dumps({"images": PIXELS.tolist()}).encode()), PIXELS)
    assert np.array_equal(DECODER(json.dumps(PIXELS[1].tolist()).encode())[0], PIXELS[1])
    jpeg = encoded(picture, "JPEG")
    expected = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(DECODER(jpeg)[0], expected)


def test_numbers_that_are_normalised_already_stay_as_they_are() -> None:
    values = np.random.default_rng(1).standard_normal((1, 3, 32, 32))
    assert np.array_equal(DECODER(npy(values)), values.astype(np.float32))
    told = json.dumps({"images": values.tolist(), "normalised": True}).encode()
    assert np.array_equal(DECODER(told), values.astype(np.float32))
    assert refused(json.dumps({"images": values.tolist()}).encode()).status == 422


def test_a_protocol_with_a_size_resizes_and_crops() -> None:
    paper = input_protocol("paper")
    decoder = Decoder(paper, 224, most_pixels=1_000_000, most_images=8)
    picture = np.random.default_rng(2).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    import torch

    expected = paper.fit(torch.from_numpy(picture).permute(2, 0, 1).contiguous())
    assert np.array_equal(decoder(encoded(picture))[0], expected.numpy())
    assert refused(encoded(np.zeros((2, 90_000, 3), np.uint8)), decoder).status == 422, (
        "long and narrow: 2.6 billion pixels"
    )


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"hello", 415),
        (b"\x89PNG\r\n\x1a\n", 422),
        (encoded(np.zeros((40, 40, 3), np.uint8)), 422),
        (bomb(30_000, 30_000), 422),
        (bomb(2**31 - 1, 2**31 - 1), 422),
        (npy(np.zeros((9, 3, 32, 32), np.uint8)), 413),
        (npy(np.zeros((1, 4, 32, 32), np.uint8)), 422),
        (npy(np.zeros((1, 3, 32, 32), np.int64)), 422),
        (npy(np.full((1, 3, 32, 32), np.nan)), 422),
        (npy(np.full((1, 3, 32, 32), 1e300)), 422),
        (npy(PIXELS)[:-1], 422),
        (npy(PIXELS) + b"x", 422),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O'}\n\n", 422),
        (b"[" * 100_000, 422),
        (b'{"images": [[1, 2], [3]]}', 422),
        (b'{"images": "text"}', 422),
        (b'{"images": [[["a"]]]}', 422),
        (json.dumps({"images": np.full((3, 32, 32), 256).tolist()}).encode(), 422),
        (json.dumps({"images": [[[10**400]]]}).encode(), 422),
        (json.dumps({"images": np.full((3, 32, 32), 10**400, object).tolist(), "normalised": True}).encode(), 422),
        (json.dumps({"images": np.full((3, 32, 32), True).tolist()}).encode(), 422),
        (json.dumps({"images": np.full((3, 32, 32), "12").tolist()}).encode(), 422),
        (json.dumps({"images": [[[1, 2]], [[1, 2]], [[1]]]}).encode(), 422),
        (json.dumps({"images": [[[1, 2]], [[1, 2]], 3]}).encode(), 422),
        (json.dumps({"images": np.zeros((1, 1, 1, 1, 1, 3, 1, 1), int).tolist()}).encode(), 422),
    ],
)
def test_what_is_refused_says_why(body: bytes, status: int) -> None:
    refusal = refused(body)
    assert refusal.status == status
    assert len(refusal.text) > 10


def test_promises_allocate_nothing() -> None:
    """A few bytes that promise gigabytes: memory stays below a megabyte."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (8, 3, 900, 1000), }\n"
    lying = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(10)
    tracemalloc.start()
    for body in (lying, bomb(30_000, 30_000), bomb(900, 1100)):
        refused(body)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000 + 900 * 1100 * 4
    tracemalloc.stop()


def test_a_text_among_numbers_is_not_made_room_for() -> None:
    """numpy makes texts of all of them, as long as the longest: here twelve gigabytes."""
    values = np.zeros((3, 32, 32), int).tolist()
    values[0][0][0] = "a" * 1_000_000
    body = json.dumps({"images": values}).encode()
    tracemalloc.start()
    assert refused(body).status == 422
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_pictures_that_keep_a_decoder_busy_are_refused() -> None:
    """Many scans over one image, many profiles to unpack: seconds for each kilobyte. Ordinary ones of both are read."""
    file = io.BytesIO()
    Image.fromarray(PIXELS[0].transpose(1, 2, 0)).save(file, "JPEG", progressive=True, icc_profile=bytes(100))
    whole = file.getvalue()
    assert DECODER(whole).shape == (1, 3, 32, 32)
    last = whole[whole.rfind(b"\xff\xda") : -2]
    busy = whole[:-2] + last * 200 + whole[-2:]
    assert "scans" in refused(busy).text
    file = io.BytesIO()
    Image.fromarray(PIXELS[0].transpose(1, 2, 0)).save(file, "PNG", icc_profile=bytes(100))
    whole = file.getvalue()
    assert np.array_equal(DECODER(whole)[0], PIXELS[0])
    start = whole.index(b"iCCP") - 4
    stop = start + 12 + int.from_bytes(whole[start : start + 4], "big")
    assert "profile" in refused(whole[:stop] + whole[start:stop] * 50 + whole[stop:]).text


def test_json_has_a_limit_of_its_own() -> None:
    body = json.dumps({"images": PIXELS.tolist()}).encode()
    small = replace(DECODER, most_json=len(body) - 1)
    assert refused(body, small).status == 413
    assert small(npy(PIXELS)).shape == PIXELS.shape


def test_blanks_in_a_header_cost_no_time() -> None:
    """Where every blank fits two places of the pattern, these take minutes, in which the whole process stands still."""
    blanks = " " * 1300
    header = f"{{'descr': '|u1'{blanks}'fortran_order': False{blanks}'shape': (1,){blanks}x".encode()
    assert refused(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header).status == 422


def test_many_threads_read_arrays_at_once() -> None:
    """Python's own parser of literals fails now and then when several threads use it (3.11)."""
    from concurrent.futures import ThreadPoolExecutor

    bodies = [npy(PIXELS), npy(PIXELS.astype(np.float64)), npy(np.asfortranarray(PIXELS))] * 300
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(DECODER, bodies))
    for place, images in enumerate(found):
        assert np.array_equal(images, PIXELS), f"body {place}"


@pytest.mark.parametrize("kind", ["<f2", ">f4", ">f8", "<f4"])
def test_headers_are_read_as_numpy_reads_them(kind: str) -> None:
    for shape in ((1, 3, 32, 32), (3, 32, 32)):
        for version in ((1, 0), (2, 0)):
            array = np.random.default_rng(3).standard_normal(shape).astype(kind)
            file = io.BytesIO()
            np.lib.format.write_array(file, array, version=version)
            assert np.array_equal(DECODER(file.getvalue()).reshape(shape), array.astype(np.float32))
