"""The HTTP interface at a real port: formats in and out, refusals, tokens, foreign pages, metrics, description."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from PIL import Image
from service_parts import glyphs, served, settings_for

from wildtta.glyphs import CHARACTERS, network
from wildtta.glyphs.networks import normalise
from wildtta.serve import Client, ServiceError
from wildtta.serve.access import Tokens, read_tokens
from wildtta.serve.refusal import Refusal
from wildtta.serve.settings import Limits

TOKENS = {"alice": "a" * 20, "*": "s" * 20}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = settings_for(tmp_path_factory.mktemp("states"), hosts=("127.0.0.1", "localhost"))
    with served(replace(settings, limits=Limits(body=200_000, images=8))) as (place, _):
        yield place


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with tokens."""
    with served(settings_for(tmp_path_factory.mktemp("closed"), tokens=TOKENS)) as (place, _):
        yield place


def send(
    address: str, path: str, body: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if body is None else "POST"), path, body, named)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, content


def png(image: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def test_every_way_in_and_out_gives_the_networks_answer(address: str) -> None:
    images = glyphs(3)
    with torch.no_grad():
        expected = network("resnet_gn")(normalise(torch.from_numpy(images)))
    probabilities = expected.double().softmax(1)
    client = Client(address, "formats")
    told = client.predict(images, output="probabilities", learn=False)
    assert told["classes"] == expected.argmax(1).tolist()
    assert told["names"] == [CHARACTERS[c] for c in told["classes"]]
    np.testing.assert_allclose(told["probabilities"], probabilities, atol=1e-6)
    np.testing.assert_allclose(told["confidence"], probabilities.max(1).values, atol=1e-6)
    logits = client.logits(images, learn=False)
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)
    same = client.predict(images, output="logits", learn=False)
    assert np.array_equal(np.array(same["logits"], np.float32), logits), "JSON keeps every digit"
    one = client.predict(png(images[0]), learn=False)
    assert one["classes"] == told["classes"][:1]
    status, _, body = send(
        address, "/v1/tenants/formats/predict?learn=false", json.dumps({"images": images.tolist()}).encode()
    )
    assert status == 200
    assert json.loads(body)["classes"] == told["classes"]


def test_a_retry_gets_the_same_answer_and_is_learned_once(address: str) -> None:
    client, images = Client(address, "retries"), glyphs(4)
    first = client.logits(images, request_id="r1")
    assert np.array_equal(first, client.logits(images, request_id="r1"))
    assert not np.array_equal(first, client.logits(images, request_id="r2"))
    assert client.status()["learned"] == 2
    with pytest.raises(ServiceError) as refused:
        client.logits(glyphs(4, first=9), request_id="r1")
    assert refused.value.status == 409


def test_verbs(address: str) -> None:
    client, images = Client(address, "verbs"), glyphs(4)
    with pytest.raises(ServiceError) as refused:
        client.act("pause")
    assert refused.value.status == 404
    client.predict(images)
    assert client.act("pause")["paused"]
    client.predict(images)
    assert client.status()["learned"] == 1
    assert not client.act("resume")["paused"]
    client.act("reset")
    assert [event["text"] for event in client.status()["events"]] == ["pause", "resume", "reset"]
    assert send(address, "/v1/tenants/verbs/explode", b"")[0] == 422


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/v1/predict", b"", {}, 400),
        ("/v1/predict", b"nonsense", {}, 415),
        ("/v1/predict", b"\x93NUMPY", {"X_Tenant": "../up"}, 400),
        ("/v1/predict", b"\x93NUMPY", {"X_Request_Id": "a b"}, 400),
        ("/v1/predict", bytes(300_000), {}, 413),
        ("/v1/predict?output=all", b"x", {}, 422),
        ("/v1/predict", b"x", {"Origin": "http://elsewhere.example"}, 403),
        ("/v1/predict", b"x", {"Origin": "null"}, 403),
        ("/v1/predict", b"x", {"Host": "rebound.example"}, 400),
        ("/v1/tenants/nobody", None, {}, 404),
        ("/nowhere", None, {}, 404),
        ("/v1/predict", None, {}, 405),
    ],
)
def test_refusals_are_json_with_a_reason(
    address: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    found, _, content = send(address, path, body, **headers)
    assert found == status
    if "Host" not in headers:
        assert len(json.loads(content)["error"]) > 5


def test_nobody_is_two_tenants_at_once(closed: str) -> None:
    alice = f"Bearer {TOKENS['alice']}"
    for path, method in (
        ("/v1/tenants/alice/predict", "POST"),
        ("/v1/tenants/alice", "GET"),
        ("/v1/tenants/alice/reset", "POST"),
    ):
        assert send(closed, path, b"x", method, Authorization=alice, X_Tenant="bob")[0] == 400
    body = b"x"
    for name, values in (
        ("X-Tenant", ("alice", "bob")),
        ("X-Request-Id", ("1", "2")),
        ("Authorization", (alice, alice)),
    ):
        place = urlsplit(closed)
        connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
        connection.putrequest("POST", "/v1/predict")
        for value in values:
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        assert connection.getresponse().status == 400
        connection.close()


def test_a_body_without_a_length_is_cut_off_at_the_limit(address: str) -> None:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    chunks = (bytes(50_000) for _ in range(20))
    try:
        connection.request("POST", "/v1/predict", chunks, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
        status = connection.getresponse().status
    except ConnectionError:
        status = 413  # the service closed the connection while we were still sending
    assert status == 413


def test_bodies_that_come_slowly_leave_room_for_others(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with served(replace(settings, limits=Limits(flight=150_000))) as (address, _):
        place = urlsplit(address)
        slow = [socket.create_connection((str(place.hostname), place.port or 80), timeout=10) for _ in range(3)]
        for connection in slow:
            head = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Tenant: slow\r\nContent-Length: 100000\r\n\r\n"
            connection.sendall(head.encode() + bytes(60_000))
            time.sleep(0.3)
        assert slow[2].recv(20).startswith(b"HTTP/1.1 429"), "three times 60,000 bytes are too many"
        assert Client(address, "other", patience=0).predict(glyphs(1))["tenant"] == "other"
        for connection in slow:
            connection.close()
        until = time.monotonic() + 20
        while time.monotonic() < until:
            time.sleep(0.1)
            with contextlib.suppress(ServiceError):
                # What the others held is given back.
                assert len(Client(address, "slow", patience=0).predict(glyphs(40))["classes"]) == 40
                break
        else:
            pytest.fail("the room of connections that were closed is not given back")
    assert "Traceback" not in (tmp_path / "log.jsonl").read_text(), "who goes away must not fill the disk"


def test_strangers_are_not_told_why_states_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(settings_for(tmp_path, tokens=TOKENS)) as (address, replica):
        alarm = "states cannot be saved ([Errno 28] No space left on device: '/states/requests/alice.ids')"
        monkeypatch.setattr(replica, "facts", lambda: {"alive": True, "alarm": alarm})
        status, _, body = send(address, "/healthz")
        assert status == 200
        assert json.loads(body)["alarms"] == ["replica 0: states cannot be saved, learning is paused"]


def test_the_page_may_act_from_its_own_origin(address: str) -> None:
    Client(address, "origin").predict(glyphs(1))
    assert send(address, "/v1/tenants/origin/pause", b"", Origin=address)[0] == 200


def test_metrics_tell_what_happened(address: str) -> None:
    client = Client(address, "metered")
    for _ in range(3):
        client.predict(glyphs(2))
    _, headers, body = send(address, "/metrics")
    text = body.decode()
    assert headers["content-type"].startswith("text/plain")
    assert re.search(r'^wildtta_tenant_requests_total\{tenant="metered"\} 3\.0$', text, re.MULTILINE)
    assert re.search(r'^wildtta_tenant_images_total\{tenant="metered"\} 6\.0$', text, re.MULTILINE)
    assert re.search(r'^wildtta_tenant_learned_total\{tenant="metered"\} 3\.0$', text, re.MULTILINE)
    assert 'wildtta_http_requests_total{route="/v1/predict",status="200"}' in text
    from prometheus_client.parser import text_string_to_metric_families

    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))


def test_health_history_and_description(address: str) -> None:
    Client(address, "described").predict(glyphs(2))
    assert json.loads(send(address, "/healthz")[2])["status"] == "ok"
    (point,) = Client(address, "described").status()["points"][-1:]
    assert point["images"] == 2
    told = json.loads(send(address, "/v1/tenants?names=described&since=0")[2])
    assert [tenant["name"] for tenant in told["tenants"]] == ["described"]
    assert told["replicas"][0]["alive"]
    description = json.loads(send(address, "/openapi.json")[2])
    assert set(description["paths"]) == {
        *("/v1/predict", "/v1/tenants", "/v1/tenants/{tenant}", "/v1/tenants/{tenant}/predict"),
        *("/v1/tenants/{tenant}/{verb}", "/healthz", "/metrics"),
    }
    assert "image/png" in description["paths"]["/v1/predict"]["post"]["requestBody"]["content"]
    for page in ("/", "/docs"):
        status, headers, body = send(address, page)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert not re.search(rb"""(src|href)=["']https?:""", body)


def test_inputs_beyond_the_network_are_answered_with_null(address: str) -> None:
    told = Client(address, "extreme").predict(np.full((1, 3, 32, 32), 3e38, np.float32), output="logits")
    assert len(told["logits"][0]) == 200
    assert all(value is None or np.isfinite(value) for value in told["logits"][0])
    assert Client(address, "extreme").status()["requests"] == 1
    assert send(address, "/v1/tenants?since=0")[0] == 200


def test_tokens_open_their_own_tenant_alone(closed: str) -> None:
    images = glyphs(1)
    for tenant, token, status in (
        ("alice", None, 401),
        ("alice", "wrong" * 5, 403),
        ("bob", TOKENS["alice"], 403),
    ):
        with pytest.raises(ServiceError) as refused:
            Client(closed, tenant, token=token).predict(images)
        assert refused.value.status == status
    Client(closed, "alice", token=TOKENS["alice"]).predict(images)
    Client(closed, "bob", token=TOKENS["*"]).predict(images)
    for path, alice in (("/metrics", 403), ("/v1/tenants", 403), ("/v1/tenants/alice", 200), ("/healthz", 200)):
        assert send(closed, path, Authorization=f"Bearer {TOKENS['alice']}")[0] == alice
        assert send(closed, path, Authorization=f"Bearer {TOKENS['*']}")[0] == 200
    assert send(closed, "/metrics")[0] == 401


def test_without_a_token_for_everybody_nobody_has_one() -> None:
    with pytest.raises(Refusal):
        Tokens({"alice": "a" * 20}).check("bob", "Bearer ")
    with pytest.raises(Refusal):
        Tokens({"alice": "a" * 20}).check(None, "Bearer " + "a" * 20)


def test_a_file_of_tokens_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    for text in ("{", "[]", "{}", '{"a": 1}', '{"a b": "xxxxxxxxxxxxxxxxxxxx"}', '{"a": "short"}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"tokens\.json"):
            read_tokens(file)
    file.write_text(json.dumps(TOKENS))
    file.chmod(0o600)
    assert read_tokens(file) == TOKENS
    file.chmod(0o644)
    with pytest.warns(UserWarning, match="chmod 600"):
        read_tokens(file)


def test_the_client_tries_again_with_the_same_id() -> None:
    """A server that closes the first connection, answers 503 to the second, and the third.

    A Retry-After may be a date (RFC 9110, 10.2.3).
    """
    import socketserver

    seen: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head, length = b"", 0
            while (line := self.rfile.readline()) not in (b"\r\n", b""):
                head += line
                if line.lower().startswith(b"content-length"):
                    length = int(line.split()[1])
            self.rfile.read(length)
            found = re.search(rb"x-request-id: (\S+)", head, re.IGNORECASE)
            assert found
            seen.append(found[1].decode())
            if len(seen) == 1:
                return
            later = b"\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT"
            status = b"503 Busy" + later if len(seen) == 2 else b"200 OK"
            self.wfile.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_address[1]}", patience=10)
        assert client.predict(b"x") == {}
        assert client.tries == 3
        assert len(set(seen)) == 1
        server.shutdown()
    with pytest.raises(ConnectionError, match="wildtta serve"):
        Client(f"http://127.0.0.1:{server.server_address[1]}", patience=0.2).predict(b"x")
