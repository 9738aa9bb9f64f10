"""``wildtta serve``: a network that adapts to every tenant's images, behind a port."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from wildtta.cli.launching import one_line_errors, pairs

_LOCAL = ("127.0.0.1", "localhost", "::1")


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    model: Annotated[
        str, typer.Option(help="glyphs:NAME, timm:NAME, torchvision:NAME, package.module:function or file.py:function.")
    ] = "glyphs:resnet_gn",
    method: Annotated[str, typer.Option(help="A method; none: the network alone, without learning.")] = "steady",
    option: Annotated[list[str] | None, typer.Option(help="name=value for the method (may be repeated).")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="name=value for the model.")] = None,
    weights: Annotated[str | None, typer.Option(help="A safetensors file with the model's weights.")] = None,
    protocol: Annotated[str, typer.Option(help="Preprocessing: auto, paper, timm, native, custom:...")] = "auto",
    size: Annotated[
        int | None, typer.Option(min=1, help="Of the input, where the protocol keeps an image's own.")
    ] = None,
    classes: Annotated[Path | None, typer.Option(help="A file with the classes' names, one per line.")] = None,
    guard: Annotated[bool, typer.Option(help="Watch every tenant, and take back what does harm.")] = True,
    folder: Annotated[Path, typer.Option(help="Of the states; they outlive the service.")] = Path("wildtta-states"),
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0: all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    ray: Annotated[
        str | None, typer.Option(help="A Ray cluster: auto, or its address.", metavar="auto|ADDRESS")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Fleets; every tenant belongs to one of them.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each replica; a part of one is possible.")] = 0,
    interfaces: Annotated[int, typer.Option(min=1, help="Copies of the web interface, which decode images.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of each replica.")] = None,
    active: Annotated[int, typer.Option(min=1, help="Tenants of a replica on its device.")] = 64,
    resident: Annotated[
        int, typer.Option(min=1, help="Tenants of a replica in memory; the rest is in the folder.")
    ] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Images that are answered together, at most.")] = 64,
    wait: Annotated[float, typer.Option(min=0, help="Milliseconds that a request waits for others, at most.")] = 5.0,
    alone: Annotated[
        bool,
        typer.Option(help="Never answer two tenants together: slower, and equal to the last bit whoever else asks."),
    ] = False,
    busy: Annotated[int, typer.Option(min=1, help="Waiting images above which answers go before learning.")] = 256,
    save_steps: Annotated[int, typer.Option(min=1, help="Steps of a tenant between two saves of its state.")] = 64,
    save_seconds: Annotated[float, typer.Option(min=0.1, help="Seconds after which a changed state is saved.")] = 30.0,
    max_body: Annotated[float, typer.Option(min=0.001, help="MiB of a request at most.")] = 16.0,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of an image at most.")] = 16_000_000,
    max_tenants: Annotated[int, typer.Option(min=1, help="Of a replica at most.")] = 10_000,
    tokens: Annotated[Path | None, typer.Option(help='A JSON file {"tenant": "token", "*": "token"}.')] = None,
    record: Annotated[Path | None, typer.Option(help="Folder for which requests were answered together.")] = None,
    log: Annotated[
        Path | None, typer.Option(help="Structured log; default: log.jsonl in the folder of the states.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = "INFO",
    demo: Annotated[
        bool, typer.Option("--demo", help="Three tenants stream glyphs, one is attacked; see the page.")
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after so many seconds.")] = None,
) -> None:
    """Serve a network that adapts to every tenant's images.

    Example: wildtta serve --model timm:resnet50_gn --folder states, then open http://127.0.0.1:8000
    """
    with one_line_errors():
        from wildtta.serve.access import read_tokens
        from wildtta.serve.service import Service, prepared
        from wildtta.serve.settings import MIB, Limits

        told: dict[str, Any] = {
            "model": model,
            "method": method,
            "options": pairs(option, "--option"),
            "model_options": pairs(model_option, "--model-option"),
            "weights": weights,
            "folder": folder,
        }
        demonstration = None
        if demo:
            from wildtta.serve.demo import DEMO, Demonstration

            demonstration = Demonstration(say=typer.echo)
            told |= {**DEMO, "folder": Path(tempfile.mkdtemp(prefix="wildtta-demo-"))}
        settings = prepared(
            **told,
            protocol=protocol,
            size=size,
            classes=classes,
            guarded=guard,
            replicas=replicas,
            device="auto" if gpus else "cpu",
            threads=threads or max(1, (os.cpu_count() or 1) // replicas),
            active=active,
            resident=resident,
            batch=batch,
            wait=wait / 1000,
            alone=alone,
            busy=busy,
            save_steps=save_steps,
            save_seconds=save_seconds,
            limits=Limits(body=int(max_body * MIB), pixels=max_pixels, images=batch, tenants=max_tenants),
            tokens=None if tokens is None else read_tokens(tokens),
            hosts=_LOCAL if host in _LOCAL else None,
            record=record,
            log=log,
            log_level=log_level.upper(),
        )
        if host not in _LOCAL and tokens is None:
            typer.echo(f"warning: everybody who reaches {host}:{port} may ask, pause and reset; see --tokens", err=True)
        typer.echo(f"Starting {settings.model} with {settings.method} on Ray Serve, a few seconds ...")
        with Service(settings, host=host, port=port, ray=ray, gpus=gpus, interfaces=interfaces) as service:
            typer.echo(f"Listening at {service.address} (the page; /docs has the interface). States: {settings.folder}")
            typer.echo("Ctrl-C ends it; states are saved.")
            _until_told(service, demonstration, seconds)
            typer.echo("Saving states ...")
        typer.echo(f"Stopped. The same command goes on with the states in {settings.folder}.")


def _until_told(service: Any, demonstration: Any, seconds: float | None) -> None:
    """Wait for a signal, or the time to end; meanwhile, the demonstration."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if demonstration is not None:
        demonstration.run(service.address, ended, seconds)
        return
    until = None if seconds is None else time.monotonic() + seconds
    while not ended.wait(1.0 if until is None else min(1.0, max(0.0, until - time.monotonic()))):
        if until is not None and time.monotonic() >= until:
            return
