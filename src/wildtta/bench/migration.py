"""Journals of version 0.1 in today's names.

Version 0.1 gave its own settings the paper's name. Today ``sar2`` and ``sar2-efficient`` are the paper's, and
ours is ``steady``, whose numbers stand alone: where 0.1 multiplied the whole loss by w, ``steady`` has a
learning rate w times as high. A row keeps every measured value. It gets the setting in today's names, the key
of that setting, a title that tells what differs from the method's defaults, and ``migrated``: its key,
method, title and resolved options of 0.1.

A row whose setting no method has any more keeps its key and its method, and gets its resolved options and a
label.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from wildtta.bench.cell import OF_ADAPT, Cell
from wildtta.bench.errors import BenchError
from wildtta.bench.journal import Row
from wildtta.bench.plain import plain
from wildtta.methods.registry import config_classes

Options = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Today:
    """A method of this version: its options with their defaults, and what each needs to have an effect."""

    title: str
    options: Mapping[str, Any]
    needs: Mapping[str, tuple[str, ...]]
    learning_rates: Mapping[str, Any]


RENAMED = {"reading": "normalisation", "coast": "step_without_samples"}
OURS = {"class_limit": "class_cap", "ensembling": "source_pull", "clip_ratio": "gradient_bound"}
"""Options of 0.1's SAR² that only ``steady`` has."""
SAME_AS = {"sar2": "sar2-paper", "sar2-efficient": "sar2-paper", "steady": "sar2-single"}
"""Today's method to the one of 0.1 whose defaults it does without options for."""
OF_THE_LOSS = ("redundancy", "inequity", "diversity", "clip_ratio", "clip_norm", "clip_value")
"""What was measured in units of the loss, so of 0.1's weight w."""

WORDS: dict[str, tuple[str, str]] = {
    "warmup": ("ζ = {}", "ζ by the classes"),
    "redundancy": ("α·D = {}", "without R"),
    "inequity": ("β = {}", "without I"),
    "sharpness": ("two passes, ρ = {}", "one pass"),
    "bank_rate": ("λ = {}", ""),
    "lr_scale": ("lr × {}", ""),
    "momentum": ("momentum {}", ""),
    "source_pull": ("pull {}", "no pull"),
    "class_cap": ("cap {}", "no cap"),
    "gradient_bound": ("bound {}", "no bound"),
    "normalisation": ("R over {}", ""),
    "clip_norm": ("gradient at most {}", ""),
    "evidence": ("always learning", ""),
    "recovery": ("recovery at {}", "no recovery"),
}
"""How a title names an option: with a value, and switched off."""


@cache
def methods_0_1() -> dict[str, dict[str, Any]]:
    """Version 0.1's methods: title, options with their defaults, learning rates."""
    text = resources.files("wildtta.bench").joinpath("defaults_0_1.json").read_text(encoding="utf-8")
    methods: dict[str, dict[str, Any]] = json.loads(text)
    return methods


def translated(method: str, options: Options, classes: int | None) -> tuple[str, Options]:
    """A setting of 0.1, all options given, in today's names; ``classes`` decides 0.1's usual warm-up."""
    new = {RENAMED.get(name, name): value for name, value in options.items()}
    if not method.startswith("sar2"):
        return method, new
    weight = options["entropy"]
    if weight in (0, 1) and all(options[name] is None for name in OURS):
        new = _without(new, *OURS)
        if options["warmup"] is None:
            if classes is None:
                raise LookupError("its number of classes, which decides ζ, is not known")
            new["warmup"] = min(max(10, classes // 10), classes // 2)
        efficient = options["centroids"] == "reliable"
        return ("sar2-efficient", _without(new, "centroids")) if efficient else ("sar2", new)
    if weight not in (0, 1):
        scaled = {name: _round(options[name] / weight) for name in OF_THE_LOSS if options[name] is not None}
        new |= scaled | {"entropy": 1.0, "lr_scale": _round(options["lr_scale"] * weight)}
    if options["ensembling"] is not None:
        new["ensembling"] = _round(1 - options["ensembling"])
    if options["reading"] == "columns":
        new["normalisation"] = "auto"  # which means columns in steady, on every network
    new["evidence"] = False  # 0.1 always learned
    return "steady", {OURS.get(name, name): value for name, value in new.items()}


def _without(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}


def _round(value: float) -> float:
    """Without the last digits of a division: 1 − 0.96 is 0.04."""
    return float(f"{value:.12g}")


def deviating(today: Today, method: str, options: Options) -> Options:
    """What differs from today's defaults; LookupError where today's method cannot do it."""
    old = SAME_AS.get(method, method)
    neutral = translated(old, methods_0_1()[old]["options"], 200)[1]
    for name, value in options.items():
        if name not in today.options and value != neutral.get(name):
            raise LookupError(f"{method} has no option {name!r} any more")
    if options.get("lr", 0) is None and today.learning_rates != methods_0_1()[old].get("learning_rates", {}):
        raise LookupError(f"{method} has other learning rates now")
    differing = {name: v for name, v in options.items() if name in today.options and v != today.options[name]}
    effective = {**today.options, **differing}
    return {name: v for name, v in differing.items() if all(effective[needed] for needed in today.needs.get(name, ()))}


def title(name: str, options: Mapping[str, Any]) -> str:
    """``SAR² (ζ = 20, R over columns)``: a method's title and what differs from its defaults."""
    order = [*WORDS, *options]
    parts = []
    for option, value in sorted(options.items(), key=lambda item: order.index(item[0])):
        with_value, off = WORDS.get(option, (f"{option} = {{}}", f"{option} off"))
        shown = f"{value:g}" if isinstance(value, float) else str(value).replace("_", " ")
        parts.append(off if value is None else with_value.format(shown))
    return f"{name.split(' (')[0]} ({', '.join(parts)})" if parts else name


def migrated(rows: Iterable[Row]) -> tuple[list[Row], list[str]]:
    """The rows of a journal of 0.1 in today's names, and a report: how many rows of what became what."""
    changes: Counter[tuple[str, str]] = Counter()
    result = []
    for row in rows:
        new, became = (row, "itself, a row of this version") if "resolved" in row else _migrated(row)
        method, name = row["cell"]["method"], row["cell"]["name"]
        changes[method if name is None else f"{method} ({name})", became] += 1
        result.append(new)
    report = [f"{count:6} {old} -> {became}" for (old, became), count in sorted(changes.items())]
    doubled = len(result) - len({row["key"] for row in result})
    if doubled:
        report.append(f"{doubled} rows have the setting of another row; the last one counts")
    return result, report


def _migrated(row: Row) -> tuple[Row, str]:
    """A row in today's names, and what became of it in words."""
    cell = row["cell"]
    if cell["method"] not in methods_0_1():
        return row, "itself, not a method of 0.1"
    before = methods_0_1()[cell["method"]]
    of_adapt = {name: value for name, value in cell["options"].items() if name in OF_ADAPT}
    resolved = {**before["options"], **_without(cell["options"], *OF_ADAPT)}
    past = {"key": row["key"], "method": cell["method"], "name": cell["name"], "options": resolved}
    try:
        method, options = translated(cell["method"], resolved, len(row.get("metrics", {}).get("per_class", ())) or None)
        today = _today(method)
        rates = today.learning_rates.values() if options.get("lr", 0) is None else ()
        if 1 < cell["batch_size"] < 64 and any(at_one != usual for at_one, usual in rates):
            # 0.1 had a straight line between batches of 1 and 64.
            raise LookupError(f"{method} has another learning rate at a batch of {cell['batch_size']} now")
        options = deviating(today, method, options)
        name = cell["name"]
        if name is None or cell["method"].startswith("sar2"):
            # 0.1's titles call settings SAR² that are not, or not any more.
            name = title(today.title, options) if options else None
        new = Cell.from_json({**cell, "method": method, "options": {**of_adapt, **options}, "name": name})
        changed = {
            "key": new.key,
            "cell": new.to_json(),
            "resolved": plain(new.config.identity(new.batch_size), "resolved"),
        }
        return {**row, **changed, "migrated": past}, name or today.title
    except LookupError as error:
        label = title(f"{before['title']} of 0.1", {n: v for n, v in resolved.items() if v != before["options"].get(n)})
        kept = {**cell, "options": {**of_adapt, **resolved}, "name": label}
        reason = f"itself, labelled {label!r}: {error.args[0]}"
        return {**row, "cell": kept, "resolved": resolved, "migrated": past}, reason


def _today(method: str) -> Today:
    cls = config_classes().get(method)
    if cls is not None:
        return Today(
            title=cls.title,
            options={entry.name: entry.default for entry in fields(cls)},
            needs={entry.name: entry.metadata.get("needs", ()) for entry in fields(cls)},
            learning_rates=plain(cls.learning_rates, method),
        )
    if method in methods_0_1():
        raise LookupError(f"{method} is gone")
    raise BenchError(f"rows of 0.1 would become {method!r}, and this version has no such method")
