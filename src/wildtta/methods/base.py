"""What every method is: a frozen config that declares what it learns and keeps, and answers batches."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from wildtta.network.parameters import ParameterChoice, Scope

if TYPE_CHECKING:
    from wildtta.network import Network
    from wildtta.step.engine import Engine
    from wildtta.step.report import Answer

BatchStatistics = Literal["source", "batch"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A test-time adaptation method: hyper-parameters as fields, behaviour as hooks that the adapter calls."""

    name: ClassVar[str]
    """How :func:`wildtta.adapt` knows it."""
    title: ClassVar[str]
    """How tables print it."""
    paper: ClassVar[str]
    """Where it comes from, with a link."""
    updates: ClassVar[str]
    """What moves, in words."""
    needs_source: ClassVar[str] = "no"
    """Whether it wants source data, and what for."""
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
    learning_rates: ClassVar[dict[str, tuple[float, float]]] = {}
    """Family to learning rate at batch sizes 1 and 64; empty for a method that takes no steps."""

    def options(self) -> dict[str, Any]:
        """The hyper-parameters, as they would be given to :func:`wildtta.adapt`."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    def identity(self) -> dict[str, Any]:
        """Everything that decides the method's numbers, as plain JSON values: options, and the learning rates in use."""
        plain = (bool, int, float, str, list, tuple)
        options = self.options().items()
        known: dict[str, Any] = {name: value for name, value in options if value is None or isinstance(value, plain)}
        if self.learning_rates and known.get("lr", 0) is None:
            known["learning_rates"] = {family: list(rates) for family, rates in self.learning_rates.items()}
        return known

    def learning_rate(self, family: str, batch_size: int) -> float:
        """The explicit ``lr``, else the paper's for the family: linear between batch sizes 1 and 64, constant above."""
        explicit: float | None = getattr(self, "lr", None)
        if explicit is not None:
            return explicit
        if not self.learning_rates:
            return 0.0
        at_one, at_sixty_four = self.learning_rates[family]
        share = min(1.0, (batch_size - 1) / 63)
        return at_one + (at_sixty_four - at_one) * share

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        """The least options with which the method runs on ``images`` alone, in place of source data: for tests and demos."""
        return {}

    def parameter_choice(self, network: Network) -> ParameterChoice:
        """What learns where the caller leaves ``parameters="auto"``; the method's ``scope`` unless it knows better."""
        return "auto"

    def mixes_samples(self, engine: Engine) -> bool:
        """Whether samples of a batch see each other in a prediction: then one that is not finite is left out."""
        return engine.batch_statistics

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        """The method's own online state, as on the first day. Saving, loading, reset and recovery follow from it."""
        return {}

    def step(self, engine: Engine, images: Tensor) -> Answer:
        """Answer one validated batch and learn from it."""
        raise TypeError(f"{type(self).__name__} does not define a step")

    def predict(self, engine: Engine, images: Tensor) -> Answer:
        """Answer one validated batch and learn nothing (a paused adapter, or a batch that cannot teach)."""
        from wildtta.step.report import Answer, StepReport

        output = engine.forward(images, grad=False)
        return Answer(output, StepReport.of_prediction(output, engine))
