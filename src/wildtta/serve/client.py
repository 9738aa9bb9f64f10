"""A client of the service in a few lines: standard library and numpy alone."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wildtta.serve import npy

Images = bytes | str | Path | npt.NDArray[Any] | Any
_AGAIN = (429, 502, 503, 504)


class ServiceError(RuntimeError):
    """A request that the service refused; ``status`` is HTTP's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Client:
    """Asks a service for one tenant.

    A request that is not answered is sent again with the same id, so that it is learned from once at most.

    Args:
        address: of the service.
        tenant: whose stream the images belong to.
        token: where the service asks for one.
        timeout: seconds for one try.
        patience: seconds for all of them.
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        tenant: str = "default",
        *,
        token: str | None = None,
        timeout: float = 30.0,
        patience: float = 60.0,
    ) -> None:
        self.address, self.tenant = address.rstrip("/"), tenant
        self.timeout, self.patience = timeout, patience
        self.tries = 0
        """Requests sent so far, repeated ones included."""
        self._headers = {"X-Tenant": tenant, **({"Authorization": f"Bearer {token}"} if token else {})}

    def predict(
        self,
        images: Images,
        *,
        output: Literal["classes", "probabilities", "logits"] = "classes",
        learn: bool = True,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """The answer as the service tells it: ``classes``, ``confidence``, and what ``output`` asks for.

        Args:
            images: a PNG or JPEG file (its path, or its bytes), or an array or tensor [n, 3, height, width]: uint8, or
                floating-point numbers that are normalised already.
            output: what to answer with beside the classes.
            learn: False: answer only.
            request_id: of this request; a new one by default.
        """
        answer = self._ask(images, output, learn, request_id, "application/json")
        told: dict[str, Any] = json.loads(answer)
        return told

    def logits(self, images: Images, *, learn: bool = True, request_id: str | None = None) -> npt.NDArray[np.float32]:
        """The logits, [n, classes], bit for bit as the network gave them."""
        answer = self._ask(images, "logits", learn, request_id, "application/x-npy")
        found: npt.NDArray[np.float32] = npy.from_bytes(answer)
        return found

    def status(self) -> dict[str, Any]:
        """What the service knows of this tenant."""
        told: dict[str, Any] = json.loads(self._send("GET", f"/v1/tenants/{self.tenant}"))
        return told

    def act(self, verb: Literal["pause", "resume", "rollback", "reset"]) -> dict[str, Any]:
        """Pause or resume learning, go back to the last healthy state, or to the initial one."""
        told: dict[str, Any] = json.loads(self._send("POST", f"/v1/tenants/{self.tenant}/{verb}", b""))
        return told

    def _ask(self, images: Images, output: str, learn: bool, request_id: str | None, accept: str) -> bytes:
        headers = {
            "X-Request-Id": request_id or uuid.uuid4().hex,
            "Content-Type": "application/octet-stream",
            "Accept": accept,
        }
        query = urllib.parse.urlencode({"output": output, "learn": str(learn).lower()})
        return self._send("POST", f"/v1/predict?{query}", _body(images), headers)

    def _send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        until, pause = time.monotonic() + self.patience, 0.1
        while True:
            request = urllib.request.Request(
                self.address + path, data=body, method=method, headers={**self._headers, **(headers or {})}
            )
            self.tries += 1
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    answer: bytes = response.read()
                    return answer
            except urllib.error.HTTPError as error:
                refused = ServiceError(error.code, _reason(error.read()))
                if error.code not in _AGAIN or time.monotonic() + pause > until:
                    raise refused from error
                pause = min(max(pause, _seconds(error.headers.get("Retry-After"))), max(0.0, until - time.monotonic()))
            except (OSError, HTTPException) as error:
                if time.monotonic() + pause > until:
                    raise ConnectionError(
                        f"no answer from {self.address} within {self.patience:g} s ({error}); is 'wildtta serve' running there?"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


def _body(images: Images) -> bytes:
    if isinstance(images, bytes):
        return images
    if isinstance(images, (str, Path)):
        return Path(images).read_bytes()
    array = images.detach().cpu().numpy() if hasattr(images, "detach") else np.asarray(images)
    return npy.to_bytes(array)


def _seconds(told: str | None) -> float:
    """Of a Retry-After; a proxy may give a date, which is left to it."""
    return float(told) if told is not None and re.fullmatch(r"\d{1,9}(\.\d+)?", told) else 0.0


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
