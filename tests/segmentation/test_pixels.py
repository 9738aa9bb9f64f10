"""Segmentation networks of several shapes through the methods; mIoU against a plain count; the readers on miniatures."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from toy_networks import same_bits, snapshot
from wildtta.data.errors import BrokenImage, DataError
from wildtta.segmentation import Confusion, Pixels, adapt_segmentation, photometric, resized
from wildtta.segmentation.driving import CLASSES, acdc, cityscapes
from wildtta.segmentation.pixels import on_grid
from wildtta.segmentation.scenes import SceneNetwork, scene, scenes

METHODS = ("tent", "sar", "sar2", "steady", "cotta")


class DeepLab(nn.Module):
    """torchvision's shape: a dict with ``out`` at the image's size, and an auxiliary head that runs last."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16)
        )
        self.classifier = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 5, 1))
        self.aux_classifier = nn.Sequential(nn.Conv2d(16, 5, 1))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        features = self.backbone(images)
        out, aux = self.classifier(features), self.aux_classifier(features)
        size = images.shape[-2:]
        return OrderedDict(out=F.interpolate(out, size=size, mode="bilinear"), aux=F.interpolate(aux, size=size))


def segformer() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16, num_labels=5,
    )  # fmt: skip
    network: nn.Module = transformers.SegformerForSemanticSegmentation(config)
    return network


def torchvision_deeplab() -> nn.Module:
    models = pytest.importorskip("torchvision").models.segmentation
    network: nn.Module = models.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5, aux_loss=True)
    return network


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    known: dict[str, Any] = {
        "scenes": SceneNetwork, "deeplab": DeepLab, "segformer": segformer, "torchvision": torchvision_deeplab,
    }  # fmt: skip
    return known[kind]().eval()


IMAGES = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def options(method: str) -> dict[str, Any]:
    small: dict[str, Any] = {"reliable": 2.0, "warmup": 1} if method in ("sar2", "steady") else {}
    if method == "sar":
        small = {"reliable": 2.0}
    return {"augment": photometric, "confidence": 0.9, "views": 2} if method == "cotta" else {**small, "lr": 0.01}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["scenes", "deeplab", "segformer"])
def test_a_segmentation_network_learns_answers_saves_and_comes_back(method: str, kind: str, tmp_path: Path) -> None:
    network = made(kind)
    before = snapshot(network)
    with torch.no_grad():
        bare = network(IMAGES)
    bare = bare["out"] if kind == "deeplab" else getattr(bare, "logits", bare)
    adapter = adapt_segmentation(network, method, example=IMAGES, pixels=64, **options(method))
    first = adapter(IMAGES)
    assert first.maps.shape == bare.shape
    assert not first.maps.requires_grad
    if kind == "scenes":  # the others have BatchNorm, whose batch statistics change the answer at once
        torch.testing.assert_close(first.maps, bare)
    assert bool(adapter.last.learned)
    adapter.save(tmp_path / "state.safetensors")
    second = adapter(IMAGES)
    if method != "steady" or kind == "scenes":  # Steady only follows BatchNorm's moments, and these repeat
        assert not torch.equal(second.maps, first.maps)
    twin = adapt_segmentation(made(kind), method, example=IMAGES, pixels=64, **options(method))
    twin.load(tmp_path / "state.safetensors")
    assert torch.equal(twin(IMAGES).maps, second.maps)
    assert isinstance(adapter.unload(), Pixels)
    assert same_bits(snapshot(network), before) == []


def test_torchvisions_deeplab_is_adapted_through_its_own_head() -> None:
    network = made("torchvision")
    adapter = adapt_segmentation(network, "tent", example=IMAGES, pixels=64)
    assert adapter.network.head.convolution is network.classifier[-1]
    assert adapter(IMAGES).maps.shape == (2, 5, 64, 96)


def test_pixels_lie_on_one_grid_and_their_logits_are_the_maps() -> None:
    network = made("scenes")
    pixels = Pixels(network, IMAGES, pixels=30)
    answer = pixels(IMAGES)
    height, width = answer.maps.shape[-2:]  # 16 × 24: every fourth pixel
    grid = answer.maps[:, :, 2:height:4, 2:width:4].permute(0, 2, 3, 1).flatten(0, 2)
    torch.testing.assert_close(answer.logits, grid)
    assert pixels.rows_per_sample == 24 <= 30
    assert len(on_grid(torch.zeros(1, 3, 5, 7), 1000)) == 35


def test_selection_by_pixels_equals_the_mean_over_the_selected_ones() -> None:
    """SAR without sharpness on pixels: the gradient of the mean entropy of those below E₀, by autograd on the bare network."""
    network, twin = made("scenes").double(), made("scenes").double()
    images = IMAGES.double()
    method = wildtta.SAR(reliable=0.97, sharpness=None, recovery=None, lr=0.1, momentum=0.0)
    adapter = adapt_segmentation(network, method, example=images, pixels=64, parameters="norms")
    names = adapter.learned_parameters
    adapter(images)
    rows = Pixels(twin, images, pixels=64)(images).logits
    entropies = -(rows.softmax(1) * rows.log_softmax(1)).sum(1)
    chosen = entropies < 0.97 * np.log(6)
    assert 0 < int(chosen.sum()) < len(rows)
    parameters = dict(twin.named_parameters())
    learned = [parameters[name.removeprefix("network.")] for name in names]
    gradients = torch.autograd.grad(entropies[chosen].mean(), learned)
    moved = dict(network.named_parameters())
    for name, old, gradient in zip(names, learned, gradients, strict=True):
        torch.testing.assert_close(moved[name.removeprefix("network.")], old - 0.1 * gradient)


def test_a_network_without_a_head_of_classes_is_refused() -> None:
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6))
    with pytest.raises(ValueError, match="no 1×1 convolution"):
        adapt_segmentation(network, "tent", example=IMAGES)
    with pytest.raises(TypeError, match="expected logits"):
        adapt_segmentation(nn.Sequential(nn.Flatten(), nn.LazyLinear(5)), "tent", example=IMAGES)


# -- mIoU --------------------------------------------------------------------------------------------------------------


def test_mean_iou_equals_a_count_of_pixels() -> None:
    generator = torch.Generator().manual_seed(3)
    maps = torch.randn(3, 4, 5, 6, generator=generator)
    labels = torch.randint(0, 3, (3, 5, 6), generator=generator)  # class 3 is predicted and never there
    labels[0, 0] = 255
    meter = Confusion(4)
    for part in range(3):
        meter.update(maps[part : part + 1], labels[part : part + 1])
    guesses, counted = maps.argmax(1), labels != 255
    ious = [
        ((guesses == c) & (labels == c)).sum() / (((guesses == c) | (labels == c)) & counted).sum() for c in range(4)
    ]
    assert meter.mean() == pytest.approx(100 * float(torch.stack(ious).mean()))
    assert meter.accuracy() == pytest.approx(100 * float((guesses == labels)[counted].float().mean()))
    with pytest.raises(ValueError, match=r"labels must be 0 to 3 or 255"):
        meter.update(maps, torch.full((3, 5, 6), 7))
    with pytest.raises(ValueError, match="resize the logits"):
        meter.update(maps, torch.zeros(3, 10, 12, dtype=torch.int64))
    assert resized(maps, (10, 12)).shape == (3, 4, 10, 12)


# -- sets --------------------------------------------------------------------------------------------------------------


def test_scenes_depend_on_their_number_and_seed_alone() -> None:
    images, labels = scenes(6, seed=4)
    again, marks = scene(5, seed=4)
    assert np.array_equal(images[5], again)
    assert np.array_equal(labels[5], marks)
    assert not np.array_equal(images[5], scene(5, seed=3)[0])
    assert set(labels.unique().tolist()) == {0, 1, 2, 3, 4, 5, 255}


def write(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def test_cityscapes_and_acdc_in_their_layouts(tmp_path: Path) -> None:
    picture, marks = np.zeros((4, 8, 3), dtype=np.uint8), np.full((4, 8), 255, dtype=np.uint8)
    marks[0, 0] = CLASSES.index("car")
    for city, name in (("b", "b_000000_000019"), ("a", "a_000001_000019")):
        write(tmp_path / "leftImg8bit" / "val" / city / f"{name}_leftImg8bit.png", picture)
        write(tmp_path / "gtFine" / "val" / city / f"{name}_gtFine_labelTrainIds.png", marks)
    found = cityscapes(tmp_path)
    assert [image.name[0] for image, _ in found.pairs] == ["a", "b"]
    image, labels = found[1]
    assert image.shape == (3, 4, 8)
    assert labels[0, 0] == 13
    assert labels[3, 7] == 255
    write(tmp_path / "rgb_anon" / "night" / "val" / "GOPR0356" / "GOPR0356_frame_000321_rgb_anon.png", picture)
    with pytest.raises(DataError, match="1 of 1 images have no labels"):
        acdc(tmp_path, "night")
    label = tmp_path / "gt" / "night" / "val" / "GOPR0356" / "GOPR0356_frame_000321_gt_labelTrainIds.png"
    write(label, marks)
    assert len(acdc(tmp_path, "night")) == 1
    with pytest.raises(DataError, match="ACDC fog: no images"):
        acdc(tmp_path, "fog")
    with pytest.raises(ValueError, match="got 'dusk'"):
        acdc(tmp_path, "dusk")
    write(label, picture)
    with pytest.raises(BrokenImage, match="expected one number per pixel"):
        acdc(tmp_path, "night")[0]
