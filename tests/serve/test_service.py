"""``wildtta serve`` on a real local Ray: from the command to a kill, and to a graceful stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_parts import free_port, glyphs

from wildtta.serve import Client
from wildtta.serve.routing import replica_of
from wildtta.step.state_file import read_state

pytest.importorskip("ray.serve", reason="the service needs Ray Serve: pip install 'wildtta[serve]'")

COMMAND = [sys.executable, "-c", "from wildtta.cli import main; main()", "serve"]


@contextmanager
def running(folder: Path, *arguments: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command as a process; its address once it is healthy."""
    port = free_port()
    command = [*COMMAND, "--port", str(port), "--folder", str(folder), "--threads", "1", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 240
        while not healthy(address):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.2)
        yield address, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()


def healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.HTTPError):
        return False


def replicas(address: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{address}/v1/tenants", timeout=10) as response:
        found: list[dict[str, Any]] = json.load(response)["replicas"]
    return found


def test_from_the_command_to_a_kill_and_a_graceful_stop(tmp_path: Path) -> None:
    images = glyphs(4)
    told = ["--method", "tent", "--save-steps", 2, "--no-guard"]
    with running(tmp_path, *told) as (address, process):
        client = Client(address, "camera")
        first = client.logits(images, request_id="0")
        for number in range(1, 6):
            client.predict(images, request_id=str(number))
        assert client.status()["learned"] == 6
        killed = int(replicas(address)[0]["process"])
        os.kill(killed, signal.SIGKILL)
        # The answer comes from the replica that took its place, with what it found in the folder.
        after = client.logits(images, request_id="5")
        assert not np.array_equal(first, after)
        assert replicas(address)[0]["process"] != killed
        assert client.status()["learned"] <= 1, "learned again only if its step was lost with the process"
        client.predict(images, request_id="6")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 0, output
    _, facts = read_state(next(tmp_path.rglob("camera.stream")))
    assert 6 <= facts["host_steps"] <= 7, "seven requests, at most one of them lost with the kill"
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events.count("replica started") == 2
    assert events[-1] == "replica stopped"


@pytest.mark.slow
def test_a_tenant_is_always_at_its_own_replica(tmp_path: Path) -> None:
    with running(tmp_path, "--method", "tent", "--replicas", 2, "--no-guard") as (address, _):
        tenants = [f"t{number}" for number in range(8)]
        for _ in range(3):
            for tenant in tenants:
                Client(address, tenant).predict(glyphs(1))
        for index in range(2):
            own = {tenant for tenant in tenants if replica_of(tenant, 2) == index}
            with urllib.request.urlopen(f"{address}/v1/tenants", timeout=10) as response:
                everything = json.load(response)
            assert {tenant["name"] for tenant in everything["tenants"]} == set(tenants)
            assert own
    taken = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    processes: dict[str, set[int]] = {}
    for line in taken:
        if line["event"] == "tenant taken up":
            processes.setdefault(line["tenant"], set()).add(line["process"])
    assert all(len(own) == 1 for own in processes.values())
    for index in range(2):
        assert len({p for t, own in processes.items() if replica_of(t, 2) == index for p in own}) == 1


@pytest.mark.slow
def test_the_demonstration_shows_an_attack_and_the_guard(tmp_path: Path) -> None:
    with running(tmp_path, "--demo", "--seconds", 120) as (address, _):
        until = time.monotonic() + 110
        acted: list[dict[str, Any]] = []
        while not acted and time.monotonic() < until:
            time.sleep(1)
            try:
                market = Client(address, "market", patience=5).status()
            except RuntimeError:
                continue
            acted = [event for event in market["events"] if event["kind"] == "guard"]
        assert acted, "the guard did nothing about the attack"
        for calm in ("harbour", "station"):
            status = Client(address, calm).status()
            assert status["alarms"] == 0
            assert status["distance"] > 0
