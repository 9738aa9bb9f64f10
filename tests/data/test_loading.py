"""The loader: order, independence of the number of workers, broken files, corruption on the fly."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from wildtta.data import ArrayImages, BrokenImage, Corrupted, DataError, Loader, StreamLoader, corrupt, folder
from wildtta.streams import build

# The test machine may have fewer cores than workers that a test asks for.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 36, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """24 lossless images of 4 classes."""
    for i, pixels in enumerate(PIXELS):
        path = tmp_path / f"class{i % 4}" / f"{i:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path


def number_of(path: str) -> int:
    return int(Path(path).stem)


def test_batches_follow_the_order_given(root: Path) -> None:
    images = folder(root)
    order = np.random.default_rng(1).integers(0, 24, 31)
    seen = list(Loader(images, order, batch_size=8, protocol="glyphs"))
    assert [len(labels) for _, labels in seen] == [8, 8, 8, 7]
    assert torch.cat([labels for _, labels in seen]).tolist() == images.labels[order].tolist()
    expected = torch.stack([torch.from_numpy(PIXELS[number_of(images.where(i))]).permute(2, 0, 1) for i in order])
    assert torch.allclose(torch.cat([x for x, _ in seen]), (expected.float() / 255 - 0.5) / 0.25)


@pytest.mark.parametrize("corrupted", [False, True])
def test_batches_do_not_depend_on_workers_or_batch_size(root: Path, corrupted: bool) -> None:
    clean = folder(root)
    images = Corrupted(clean, "gaussian_noise", 3, seed=7) if corrupted else clean
    order = [5, 3, 3, 17, 0, 23]

    def load(workers: int, batch_size: int) -> torch.Tensor:
        loader = Loader(images, order, batch_size=batch_size, protocol="custom:size=32,resize=34", workers=workers)
        return torch.cat([x for x, _ in loader])

    reference = load(0, 6)
    assert reference.shape == (6, 3, 32, 32)
    assert torch.equal(reference[1], reference[2])
    for workers, batch_size in [(0, 1), (1, 2), (4, 6), (4, 4)]:
        assert torch.equal(load(workers, batch_size), reference), (workers, batch_size)


def test_zip_is_read_by_several_processes(root: Path, tmp_path: Path) -> None:
    import shutil

    archive = shutil.make_archive(str(tmp_path.parent / f"{tmp_path.name}-packed"), "zip", root)
    for workers in (0, 3):
        loader = Loader(folder(archive), batch_size=2, protocol="glyphs", workers=workers)
        direct = Loader(folder(root), batch_size=2, protocol="glyphs")
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(loader, direct, strict=True))


def test_mixed_domains_come_from_their_own_sets(root: Path) -> None:
    clean = folder(root)
    sets = [clean, Corrupted(clean, "fog", 5, seed=1), Corrupted(clean, "contrast", 2)]
    stream = build("mixed", clean.labels, domains=["clean", "fog", "contrast"], batch_size=7, seed=3)
    loaded = list(StreamLoader(sets, stream, protocol="glyphs", workers=2))
    assert len(loaded) == stream.batch_count == 11
    assert [b.reset for b in loaded] == [True] + [False] * 10
    for batch, planned in zip(loaded, stream.batches(), strict=True):
        assert np.array_equal(batch.domains, planned.domains)
        assert np.array_equal(batch.indices, planned.indices)
        assert batch.labels.tolist() == clean.labels[planned.indices].tolist()
        for image, domain, index in zip(batch.images, batch.domains, batch.indices, strict=True):
            pixels = clean[index][0][None]
            if domain:
                name, severity, seed = (("fog", 5, 1), ("contrast", 2, 0))[domain - 1]
                pixels = corrupt(pixels, name, severity, seed=seed, index=[int(index)])
            assert torch.equal(image, ((pixels.float() / 255 - 0.5) / 0.25)[0])


@pytest.mark.parametrize(("scenario", "batch_size"), [("mixed", 7), ("mild", 1), ("continual", 5)])
def test_images_kept_on_the_device_are_the_same(root: Path, scenario: str, batch_size: int) -> None:
    clean = folder(root)
    sets = [clean, Corrupted(clean, "fog", 5, seed=1), Corrupted(clean, "contrast", 2)]
    stream = build(scenario, clean.labels, domains=["clean", "fog", "contrast"], batch_size=batch_size, seed=3)
    read = StreamLoader(sets, stream, protocol="custom:size=32,resize=34")
    kept = StreamLoader(sets, stream, protocol="custom:size=32,resize=34", cache=True)
    for _ in range(2):
        for one, other in zip(read, kept, strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.labels, other.labels)
            assert (one.reset, one.start) == (other.reset, other.start)
            assert np.array_equal(one.indices, other.indices)
            assert np.array_equal(one.domains, other.domains)
    for path in root.rglob("*.png"):
        path.unlink()
    assert len(list(kept)) == stream.batch_count
    # The clean images are kept, so that another corruption of them needs no file.
    brighter = StreamLoader(
        [clean, Corrupted(clean, "brightness", 3), sets[2]], stream, protocol=kept.protocol, cache=True
    )
    assert len(list(brighter)) == stream.batch_count
    pixels = next(kept.pixels()).images
    assert pixels.dtype == torch.uint8
    assert torch.equal(kept.protocol.normalise(pixels), next(iter(kept)).images)


def test_corrupted_set_is_the_corruption_by_position(root: Path) -> None:
    clean = folder(root)
    noisy = Corrupted(clean, "shot_noise", 4, seed=2)
    assert len(noisy) == 24
    assert noisy.classes == clean.classes
    whole = corrupt(clean.images(range(24)), "shot_noise", 4, seed=2)
    assert torch.equal(noisy.images([20, 3]), whole[[20, 3]])
    assert torch.equal(noisy[11][0], whole[11])


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_image_is_fatal_or_skipped_but_never_silent(root: Path, workers: int) -> None:
    images = folder(root)
    broken = [Path(images.where(i)) for i in (1, 2, 3)]
    for path in broken:
        path.write_bytes(b"\xff\xd8\xff not a jpeg")
    with pytest.raises(BrokenImage, match="on_error='skip'") as error:
        list(Loader(images, batch_size=2, protocol="glyphs", workers=workers))
    assert str(broken[0]) in str(error.value)
    loader = Loader(images, batch_size=2, protocol="glyphs", workers=workers, on_error="skip")
    with pytest.warns(UserWarning, match="skipped a broken image") as caught:
        seen = list(loader)
    assert len(caught) == len(loader.broken) == 3
    assert all(str(path) in text for path, text in zip(broken, loader.broken, strict=True))
    assert [len(labels) for _, labels in seen] == [1] + [2] * 10  # the batch of images 2 and 3 is gone


def test_a_reset_survives_a_batch_of_broken_images(root: Path) -> None:
    images = folder(root)
    stream = build("mild", images.labels, domains=["a", "b"], batch_size=1)
    for index in stream.index[:1]:
        Path(images.where(int(index))).write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = list(StreamLoader([images, images], stream, protocol="glyphs", on_error="skip"))
    assert len(loaded) == 46
    assert [b.start for b in loaded if b.reset] == [1, 25]


def test_loading_leaves_global_random_state_alone(root: Path) -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = states()
    list(Loader(Corrupted(folder(root), "snow", 1), batch_size=6, protocol="glyphs"))
    assert states() == before


def test_wrong_requests(root: Path) -> None:
    images = folder(root)
    Image.new("RGB", (9, 9)).save(root / "class0" / "00.png")
    with pytest.raises(DataError, match=r"from 9x9 to 40x36 \(HxW\); load them with a protocol that has a size"):
        list(Loader(images, batch_size=4, protocol="native"))
    with pytest.raises(DataError, match="asks for image 24 of given, whose set has 24 images"):
        Loader(images, [24], protocol="native")
    with pytest.raises(DataError, match="needs a CUDA device, got device 'cpu'"):
        Loader(images, protocol="native", decoder="gpu")
    with pytest.raises(DataError, match="on_error must be one of raise, skip"):
        Loader(images, protocol="native", on_error="ignore")
    with pytest.raises(DataError, match="cache=True needs decoder='cpu' and on_error='raise', got 'cpu' and 'skip'"):
        Loader(images, protocol="native", on_error="skip", cache=True)
    with pytest.raises(DataError, match="2 domains, but 1 image sets"):
        StreamLoader([images], build("mixed", images.labels, domains=["a", "b"]), protocol="native")


def test_images_in_memory_load_alike() -> None:
    pixels = torch.from_numpy(PIXELS).permute(0, 3, 1, 2).contiguous()
    images = ArrayImages(pixels, np.arange(24) % 4)
    for workers in (0, 2):
        loaded = torch.cat([x for x, _ in Loader(images, batch_size=5, protocol="glyphs", workers=workers)])
        assert torch.allclose(loaded, (pixels.float() / 255 - 0.5) / 0.25)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:skipped a broken image")
@pytest.mark.parametrize("batch_size", [1, 3, 4, 8])
def test_jpegs_decoded_by_torchvision_find_their_places_among_the_others(tmp_path: Path, batch_size: int) -> None:
    """The way of `decoder="gpu"`, with torchvision's decoder on the CPU: JPEG, PNG and broken files in one batch."""
    pytest.importorskip("torchvision")
    (tmp_path / "a").mkdir()
    for i in range(6):
        Image.fromarray(PIXELS[i]).save(tmp_path / "a" / f"{i}.{'png' if i == 2 else 'jpg'}")
    for i in (6, 7):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(b"\xff\xd8\xff broken")
    images = folder(tmp_path)
    loader = Loader(images, batch_size=batch_size, protocol="glyphs", on_error="skip", workers=1)
    loader.decoder = "gpu"  # refused by the constructor, which knows that there is no GPU
    with pytest.warns(UserWarning, match="skipped a broken image"):
        seen = torch.cat([x for x, _ in loader])
    assert [number_of(text.split()[0]) for text in loader.broken] == [6, 7]
    expected = (images.images(range(6)).float() / 255 - 0.5) / 0.25
    assert ((seen - expected).abs() * 255 * 0.25).max() <= 1.01  # both are libjpeg, of different builds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("decoder", ["cpu", "gpu"])
def test_batches_on_the_gpu(tmp_path: Path, decoder: str) -> None:
    smooth = np.asarray(Image.fromarray(PIXELS[0][:6, :6]).resize((224, 224), Image.Resampling.BICUBIC))
    (tmp_path / "a").mkdir()
    for i in range(5):
        Image.fromarray(np.roll(smooth, 10 * i, axis=0)).save(tmp_path / "a" / f"{i}.jpg", quality=95, subsampling=0)
    Image.fromarray(smooth).save(tmp_path / "a" / "5.png")
    (tmp_path / "a" / "6.jpg").write_bytes(b"\xff\xd8\xff broken")
    settings = {"batch_size": 4, "protocol": "paper", "on_error": "skip"}
    with pytest.warns(UserWarning, match=r"6\.jpg"):
        there = torch.cat([x for x, _ in Loader(folder(tmp_path), **settings, device="cuda", decoder=decoder, workers=2)])
    with pytest.warns(UserWarning, match=r"6\.jpg"):
        here = torch.cat([x for x, _ in Loader(folder(tmp_path), **settings)])
    assert there.device.type == "cuda"
    levels = (there.cpu() - here).abs() * 255 * 0.224
    # Colour is stored at full size here: decoders draw out smaller colour in their own ways, and differ by much at edges.
    assert (levels <= (0.01 if decoder == "cpu" else 6)).float().mean() > (0.999999 if decoder == "cpu" else 0.97)
    assert levels.mean() <= 1
