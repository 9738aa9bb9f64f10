"""Protocols: the published numbers, geometry against torchvision's own transforms, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from wildtta.data import DataError, InputProtocol, input_protocol, preprocess

GENERATOR = np.random.default_rng(0)


def smooth_image(height: int, width: int) -> Image.Image:
    """Low frequencies and noise, so that resizing and rounding both matter."""
    small = GENERATOR.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray((image + GENERATOR.integers(-20, 20, image.shape)).clip(0, 255).astype(np.uint8))


def as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_glyphs_scaling() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 4, 4)
    expected = torch.tensor([-2.0, (0.2 - 0.5) / 0.25, 2.0], dtype=torch.float64)
    assert torch.allclose(preprocess(images, "glyphs", dtype=torch.float64)[:, 1, 2, 3], expected, atol=1e-15)
    assert preprocess(images, "glyphs").dtype == torch.float32


@pytest.mark.parametrize(("height", "width"), [(500, 375), (224, 300), (301, 256), (200, 200)])
def test_paper_equals_torchvisions_resize_crop_normalise(height: int, width: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    image = smooth_image(height, width)
    theirs = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )(image)
    ours = preprocess(as_tensor(image), "paper")
    assert ours.shape == (3, 224, 224)
    # Pillow's resize and torch's round to uint8 at other places: a grey level, never more.
    assert (ours - theirs).abs().max() <= 1.01 / 255 / 0.224


def test_paper_leaves_stored_224_images_alone() -> None:
    """ImageNet-C is 224 already: only the scaling happens."""
    images = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (images.float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert torch.equal(preprocess(images, "paper"), expected)
    assert torch.equal(preprocess(images, "native"), expected)


def test_timm_protocol_equals_timms_own_transform() -> None:
    timm = pytest.importorskip("timm")
    network = timm.create_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", pretrained=False)
    protocol = input_protocol("timm", network)
    assert (protocol.mean, protocol.std, protocol.size) == ((0.5,) * 3, (0.5,) * 3, 224)
    image = smooth_image(400, 333)
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(network))(image)
    ours = preprocess(as_tensor(image), "timm", network=network)
    assert (ours - theirs).abs().max() <= 1.01 / 255 / 0.5


def test_timm_protocol_without_a_timm_network() -> None:
    with pytest.raises(DataError, match="no network was given"):
        input_protocol("timm")
    with pytest.raises(DataError, match="Linear has none"):
        input_protocol("timm", torch.nn.Linear(1, 1))


def test_custom_protocol_says_itself() -> None:
    text = "custom:size=48,resize=64,mean=0.5,std=0.25/0.5/1,interpolation=bicubic"
    protocol = input_protocol(text)
    assert str(protocol) == text
    assert protocol == InputProtocol(text, (0.5,) * 3, (0.25, 0.5, 1.0), size=48, resize=64, interpolation="bicubic")
    assert preprocess(torch.zeros(1, 3, 100, 80), protocol).shape == (1, 3, 48, 48)
    assert input_protocol("custom:size=64").mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("papre", "unknown preprocessing protocol 'papre'; known: paper, native, glyphs, unit, timm"),
        ("custom:size=big", "cannot be read"),
        ("custom:crop=3", "no field crop"),
        ("custom:mean=1/2", "one per RGB channel, got 2"),
        ("custom:std=0", "std must be positive"),
        ("custom:size=64,resize=32", "must be at least size"),
        ("custom:interpolation=cubic", "bilinear, bicubic"),
    ],
)
def test_protocols_that_are_none(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        input_protocol(text)


def test_images_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="30x40 is smaller than the crop of 64"):
        preprocess(torch.zeros(3, 30, 40, dtype=torch.uint8), "custom:size=64")
    with pytest.raises(DataError, match=r"\[N, 3, H, W\] or \[3, H, W\], got \[1, 4, 8, 8\]"):
        preprocess(torch.zeros(1, 4, 8, 8), "paper")
    with pytest.raises(DataError, match=r"got torch\.int64"):
        preprocess(torch.zeros(1, 3, 8, 8, dtype=torch.int64), "paper")


def test_input_is_left_as_it_was() -> None:
    images = torch.rand(2, 3, 8, 8)
    before = images.clone()
    assert torch.allclose(preprocess(images, "glyphs"), (before - 0.5) / 0.25)
    assert torch.equal(images, before)
