"""The table of the no-harm battery's core: each method's verdict on the streams that all kinds of methods have run.

    python studies/later-methods/core_table.py runs/no-harm.jsonl [docs/results/later-methods.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import methods  # noqa: F401  (names the battery's folder, where page.py is)

# isort: split
from cells import show
from page import scores, shared_by_methods, verdicts

from wildtta.bench import read

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("journal")
    parser.add_argument("page", nargs="?", type=Path)
    options = parser.parse_args()
    show(verdicts(shared_by_methods(scores(read(options.journal)))), "no-harm core", options.page)
