"""Images as users have them: class folders, loose images, too few."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

from bench_parts.folder import write_images
from wildtta.checkup.sample import folder_sample, glyph_sample, protocol_for
from wildtta.data import PROTOCOLS, DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), classes=5, per_class=6, side=16)


def test_class_folders_give_labels_and_the_seed_the_draw(folder: Path) -> None:
    sample = folder_sample(folder, 5, seed=1)
    labels = sample.labels(12)
    assert labels is not None
    pixels = sample.pixels(12, PROTOCOLS["native"])
    assert pixels.shape == (12, 3, 16, 16)
    for label, image in zip(labels, pixels, strict=True):  # a colour for each class
        same = pixels[np.flatnonzero(labels == label)].float().mean((0, 2, 3))
        assert (image.float().mean((1, 2)) - same).abs().max() < 20
    assert list(folder_sample(folder, 5, seed=1).order) == list(sample.order)
    assert sorted(sample.order) == list(range(30))
    assert list(folder_sample(folder, 5, seed=2).order) != list(sample.order)


def test_labels_are_left_out_where_they_cannot_be_the_networks_and_a_note_says_so(folder: Path) -> None:
    other = folder_sample(folder, 10)
    assert other.labels(4) is None
    assert "5 class folders, but the network has 10 outputs" in other.notes[0]
    asked = folder_sample(folder, 5, use_labels=False)
    assert (asked.labels(4), asked.notes, len(asked)) == (None, [], 30)


def test_a_flat_folder_is_unlabelled(folder: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        (tmp_path / f"{number}.png").write_bytes(file.read_bytes())
    (tmp_path / "notes.txt").write_text("no image")
    flat = folder_sample(tmp_path, 5)
    assert (len(flat), flat.labels(3), flat.notes) == (30, None, [])
    assert flat.pixels(3, PROTOCOLS["native"]).shape == (3, 3, 16, 16)


def test_a_folder_without_images_is_an_error_that_tells_the_layout(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(DataError, match="holds 0 images") as problem:
        folder_sample(tmp_path, 5)
    assert "expected: a folder" in str(problem.value)


def test_preprocessing_follows_the_networks_name() -> None:
    bare = nn.Linear(1, 1)
    assert protocol_for("glyphs:vit", "auto", bare).name == "glyphs"
    assert protocol_for("torchvision:resnet50", "auto", bare).name == "paper"
    assert protocol_for("my.py:network", "auto", bare).name == "native"
    assert protocol_for("glyphs:vit", "unit", bare).name == "unit"
    bare.pretrained_cfg = {"input_size": (3, 96, 96), "mean": (0.5,) * 3, "std": (0.2,) * 3, "crop_pct": 1.0}  # type: ignore[assignment]
    own = protocol_for("timm:some", "auto", bare)
    assert (own.name, own.size, own.mean) == ("timm", 96, (0.5, 0.5, 0.5))


def test_glyphs_are_drawn_at_random() -> None:
    sample = glyph_sample(400)
    labels = sample.labels(100)
    assert labels is not None
    assert len(set(labels)) > 60  # 100 of 400 images of 200 classes: 86 on average, were they drawn one by one
    assert list(labels) != sorted(labels)
