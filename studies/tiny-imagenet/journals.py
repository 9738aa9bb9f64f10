"""Publishes a journal: the rows of some grids under the grids' titles, with what the pages and scripts read.

    J=docs/results/tiny-imagenet
    python studies/tiny-imagenet/journals.py runs/main.jsonl --grid studies/tiny-imagenet/main.toml --into $J/main.jsonl.gz

Left out are what was recorded per batch, per class and per answer, and the running accuracy: most of a journal's size.
``along.py`` reads R per batch and the running accuracy of a few runs; they keep it. No value is changed.

Without ``--into`` it counts how many cells of each grid the journals hold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from wildtta.bench import Cell
from wildtta.bench.grid import load_grid
from wildtta.bench.journal import Row, read, write

PER_CLASS = ("per_class", "histogram")
SHARP = {"evidence": False, "recovery": 0.2, "sharpness": 0.05}


def slim(row: Row, title: str | None) -> Row:
    """A row with a title, without what no page reads."""
    cell = row["cell"]
    metrics = {name: value for name, value in row["metrics"].items() if name not in PER_CLASS}
    series = {}
    if not followed(cell):
        metrics.pop("running", None)
    elif "redundancy" in row["series"]:
        series = {"redundancy": row["series"]["redundancy"]}
    return {**row, "cell": {**cell, "name": title}, "metrics": metrics, "series": series, "diagnostics": {}}


def followed(cell: Row) -> bool:
    """Whether ``along.py`` follows the run: no adaptation and Steady with sharpness, shuffled and mixed, on the second half."""
    own = {name: value for name, value in cell["options"].items() if name != "precision"}
    judged = cell["method"] == "none" or (cell["method"] == "steady" and own == SHARP)
    shuffled = cell["scenario"] in ("mild", "mixed") and cell["severity"] == 5 and cell["seed"] == 0
    return judged and shuffled and cell["data_options"].get("split") == "second-half"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", type=Path, nargs="+")
    parser.add_argument("--grid", type=Path, action="append", required=True)
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    rows = {row["key"]: row for row in read(given.journals) if row["status"] == "ok"}
    titles: dict[str, str | None] = {}
    for grid in given.grid:
        cells: list[Cell] = load_grid(grid)
        found = [cell for cell in cells if cell.key in rows]
        print(f"{grid}: {len(found)} of {len(cells)} cells are in the journals")
        for cell in found:
            titles.setdefault(cell.key, cell.name)
    kept = [slim(row, titles.get(key, row["cell"]["name"])) for key, row in rows.items()]
    print(f"{len(rows) - len(titles)} of {len(rows)} rows are in no grid")
    if given.into:
        write(kept, given.into)
        print(f"{len(kept)} rows, {given.into.stat().st_size:,} bytes in {given.into}")


if __name__ == "__main__":
    main()
