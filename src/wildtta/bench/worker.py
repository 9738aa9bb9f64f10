"""A worker process: cells come in as JSON lines on its input, rows go out as JSON lines on its output.

Started as ``python -m wildtta.bench.worker DEVICE CONDITIONS`` by :mod:`wildtta.bench.local`. It ends when its input
does, also in the middle of a cell: a killed driver leaves nothing running.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading


def main(device: str, conditions: str) -> None:
    """Serve cells until the input ends."""
    # Whatever a network or a library prints must not get between the rows.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C reaches the whole group; it is the driver that decides, and its end is this process's end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(waiting,), daemon=True).start()

    from wildtta.bench.cell import Cell
    from wildtta.bench.execute import Conditions, execute
    from wildtta.bench.journal import encode
    from wildtta.bench.pool import Throttled

    def tell(share: float) -> None:
        output.write(json.dumps({"progress": round(share, 4)}) + "\n")

    agreed = Conditions(**json.loads(conditions))
    while True:
        cell = Cell.from_json(json.loads(waiting.get()))
        row = execute(cell, agreed, device, progress=Throttled(tell))
        output.write(json.dumps({"row": json.loads(encode(row))}) + "\n")


def _listen(waiting: queue.Queue[str]) -> None:
    for line in sys.stdin:
        waiting.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
