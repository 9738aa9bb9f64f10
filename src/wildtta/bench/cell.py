"""One experiment of the benchmark: a model, a method and a stream, described by plain values.

:attr:`Cell.key` is a hash of everything that decides the numbers: the cell's fields, and what its method and
options resolve to. Where the data lies, on which device it runs and how its rows are titled in a table is not
part of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

from wildtta.adapt import check_settings
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.plain import each_value, infinite, integral, plain
from wildtta.glyphs.parts import with_packaged_part
from wildtta.methods.base import Method
from wildtta.methods.registry import config_classes, get_method
from wildtta.own_code import code_digest
from wildtta.streams import SCENARIOS

MULTI_DOMAIN: frozenset[str] = frozenset({"mixed", "continual", "continual_label_shift", "gradual"})
"""Scenarios with one stream over all the cell's corruptions; the others take one corruption per cell."""

MEASURES: dict[str, dict[str, Any]] = {
    "representation": {},
    "health": {"images": 50_000},
    "sparsity": {"images": 50_000},
    "predictions": {"points": 2000},
    "scatter": {"images": 256},
    "tsne": {"classes": 20, "per_class": 30},
    "surface": {"images": 256, "steps": 11, "span": 1.0},
}
"""Diagnostics that cost time, made only where a cell asks for them, with their options' defaults
(:mod:`wildtta.bench.diagnostics`)."""

OF_ADAPT: frozenset[str] = frozenset({"parameters", "head", "batch_size", "precision", "statistics", "compile"})
"""Options that :func:`wildtta.adapt` takes itself, whatever the method."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cell:
    """One experiment.

    Attributes:
        model: ``glyphs:NAME``, ``timm:NAME``, ``torchvision:NAME``, ``package.module:function`` or
            ``path/to/file.py:function`` (:mod:`wildtta.bench.models`).
        model_options: keyword arguments of the model's constructor (``pretrained = false``: random weights).
        weights: a safetensors file with the model's weights, where the model doesn't bring them.
        method: a name of :func:`wildtta.methods`, or ``path/to/file.py:Class`` (``package.module:Class``); the code of such
            a file is part of the identity.
        options: the method's options and those of :func:`wildtta.adapt`. On glyphs the packaged branch (TTT)
            and diffusion model (DDA) are filled in where none is given.
        regularise: before the stream, so many steps of R and I alone on random batches of the same corrupted
            images, which are not scored (:mod:`wildtta.bench.regularise`).
        pace: time of a step of the method over the unadapted network's: images arrive at the network's speed, and
            those that arrive while the method learns are answered without learning
            (:func:`wildtta.streams.learning_turns`). 0: the stream waits.
        scenario: one of :data:`wildtta.streams.SCENARIOS`.
        scenario_options: the scenario's options (``ratio``, ``draws``, ``gamma``, ``order`` ...).
        data: ``glyphs``, ``imagenet-c``, ``imagenet-r`` ..., ``folder`` (:mod:`wildtta.bench.datasets`).
        data_options: ``split`` (``all``, ``first-half``, ``second-half``, ``first-classes``,
            ``second-classes``) and the data set's own options.
        corruptions: names in stream order; empty for clean images.
        severity: 1 to 5 (meaningless, and 0, for clean images).
        batch_size: images per batch.
        seed: decides the stream and every random draw of the method (the corruptions' noise is part of the
            data).
        limit: images in the whole stream at most (:func:`wildtta.bench.streaming.stream_of`).
        protocol: preprocessing; ``auto`` is the data set's own (``glyphs``, or ``paper`` for ImageNet's
            sets).
        measure: diagnostics beyond accuracy, calibration and cost; names of :data:`MEASURES`.
        measure_options: per diagnostic, its options.
        name: title of the method in tables (``SAR² without R``); not part of the identity.
        model_name: title of the model in tables; not part of the identity.
    """

    model: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    method: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    regularise: int = 0
    pace: float = 0.0
    scenario: str = "mild"
    scenario_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "glyphs"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    corruptions: tuple[str, ...] = ()
    severity: int = 5
    batch_size: int = 64
    seed: int = 0
    limit: int | None = None
    protocol: str = "auto"
    measure: tuple[str, ...] = ()
    measure_options: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    model_name: str | None = None

    def __post_init__(self) -> None:
        for text in ("model", "method", "scenario", "data", "protocol"):
            if not isinstance(getattr(self, text), str) or not getattr(self, text):
                raise BenchError(f"{text} must be a non-empty text, got {getattr(self, text)!r}")
        if self.weights is not None and (not isinstance(self.weights, str) or not self.weights):
            raise BenchError(f"weights must be the path of a file or absent, got {self.weights!r}")
        for number, least in (("severity", 0), ("batch_size", 1), ("seed", 0), ("regularise", 0)):
            value = getattr(self, number)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BenchError(f"{number} must be a whole number of at least {least}, got {value!r}")
            if value >= 2**63:
                raise BenchError(f"{number} must be below 2^63, got {value!r}; generators take no larger numbers")
        pace = self.pace
        if not isinstance(pace, int | float) or isinstance(pace, bool) or not 0 <= pace < math.inf:
            raise BenchError(f"pace must be a number of at least 0, got {pace!r}")
        if self.limit is not None and (type(self.limit) is not int or self.limit < 1):
            raise BenchError(f"limit must be a number of images or absent, got {self.limit!r}")
        refuse_unknown([self.scenario], SCENARIOS, "unknown scenario {}")
        for names in ("corruptions", "measure"):
            value = getattr(self, names)
            listed = isinstance(value, Sequence) and not isinstance(value, str)
            if not listed or not all(isinstance(name, str) for name in value):
                raise BenchError(f"{names} must be a list of names, got {value!r}")
            object.__setattr__(self, names, tuple(value))
        refuse_unknown(self.measure, MEASURES, "unknown measure {}")
        if self.scenario not in MULTI_DOMAIN and len(self.corruptions) > 1:
            raise BenchError(
                f"scenario {self.scenario!r} takes one corruption per cell, got {len(self.corruptions)}; "
                f"several go into one stream with {', '.join(sorted(MULTI_DOMAIN))}"
            )
        for mapping in ("model_options", "options", "scenario_options", "data_options", "measure_options"):
            value = getattr(self, mapping)
            if not isinstance(value, Mapping):
                raise BenchError(f"{mapping} must be a table of names and values, got {value!r}")
            object.__setattr__(self, mapping, plain(value, mapping))
        if self.weights is None:
            filled = with_packaged_part(self.options, method=self.method, model=self.model, data=self.data)
            object.__setattr__(self, "options", filled)
        if not self.corruptions:
            object.__setattr__(self, "severity", 0)

    @property
    def config(self) -> Method:
        """The method with its options; an unknown name, or a value that it or ``adapt`` refuses, is an error."""
        try:
            check_settings(**{name: value for name, value in self.options.items() if name in OF_ADAPT})
            return get_method(self.method, **each_value(self._own_options, infinite))
        except (TypeError, ValueError) as error:
            raise BenchError(str(error)) from error

    @property
    def _own_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name not in OF_ADAPT}

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical JSON of what decides the numbers.

        The method's options are those in force, given or default. Other fields at their default are left out,
        so that a new field doesn't orphan the journals written before it.
        """
        usual = {entry.name: {} if entry.default is MISSING else entry.default for entry in fields(self)}
        del usual["name"], usual["model_name"]
        decisive = {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
        decisive["options"] = {name: value for name, value in self.options.items() if name in OF_ADAPT}
        decisive["resolved"] = self._resolved()
        canonical = json.dumps(each_value(plain(decisive, "cell"), integral), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def _resolved(self) -> dict[str, Any]:
        place, _, _ = self.method.rpartition(":")
        try:
            own = {"code": code_digest(place)} if place else {}
            return {**self.config.identity(self.batch_size), **own}
        except BenchError:
            known = config_classes().get(self.method)
            if known is None or not set(self._own_options) <= {entry.name for entry in fields(known)}:
                raise
            # It cannot run as it stands (DDA without a diffusion model), but a plan may hold it.
            return {"given": self._own_options}

    @property
    def title(self) -> str:
        return self.name or self.method.rpartition(":")[2]

    @property
    def model_title(self) -> str:
        return self.model_name or self.model

    @property
    def shift(self) -> str:
        """``fog 5``, ``15 corruptions 5`` or ``clean``."""
        few = ", ".join(self.corruptions) if len(self.corruptions) < 3 else f"{len(self.corruptions)} corruptions"
        return f"{few} {self.severity}" if self.corruptions else "clean"

    def describe(self) -> str:
        """One line for people (:func:`told_apart` where several cells are shown)."""
        where = f"{self.model_title} {self.title} {self.scenario} {self.shift}"
        return f"{where} batch {self.batch_size} seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``; :meth:`from_json` is the inverse."""
        return {entry.name: plain(getattr(self, entry.name), entry.name) for entry in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Cell:
        """A cell from :meth:`to_json`'s values; an unknown field is an error."""
        refuse_unknown(values, sorted(entry.name for entry in fields(cls)), "unknown field {} in a cell")
        if "model" not in values:
            raise BenchError("a cell needs a model")
        return cls(**values)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Cell:
        """The cell of a row, with the row's own key: the method may be gone by now or have other defaults."""
        cell = cls.from_json(row["cell"])
        cell.__dict__["key"] = row["key"]
        return cell

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def told_apart(cells: Sequence[Cell]) -> dict[str, str]:
    """Key to a line for people; where two cells have the same line, the fields that differ are added."""
    alike: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        alike.setdefault(cell.describe(), {})[cell.key] = cell
    lines = {}
    for text, group in alike.items():
        values = {key: cell.to_json() for key, cell in group.items()}
        names = [name for name in next(iter(values.values())) if len({str(v[name]) for v in values.values()}) > 1]
        for key, value in values.items():
            lines[key] = ", ".join([text, *(f"{name} {_words(value[name])}" for name in names)])
    return lines


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items()) or "none"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
