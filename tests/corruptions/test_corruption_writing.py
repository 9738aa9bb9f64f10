"""``wildtta corrupt``: the layout, resuming after a kill, any number of workers."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from corruption_pictures import photographs
from wildtta.cli.corrupt import parse_corruptions, parse_severities
from wildtta.data import CORRUPTIONS, Corrupted, DataError, folder
from wildtta.data.errors import BrokenImage
from wildtta.data.write_corrupted import SETTINGS_FILE, Settings, write_corrupted

CLASSES = ("n01443537", "n01629819", "n12267677")


def make_source(path: Path, per_class: int) -> Path:
    """Class folders of small JPEGs, named as the official validation set is."""
    images = photographs(per_class * len(CLASSES), 32).permute(0, 2, 3, 1).numpy()
    for number, pixels in enumerate(images):
        target = path / CLASSES[number % 3] / f"val_{number}.JPEG"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(target, quality=95)
    return path


def digests(path: Path) -> dict[str, str]:
    files = sorted(found for found in path.rglob("*") if found.is_file())
    return {str(found.relative_to(path)): hashlib.sha256(found.read_bytes()).hexdigest() for found in files}


def command(source: Path, target: Path, *options: str) -> list[str]:
    return [sys.executable, "-c", "from wildtta.cli import main; main()", "corrupt", str(source), str(target), *options]


def test_layout_and_content(tmp_path: Path) -> None:
    source = make_source(tmp_path / "val", 2)
    done = write_corrupted(
        source, tmp_path / "c", corruptions=("fog", "shot_noise"), severities=(2, 4), settings=Settings(seed=3)
    )
    assert (done.written, done.kept, done.total) == (24, 0, 24)
    names = {name for name in digests(tmp_path / "c") if name != SETTINGS_FILE}
    images = {f"{CLASSES[number % 3]}/val_{number}.JPEG" for number in range(6)}
    assert names == {f"{c}/{s}/{image}" for c in ("fog", "shot_noise") for s in (2, 4) for image in images}
    # What is written is what the readers give on the fly, after one JPEG of quality 85.
    on_the_fly = Corrupted(folder(source), "fog", 4, seed=3)
    written = folder(tmp_path / "c" / "fog" / "4")
    for position in range(6):
        expected, found = on_the_fly[position][0], written[position][0]
        assert float((expected.float() - found.float()).abs().mean()) < 6
        Image.fromarray(expected.permute(1, 2, 0).numpy()).save(tmp_path / "one.JPEG", quality=85, optimize=True)
        assert (tmp_path / "one.JPEG").read_bytes() == (tmp_path / "c/fog/4" / _name(source, position)).read_bytes()


def _name(source: Path, position: int) -> str:
    return [str(found.relative_to(source)) for found in sorted(source.rglob("*.JPEG"))][position]


def test_zip_equals_folder_and_workers_do_not_matter(tmp_path: Path) -> None:
    source = make_source(tmp_path / "val", 30)
    with zipfile.ZipFile(tmp_path / "val.zip", "w") as archive:
        for found in sorted(source.rglob("*.JPEG"), reverse=True):
            archive.write(found, Path("val") / found.relative_to(source))
    options = {"corruptions": ("glass_blur", "elastic_transform", "fog"), "severities": (1, 5)}
    write_corrupted(source, tmp_path / "one", **options)
    done = write_corrupted(tmp_path / "val.zip", tmp_path / "four", workers=4, **options)
    assert done.written == done.total == 90 * 6
    assert digests(tmp_path / "four") == digests(tmp_path / "one")


def test_continues_after_a_kill(tmp_path: Path) -> None:
    source = make_source(tmp_path / "val", 40)
    options = (
        "--severity",
        "1-3",
        "--corruption",
        "impulse_noise",
        "--corruption",
        "zoom_blur",
        "--corruption",
        "snow",
    )
    target = tmp_path / "killed"
    process = subprocess.Popen(command(source, target, *options, "--workers", "2"), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while len(list(target.glob("*/*/*/*.JPEG"))) < 100:
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline, "no files appeared"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(1.0)  # a worker that outlives its parent would still be writing

    finished = {found: found.stat().st_mtime_ns for found in target.glob("*/*/*/*.JPEG")}
    assert 100 <= len(finished) < 120 * 9
    for found in finished:
        with Image.open(found) as image:
            image.load()  # complete, or it raises
    time.sleep(0.5)
    assert len(list(target.glob("*/*/*/*.JPEG"))) == len(finished)
    (target / ".partial").mkdir(exist_ok=True)
    (target / ".partial" / "123.JPEG").write_bytes(b"half a fi")

    done = subprocess.run(command(source, target, *options), capture_output=True, text=True, check=True)
    assert re.match(rf"{120 * 9 - len(finished)} files written .*, {len(finished)} were there", done.stdout)
    assert {found: found.stat().st_mtime_ns for found in finished} == finished
    write_corrupted(
        source, tmp_path / "whole", corruptions=("impulse_noise", "zoom_blur", "snow"), severities=(1, 2, 3)
    )
    assert digests(target) == digests(tmp_path / "whole")
    assert not (target / ".partial").exists()


def test_other_settings_are_refused(tmp_path: Path) -> None:
    source = make_source(tmp_path / "val", 1)
    write_corrupted(source, tmp_path / "c", corruptions=("contrast",), severities=(1,))
    with pytest.raises(DataError, match=r"begun with other settings .seed: 0, now 1"):
        write_corrupted(source, tmp_path / "c", corruptions=("fog",), severities=(1,), settings=Settings(seed=1))
    added = write_corrupted(source, tmp_path / "c", corruptions=("contrast", "fog"), severities=(1,))
    assert (added.written, added.kept) == (3, 3)


@pytest.mark.skipif(os.name != "posix", reason="the lock is one of POSIX")
def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    import fcntl

    source = make_source(tmp_path / "val", 1)
    (tmp_path / "c" / ".partial").mkdir(parents=True)
    handle = os.open(tmp_path / "c" / ".partial", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(DataError, match="another run is writing"):
            write_corrupted(source, tmp_path / "c")
    finally:
        os.close(handle)


def test_broken_images_are_named(tmp_path: Path) -> None:
    source = make_source(tmp_path / "val", 2)
    victim = source / CLASSES[1] / "val_4.JPEG"
    victim.write_bytes(victim.read_bytes()[:100])
    options = {"corruptions": ("contrast",), "severities": (1, 2)}
    with pytest.raises(BrokenImage, match=r"val_4\.JPEG"):
        write_corrupted(source, tmp_path / "fatal", workers=2, **options)
    done = write_corrupted(source, tmp_path / "skip", broken="skip", **options)
    assert done.written == 10
    assert len(done.broken) == 1
    assert "val_4.JPEG" in done.broken[0]


def test_images_of_several_sizes_and_cutting(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for name, shape in (("a", (40, 60, 3)), ("b", (60, 40, 3)), ("c", (40, 60, 3))):
        target = tmp_path / "val" / "n0" / f"{name}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(target)
    write_corrupted(tmp_path / "val", tmp_path / "kept", corruptions=("contrast",), severities=(1,))
    assert Image.open(tmp_path / "kept/contrast/1/n0/b.JPEG").size == (40, 60)
    write_corrupted(
        tmp_path / "val", tmp_path / "cut", corruptions=("contrast",), severities=(1,), settings=Settings(size=28)
    )
    assert {Image.open(found).size for found in (tmp_path / "cut/contrast/1/n0").iterdir()} == {(28, 28)}


def test_sources_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "empty" / "n0").mkdir(parents=True)
    with pytest.raises(DataError, match="no images to corrupt"):
        write_corrupted(tmp_path / "empty", tmp_path / "c")
    picture = Image.fromarray(torch.zeros((32, 32, 3), dtype=torch.uint8).numpy())
    picture.save(tmp_path / "empty/n0/a.png")
    picture.save(tmp_path / "empty/n0/a.jpg")
    with pytest.raises(DataError, match=r"would both be written as n0/a\.JPEG"):
        write_corrupted(tmp_path / "empty", tmp_path / "c")


def test_options_of_the_command() -> None:
    assert parse_severities("1-5") == (1, 2, 3, 4, 5)
    assert parse_severities("5,1-2") == (5, 1, 2)
    for wrong in ("0", "6", "1-7", "high", "", "5-1"):
        with pytest.raises(ValueError, match="--severity"):
            parse_severities(wrong)
    assert parse_corruptions([]) == CORRUPTIONS
    assert len(parse_corruptions(["all"])) == 19
    with pytest.raises(ValueError, match="--corruption: expected one of gaussian_noise"):
        parse_corruptions(["rain"])
