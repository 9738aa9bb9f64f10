"""What the studies of this folder share: cells on the battery's networks, their arguments, running many side by side."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from wildtta.bench import Cell, launch

HERE = Path(__file__).resolve().parent


def battery_cell(network: str, method: str, weights: str, **stream: Any) -> Cell:
    """A method on a network of the battery, whose weights lie in a folder; ``stream``: the cell's other fields."""
    return Cell(
        # As seen from here: a journal is to name no machine's folders, and to go on elsewhere.
        model=f"{os.path.relpath(HERE / 'battery.py')}:battery",
        model_options={"name": network, "folder": weights},
        model_name=network,
        method=method,
        options={"precision": "tf32"},
        severity=5,
        data_options={"source_images": 500},
        protocol="native",  # what the battery's networks were trained with
        **stream,
    )


def arguments(description: str, parts: Sequence[str], networks: Sequence[str]) -> argparse.ArgumentParser:
    """The arguments of a study that has parts, the last of which is its table."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--images", help="what the networks are shown, of ../no-harm/prepare.py")
    parser.add_argument("--weights", help="folder of the battery's weights")
    parser.add_argument("--source", help="zip of source images")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of times, journals and written sets")
    parser.add_argument("--into", type=Path, help="page that takes the table in place of its old one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", default=list(networks), help="in the order in which they are run")
    parser.add_argument("--methods", nargs="+", help="all that mean something on a network unless named")
    parser.add_argument("--per-device", type=int, default=16, help="cells side by side")
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing begins later; the same call goes on")
    return parser


def run_side_by_side(cells: Sequence[Cell], journal: str, root: str | Path, given: argparse.Namespace) -> None:
    """Run the cells that the journal does not hold yet; says how many are left."""
    outcome = launch(
        cells,
        journal=given.out / journal,
        root=root,
        source=given.source,
        device=given.device,
        per_device=given.per_device,
        seconds=given.seconds,
    )
    print(f"{journal}: {outcome.ran} run, {outcome.failed} failed, {outcome.found} found, {outcome.left} left")


def show(text: str, name: str, page: Path | None) -> None:
    """Print a table, or put it into a page between the comments ``<!-- name -->`` and ``<!-- end of name -->``."""
    if page is None:
        print(text)
        return
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    whole = page.read_text()
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise SystemExit(f"{page} must hold one line {begin.strip()!r} and one line {end.strip()!r}")
    before, rest = whole.split(begin)
    page.write_text(f"{before}{begin}\n{text.strip()}\n\n{end}{rest.split(end)[1]}")
