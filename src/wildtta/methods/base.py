"""What every method is: a frozen config that declares what it learns and keeps, and answers batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from wildtta.methods.options import check_options
from wildtta.network.parameters import ParameterChoice, Scope
from wildtta.step.report import Answer, Output, StepReport
from wildtta.step.selective_reset import ASR

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine

BatchStatistics = Literal["source", "batch"]
Rates = dict[str, tuple[float, float]]
"""Family of a network to the learning rates at batch sizes 1 and 64."""


@dataclass(frozen=True)
class Review:
    """What a guard's memory of a stream says about its latest samples."""

    probabilities: Tensor
    """The source network's answers to remembered samples, [m, C]."""
    alike: Tensor
    """How far each of these is of the kind of the latest ones, [m] in [0, 1]."""
    novelty: Tensor
    """0 where the latest samples only repeat each other, 1 where they differ as remembered ones do."""
    familiar: Tensor
    """How far the latest samples are of the kind of those shortly before, in [0, 1]."""
    samples: int
    """That came since the last review."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A test-time adaptation method: hyper-parameters as fields, behaviour as hooks that the adapter calls."""

    name: ClassVar[str]
    """How :func:`wildtta.adapt` knows it."""
    title: ClassVar[str]
    """How tables print it."""
    order: ClassVar[int] = 1000
    """Its place in tables, smallest first."""
    paper: ClassVar[str] = "–"
    """Where it comes from, with a link."""
    updates: ClassVar[str]
    """What moves, in words."""
    needs_source: ClassVar[str] = "no"
    """Whether it needs source data, and what for."""
    batch_of_one: ClassVar[str] = "yes"
    """Whether it works with batches of one, and how."""
    passes: ClassVar[str]
    """Forward / backward passes per sample."""
    prediction: ClassVar[Literal["before the update", "after the update", "teacher", "no update"]] = "before the update"
    """Which prediction is returned."""
    scope: ClassVar[Scope] = "norms"
    """Which parameters learn unless the caller says otherwise."""
    batch_statistics: ClassVar[BatchStatistics] = "batch"
    """Which statistics BatchNorm layers use."""
    needs_images: ClassVar[bool] = False
    """Whether it works on the inputs themselves (augments, keeps, denoises them): they must then be one tensor of images."""
    image_by_image: ClassVar[bool] = False
    """Whether a batch only saves time: each image is answered by itself, and the same in whichever batch it comes."""
    learning_rates: ClassVar[Rates] = {}
    """Learning rates by family; empty for a method that takes no steps."""

    def __post_init__(self) -> None:
        check_options(self)

    def options(self) -> dict[str, Any]:
        """The hyper-parameters, as they would be given to :func:`wildtta.adapt`."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    def plain_options(self) -> dict[str, Any]:
        """The hyper-parameters that can be written down: plain values, and tables of them."""
        tables = {name: asdict(value) if isinstance(value, ASR) else value for name, value in self.options().items()}
        return {name: value for name, value in tables.items() if is_plain(value) or isinstance(value, dict)}

    def identity(self, batch_size: int) -> dict[str, Any]:
        """Everything that decides the method's numbers, as plain values: options, and the rates behind an open ``lr``.

        The rates are the paper's pair, and between its two batch sizes those in force.
        """
        plain = self.plain_options()
        if plain.get("lr", 0) is None:
            between = 1 < batch_size < 64
            plain["learning_rates"] = {
                family: self.learning_rate(family, batch_size) if between else list(pair)
                for family, pair in self.learning_rates.items()
            }
        return plain

    def resolved(self, network: Network, batch_size: int) -> dict[str, Any]:
        """The plain options with the values in force on ``network``: what the defaults leave open is filled in."""
        plain = self.plain_options()
        return {**plain, "lr": self.learning_rate(network.family, batch_size)} if "lr" in plain else plain

    def learning_rate(self, family: str, batch_size: int) -> float:
        """The explicit ``lr``, else the paper's for the family: min(η₁·B, η₆₄) (D38)."""
        explicit: float | None = getattr(self, "lr", None)
        if explicit is not None:
            return explicit
        if not self.learning_rates:
            return 0.0
        at_one, at_sixty_four = self.learning_rates[family]
        return min(at_one * batch_size, at_sixty_four)

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        """The fewest options with which the method runs on ``images`` alone, without source data: for tests and demos."""
        return {}

    def parameter_choice(self, network: Network) -> ParameterChoice:
        """What learns where the caller leaves ``parameters="auto"``; the method's ``scope`` unless it knows better."""
        return "auto"

    def mixes_samples(self, engine: Engine) -> bool:
        """Whether the adapter looks for samples that must be left out before a batch is passed, which is one small read.

        Needed where samples see each other in an answer, or in an update that no mask is part of.
        """
        return engine.batch_statistics

    def reviewed(self, engine: Engine, review: Review) -> None:
        """A guard remembers some of the stream: a method may change its own state by that."""

    def keeps_kinds(self, engine: Engine) -> bool:
        """Whether a guard is to keep weights and state for each kind of images, and bring them back with it."""
        return False

    def begin_kind(self, engine: Engine, left: Mapping[str, Tensor]) -> None:
        """Images of a kind that no state is kept for: forget what belongs to the kind before, whose state is ``left``."""

    def why_silent(self, engine: Engine) -> str | None:
        """Why nothing has been learned for long, and what to do: the end of a warning. None: it rests as it should."""
        return (
            f"{int(engine.memory['skipped'])} batches so far could not be learned from (values that are not finite). Check "
            "that inputs are prepared as in training"
        )

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        """The method's own state before the first batch. Saving, loading, reset and device moves follow from it."""
        return {}

    def derived(self) -> tuple[str, ...]:
        """Names of the state that :meth:`derive` makes of the rest: a fleet does not store them."""
        return ()

    def derive(self, engine: Engine) -> None:
        """Compute that part of the state."""

    def observed(self, engine: Engine) -> dict[str, Tensor]:
        """What a step's report shows of the method's state, by the names of :class:`StepReport`."""
        return {}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        """Answer one validated batch and learn from it; here nothing learns."""
        return answer_with(engine, self.predicted(engine, images), forwards=len(images))

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        """The prediction for one validated batch; nothing of the state changes."""
        return engine.forward(images, grad=False)

    def predict(self, engine: Engine, images: Tensor) -> Answer:
        """Answer one validated batch without learning (a paused adapter, or a batch that cannot be learned from)."""
        output = self.predicted(engine, images)
        return Answer(output, StepReport.of_prediction(output, engine))


def answer_with(
    engine: Engine,
    output: Output,
    *,
    forwards: int,
    backwards: int = 0,
    learned: Tensor | bool = False,
    skipped: Tensor | bool = False,
    **fields: Any,
) -> Answer:
    """The end of a step that a method runs itself: count its passes (in samples) and report; ``fields`` go into the report."""
    report = StepReport.of_prediction(output, engine)
    report.forwards = report.computed_forwards = torch.tensor(forwards)
    report.backwards = report.computed_backwards = torch.tensor(backwards)
    report.learned = torch.as_tensor(learned)
    engine.count(
        forwards=forwards,
        backwards=backwards,
        computed_forwards=forwards,
        computed_backwards=backwards,
        skipped=torch.as_tensor(skipped, device=engine.device),
        learned=torch.as_tensor(learned, device=engine.device),
    )
    engine.host_steps += 1
    report.skipped = engine.memory["skipped"].clone()
    if backwards:
        report.selected = report.seen
        report.mask = torch.ones_like(report.mask)
    for name, value in fields.items():
        setattr(report, name, value)
    return Answer(output, report)


def is_plain(value: Any) -> bool:
    """Whether ``value`` is a number, a text, a switch or None: what can be written down and compared."""
    return value is None or isinstance(value, bool | int | float | str)
