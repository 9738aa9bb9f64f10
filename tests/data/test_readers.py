"""Readers on small real folders, zips, tars and shards; and what they say when something is missing."""

from __future__ import annotations

import io
import pickle
import re
import shutil
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wildtta.data import (
    ArrayImages,
    BrokenImage,
    Corrupted,
    DataError,
    EncodedImages,
    ImageSet,
    corrupt,
    corruptions_in,
    folder,
    imagenet_c,
    imagenet_classes,
    open_data,
    open_domains,
    require_classes,
    restrict_classes,
    shards,
)
from wildtta.data.image_files import check_size

timm_data = pytest.importorskip("timm.data")


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def picture(colour: tuple[int, int, int], kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(stream, kind)
    return stream.getvalue()


PIXEL = picture((10, 20, 30), "JPEG")


def write_classes(root: Path, names: list[str], per_class: int = 1) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            (root / name / f"{i}.JPEG").write_bytes(PIXEL)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1000 class folders of one image each."""
    root = tmp_path_factory.mktemp("thousand")
    write_classes(root, list(imagenet_classes()))
    return root


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Three classes; every image has a colour of its own."""
    root = tmp_path / "animals"
    for number, name in enumerate(["dog/2.png", "cat/b.PNG", "cat/a.png", "emu/deep/1.png"]):
        write_image(root / name, (number, 50, 100))
    (root / "README.txt").write_text("not an image")
    (root / "cat" / "notes.txt").write_text("not an image")
    return root


def as_zip(root: Path) -> Path:
    path = root.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(root.rglob("*")):
            archive.write(file, f"val/{file.relative_to(root)}")
        archive.writestr("__MACOSX/val/cat/._a.png", b"rubbish")
    return path


def as_tar(root: Path) -> Path:
    path = root.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(root, arcname=".")
    return path


@pytest.mark.parametrize("pack", [lambda root: root, as_zip, as_tar], ids=["folder", "zip", "tar"])
def test_folder_zip_and_tar_are_one_door(animals: Path, pack: Callable[[Path], Path]) -> None:
    images = folder(pack(animals))
    assert isinstance(images, ImageSet)
    assert images.classes == ["cat", "dog", "emu"]
    assert images.labels.tolist() == [0, 0, 1, 2]
    assert images.images([0, 1, 2, 3])[:, 0, 0, 0].tolist() == [2, 1, 0, 3]
    first, label = images[3]
    assert first.shape == (3, 6, 8)
    assert first.dtype == torch.uint8
    assert label == 2
    assert "emu" in images.where(3)


def test_folder_order_is_torchvisions(animals: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.datasets.ImageFolder(animals)
    ours = folder(animals)
    assert theirs.classes == ours.classes
    assert [(path, label) for path, label in theirs.samples] == [
        (ours.where(i), int(ours.labels[i])) for i in range(len(ours))
    ]


def test_greyscale_and_palette_become_rgb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("L", (4, 4), 77).save(tmp_path / "a" / "grey.png")
    Image.new("P", (4, 4)).save(tmp_path / "a" / "palette.png")
    assert folder(tmp_path)[0][0].unique().tolist() == [77]
    assert folder(tmp_path)[1][0].shape == (3, 4, 4)


def test_data_that_are_not_there_say_what_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"no data at .*gone/val.*nearest folder that does is {tmp_path}\)"):
        folder(tmp_path / "gone" / "val")
    (tmp_path / "loose.png").write_bytes(PIXEL)
    with pytest.raises(DataError, match="0 of at least 1 class folders found") as error:
        folder(tmp_path)
    assert "<root>/<class>/<image>" in str(error.value)
    assert "1 images outside of class folders" in str(error.value)
    with pytest.raises(DataError, match=r"expected a folder, a \.zip or an uncompressed \.tar"):
        folder(tmp_path / "loose.png")


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_half_copied_archives_are_refused(animals: Path, suffix: str) -> None:
    archive = (as_zip if suffix == ".zip" else as_tar)(animals)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) * 2 // 5])
    with pytest.raises(DataError, match=r"again|not complete") as error:
        folder(archive)
    assert str(archive) in str(error.value)


def test_tar_cut_between_two_files_is_refused(animals: Path) -> None:
    archive = as_tar(animals)
    with tarfile.open(archive) as whole:
        last = whole.getmembers()[-1]
    archive.write_bytes(archive.read_bytes()[: last.offset])
    with pytest.raises(DataError, match="without the end mark of a tar: the file is not complete"):
        folder(archive)


def test_sources_survive_the_way_into_a_spawned_worker(animals: Path) -> None:
    for path in (animals, as_zip(animals), as_tar(animals)):
        images = folder(path)
        assert torch.equal(pickle.loads(pickle.dumps(images)).images([0, 3]), images.images([0, 3]))


def test_class_count_that_does_not_fit(animals: Path) -> None:
    assert len(folder(animals, classes=3).classes) == 3
    with pytest.raises(DataError, match="expected 4 classes, found 3 class folders"):
        folder(animals, classes=4)
    with pytest.raises(DataError, match="2 of 3 class folders found, missing zebra"):
        folder(animals, classes=["cat", "zebra", "dog"])
    assert folder(animals, classes=["emu", "cat"]).labels.tolist() == [0, 1, 1]
    with pytest.raises(DataError, match="has 3 classes, but the network has 1000 outputs"):
        require_classes(folder(animals), 1000)
    (animals / "fox").mkdir()
    with pytest.raises(DataError, match=r"1 of 4 class folders without images: fox \(0\)"):
        folder(animals)


def test_broken_image_names_its_file(animals: Path) -> None:
    broken = animals / "cat" / "a.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(BrokenImage, match="is no image that can be decoded") as error:
        folder(animals)[0]
    assert str(broken) in str(error.value)
    broken.unlink()
    images = folder(animals)
    (animals / "cat" / "b.PNG").unlink()
    with pytest.raises(BrokenImage, match=r"b\.PNG cannot be read \(FileNotFoundError"):
        images[0]


def _bomb(path: Path, side: int) -> None:
    """A PNG of one colour: kilobytes that promise side × side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(1 + side // 8)) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """20 kB that promise 169 million pixels took 1.4 GB."""
    bomb = tmp_path / "set" / "a" / "bomb.png"
    _bomb(bomb, 13_000)
    assert bomb.stat().st_size < 30_000
    images = folder(tmp_path / "set")
    tracemalloc.start()
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(BrokenImage, match=r"bomb\.png.*13000 × 13000 pixels"),
    ):
        images[0]
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    with pytest.warns(Image.DecompressionBombWarning), pytest.raises(BrokenImage, match="13000 × 13000"):
        check_size(bomb.read_bytes(), "bomb")
    _bomb(tmp_path / "fine" / "a" / "large.png", 2_000)
    assert folder(tmp_path / "fine")[0][0].shape == (3, 2000, 2000)


def test_a_zip_entry_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wildtta.data.sources.MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/bomb.png", bytes(1 << 22))
    assert (tmp_path / "set.zip").stat().st_size < 10_000
    with pytest.raises(BrokenImage, match=r"bomb\.png.*unpack to 4,194,304 bytes"):
        folder(tmp_path / "set.zip")[0]


@pytest.mark.parametrize("name", ["/cat/a.png", "//cat//a.png", "./cat/./a.png"])
def test_absolute_names_in_archives_are_names_like_others(name: str, tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (2, 2), (1, 2, 3)).save(image, "PNG")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr(name, image.getvalue())
        archive.writestr("/dog/b.png", image.getvalue())
        archive.writestr("../../outside/c.png", image.getvalue())
    images = folder(tmp_path / "set.zip")
    assert images.classes == ["cat", "dog"]
    assert images[0][0][:, 0, 0].tolist() == [1, 2, 3]


def test_imagenet_val_with_all_classes_and_with_999(thousand: Path, tmp_path: Path) -> None:
    images = open_data("imagenet", thousand)
    assert images.classes == list(imagenet_classes())
    assert images.labels.tolist() == list(range(1000))
    assert images.outputs is None
    assert images.note == "1 images per class instead of 50"
    (tmp_path / "val").symlink_to(thousand)
    assert len(open_data("imagenet", tmp_path)) == 1000
    hidden = thousand / "n02119789"
    hidden.rename(thousand.parent / "aside")
    try:
        with pytest.raises(DataError) as error:
            open_data("imagenet", thousand)
    finally:
        (thousand.parent / "aside").rename(hidden)
    first_line = str(error.value).splitlines()[0]
    assert "999 of 1000 class folders found, missing n02119789" in first_line
    assert "<root>/<wnid>/<image>, 1000 class folders of 50 images" in str(error.value)


def test_imagenet_val_that_is_flat_or_half_unpacked(thousand: Path, tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"ILSVRC2012_val_0000000{i}.JPEG").write_bytes(PIXEL)
    with pytest.raises(DataError, match="0 of 1000 class folders found") as error:
        open_data("imagenet", tmp_path)
    assert "3 images outside of class folders" in str(error.value)
    assert "sort the loose images" in str(error.value)
    extra = thousand / "n01440764" / "second.JPEG"
    extra.write_bytes(PIXEL)
    try:
        with pytest.raises(DataError, match="999 of 1000 class folders with fewer images than the others"):
            open_data("imagenet", thousand)
    finally:
        extra.unlink()


@pytest.mark.parametrize("letter", ["r", "a"])
def test_subset_variants_know_their_place_among_the_outputs(tmp_path: Path, letter: str) -> None:
    def reader(root: Path) -> EncodedImages:
        images = open_data(f"imagenet-{letter}", root)
        assert isinstance(images, EncodedImages)
        return images

    wnids = list(imagenet_classes(letter))
    assert len(wnids) == 200
    write_classes(tmp_path / f"imagenet-{letter}", wnids)
    for i in range(3):  # classes of these sets differ in size
        (tmp_path / f"imagenet-{letter}" / wnids[7] / f"more{i}.jpg").write_bytes(PIXEL)
    images = reader(tmp_path)
    assert len(images) == 203
    assert images.classes == wnids
    assert images.outputs is not None
    all_classes = imagenet_classes()
    assert [all_classes[o] for o in images.outputs] == wnids
    # timm's own table of the positions, which is another file than the wnids'.
    info = Path(timm_data.__file__).parent / "_info" / f"imagenet_{letter}_indices.txt"
    assert sorted(images.outputs.tolist()) == sorted(map(int, info.read_text().split()))
    shutil.rmtree(tmp_path / f"imagenet-{letter}" / wnids[3])
    with pytest.raises(DataError, match=f"199 of 200 class folders found, missing {wnids[3]}"):
        reader(tmp_path)


def test_v2_is_numbered_not_sorted_as_text(tmp_path: Path) -> None:
    root = tmp_path / "imagenetv2-matched-frequency-format-val"
    for number in range(1000):
        (root / str(number)).mkdir(parents=True)
        (root / str(number) / f"image{number}.jpeg").write_bytes(PIXEL)
    for path in (tmp_path, root):
        images = open_data("imagenet-v2", path)
        assert images.where(10).endswith("/10/image10.jpeg")
        assert images.labels.tolist() == list(range(1000))
        assert images.classes == list(imagenet_classes())


def test_sketch_has_the_thousand_classes(thousand: Path) -> None:
    images = open_data("imagenet-sketch", thousand)
    assert len(images.classes) == 1000
    assert images.outputs is None
    assert images.note == ""  # its classes differ in size, so no number is usual


def test_imagenet_c_in_both_layouts(thousand: Path, tmp_path: Path) -> None:
    flat, grouped = tmp_path / "flat", tmp_path / "grouped"
    for place in (
        flat / "fog" / "5",
        flat / "fog" / "3",
        grouped / "weather" / "fog" / "5",
        grouped / "blur" / "x" / "1",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(thousand)
    for root in (flat, grouped):
        images = imagenet_c(root, "fog", 5)
        assert len(images) == 1000
        assert "fog/5/n01440764" in images.where(0)
    assert corruptions_in(flat) == {"fog": [3, 5]}
    assert corruptions_in(grouped) == {"fog": [5], "x": [1]}
    with pytest.raises(DataError, match="no corruption 'snow'") as error:
        imagenet_c(grouped, "snow", 5)
    assert "blur/x" in str(error.value)
    assert "<root>/<corruption>/<severity>/<wnid>/*.JPEG" in str(error.value)
    with pytest.raises(DataError, match="fog has no severity 2") as error:
        imagenet_c(flat, "fog", 2)
    assert "severities 3, 5" in str(error.value)
    sets = open_domains("imagenet-c", flat, [("fog", 3), ("fog", 5), ("fog", 3)])
    assert sets[0] is sets[2]
    with pytest.raises(DataError, match="without a severity"):
        open_domains("imagenet-c", flat, ["fog"])


def test_shards_written_by_webdataset(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "val-%04d.tar"), maxcount=4, verbose=0) as writer:
        for i in range(10):
            image = np.full((5, 5, 3), i, dtype=np.uint8)
            writer.write({"__key__": f"sample{i:03d}", "png": image, "cls": (i * 7) % 5})
    pattern = str(tmp_path / "val-{0000..0002}.tar")
    for path in (tmp_path, pattern, sorted(tmp_path.glob("*.tar"))):
        images = shards(path)
        assert images.labels.tolist() == [(i * 7) % 5 for i in range(10)]
        assert images.images([9, 0, 4])[:, 0, 0, 0].tolist() == [9, 0, 4]
        assert images.classes == ["0", "1", "2", "3", "4"]
    assert shards(tmp_path, classes=list("abcde")).classes == list("abcde")
    with pytest.raises(DataError, match="only 2 class names"):
        shards(tmp_path, classes=["a", "b"])
    with pytest.raises(DataError, match=r"1 of the shards are missing"):
        shards(str(tmp_path / "val-{0000..0003}.tar"))


def test_shards_with_json_labels_and_without_any(tmp_path: Path) -> None:
    def shard(name: str, files: dict[str, bytes]) -> Path:
        with tarfile.open(tmp_path / name, "w") as archive:
            for file, content in files.items():
                info = tarfile.TarInfo(file)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return tmp_path / name

    good = shard("good.tar", {"k1.jpg": PIXEL, "k1.json": b'{"label": 3}'})
    assert shards(good).labels.tolist() == [3]
    with pytest.raises(DataError, match=r"k1\.jpg in .*bad\.tar has no label"):
        shards(shard("bad.tar", {"k1.jpg": PIXEL}))
    with pytest.raises(DataError, match=r"label of k1\.jpg .* cannot be read"):
        shards(shard("worse.tar", {"k1.jpg": PIXEL, "k1.cls": b"cat"}))
    with pytest.raises(DataError, match="no samples"):
        shards(shard("empty.tar", {"readme.txt": b"hello"}))


def test_restricted_network_gives_the_networks_own_logits_at_the_subset() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)).double()
    outputs = np.array([7, 2, 9])
    inputs = torch.randn(5, 6, dtype=torch.float64)
    before = network(inputs)
    restricted = restrict_classes(network, outputs)
    assert torch.allclose(restricted(inputs), before[:, [7, 2, 9]], atol=1e-15)
    assert torch.equal(network(inputs), before)
    assert restricted[-1].out_features == 3
    with pytest.raises(DataError, match="has 10 outputs"):
        restrict_classes(network, np.array([10]))


def test_array_images_check_what_they_are_given() -> None:
    good = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    assert isinstance(ArrayImages(good, [0, 1]), ImageSet)
    with pytest.raises(DataError, match=r"uint8 of shape \[N, 3, H, W\], got torch.float32"):
        ArrayImages(good.float(), [0, 1])
    with pytest.raises(DataError, match="expected 2 labels"):
        ArrayImages(good, [0])
    with pytest.raises(DataError, match="labels go up to 1, but only 1"):
        ArrayImages(good, [0, 1], classes=["a"])


def test_long_listings_say_how_far_they_are(
    animals: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(animals)
    assert capsys.readouterr().err == ""
    clock = iter(range(0, 1000, 2))  # every look at the clock is two seconds later
    monkeypatch.setattr("wildtta.progress.time.monotonic", lambda: float(next(clock)))
    folder(animals)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"animals: listing class folders: 1 of 3(, about 8 s left)?", line.rpartition("/")[2])


def test_imagenet_c_inside_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "imagenet-c.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for wnid in imagenet_classes():
            archive.writestr(f"noise/shot_noise/4/{wnid}/x.JPEG", PIXEL)
    images = imagenet_c(path, "shot_noise", 4)
    assert len(images) == 1000
    assert images[999][0].shape == (3, 6, 8)


def test_glyphs_by_name_corrupted_on_the_fly() -> None:
    pytest.importorskip("matplotlib")
    clean, foggy = open_domains("glyphs", None, ["clean", ("fog", 3)], count=20, corruption_seed=5)
    assert isinstance(foggy, Corrupted)
    assert torch.equal(foggy.images([4]), corrupt(clean.images([4]), "fog", 3, seed=5, index=[4]))
    assert np.array_equal(foggy.labels, clean.labels)


def test_folder_of_stored_corruptions_is_recognised(animals: Path, tmp_path: Path) -> None:
    root = tmp_path / "animals-c"
    for place in ("fog/3", "fog/5", "clean"):
        shutil.copytree(animals, root / place)
    third, clean = open_domains("folder", root, [("fog", 3), "clean"])
    assert "fog/3/" in third.where(0)
    assert "clean/" in clean.where(0)
    assert third.labels.tolist() == clean.labels.tolist() == [0, 0, 1, 2]
    with pytest.raises(DataError, match=r"has no fog of severity 2; it has fog \(3/5\)"):
        open_domains("folder", root, [("fog", 2)])
    shutil.rmtree(root / "clean")
    with pytest.raises(DataError, match=r"has no clean images; .* into .*clean/<class>/<image>"):
        open_domains("folder", root, ["clean"])


def test_data_by_name(animals: Path) -> None:
    assert len(open_data("folder", animals)) == 4
    with pytest.raises(DataError, match="name its folder, zip or tar"):
        open_data("imagenet-r")
    with pytest.raises(DataError, match=r"'imagnet'; known: glyphs, imagenet,"):
        open_data("imagnet", animals)
