"""The command line that makes a number again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from wildtta.bench import Cell

_DEFAULT = Cell(model="-")


def command_for(cell: Cell) -> str:
    """``wildtta run`` with this cell's options; diagnostics' own options need a grid and are left out."""
    return command_line(
        ["wildtta", "run"],
        ("--model", cell.model),
        ("--method", cell.method),
        *_pairs("--model-option", cell.model_options),
        ("--weights", cell.weights),
        *_pairs("--option", cell.options),
        ("--regularise", cell.regularise or None),
        ("--pace", cell.pace or None),
        ("--scenario", cell.scenario),
        *_pairs("--scenario-option", cell.scenario_options),
        *(("--corruption", name) for name in cell.corruptions or ("clean",)),
        ("--severity", cell.severity if cell.corruptions else None),
        ("--batch-size", cell.batch_size),
        ("--seed", cell.seed),
        ("--limit", cell.limit),
        ("--on", cell.data),
        ("--data", None if cell.data == "glyphs" else "DIR"),
        ("--split", cell.data_options.get("split")),
        ("--protocol", None if cell.protocol == _DEFAULT.protocol else cell.protocol),
        *(("--measure", name) for name in cell.measure),
    )


def command_line(words: Iterable[object], *options: tuple[str, object]) -> str:
    """Words and options as a shell takes them; an option whose value is None is left out."""
    given = [word for option in options if option[1] is not None for word in option]
    return shlex.join(map(str, [*words, *given]))


def _pairs(option: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (option, f"{key}={value if isinstance(value, str) else json.dumps(value)}") for key, value in values.items()
    ]


def configuration(cell: Cell) -> dict[str, Any]:
    """What differs from a cell's defaults: short enough to read, complete enough to repeat."""
    usual = _DEFAULT.to_json()
    return {name: value for name, value in cell.to_json().items() if name == "model" or value != usual[name]}
