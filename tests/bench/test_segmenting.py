"""Cells on segmentation: rows, orders, pace, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wildtta.bench import BenchError, Cell, run_cell
from wildtta.bench.launching import check_cells
from wildtta.bench.running import Conditions
from wildtta.bench.segmenting import open_labelled
from wildtta.segmentation import Confusion, resized
from wildtta.segmentation.scenes import CLASSES, inputs, network, scenes

SMALL = {"model": "scenes:network", "data": "scenes", "data_options": {"count": 12}, "batch_size": 4}


def test_the_unadapted_row_is_the_networks_own_miou() -> None:
    row = run_cell(Cell(**SMALL))
    images, labels = scenes(12)
    meter = Confusion(len(CLASSES))
    meter.update(resized(network()(inputs(images)).detach(), (64, 96)), labels)
    assert row["metrics"]["miou"] == pytest.approx(meter.mean(), abs=1e-3)
    assert row["cost"]["forwards"] == 12
    assert row["metrics"]["samples"] <= 12 * 256
    assert not row["metrics"]["collapsed"]


def test_steps_orders_and_pace() -> None:
    options = {"draws": 2}
    cell = Cell(**SMALL, method="tent", corruptions=("fog",), scenario="label_shift", scenario_options=options)
    row, again = run_cell(cell), run_cell(cell)
    assert row["metrics"] == again["metrics"]
    assert row["cost"]["backwards"] == row["cost"]["forwards"] > 0
    paced = run_cell(Cell(**{**cell.to_json(), "pace": 2.0}))
    assert paced["cost"]["learned_batches"] == -(-row["cost"]["batches"] // 2)
    objects = open_labelled(cell, None).objects
    assert set(objects) <= {1, 2, 4, 5}  # never sky or grass
    images_seen = run_cell(Cell(**SMALL, corruptions=("fog", "contrast"), scenario="mixed"))
    assert set(images_seen["metrics"]["per_corruption"]) == {"fog", "contrast"}


def test_acdc_through_a_cell(tmp_path: Path) -> None:
    for number in range(3):
        name = f"G_frame_{number:06d}"
        place = tmp_path / "rgb_anon" / "rain" / "val" / "G" / f"{name}_rgb_anon.png"
        labels = tmp_path / "gt" / "rain" / "val" / "G" / f"{name}_gt_labelTrainIds.png"
        for path, values in ((place, np.full((32, 48, 3), 80)), (labels, np.full((32, 48), number))):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(values.astype(np.uint8)).save(path)
    cell = Cell(
        model="torchvision:deeplabv3_mobilenet_v3_large", data="acdc",
        model_options={"pretrained": False, "num_classes": 19, "weights_backbone": None},
        data_options={"condition": "rain"}, scenario="stored", batch_size=3,
    )  # fmt: skip
    with pytest.raises(BenchError, match="name their folder with --data"):
        check_cells([cell], None)
    assert run_cell(cell, Conditions(root=str(tmp_path)))["metrics"]["samples"] > 0
    with pytest.raises(BenchError, match="data_options has no 'weather'"):
        check_cells([Cell(**{**cell.to_json(), "data_options": {"weather": "rain"}})], str(tmp_path))
    with pytest.raises(BenchError, match="are for classification"):
        check_cells([Cell(**SMALL, regularise=3)], None)
