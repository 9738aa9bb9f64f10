"""A service from its start to its graceful stop, and its settings from what a person says."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from wildtta.bench.cell import Cell
from wildtta.bench.models import build_model
from wildtta.data.preprocessing import InputProtocol, input_protocol
from wildtta.fleet import Fleet
from wildtta.guard.guard import Guard
from wildtta.serve import cluster
from wildtta.serve.settings import Settings


class Service:
    """A running service: ``with Service(settings) as service: ...``. Leaving saves every state."""

    def __init__(
        self,
        settings: Settings,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        ray: str | None = None,
        gpus: float = 0,
        interfaces: int = 1,
    ) -> None:
        self.settings, self.host, self.port = settings, host, port
        self._ray, self._gpus, self._interfaces = ray, gpus, interfaces

    @property
    def address(self) -> str:
        shown = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}"

    def __enter__(self) -> Service:
        if self._ray is None:
            _check_port(self.host, self.port)
        cluster.connect(self._ray, self.settings.replicas)
        try:
            # On a machine of one's own the replicas share what cores there are.
            cpus = 1.0 if self._ray is not None else 0.5
            cluster.start(
                self.settings, host=self.host, port=self.port, cpus=cpus, gpus=self._gpus, interfaces=self._interfaces
            )
        except BaseException:
            cluster.disconnect()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cluster.stop(self.settings, shared=self._ray is not None)
        cluster.disconnect()


def prepared(
    *,
    model: str,
    method: str,
    folder: Path,
    protocol: str = "auto",
    size: int | None = None,
    classes: Path | None = None,
    guarded: bool = True,
    guard: Guard | None = None,
    record: Path | None = None,
    log: Path | None = None,
    model_options: dict[str, Any] | None = None,
    weights: str | None = None,
    **more: Any,
) -> Settings:
    """Settings that were tried once: network and fleet are made, so that a mistake is told before anything starts.

    Args:
        protocol: "auto" is ``glyphs`` for the embedded networks, ``timm`` for timm's, else ``paper``.
        size: of the input, where the protocol keeps an image's own; 32 for glyphs.
        classes: a file with one name per line.
        guarded: whether every tenant has a guard; ``guard`` says which.
        more: the other fields of :class:`Settings`.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    network = build_model(Cell(model=model, model_options=model_options or {}, weights=weights, method="none"))
    if method != "none":
        Fleet(network, method, **more.get("options", {})).close()
    chosen = _protocol(protocol, model, network)
    fixed = chosen.size or size or (_GLYPH_SIZE if model.startswith("glyphs:") else None)
    if fixed is None:
        raise ValueError(
            f"the protocol {chosen} keeps an image's own size; say which one the network takes: --size 224"
        )
    return Settings(
        model=model,
        model_options=model_options or {},
        weights=weights,
        method=method,
        learn=method != "none",
        guard=(guard or Guard()) if guarded and method != "none" else None,
        protocol=chosen,
        size=fixed,
        names=_names(classes, model),
        folder=str(folder),
        record=None if record is None else str(record.absolute()),
        log=str((log or folder / "log.jsonl").absolute()),
        **more,
    )


_GLYPH_SIZE = 32


def _check_port(host: str, port: int) -> None:
    """A port that is taken is told before Ray starts, which would try it for a while."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"cannot listen at {host}:{port} ({error.strerror}); choose another with --port or --host"
            ) from error


def _protocol(named: str, model: str, network: Any) -> InputProtocol:
    kind = model.partition(":")[0]
    auto = {"glyphs": "glyphs", "timm": "timm"}.get(kind, "paper")
    return input_protocol(auto if named == "auto" else named, network)


def _names(classes: Path | None, model: str) -> tuple[str, ...]:
    if classes is not None:
        return tuple(classes.read_text(encoding="utf-8").splitlines())
    if model.startswith("glyphs:"):
        from wildtta.glyphs import CHARACTERS

        return tuple(CHARACTERS)
    return ()
