"""A worker process: cells come in on a pipe, how far they are and their rows go out on it.

Started as ``python -m wildtta.bench.worker CHANNEL DEVICE CONDITIONS`` by :mod:`wildtta.bench.workers`. It
ends when the other end of the pipe does, also in the middle of a cell: a killed driver leaves nothing
running.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any


def main(channel: str, device: str, conditions: str) -> None:
    """Serve cells until the pipe is closed."""
    # What a network or a library prints does not belong into the output of the driver.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C reaches the whole group; it is the driver that decides, and its end is this process's end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver: Connection = Connection(int(channel))
    waiting: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(driver, waiting), daemon=True).start()

    from wildtta.bench.cell import Cell
    from wildtta.bench.running import Conditions, execute

    agreed = Conditions(**json.loads(conditions))
    while True:
        cell = Cell.from_json(waiting.get())
        driver.send(execute(cell, agreed, device, progress=driver.send))


def _listen(driver: Connection, waiting: queue.Queue[Any]) -> None:
    try:
        while True:
            waiting.put(driver.recv())
    except (EOFError, OSError):
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
