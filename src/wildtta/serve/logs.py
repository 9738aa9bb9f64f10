"""Structured logs: one JSON object per line, appended to one file by every process of a service on a machine."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import time
from typing import Any

LOG = logging.getLogger("wildtta.serve")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "process": os.getpid(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)


class _Quiet(logging.handlers.WatchedFileHandler):
    """A full disk must not stop an answer: what cannot be logged is not."""

    def handleError(self, record: logging.LogRecord) -> None:
        return


def set_up(path: str | None, level: str = "INFO") -> None:
    """Log to a file (or, without one, to standard error). A line is one write: processes may share the file."""
    handler = logging.StreamHandler() if path is None else _Quiet(path, encoding="utf-8")
    formatter = _Lines()
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    LOG.handlers[:] = [handler]
    LOG.setLevel(level)
    LOG.propagate = False


def log(event: str, *, level: int = logging.INFO, error: bool = False, **facts: Any) -> None:
    """One line: what happened, and its facts; ``error`` adds the traceback of the present exception."""
    LOG.log(level, event, extra={"facts": facts}, exc_info=error)
