"""Requests that nobody should send: broken, oversized, hostile. Each is a function of its number."""

from __future__ import annotations

import http.client
import io
import json
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

Draw = np.random.Generator
Sent = tuple[str, str, dict[str, str], bytes]
"""Method, path, headers, body."""


def _png(draw: Draw) -> bytes:
    file = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def _predict(body: bytes, **headers: str) -> Sent:
    return "POST", "/v1/predict", {"X-Tenant": "fuzzer", **headers}, body


def _damaged(draw: Draw, whole: bytes) -> bytes:
    data = bytearray(whole[: int(draw.integers(1, len(whole) + 1))])
    for place in draw.integers(0, len(data), 1 + len(data) // 50):
        data[int(place)] = int(draw.integers(256))
    return bytes(data)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(draw: Draw) -> Sent:
    """A PNG of a few bytes that promises any number of pixels."""
    width, height = (int(side) for side in draw.choice([1, 7, 32, 30_000, 2**20, 2**31 - 1], 2))
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return _predict(b"\x89PNG\r\n\x1a\n" + header + _chunk(b"IDAT", zlib.compress(bytes(1000))) + _chunk(b"IEND", b""))


def random_bytes(draw: Draw) -> Sent:
    return _predict(draw.bytes(int(draw.integers(0, 3000))))


def damaged_picture(draw: Draw) -> Sent:
    return _predict(_damaged(draw, _png(draw)), **{"Content-Type": "image/png"})


def damaged_jpeg(draw: Draw) -> Sent:
    file = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "JPEG")
    return _predict(_damaged(draw, file.getvalue()))


def odd_picture(draw: Draw) -> Sent:
    """Whole pictures of sizes and modes that were not asked for, and one with thousands of scans."""
    file = io.BytesIO()
    if draw.random() < 0.1:
        Image.new("RGB", (2000, 2000)).save(file, "JPEG", progressive=True)
        whole = file.getvalue()
        return _predict(whole[:-2] + 5000 * whole[whole.rfind(b"\xff\xda") : -2] + whole[-2:])
    mode, size = (
        str(draw.choice(["1", "L", "P", "RGBA", "I;16"])),
        (int(draw.integers(1, 90)), int(draw.integers(1, 90))),
    )
    Image.new(mode, size).save(file, "PNG")
    return _predict(file.getvalue())


def npy(draw: Draw) -> Sent:
    """Arrays of odd types and shapes, headers that promise what does not follow, pickles."""
    kinds: list[Callable[[], bytes]] = [
        lambda: _npy_header(
            str(draw.choice(["|O", "<U8", "<c16", "<f8", "|u1", "<i4", "|V9", "nonsense"])), "(1,3,32,32)"
        ),
        lambda: _npy_header(
            "|u1", str(draw.choice(["(10**9,)", "(1,3,99999999,9)", "(-1,3,32,32)", "()", "(3,", "(1e9,)"]))
        ),
        lambda: _saved(draw.standard_normal((1, 3, 32, 32)) * 10.0 ** float(draw.integers(-300, 300))),
        lambda: _saved(np.full((1, 3, 32, 32), draw.choice([np.nan, np.inf, -np.inf]))),
        lambda: _saved(draw.integers(0, 256, draw.integers(0, 6, int(draw.integers(1, 6))), dtype=np.uint8)),
        lambda: _damaged(draw, _saved(np.zeros((1, 3, 32, 32), np.uint8))),
        lambda: _npy_bytes((" " * 1300).join(["{'descr': '|u1'", "'fortran_order': False", "'shape': (1,)", "x"])),
    ]
    return _predict(kinds[int(draw.integers(len(kinds)))]())


def _saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _npy_header(kind: str, shape: str) -> bytes:
    return _npy_bytes(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}")


def _npy_bytes(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(100)


def odd_json(draw: Draw) -> Sent:
    texts = [
        "[" * 100_000,
        '{"images":' * 5000,
        '{"images": [[[1, 2], [3]]]}',
        '{"images": [[["a"]]]}',
        '{"images": null}',
        '{"images": [[[1e999]]]}',
        '{"images": ' + "9" * 5000 + "}",
        '{"images": [[[' + "9" * 400 + "]]]}",
        json.dumps({"images": np.full((3, 32, 32), -5).tolist()}),
        json.dumps({"images": np.full((3, 32, 32), 0.5).tolist()}),
        json.dumps({"images": np.full((3, 32, 32), 1e300).tolist(), "normalised": True}),
        '{"images": [[[NaN]]], "normalised": true}',
        '{"images": [true, false]}',
        # As numpy's texts these would be 12 gigabytes.
        json.dumps({"images": [[["a" * 1_000_000, *[0] * 31]] + [[0] * 32] * 31] + [[[0] * 32] * 32] * 2}),
        '{"images": [' + "[]," * 300_000 + "[]]}",
        "{'images': []}",
        '{"images": []}',
        "\ufeff{}",
        '{"a": "\ud800"}',
    ]
    return _predict(texts[int(draw.integers(len(texts)))].encode("utf-8", "surrogatepass"))


def odd_headers(draw: Draw) -> Sent:
    names = ["", "..", "../../etc/passwd", "a" * 65, "a b", "é".encode().decode("latin-1"), "*", "%00", "a/b", "\x7f"]
    ids = ["", "x" * 129, "a b", "\x7f", "é".encode().decode("latin-1")]
    tenant, request_id = names[int(draw.integers(len(names)))], ids[int(draw.integers(len(ids)))]
    extra = {"X-Request-Id": request_id} if draw.random() < 0.5 else {"Origin": "http://elsewhere.example"}
    return "POST", "/v1/predict", {"X-Tenant": tenant, **extra}, _png(draw)


def odd_paths(draw: Draw) -> Sent:
    paths = [
        "/v1/tenants/..%2f..%2fetc/reset", "/v1/tenants/%00/pause", "/v1/tenants/nobody/reset", "/v1/tenants/nobody/explode",
        "/v1/predict?output=everything", "/v1/predict?learn=perhaps", "/v1/tenants?since=soon", "/v1/tenants?names=,,a,%ff",
        "/" + "a" * 4000, "//", "/-/../healthz", "/v1/tenants/fuzzer?since=nan", "/openapi.json?x=" + "y" * 2000,
    ]  # fmt: skip
    method = str(draw.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]))
    return method, paths[int(draw.integers(len(paths)))], {}, draw.bytes(10)


def oversized(draw: Draw) -> Sent:
    """A little more than is taken; often only by its word."""
    if draw.random() < 0.9:
        return _predict(b"\x93NUMPY", **{"Content-Length": str(int(draw.integers(2**25, 2**40)))})
    return _predict(bytes(17 * 2**20))


KINDS = (bomb, random_bytes, damaged_picture, damaged_jpeg, odd_picture, npy, odd_json, odd_headers, odd_paths)
RAW = (
    b"GET\r\n\r\n",
    b"\x00\x01\x02\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 900,
)


def send_one(address: str, number: int) -> int | None:
    """Send the request of that number; its status (None: the service closed the connection)."""
    draw = np.random.default_rng(number)
    place = urlsplit(address)
    assert place.hostname is not None
    assert place.port is not None
    if number % 50 == 0:
        return _send_raw(place.hostname, place.port, RAW[number // 50 % len(RAW)])
    kind = oversized if number % 25 == 1 else KINDS[int(draw.integers(len(KINDS)))]
    method, path, headers, body = kind(draw)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        return None
    except ValueError:
        return None  # http.client itself would not send such a header
    finally:
        connection.close()


def _send_raw(host: str, port: int, data: bytes) -> int | None:
    with socket.create_connection((host, port), timeout=5) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(200)
        except (TimeoutError, ConnectionError):
            return None
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else None


def fuzz(address: str, first: int, last: int, statuses: Counter[int | None]) -> None:
    """Send the requests from ``first`` to before ``last`` and count what comes back."""
    for number in range(first, last):
        statuses[send_one(address, number)] += 1
