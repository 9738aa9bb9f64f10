"""The service under load, under kills, and beside an attacker; every answer is compared with the fleet's own.

    python benchmarks/serve.py load --seconds 300 --tenants 50
    python benchmarks/serve.py faults --kills 10
    python benchmarks/serve.py isolation --fuzz 10000

Each starts a service of its own on this machine (127.0.0.1), sends a bounded number of requests for a bounded time, and stops
it. ``load`` has as many callers as tenants; each sends its next request when it has its answer. It runs the method and then
the bare network behind the same service, and compares every answer with the fleet run directly on the recorded groups.
``faults`` kills the replica (SIGKILL) under load, and then rebuilds every tenant's state from the requests that it should
hold. ``isolation`` asks for one tenant alone, and again beside an attacker and thousands of malformed requests.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wildtta
from serve_attack import Attack
from serve_callers import call, images_of
from serve_replay import compare_answers, kept_turns, learned_twice, lives_of, state_difference
from wildtta.serve import Client
from wildtta.serve.service import Service, prepared
from wildtta.serve.settings import Settings
from wildtta.step.state_file import read_state

Facts = dict[str, Any]


@contextmanager
def service(arguments: argparse.Namespace, **changes: Any) -> Iterator[tuple[str, Settings]]:
    """A service with a folder of its own: its address and its settings."""
    folder = Path(tempfile.mkdtemp(prefix="wildtta-serve-"))
    told = {"model": arguments.model, "method": arguments.method, "threads": arguments.threads, **changes}
    settings = prepared(folder=folder / "states", record=folder / "record", **told)
    with Service(settings, port=arguments.port) as running:
        yield running.address, settings


def replicas(address: str) -> list[Facts]:
    with urllib.request.urlopen(f"{address}/v1/tenants", timeout=10) as response:
        told: list[Facts] = json.load(response)["replicas"]
    return told


def say(text: str) -> None:
    print(text, flush=True)


# -- load ----------------------------------------------------------------------------------------------------------------


def load(arguments: argparse.Namespace) -> Facts:
    found: Facts = {}
    for method in (arguments.method, "none"):
        say(f"{method}: {arguments.tenants} tenants, {arguments.seconds:g} s")
        tenants = [f"tenant-{number}" for number in range(arguments.tenants)]
        with service(arguments, method=method) as (address, settings):
            call(address, ["warm-up"], seconds=5, most=20)
            bounds = {"seconds": arguments.seconds, "most": arguments.most, "pause": arguments.pause}
            answered = call(address, tenants, **bounds, progress=_shown)
            dropped = _told(address, "dropped")
        found[method] = {**answered.table(), "not learned from": dropped}
        say(f"{method}: {found[method]}")
        for failure in answered.failed[:5]:
            say(f"  lost: {failure}")
        if settings.learn:
            say("comparing with the fleet on the recorded groups ...")
            compared = compare_answers(settings, answered.logits)
            found["comparison"] = vars(compared)
            say(f"{compared}")
    return found


def _shown(seconds: float, answered: int) -> None:
    if round(seconds / 5) % 6 == 0:
        say(f"  {seconds:.0f} s: {answered} answered")


def _told(address: str, counter: str) -> int:
    with urllib.request.urlopen(f"{address}/v1/tenants", timeout=10) as response:
        return sum(tenant[counter] for tenant in json.load(response)["tenants"])


# -- faults --------------------------------------------------------------------------------------------------------------


def faults(arguments: argparse.Namespace) -> Facts:
    tenants = [f"tenant-{number}" for number in range(arguments.tenants)]
    torn: list[str] = []
    kills: list[float] = []
    with service(arguments, save_steps=arguments.save_steps, guarded=False) as (address, settings):
        ended = threading.Event()

        def kill() -> None:
            while len(kills) < arguments.kills and not ended.wait(arguments.every):
                process = _replica_process(address)
                if process is None:
                    continue
                os.kill(process, signal.SIGKILL)
                kills.append(time.monotonic())
                torn.extend(_torn(Path(settings.folder)))
                say(f"  kill {len(kills)} of {arguments.kills}: process {process}")
                _wait_for_another(address, process)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        seconds = arguments.kills * (arguments.every + 20)
        bounds = {"seconds": seconds, "most": arguments.most, "pause": arguments.pause}
        answered = call(address, tenants, **bounds, progress=_shown, until=killer)
        ended.set()
    torn.extend(_torn(Path(settings.folder)))
    say("rebuilding every state from the requests that it should hold ...")
    lives = lives_of(settings)
    kept = {tenant: kept_turns(own) for tenant, own in lives.items()}
    differences = [
        state_difference(settings, tenant, kept[tenant], Path(settings.folder))
        for tenant in tenants[: arguments.rebuilt]
    ]
    return {
        **answered.table(),
        "kills": len(kills),
        "torn state files": len(torn),
        "learned twice": sum(map(learned_twice, kept.values())),
        "steps": sum(learned for each in kept.values() for _, learned in each.turns),
        "steps lost by one kill, at most": max(each.most_lost for each in kept.values()),
        "save_steps": settings.save_steps,
        "rebuilt states": len(differences),
        "largest difference of a rebuilt state": max(own for own, _ in differences),
        "difference that one step twice would make, at least": min(twice for _, twice in differences),
        "failures": answered.failed[:5],
    }


def _replica_process(address: str) -> int | None:
    try:
        told = replicas(address)
    except OSError:
        return None
    return int(told[0]["process"]) if told else None


def _wait_for_another(address: str, process: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and _replica_process(address) in (None, process):
        time.sleep(0.5)


def _torn(folder: Path) -> list[str]:
    """State files that cannot be read, or whose checksum is wrong."""
    return [told for file in folder.rglob("*.stream") if (told := _damage(file)) is not None]


def _damage(file: Path) -> str | None:
    try:
        read_state(file)
    except ValueError as error:
        return str(error)
    return None


# -- isolation -----------------------------------------------------------------------------------------------------------


def isolation(arguments: argparse.Namespace) -> Facts:
    found: Facts = {}
    for alone in (True, False):
        answers = []
        for attacked in (False, True):
            with service(arguments, alone=alone) as (address, _):
                attack = Attack(address, arguments.fuzz if alone else 0) if attacked else None
                victim = Client(address, "victim")
                own = {}
                for number in range(arguments.requests):
                    request_id = f"victim/{number}"
                    own[request_id] = victim.logits(images_of(request_id), request_id=request_id)
                answers.append(own)
                if attack is not None:
                    found.update(attack.end())
        differences = [float(np.abs(answers[0][i] - answers[1][i]).max()) for i in answers[0]]
        changed = sum(not np.array_equal(answers[0][i], answers[1][i]) for i in answers[0])
        how = "alone" if alone else "together"
        found[f"grouped {how}: answers that differ"] = f"{changed} of {len(differences)}"
        found[f"grouped {how}: largest difference of a logit"] = max(differences)
        say(f"{how}: {changed} of {len(differences)} differ, by {max(differences):.3g} at most; {found}")
    return found


# -- the command ---------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["load", "faults", "isolation"])
    parser.add_argument("--model", default="glyphs:resnet_gn")
    parser.add_argument("--method", help="default: steady; tent for faults, where every step moves the weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300.0, help="of load, at most")
    parser.add_argument("--most", type=int, default=100_000, help="requests, at most")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds of a caller between an answer and the next request"
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--every", type=float, default=8.0, help="seconds between a replica's start and its kill")
    parser.add_argument("--save-steps", type=int, default=8)
    parser.add_argument("--rebuilt", type=int, default=10, help="tenants whose states are rebuilt")
    parser.add_argument("--requests", type=int, default=300, help="of the tenant beside the attacker")
    parser.add_argument("--fuzz", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    arguments.method = arguments.method or ("tent" if arguments.what == "faults" else "steady")
    command = shlex.join(["python", "benchmarks/serve.py", *(sys.argv[1:] if argv is None else argv)])
    machine = f"{platform.machine()}, {os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f} before"
    versions = f"wildtta {wildtta.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    say(f"{command}\n{machine}; {versions}")
    found = {"load": load, "faults": faults, "isolation": isolation}[arguments.what](arguments)
    say(json.dumps(found, indent=2))
    if arguments.json is not None:
        facts = {"command": command, "machine": machine, "versions": versions, "found": found}
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
