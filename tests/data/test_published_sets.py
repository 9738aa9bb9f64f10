"""CIFAR-10-C, CCC, RobustBench's list and the mixture, each on a miniature in the published layout."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wildtta.bench.cell import Cell
from wildtta.bench.streaming import split_positions, stream_of
from wildtta.data import (
    CORRUPTIONS,
    DataError,
    EncodedImages,
    cifar_c,
    imagenet_classes,
    listed,
    open_data,
    open_domains,
    potpourri,
)
from wildtta.data.image_lists import image_numbers
from wildtta.data.sources import open_source

pytest.importorskip("timm")


def encoded(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (value, value, value)).save(stream, "PNG")
    return stream.getvalue()


# -- CIFAR -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Three images at five severities; each pixel says its severity, its image and its place."""
    root = tmp_path / "CIFAR-10-C"
    root.mkdir()
    pixels = np.zeros((15, 32, 32, 3), dtype=np.uint8)
    pixels[..., 0] = (np.arange(15) // 3 + 1)[:, None, None]
    pixels[..., 1] = (np.arange(15) % 3)[:, None, None]
    pixels[:, 1, 2, 2] = 200
    np.save(root / "fog.npy", pixels)
    np.save(root / "labels.npy", np.tile(np.array([7, 0, 9], dtype=np.uint8), 5))
    return root


def test_cifar_severities_lie_one_after_the_other(cifar: Path) -> None:
    for severity in (1, 5):
        images = cifar_c("cifar-10-c", cifar, "fog", severity)
        assert images.labels.tolist() == [7, 0, 9]
        assert len(images.classes) == 10
        found = images.images([2, 0])
        assert found.shape == (2, 3, 32, 32)
        assert found[:, 0, 0, 0].tolist() == [severity, severity]
        assert found[:, 1, 0, 0].tolist() == [2, 0]
        assert found[0, 2].nonzero().tolist() == [[1, 2]]  # rows before columns
        assert images[1][1] == 0
        assert images.note == "3 images per severity instead of 10000"
    domains = [("fog", 3), ("fog", 4)]
    assert [s.images([0])[0, 0, 0, 0].item() for s in open_domains("cifar-10-c", cifar.parent, domains)] == [3, 4]


def test_cifar_says_what_is_missing(cifar: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no corruption 'snow'") as error:
        cifar_c("cifar-10-c", cifar, "snow", 5)
    assert "fog.npy" in str(error.value)
    with pytest.raises(DataError, match=r"no labels\.npy"):
        cifar_c("cifar-100-c", tmp_path, "fog", 5)
    with pytest.raises(DataError, match="severities 1 to 5, got 6"):
        cifar_c("cifar-10-c", cifar, "fog", 6)
    with pytest.raises(DataError, match="without a severity"):
        open_domains("cifar-10-c", cifar, ["fog"])
    np.save(cifar / "labels.npy", np.zeros(14, dtype=np.uint8))
    with pytest.raises(DataError, match="do not fit"):
        cifar_c("cifar-10-c", cifar, "fog", 5)
    (cifar / "fog.npy").write_bytes((cifar / "fog.npy").read_bytes()[:1000])
    with pytest.raises(DataError, match="no complete file of numpy"):
        cifar_c("cifar-10-c", cifar, "fog", 5)
    np.save(cifar / "labels.npy", np.full(15, 10))
    with pytest.raises(DataError):
        cifar_c("cifar-10-c", cifar, "fog", 5)


# -- CCC ---------------------------------------------------------------------------------------------------------------


def test_ccc_is_read_in_its_own_order(tmp_path: Path) -> None:
    """Keys without leading zeros, two files per sample, several tars: the order is that of writing, not of names."""
    value = 0
    for serial in range(2):
        with tarfile.open(tmp_path / f"serial_{serial:05d}.tar", "w") as archive:
            for sample in range(12):
                parts = {"info": b"++dir++n01440764", "input.jpg": encoded(value), "output.cls": str(value * 7).encode()}
                for kind, content in parts.items():
                    entry = tarfile.TarInfo(f"sample_{sample}.{kind}")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
                value += 1
    images = open_data("ccc", tmp_path)
    assert images.labels.tolist() == [7 * number for number in range(24)]
    assert images.images(range(24))[:, 0, 0, 0].tolist() == list(range(24))
    assert list(images.classes) == list(imagenet_classes())
    cell = Cell(model="m", data="ccc", scenario="stored", batch_size=5, limit=11)
    assert stream_of(cell, images.labels).index.tolist() == list(range(11))


# -- RobustBench -------------------------------------------------------------------------------------------------------


def test_robustbench_list_is_the_published_one_and_takes_its_files(tmp_path: Path) -> None:
    numbers = image_numbers("robustbench-5000")
    assert len(set(numbers)) == 5000
    assert numbers[:3] == (15253, 20685, 39611)  # the first lines of RobustBench's imagenet_test_image_ids.txt
    source = open_source(tmp_path)
    stems = [f"n01440764/ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 50_001)]
    labels = np.arange(50_000) % 1000
    everything = EncodedImages([(source, stem) for stem in stems], labels, list(imagenet_classes()))
    chosen = listed(everything, "robustbench-5000")
    assert len(chosen) == 5000
    assert chosen.files[2][1].endswith("val_00039611.JPEG")
    assert chosen.labels[2] == 39610 % 1000
    assert "robustbench-5000" in chosen.note
    half = EncodedImages(everything.files[:20_000], labels[:20_000], list(imagenet_classes()))
    with pytest.raises(DataError, match=r"of the 5000 images of the list 'robustbench-5000' are missing"):
        listed(half, "robustbench-5000")
    with pytest.raises(DataError, match="no list of images is called 'robustbench'"):
        listed(everything, "robustbench")
    assert len(split_positions(chosen.labels, "robustbench-5000")) == 5000


# -- the mixture -------------------------------------------------------------------------------------------------------


def test_potpourri_joins_sets_over_the_thousand_classes(tmp_path: Path) -> None:
    def write(folder: Path, names: tuple[str, ...]) -> None:
        for name in names:
            (folder / name).mkdir(parents=True)
            (folder / name / "1.png").write_bytes(encoded(1))

    write(tmp_path / "thousand", imagenet_classes())
    for corruption in CORRUPTIONS:
        (tmp_path / "imagenet-c" / corruption).mkdir(parents=True)
        (tmp_path / "imagenet-c" / corruption / "5").symlink_to(tmp_path / "thousand")
    (tmp_path / "imagenet-sketch").symlink_to(tmp_path / "thousand")
    write(tmp_path / "imagenet-r", imagenet_classes("r"))
    with pytest.raises(DataError, match="imagenet-a missing"):
        potpourri(tmp_path)
    write(tmp_path / "imagenet-a", imagenet_classes("a"))
    mixture = open_data("potpourri", tmp_path)
    assert len(mixture) == 15_000 + 1000 + 200 + 200
    assert isinstance(mixture, EncodedImages)
    for position in (0, 14_999, 15_000, 15_199, 15_200, 16_399):
        wnid = mixture.where(position).split("/")[-2]
        assert mixture.classes[mixture.labels[position]] == wnid
    assert mixture.outputs is None
    assert "200 of imagenet-a" in mixture.note
