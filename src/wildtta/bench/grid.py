"""A grid of cells from a TOML file.

Every combination of models, methods, scenarios, corruptions, severities, batch sizes and seeds is a cell::

    [defaults]                          # any field of a cell, for all grids of the file
    data = "folder"
    data_options = { split = "second-half" }
    protocol = "paper"

    [models.rn26_gn]                    # a name for a model; "timm:resnet50_gn" may also stand in the list
    model = "load.py:classifier"
    model_options = { name = "rn26_gn" }

    [methods.sar2-only-I]               # a name for a method with options
    method = "sar2"
    options = { redundancy = "null" }
    title = "SAR² without R"            # optional: how tables print it

    [[grid]]                            # one or several
    models = ["rn26_gn", "glyphs:vit"]
    methods = ["none", "tent", "sar2", "sar2-only-I"]
    scenarios = ["mild", { scenario = "label_shift", draws = 100, ratio = inf }, "mixed"]
    corruptions = "all"                 # the 15, or a list; "clean" for none; [["snow", "fog"]]: one stream
    severities = [5]                    # default [5], or the field severity
    batch_sizes = [64]                  # default [64], or the field batch_size; "single" is always 1
    seeds = [0, 1, 2]                   # default [0], or the field seed
    limit = 4000                        # any other field of a cell

    [[grid.override]]                   # optional, after the grid it belongs to: changes cells that match
    match = { method = ["tent", "sar"], scenario = "label_shift" }
    set = { options = { lr = 1e-4 }, limit = 2000 }    # tables are merged, the rest is replaced

Scenarios with one stream over several corruptions (mixed, continual, continual_label_shift, gradual) take the
whole list as one cell; the others give a cell for each corruption. ``match`` compares a cell's fields, and
``method`` and ``model`` also with the names of this file; a list means any of them. ``skip = true`` instead
of ``set`` leaves matching cells out. The same cell in two grids is one cell. TOML has no null: write the text
"null" where an option is to be None (``redundancy = "null"`` switches R off). A method of your own is
``my_method.py:Class``. Relative paths (of models, methods, weights) are taken from the file's folder.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from wildtta.bench.cell import MULTI_DOMAIN, Cell
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.plain import each_value

_FIELDS = frozenset(entry.name for entry in fields(Cell))
_TABLES = frozenset(entry.name for entry in fields(Cell) if entry.default_factory is not MISSING)
_NUMBERS = {"severities": ("severity", 5), "batch_sizes": ("batch_size", 64), "seeds": ("seed", 0)}
"""Axes of whole numbers: the field that each fills, and its value where neither of the two is given."""
_AXES = frozenset({"models", "methods", "scenarios", "corruptions", "override", *_NUMBERS})
_SETTABLE = _FIELDS - {"model", "model_options", "weights", "method", "scenario", "corruptions", "name", "model_name"}

Table = Mapping[str, Any]


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
        cells = list(_cells(parse_toml(text), folder or Path()))
        return list({cell.key: cell for cell in cells}.values())
    except BenchError as error:
        raise BenchError(f"{where}: {error}") from error


def parse_toml(text: str) -> Table:
    """A TOML file's content; the text ``null``, which TOML lacks, is None."""
    try:
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise BenchError("TOML files need tomli on Python 3.10: pip install 'wildtta[cli]'") from error
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BenchError(f"not valid TOML: {error}") from error
    nulled: Table = each_value(content, lambda value: None if value == "null" else value)
    return nulled


def _cells(content: Table, folder: Path) -> Iterator[Cell]:
    _only(content, {"defaults", "models", "methods", "grid"}, "the file")
    defaults = _settings(content.get("defaults", {}), _SETTABLE, "[defaults]")
    named = {kind: _table(content.get(kind, {}), f"[{kind}]") for kind in ("models", "methods")}
    grids = content.get("grid")
    if not isinstance(grids, list) or not grids:
        raise BenchError("no [[grid]] in the file; see `wildtta bench --help` for the format")
    for number, grid in enumerate(grids, start=1):
        where = f"[[grid]] {number}"
        _settings(grid, _AXES | _SETTABLE, where)
        common = _merged(defaults, {name: value for name, value in grid.items() if name in _SETTABLE})
        overrides = _overrides(grid.get("override", []), where)
        idle = dict(enumerate(overrides, start=1))
        for combination in _combinations(grid, common, named, folder, where):
            cell = _merged(common, combination)
            for place, override in enumerate(overrides, start=1):
                if all(_matches(cell, name, wanted) for name, wanted in override.get("match", {}).items()):
                    idle.pop(place, None)
                    if override.get("skip"):
                        break
                    cell = _merged(cell, override.get("set", {}))
            else:
                yield Cell.from_json(cell)
        for place, override in idle.items():
            raise BenchError(
                f"override {place} of {where} matches no cell (match = {dict(override.get('match', {}))!r}), so that it does "
                "nothing; compare it with the grid's lists and with the names of the file, or leave it out"
            )


def _overrides(value: Any, where: str) -> list[Table]:
    if not isinstance(value, list):
        raise BenchError(f"overrides of {where} are tables of their own, [[grid.override]] after it; got override = {value!r}")
    for entry in value:
        _only(entry, {"match", "set", "skip"}, f"an override of {where}")
        _only(entry.get("match", {}), _FIELDS, f"match in {where}")
        _settings(entry.get("set", {}), _FIELDS, f"set in {where}")
        if not isinstance(entry.get("skip", False), bool):
            raise BenchError(f"skip in an override of {where} must be true or false, without quotes, got {entry['skip']!r}")
    return value


def _combinations(
    grid: Table, common: Table, named: Mapping[str, Table], folder: Path, where: str
) -> Iterator[dict[str, Any]]:
    for axis in ("models", "methods", "scenarios"):
        if not isinstance(grid.get(axis), list) or not grid[axis]:
            raise BenchError(f"{where} needs a list of {axis}")
    axes: list[list[Any]] = [
        [_model(entry, named["models"], folder, where) for entry in grid["models"]],
        [_method(entry, named["methods"], folder, where) for entry in grid["methods"]],
        [_scenario(entry, where) for entry in grid["scenarios"]],
    ]
    for axis, (name, usual) in _NUMBERS.items():
        values = grid.get(axis)
        if axis in grid and not (isinstance(values, list) and values and all(type(value) is int for value in values)):
            raise BenchError(f"{axis} of {where} must be a list of whole numbers, got {values!r}")
        axes.append([{name: value} for value in values or [common.get(name, usual)]])
    for parts in itertools.product(*axes):
        cell = {name: value for part in parts for name, value in part.items()}
        if cell["scenario"] == "single":
            cell["batch_size"] = 1
        for corruptions in _corruptions(grid.get("corruptions", "all"), cell["scenario"] in MULTI_DOMAIN, where):
            yield {**cell, "corruptions": corruptions}


def _model(entry: Any, named: Table, folder: Path, where: str) -> Table:
    values = _entry("model", entry, named, where)
    _only(values, {"model", "model_options", "weights", "title"}, f"a model of {where}")
    values["model"] = _own_code_beside(folder, values["model"])
    weights = values.get("weights")
    if isinstance(weights, str) and weights and not Path(weights).is_absolute():
        values["weights"] = _beside(folder, weights)
    title = values.pop("title")
    return {**values, "model_name": title}


def _own_code_beside(folder: Path, name: Any) -> Any:
    """``file.py:name`` with the file taken from the grid's folder; any other name as it is."""
    place, _, what = str(name).rpartition(":")
    return f"{_beside(folder, place)}:{what}" if place.endswith(".py") and not Path(place).is_absolute() else name


def _beside(folder: Path, relative: str) -> str:
    """A path as seen from here; kept relative, so that a journal made elsewhere has the same keys."""
    return Path(os.path.normpath(folder / relative)).as_posix()


def _method(entry: Any, named: Table, folder: Path, where: str) -> Table:
    values = _entry("method", entry, named, where)
    title, method = values.pop("title"), _own_code_beside(folder, values.pop("method"))
    options = _table(values.pop("options", {}), f"options of the method {method!r} of {where}")
    # Options may stand beside the method's name: { method = "sar", lr = 1e-3 }.
    return {"method": method, "options": {**options, **values}, "name": title}


def _entry(kind: str, entry: Any, named: Table, where: str) -> dict[str, Any]:
    """The table that an entry of a list is or names; what is named in the file has its name for a title."""
    known = isinstance(entry, str) and entry in named
    values = named[entry] if known else {kind: entry} if isinstance(entry, str) else entry
    if not isinstance(values, Mapping):
        raise BenchError(f"a {kind} of {where} must be a name or a table, got {values!r}")
    return {kind: entry if known else None, "title": entry if known else None, **values}


def _scenario(entry: Any, where: str) -> Table:
    values = {"scenario": entry} if isinstance(entry, str) else entry
    if not isinstance(values, Mapping) or not isinstance(values.get("scenario"), str):
        raise BenchError(f"a scenario of {where} must be a name or a table with `scenario`, got {entry!r}")
    return {"scenario": values["scenario"], "scenario_options": {k: v for k, v in values.items() if k != "scenario"}}


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


def _matches(cell: Table, name: str, wanted: Any) -> bool:
    found = [cell.get(name)]
    if name in ("method", "model"):
        found.append(cell.get("name" if name == "method" else "model_name"))
    if name == "corruptions" and isinstance(found[0], list) and len(found[0]) == 1:
        found += found[0]
    return any(value in (wanted if isinstance(wanted, list) else [wanted]) or value == wanted for value in found)


def _merged(base: Table, changes: Table) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = {**merged[name], **value} if both else value
    return merged


def _table(value: Any, where: str) -> Table:
    if not isinstance(value, Mapping):
        raise BenchError(f"{where} must be a table, such as {{ name = value }}, got {value!r}")
    return value


def _settings(values: Any, known: frozenset[str], where: str) -> Table:
    """Fields of a cell: tables are merged with others, so that what is no table would be lost."""
    found = _only(values, known, where)
    for name in _TABLES & found.keys():
        _table(found[name], f"{name} of {where}")
    return found


def _only(values: Any, known: frozenset[str] | set[str], where: str) -> Table:
    refuse_unknown(_table(values, where), sorted(known), f"{where} has an unknown entry {{}}")
    return dict(values)
