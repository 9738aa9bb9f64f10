"""The command line that makes a number again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from wildtta.bench import Cell

_DEFAULT = Cell(model="-")


def command_for(cell: Cell) -> str:
    """``wildtta run`` with this cell's options; diagnostics' own options need a grid and are left out."""
    words = ["wildtta", "run", "--model", cell.model, "--method", cell.method]
    words += _pairs("--model-option", cell.model_options)
    if cell.weights is not None:
        words += ["--weights", cell.weights]
    words += _pairs("--option", cell.options)
    words += ["--scenario", cell.scenario]
    words += _pairs("--scenario-option", cell.scenario_options)
    for name in cell.corruptions or ("clean",):
        words += ["--corruption", name]
    if cell.corruptions:
        words += ["--severity", str(cell.severity)]
    words += ["--batch-size", str(cell.batch_size), "--seed", str(cell.seed)]
    if cell.limit is not None:
        words += ["--limit", str(cell.limit)]
    words += ["--on", cell.data]
    if cell.data != "glyphs":
        words += ["--data", "DIR"]
    if "split" in cell.data_options:
        words += ["--split", str(cell.data_options["split"])]
    if cell.protocol != _DEFAULT.protocol:
        words += ["--protocol", cell.protocol]
    for name in cell.measure:
        words += ["--measure", name]
    return shlex.join(words)


def _pairs(option: str, values: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in values.items():
        words += [option, f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return words


def configuration(cell: Cell) -> dict[str, Any]:
    """What differs from a cell's defaults: short enough to read, complete enough to repeat."""
    usual = _DEFAULT.to_json()
    return {name: value for name, value in cell.to_json().items() if name == "model" or value != usual[name]}
