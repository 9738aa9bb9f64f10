"""A grid of cells from a TOML file.

Every combination of a grid's models, methods, scenarios, corruptions, severities, batch sizes and seeds is a cell::

    [defaults]                          # any field of a cell, for all grids of the file
    data = "folder"
    data_options = { split = "second-half" }
    protocol = "paper"

    [models.rn26_gn]                    # names for models; a grid may also name a model directly ("timm:resnet50_gn")
    model = "load.py:classifier"
    model_options = { name = "rn26_gn" }

    [methods.sar2-only-I]               # names for methods with options; the bare names of wildtta.methods() are known
    method = "sar2"
    options = { redundancy = "null" }
    title = "SAR² without R"            # optional: how tables print it

    [[grid]]                            # one or several
    models = ["rn26_gn", "glyphs:vit"]
    methods = ["none", "tent", "sar2", "sar2-only-I"]
    scenarios = ["mild", { scenario = "label_shift", draws = 100, ratio = inf }, "mixed"]
    corruptions = "all"                 # the 15, or a list; "clean" for none; [["snow", "fog"]] one stream over several
    severities = [5]                    # default [5]
    batch_sizes = [64]                  # default [64]; the scenario "single" is always 1
    seeds = [0, 1, 2]                   # default [0]
    limit = 4000                        # any other field of a cell

    [[grid.override]]                   # optional, after the grid it belongs to: changes cells that match
    match = { method = ["tent", "sar"], scenario = "label_shift" }
    set = { options = { lr = 1e-4 }, limit = 2000 }    # tables are merged, the rest is replaced

Scenarios with one stream over several corruptions (mixed, continual, continual_label_shift, gradual) take the whole list
as one cell; the others give a cell for each corruption. ``match`` compares a cell's fields, and ``method`` and ``model``
also with the names of this file; a list means any of them. ``skip = true`` instead of ``set`` leaves matching cells
out. The same cell in two grids is one cell. TOML has no null: write the text "null" where an option is to be None
(``redundancy = "null"`` switches R off). Relative paths (of models, weights) are taken from the file's folder.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from wildtta.bench.cell import MULTI_DOMAIN, Cell
from wildtta.bench.errors import BenchError

_FIELDS = frozenset(entry.name for entry in fields(Cell))
_AXES = frozenset({"models", "methods", "scenarios", "corruptions", "severities", "batch_sizes", "seeds", "override"})
_SETTABLE = _FIELDS - {"model", "model_options", "weights", "method", "scenario", "corruptions", "name", "model_name"}


def load_grid(path: str | os.PathLike[str]) -> list[Cell]:
    """The cells of a grid file, each once, in the order of the file."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BenchError(f"cannot read the grid {file}: {reason}") from error
    return parse_grid(text, where=str(file), folder=file.parent)


def parse_grid(text: str, *, where: str = "grid", folder: Path | None = None) -> list[Cell]:
    """The cells of a grid in TOML."""
    try:
        content = _toml(text)
        cells = list(_cells(content, folder or Path()))
    except BenchError as error:
        raise BenchError(f"{where}: {error}") from error
    return list({cell.key: cell for cell in cells}.values())


def _toml(text: str) -> dict[str, Any]:
    try:
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise BenchError("grids need tomli on Python 3.10: pip install 'wildtta[cli]'") from error
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except ValueError as error:
        raise BenchError(f"not valid TOML: {error}") from error
    nulled: dict[str, Any] = _with_nulls(content)
    return nulled


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_nulls(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return None if value == "null" else value


def _cells(content: Mapping[str, Any], folder: Path) -> Iterator[Cell]:
    _only(content, {"defaults", "models", "methods", "grid"}, "the file")
    defaults = _table(content.get("defaults", {}), "[defaults]")
    _only(defaults, _SETTABLE, "[defaults]")
    models = _table(content.get("models", {}), "[models]")
    methods = _table(content.get("methods", {}), "[methods]")
    grids = content.get("grid")
    if not isinstance(grids, list) or not grids:
        raise BenchError("no [[grid]] in the file; see `wildtta bench --help` for the format")
    for number, grid in enumerate(grids, start=1):
        where = f"[[grid]] {number}"
        _only(grid, _AXES | _SETTABLE, where)
        common = _merged(defaults, {name: value for name, value in grid.items() if name in _SETTABLE})
        overrides = [_override(entry, where) for entry in grid.get("override", [])]
        for combination in _combinations(grid, models, methods, folder, where):
            cell = _overridden(_merged(common, combination), overrides)
            if cell is not None:
                yield Cell.from_json(cell)


def _combinations(
    grid: Mapping[str, Any], models: Mapping[str, Any], methods: Mapping[str, Any], folder: Path, where: str
) -> Iterator[dict[str, Any]]:
    for axis in ("models", "methods", "scenarios"):
        if not isinstance(grid.get(axis), list) or not grid[axis]:
            raise BenchError(f"{where} needs a list of {axis}")
    axes: list[list[Any]] = [
        [_model(entry, models, folder, where) for entry in grid["models"]],
        [_method(entry, methods, where) for entry in grid["methods"]],
        [_scenario(entry, where) for entry in grid["scenarios"]],
        _whole_numbers(grid.get("severities", [5]), "severities", where),
        _whole_numbers(grid.get("batch_sizes", [64]), "batch_sizes", where),
        _whole_numbers(grid.get("seeds", [0]), "seeds", where),
    ]
    for model, method, scenario, severity, batch_size, seed in itertools.product(*axes):
        name = scenario["scenario"]
        for corruptions in _corruptions(grid.get("corruptions", "all"), name in MULTI_DOMAIN, where):
            yield {
                **model,
                **method,
                **scenario,
                "corruptions": corruptions,
                "severity": severity,
                "batch_size": 1 if name == "single" else batch_size,
                "seed": seed,
            }


def _model(entry: Any, named: Mapping[str, Any], folder: Path, where: str) -> dict[str, Any]:
    values: dict[str, Any] = (
        {"model": entry} if isinstance(entry, str) and entry not in named else _entry(entry, named, where, "model")
    )
    _only(values, {"model", "model_options", "weights", "title"}, f"a model of {where}")
    title = values.pop("title", entry if isinstance(entry, str) and entry in named else None)
    place, _, function = str(values["model"]).rpartition(":")
    if place.endswith(".py") and not Path(place).is_absolute():
        values["model"] = f"{_beside(folder, place)}:{function}"
    if values.get("weights") and not Path(values["weights"]).is_absolute():
        values["weights"] = _beside(folder, values["weights"])
    return {**values, "model_name": title}


def _beside(folder: Path, relative: str) -> str:
    """A path as seen from here; kept relative, so that a journal made elsewhere has the same keys."""
    return Path(os.path.normpath(folder / relative)).as_posix()


def _method(entry: Any, named: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = isinstance(entry, str) and entry in named
    values: dict[str, Any] = (
        {"method": entry} if isinstance(entry, str) and not known else _entry(entry, named, where, "method")
    )
    title = values.pop("title", entry if known else None)
    values.setdefault("method", entry if isinstance(entry, str) else None)
    # Options may stand beside the method's name: { method = "sar", lr = 1e-3 }.
    options = {**values.pop("options", {}), **{k: v for k, v in values.items() if k != "method"}}
    return {"method": values["method"], "options": options, "name": title}


def _entry(entry: Any, named: Mapping[str, Any], where: str, kind: str) -> dict[str, Any]:
    values = named[entry] if isinstance(entry, str) else entry
    if not isinstance(values, Mapping):
        raise BenchError(f"a {kind} of {where} must be a name or a table, got {values!r}")
    return dict(values)


def _scenario(entry: Any, where: str) -> dict[str, Any]:
    if isinstance(entry, str):
        return {"scenario": entry, "scenario_options": {}}
    if not isinstance(entry, Mapping) or "scenario" not in entry:
        raise BenchError(f"a scenario of {where} must be a name or a table with `scenario`, got {entry!r}")
    return {"scenario": entry["scenario"], "scenario_options": {k: v for k, v in entry.items() if k != "scenario"}}


def _corruptions(value: Any, several: bool, where: str) -> list[list[str]]:
    """The corruption lists of the cells: one list over all for streams over several, else one for each."""
    from wildtta.data import CORRUPTIONS

    if value == "all":
        value = list(CORRUPTIONS)
    elif value == "clean":
        return [[]]
    if not isinstance(value, list) or not value:
        raise BenchError(f'corruptions of {where} must be a list of names, "all" or "clean", got {value!r}')
    if all(isinstance(entry, list) for entry in value):
        return value
    if not all(isinstance(entry, str) for entry in value):
        raise BenchError(f"corruptions of {where} must be names, or lists of names, got {value!r}")
    return [value] if several else [[] if name == "clean" else [name] for name in value]


def _whole_numbers(value: Any, axis: str, where: str) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(entry) is int for entry in value):
        raise BenchError(f"{axis} of {where} must be a list of whole numbers, got {value!r}")
    return value


def _override(entry: Any, where: str) -> Mapping[str, Any]:
    _only(_table(entry, f"an override of {where}"), {"match", "set", "skip"}, f"an override of {where}")
    _only(_table(entry.get("match", {}), "match"), _FIELDS, f"match in {where}")
    _only(_table(entry.get("set", {}), "set"), _FIELDS, f"set in {where}")
    return dict(entry)


def _overridden(cell: dict[str, Any], overrides: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    for override in overrides:
        if all(_matches(cell, name, wanted) for name, wanted in override.get("match", {}).items()):
            if override.get("skip"):
                return None
            cell = _merged(cell, override.get("set", {}))
    return cell


def _matches(cell: Mapping[str, Any], name: str, wanted: Any) -> bool:
    found = [cell.get(name)]
    if name == "method":
        found.append(cell.get("name"))
    if name == "model":
        found.append(cell.get("model_name"))
    if name == "corruptions" and len(cell["corruptions"]) == 1:
        found += cell["corruptions"]
    return any(value in (wanted if isinstance(wanted, list) else [wanted]) or value == wanted for value in found)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **value} if both else value
    return merged


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BenchError(f"{where} must be a table, got {value!r}")
    return value


def _only(values: Mapping[str, Any], known: frozenset[str] | set[str], where: str) -> None:
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise BenchError(f"{where} has an unknown entry {unknown[0]!r}; there are {', '.join(sorted(known))}")
