"""Table 1 as it is meant: a folder in ImageNet-C's layout, the real networks (random weights), the whole path."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from wildtta.bench import read

pytest.importorskip("timm")


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 wnids with one image each, gaussian_noise at level 5."""
    from PIL import Image

    from wildtta.data import imagenet_classes

    root = tmp_path_factory.mktemp("imagenet-c")
    generator = np.random.default_rng(0)
    pictures = []
    for _ in range(8):
        file = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (224, 224, 3), dtype=np.uint8)).save(file, "JPEG")
        pictures.append(file.getvalue())
    for place, wnid in enumerate(imagenet_classes()):
        folder = root / "gaussian_noise" / "5" / wnid
        folder.mkdir(parents=True)
        (folder / "ILSVRC2012_val_00000001.JPEG").write_bytes(pictures[place % len(pictures)])
    return root


def reproduce(*words: str) -> tuple[int, str]:
    import typer

    from wildtta.cli import reproduce as verb

    app = typer.Typer()
    verb.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["reproduce", *words])
    return result.exit_code, result.output


def test_table_1_runs_end_to_end(miniature: Path, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal.jsonl", tmp_path / "report"
    code, output = reproduce(
        "table-1", "--on", "imagenet-c", "--data", str(miniature), "--weights", "none", "--limit", "2", "--seeds", "1",
        "--corruption", "gaussian_noise", "--method", "none", "--method", "sar2", "--network", "ResNet50-GN",
        "--network", "VitBase-LN", "--set", "sar2.warmup=1", "--journal", str(journal), "--out", str(out),
        "--device", "cpu",
    )  # fmt: skip
    assert code == 0, output[-2000:]
    rows = {(row["cell"]["model"], row["cell"]["method"]): row for row in read(journal)}
    assert len(rows) == 4
    for (model, method), row in rows.items():
        assert row["status"] == "ok"
        assert model.startswith("timm:")
        assert row["cell"]["protocol"] == "paper"
        assert len(row["metrics"]["histogram"]) == 1000
        assert row["metrics"]["samples"] == 2
        if method == "sar2":
            # With ζ = 1 the regularisers act from the first batch on: two passes each way, and R and I have values.
            assert (row["cost"]["forwards"], row["cost"]["backwards"]) == (4, 4)
            assert row["series"]["redundancy"][0] is not None
            assert row["series"]["inequity"][0] > 0
    page = (out / "index.html").read_text()
    assert "Table 1." in page
    assert "not the paper&#39;s weights" in page
    assert "In brackets" not in (out / "report.md").read_text(), "random weights are not compared with the paper"


def test_a_folder_with_999_classes_is_refused(miniature: Path, tmp_path: Path) -> None:
    import os

    root = tmp_path / "copy"
    target = root / "gaussian_noise" / "5"
    target.mkdir(parents=True)
    for folder in sorted((miniature / "gaussian_noise" / "5").iterdir())[:999]:
        os.symlink(folder, target / folder.name)
    code, output = reproduce(
        "table-1", "--on", "imagenet-c", "--data", str(root), "--weights", "none", "--limit", "2", "--seeds", "1",
        "--corruption", "gaussian_noise", "--method", "none", "--network", "ResNet50-GN", "--journal",
        str(tmp_path / "j.jsonl"), "--device", "cpu",
    )  # fmt: skip
    assert code in (1, 2), output[-2000:]
    assert "999" in output
    assert "1000" in output
