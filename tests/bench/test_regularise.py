"""Steps of R and I before a stream: on random batches, outside the stream, kept as the start of the method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bench_parts.folder import small_cell, write_images
from wildtta.bench import Cell, Conditions, run_cell
from wildtta.bench.datasets import Images, open_images
from wildtta.bench.models import build_model
from wildtta.bench.regularise import random_batches, take_regularising_steps
from wildtta.bench.streaming import split_positions, stream_of


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def _regularised(cell: Cell, root: Path) -> tuple[nn.Module, Images]:
    images, network = open_images(cell, str(root), build_model(cell), torch.device("cpu"))
    take_regularising_steps(cell, network, images, stream_of(cell, images.labels), {"batch_size": cell.batch_size})
    return network, images


def test_batches_are_random_ones_and_not_the_streams_first() -> None:
    labels = np.repeat(np.arange(10), 40)
    cell = small_cell(scenario="label_shift", scenario_options={"draws": 40}, regularise=3, seed=5)
    stream = stream_of(cell, labels)
    assert len(np.unique(labels[stream.index[:48]])) == 2, "the stream's first batches hold two classes"
    random = random_batches(cell, labels, stream)
    assert [len(batch.indices) for batch in random.batches()] == [16, 16, 16]
    assert len(np.unique(random.index)) == 48
    assert len(np.unique(labels[random.index])) == 10
    assert np.array_equal(random.index, random_batches(cell, labels, stream).index)
    other = random_batches(small_cell(regularise=3, seed=6), labels, stream)
    assert not np.array_equal(random.index, other.index)


def test_batches_come_from_the_images_that_the_stream_is_made_of() -> None:
    labels = np.repeat(np.arange(10), 8)
    cell = small_cell(
        scenario="mixed", corruptions=("fog", "snow"), data_options={"split": "second-half"}, regularise=20
    )
    random = random_batches(cell, labels, stream_of(cell, labels))
    assert len(random) == 320, "more than there are: some come twice"
    assert set(random.index.tolist()) == set(split_positions(labels, "second-half").tolist())
    assert set(random.domain.tolist()) == {0, 1}


@pytest.mark.parametrize("method", ["tent", "sar", "none"])
def test_the_norm_layers_start_elsewhere_and_nothing_else_changes(images: Path, method: str) -> None:
    cell = small_cell(method=method, regularise=2)
    network, _ = _regularised(cell, images)
    before = dict(build_model(cell).named_parameters())
    moved = {name for name, value in network.named_parameters() if not torch.equal(value, before[name])}
    norms = {"body.1.weight", "body.1.bias", "body.4.weight", "body.4.bias"}
    assert moved
    assert moved <= norms
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_the_start_depends_on_the_data_and_the_seed_and_not_on_the_streams_order(images: Path) -> None:
    mild, _ = _regularised(small_cell(regularise=2, seed=1), images)
    ordered, _ = _regularised(
        small_cell(regularise=2, seed=1, scenario="label_shift", scenario_options={"draws": 3}), images
    )
    other, _ = _regularised(small_cell(regularise=2, seed=2), images)
    start = [dict(network.named_parameters())["body.1.weight"] for network in (mild, ordered, other)]
    assert torch.equal(start[0], start[1])
    assert not torch.equal(start[0], start[2])


def test_the_steps_are_not_scored(images: Path) -> None:
    conditions = Conditions(root=str(images))
    plain, warmed = (run_cell(small_cell(regularise=steps), conditions) for steps in (0, 3))
    assert warmed["metrics"]["samples"] == plain["metrics"]["samples"]
    assert warmed["cost"]["forwards"] == plain["cost"]["forwards"]
    assert warmed["metrics"]["nll"] != plain["metrics"]["nll"]
    assert warmed["versions"]["weights"] == plain["versions"]["weights"]
