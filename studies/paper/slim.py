"""Publishes a journal of ``wildtta reproduce``: every row, without what no table, figure or claim reads.

    python studies/paper/slim.py runs/reproduce-glyphs.jsonl docs/results/paper-on-glyphs.jsonl.gz

Left out are accuracies per class, the running accuracy and the series, but for the figures that draw them. No
value is changed, and ``wildtta report`` says the same of both journals.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from wildtta.bench.journal import Row, read, write

DRAWN = {"figure-2": "series", "figure-3": "series", "figure-b": "series", "figure-e": "series", "figure-7": "running"}
"""What figures draw along the stream."""


def slim(row: Row) -> Row:
    """A row without what nobody reads."""
    drawn = {DRAWN.get(entry["experiment"]) for entry in row.get("asked_by", ())}
    metrics = {name: value for name, value in row.get("metrics", {}).items() if name != "per_class"}
    if "running" not in drawn:
        metrics.pop("running", None)
    return {**row, "metrics": metrics, "series": row.get("series", {}) if "series" in drawn else {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", type=Path, nargs="+")
    parser.add_argument("into", type=Path)
    given = parser.parse_args()
    rows = [slim(row) for row in read(given.journals)]
    write(rows, given.into)
    print(f"{len(rows)} rows, {given.into.stat().st_size:,} bytes in {given.into}")


if __name__ == "__main__":
    main()
