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
    given: list[tuple[str, object]] = [
        ("--model", cell.model),
        ("--method", cell.method),
        *_pairs("--model-option", cell.model_options),
        ("--weights", cell.weights),
        *_pairs("--option", cell.options),
        ("--regularise", cell.regularise or None),
        ("--scenario", cell.scenario),
        *_pairs("--scenario-option", cell.scenario_options),
        *(("--corruption", name) for name in cell.corruptions or ("clean",)),
        ("--severity", cell.severity or None),
        ("--batch-size", cell.batch_size),
        ("--seed", cell.seed),
        ("--limit", cell.limit),
        ("--on", cell.data),
        ("--data", None if cell.data == "glyphs" else "DIR"),
        ("--split", cell.data_options.get("split")),
        ("--protocol", None if cell.protocol == _DEFAULT.protocol else cell.protocol),
        *(("--measure", name) for name in cell.measure),
    ]
    words = [str(word) for name, value in given if value is not None for word in (name, value)]
    return shlex.join(["wildtta", "run", *words])


def _pairs(option: str, values: Mapping[str, Any]) -> list[tuple[str, object]]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return [(option, f"{name}={text}") for name, text in texts.items()]


def configuration(cell: Cell) -> dict[str, Any]:
    """What differs from a cell's defaults: short enough to read, complete enough to repeat."""
    usual = _DEFAULT.to_json()
    return {name: value for name, value in cell.to_json().items() if name == "model" or value != usual[name]}
