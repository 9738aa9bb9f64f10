"""The operators behind the corruptions against independent implementations, and the door's errors."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from corruption_pictures import ALL, photographs
from wildtta.corruptions import corrupt, filters
from wildtta.corruptions.blur import copy_sources, disk_kernel
from wildtta.corruptions.draws import OfficialDraws
from wildtta.corruptions.frost_textures import PHOTOGRAPHS, STEMS, find_folder, generated_textures
from wildtta.corruptions.jpeg import transform_matrix
from wildtta.corruptions.spatter import canny_edges, chamfer_distance, equalise_histogram
from wildtta.corruptions.weather import plasma_fractal

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("sigma", "truncate", "mode", "border"), [(1.5, 4.0, "nearest", "edge"), (2.44, 3.0, "reflect", "symmetric")]
)
def test_gaussian_blur_equals_scipys(sigma, truncate, mode, border) -> None:
    images = photographs(2, 40).double() / 255
    expected = ndimage.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode=mode, truncate=truncate)
    assert np.array_equal(filters.gaussian_blur(images, sigma, truncate=truncate, border=border).numpy(), expected)


def test_dense_gaussian_equals_scipys_when_wider_than_the_line() -> None:
    field = np.random.default_rng(0).uniform(-1, 1, (30, 30))
    operator = filters.gaussian_operator(30, 40.0, 3.0, "symmetric", CPU).numpy()
    expected = ndimage.gaussian_filter(field, 40.0, mode="reflect", truncate=3.0)
    assert np.allclose(operator @ field @ operator.T, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("zoom", [1.01, 1.11, 1.3, 2.25, 4.5])
def test_clipped_zoom_equals_scipys(zoom: float) -> None:
    plane = np.random.default_rng(1).uniform(size=(45, 45))
    crop = int(np.ceil(45 / zoom))
    top = (45 - crop) // 2
    stretched = ndimage.zoom(plane[top : top + crop, top : top + crop], zoom, order=1)
    trim = (stretched.shape[0] - 45) // 2
    expected = stretched[trim : trim + 45, trim : trim + 45]
    assert np.allclose(
        filters.clipped_zoom(torch.from_numpy(plane)[None], zoom)[0].numpy(), expected, rtol=0, atol=1e-12
    )


def test_bilinear_sample_equals_scipys_map_coordinates() -> None:
    generator = np.random.default_rng(2)
    plane = generator.uniform(size=(20, 20))
    rows, columns = generator.uniform(-6, 25, (2, 20, 20))
    expected = ndimage.map_coordinates(plane, (rows, columns), order=1, mode="reflect")
    sampled = filters.bilinear_sample(
        torch.from_numpy(plane)[None, None], torch.from_numpy(rows)[None], torch.from_numpy(columns)[None], "symmetric"
    )
    assert np.allclose(sampled[0, 0].numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("height", "width"), [(19, 33), (57, 57), (64, 100)])
def test_box_resize_equals_pillows(height: int, width: int) -> None:
    image = photographs(1, 64)
    expected = Image.fromarray(image[0].permute(1, 2, 0).numpy()).resize((width, height), Image.Resampling.BOX)
    assert np.array_equal(filters.box_resize(image, height, width)[0].permute(1, 2, 0).numpy(), np.array(expected))


@pytest.mark.parametrize("size", [(64, 64), (33, 50), (47, 16)])
@pytest.mark.parametrize("severity", [1, 5])
def test_jpeg_compression_equals_pillows(size: tuple[int, int], severity: int) -> None:
    images = photographs(4, 64)[:, :, : size[0], : size[1]].contiguous()
    produced = corrupt(images, "jpeg_compression", severity, constants="tiny")
    for image, result in zip(images, produced, strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=(65, 58, 50, 40, 25)[severity - 1])
        expected = np.array(Image.open(buffer)).astype(int)
        # Codecs differ in rounding and in chroma interpolation; Pillow's usual one gives a difference of 0.
        assert np.abs(result.permute(1, 2, 0).numpy() - expected).mean() < 1.5


def test_integer_cosine_transforms_approximate_the_exact_one() -> None:
    frequency, sample = np.mgrid[:8, :8]
    exact = np.cos((2 * sample + 1) * frequency * np.pi / 16) * np.where(frequency == 0, np.sqrt(0.5), 1.0)
    # The fixed-point network is scaled by 2 * sqrt(2) against the orthonormal transform, by 13 bits besides.
    forward = transform_matrix(CPU).numpy()
    assert np.abs(forward / 8192 - np.sqrt(2) * exact).max() < 2e-4
    assert np.abs(forward.T / 8192 - np.sqrt(2) * exact.T).max() < 2e-4


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_copies_equal_the_sequential_loop(reach: int) -> None:
    height, width = 21, 26
    produced = copy_sources(OfficialDraws([5], CPU), reach, height, width)[0].reshape(height, width).numpy()
    held = np.arange(height * width).reshape(height, width)
    generator = np.random.RandomState(5)
    for row in range(height - reach, reach, -1):
        for column in range(width - reach, reach, -1):
            across, down = generator.randint(-reach, reach, size=2)
            held[row, column] = held[row + down, column + across]
    assert np.array_equal(produced, held)


def test_motion_blur_of_a_point_draws_its_path() -> None:
    """A bright pixel at 0 degrees leaves a falling trail to its left: every pixel looks to the right."""
    images = torch.zeros((1, 1, 9, 31), dtype=torch.float64)
    images[0, 0, 4, 20] = 255
    blurred = filters.motion_blur(images, 3, 2.0, torch.zeros(1))[0, 0]
    weights = np.exp(-(np.arange(7) ** 2) / 8.0)
    assert blurred[4, 14:21].flip(0).tolist() == np.floor(255 * weights / weights.sum()).tolist()
    assert float(blurred.sum()) == float(blurred[4, 14:21].sum())


def test_largest_disks_brighten() -> None:
    assert disk_kernel(8, 0.5).sum() == pytest.approx(1.0129754543304443, abs=1e-6)
    assert disk_kernel(10, 0.5).sum() == pytest.approx(1.0107858180999756, abs=1e-6)
    assert disk_kernel(3, 0.1).sum() == pytest.approx(1.0, abs=1e-6)


def test_plasma_fractal_spans_the_unit_interval_and_wraps_around() -> None:
    plasma = plasma_fractal(OfficialDraws([1, 2], CPU), 64, 2.0)
    assert plasma.amin((1, 2)).tolist() == [0.0, 0.0]
    assert plasma.amax((1, 2)).tolist() == [1.0, 1.0]
    step_inside = (plasma[:, 1:] - plasma[:, :-1]).abs().mean()
    step_around = (plasma[:, 0] - plasma[:, -1]).abs().mean()
    assert float(step_around) < 2 * float(step_inside)


def test_chamfer_distance_and_edges_of_a_line() -> None:
    plane = torch.zeros((1, 32, 32), dtype=torch.int32)
    plane[:, :, 16:] = 200
    edges = canny_edges(plane, 50, 150)
    assert edges.sum(dim=1).nonzero()[:, 1].tolist() == [15]
    distance = chamfer_distance(edges, 20.0)
    assert distance[0, 10].tolist() == [float(min(abs(column - 15), 20)) for column in range(32)]
    point = torch.zeros((1, 9, 9), dtype=torch.bool)
    point[0, 4, 4] = True
    assert chamfer_distance(point, 20.0)[0, 4:8, 6].tolist() == pytest.approx([2.0, 2.1969, 2.8, 3.5969])


def test_histogram_equalisation() -> None:
    plane = torch.tensor([[[5, 5, 7], [7, 9, 9]]], dtype=torch.int32)
    assert equalise_histogram(plane).tolist() == [[[0, 0, 128], [128, 255, 255]]]
    flat = torch.full((1, 4, 4), 9, dtype=torch.int32)
    assert torch.equal(equalise_histogram(flat), flat)


@pytest.mark.parametrize("shape", [(16, 16), (32, 32), (40, 71), (150, 97)])
def test_any_size_from_16_pixels_up(shape: tuple[int, int]) -> None:
    images = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for corruption in ALL:
        produced = corrupt(images, corruption, 5)
        assert produced.shape == images.shape
        assert not torch.equal(produced, images), corruption


def test_frost_uses_the_named_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, stem in enumerate(STEMS):
        Image.new("RGB", (300, 260), (40 * number, 10, 200)).save(tmp_path / f"{stem}.png")
    images = torch.full((40, 3, 64, 64), 100, dtype=torch.uint8)
    produced = corrupt(images, "frost", 5, frost_dir=tmp_path)
    assert set(produced[:, 0].unique().tolist()) == {int(70 + 0.55 * 40 * number) for number in range(5)}
    assert produced[:, 1].unique().tolist() == [int(70 + 0.55 * 10)]
    assert produced[:, 2].unique().tolist() == [int(70 + 0.55 * 200)]
    monkeypatch.setenv("WILDTTA_FROST_DIR", str(tmp_path))
    assert find_folder(None) == tmp_path
    assert torch.equal(corrupt(images, "frost", 5), produced)
    (tmp_path / "frost3.png").unlink()
    with pytest.raises(FileNotFoundError, match="frost3 is missing"):
        corrupt(images, "frost", 1, constants="imagenet")


def test_generated_textures_have_the_photographs_statistics() -> None:
    for pixels, statistics in zip(generated_textures(), PHOTOGRAPHS, strict=True):
        assert pixels.shape == (*statistics.shape, 3)
        assert pixels.mean((0, 1)) == pytest.approx(statistics.mean, abs=1.5)
        assert pixels.std((0, 1)) == pytest.approx(statistics.deviation, rel=0.1)
        grey = pixels.mean(2)
        for octave in (2, 4):
            side = 1 << octave
            rows, columns = (length // side * side for length in grey.shape)
            blocks = grey[:rows, :columns].reshape(rows // side, side, columns // side, side).mean((1, 3))
            assert blocks.std() == pytest.approx(statistics.block_deviation[octave], rel=0.15)


def test_errors_say_what_was_expected() -> None:
    images = torch.zeros((2, 3, 32, 32), dtype=torch.uint8)
    with pytest.raises(ValueError, match="unknown corruption 'rain'; expected one of gaussian_noise"):
        corrupt(images, "rain", 1)
    with pytest.raises(ValueError, match="severity must be 1, 2, 3, 4 or 5, got 6"):
        corrupt(images, "fog", 6)
    with pytest.raises(ValueError, match=r"expected uint8 \[N, 3, H, W\], got torch.float32"):
        corrupt(images.float(), "fog", 1)
    with pytest.raises(ValueError, match="on the CPU or a CUDA device, got meta"):
        corrupt(images.to("meta"), "fog", 1)
    with pytest.raises(ValueError, match="one per image"):
        corrupt(images, "fog", 1, seed=[1, 2, 3])
    with pytest.raises(ValueError, match="index: expected 2 positions"):
        corrupt(images, "fog", 1, index=[1])
    with pytest.raises(ValueError, match="at least 16 pixels"):
        corrupt(images[..., :8], "fog", 1)
