"""Following an adapter in a logger."""

from __future__ import annotations

from typing import Any

import pytest

import wildtta
from toy_networks import build, images


class WandbLike:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.rows.append((step, values))


class LightningLike(WandbLike):
    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.append((step, metrics))


class SummaryWriterLike(WandbLike):
    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.append((step, {name: value}))


def _run(logger: Any, steps: int = 5, **settings: Any) -> tuple[wildtta.Adapter, list[float]]:
    model = wildtta.adapt(build("ln_mlp"), "sar", reliable=0.9)
    handle = wildtta.log_steps(model, logger, **settings)
    entropies = []
    for step in range(steps):
        model(images("ln_mlp", 8, seed=step))
        entropies.append(float(model.last.entropy))
    handle.remove()
    model(images("ln_mlp", 8))
    return model, entropies


@pytest.mark.parametrize("kind", [WandbLike, LightningLike])
def test_loggers_that_take_a_table(kind: type[WandbLike]) -> None:
    logger = kind()
    _, entropies = _run(logger, every=2)
    assert [step for step, _ in logger.rows] == [1, 3, 5]
    assert [values["tta/entropy"] for _, values in logger.rows] == pytest.approx(entropies[::2])
    assert {"tta/selected", "tta/gradient_norm", "tta/resets", "tta/skipped", "tta/learned"} <= set(logger.rows[0][1])


def test_a_writer_of_scalars_and_a_function_get_the_same() -> None:
    writer, rows = SummaryWriterLike(), []
    _run(writer, steps=1)
    _run(lambda values, step: rows.append((step, values)), steps=1)
    assert {name: value for _, one in writer.rows for name, value in one.items()} == rows[0][1]


def test_what_is_undefined_is_left_out() -> None:
    logger = WandbLike()
    model = wildtta.adapt(build("ln_mlp"), "none")
    wildtta.log_steps(model, logger)
    model(images("ln_mlp", 4))
    assert "tta/gradient_norm" not in logger.rows[0][1]
    assert logger.rows[0][1]["tta/learned"] == 0


def test_what_cannot_be_logged_to_is_refused() -> None:
    model = wildtta.adapt(build("ln_mlp"), "none")
    with pytest.raises(TypeError, match=r"add_scalar, log_metrics or log.*got str"):
        wildtta.log_steps(model, "runs")
    with pytest.raises(ValueError, match="every must be at least 1"):
        wildtta.log_steps(model, print, every=0)


def test_the_adapter_shows_what_the_network_has() -> None:
    network = build("ln_mlp")
    network.config = {"name": "mine"}  # type: ignore[assignment]
    model = wildtta.adapt(network, "none")
    assert model.config is network.config
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = model.no_such_thing
