"""Which networks a fleet takes: every way that norm weights are used is found, and what is not reached is refused."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

import wildtta

torch.manual_seed(0)


class WrittenOut(nn.Module):
    """A norm that multiplies by its weight itself, as language models have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class SamplesLast(nn.Module):
    """A norm over samples that are not in the first dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x[None].expand(3, -1, -1)).mean(0)


class WithAddcmul(nn.LayerNorm):
    """A norm that uses its weights in a way that a fleet does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, self.normalized_shape), self.weight)


class Behind(nn.Module):
    """A norm in a branch that counts by ``scale``, as in ConvNeXt and CaiT, between two that are reached."""

    def __init__(self, norm, scale: float) -> None:
        super().__init__()
        self.enter, self.first, self.inner, self.last = nn.Linear(6, 12), nn.LayerNorm(12), norm(12), nn.LayerNorm(12)
        self.linear, self.head = nn.Linear(12, 12), nn.Linear(12, 5)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.enter(x))
        return self.head(self.last(x + self.scale * self.linear(self.inner(x))))


class Words(nn.Module):
    """Tokens in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.linear = nn.Embedding(20, 12), nn.LayerNorm(12), nn.Linear(12, 12)
        self.last, self.head = nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens))
        return self.head(self.last((x + self.linear(x)).mean(1)))


def vector_net(norm) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), norm(12), nn.GELU(), nn.Linear(12, 12), norm(12), nn.Linear(12, 5)).double()


def image_net(norm) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ).double()


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms_of_vectors_learn_stream_by_stream(norm):
    check(vector_net(norm), torch.randn(10, 6, dtype=torch.float64))


def test_a_norm_that_is_written_out():
    check(vector_net(WrittenOut), torch.randn(10, 6, dtype=torch.float64), r"^[14]\.weight")


def test_norms_of_images_learn_stream_by_stream():
    check(image_net(lambda width: nn.GroupNorm(2, width)), torch.randn(10, 3, 8, 8, dtype=torch.float64))


TIMM = {
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "swin_tiny_patch4_window7_224": {"embed_dim": 24, "depths": (1, 1), "num_heads": (1, 2), "img_size": 56},
    "vit_tiny_patch16_224": {"depth": 2, "img_size": 32},
}


@pytest.mark.parametrize("name", TIMM)
def test_timm_networks(name):
    timm = pytest.importorskip("timm")
    side = TIMM[name].get("img_size", 32)
    network = timm.create_model(name, num_classes=7, **TIMM[name]).double().eval()
    check(network, torch.randn(6, 3, side, side, dtype=torch.float64))


def test_a_norm_with_its_activation_in_it():
    resnetv2 = pytest.importorskip("timm.models.resnetv2")
    norm = functools.partial(resnetv2.GroupNormAct, num_groups=4)
    network = resnetv2.ResNetV2((1, 1), channels=(32, 32), num_classes=7, norm_layer=norm)
    check(network.double().eval(), torch.randn(6, 3, 32, 32, dtype=torch.float64))


def check(network: nn.Module, images: Tensor | list[Tensor], parameters: str = "norms", example: object = None) -> None:
    options = {"lr": 0.05, "parameters": parameters, "example": example}
    fleet = wildtta.Fleet(copy.deepcopy(network), "tent", **options)
    adapters = {name: wildtta.adapt(copy.deepcopy(network), "tent", **options) for name in "ab"}
    batches = [images + 0.1 * step for step in range(4)] if isinstance(images, Tensor) else images
    names = ["a" if row % 3 else "b" for row in range(len(batches[0]))]
    for batch in batches:
        answers = fleet(batch, names)
        for name, adapter in adapters.items():
            rows = [row for row, other in enumerate(names) if other == name]
            assert (adapter(batch[rows]) - answers[rows]).abs().max() < 1e-9
    assert fleet["a"].distance > 0


def test_what_norm_weights_do_not_reach_is_refused():
    fleet = wildtta.Fleet(vector_net(SamplesLast), "tent", lr=0.1)
    with pytest.raises(ValueError, match="does not reach"):
        fleet(torch.randn(2, 6, dtype=torch.float64), ["a", "b"])


@pytest.mark.parametrize("scale", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_that_is_not_reached_is_refused_however_little_it_counts(scale, dtype):
    """As a norm of torch in its place is taken, where its gradient is near the rounding of the others'."""
    images = torch.randn(2, 6, dtype=dtype)
    fleet = wildtta.Fleet(Behind(WithAddcmul, scale).to(dtype), "tent", parameters="norms")
    with pytest.raises(ValueError, match="does not reach"):
        fleet(images, ["a", "b"])
    fleet = wildtta.Fleet(Behind(nn.LayerNorm, scale).to(dtype), "tent", parameters="norms")
    assert fleet(images, ["a", "b"]).isfinite().all()


def test_a_network_that_takes_tokens():
    tokens = torch.randint(20, (10, 7), generator=torch.Generator().manual_seed(0))
    check(Words().double(), [tokens.roll(step, 0) for step in range(4)], example=tokens)


def test_batch_norm_is_refused_with_the_reason_and_the_network_is_free_again():
    network = image_net(nn.BatchNorm2d)
    with pytest.raises(ValueError, match="streams in one batch would see each other"):
        wildtta.Fleet(network, "tent")
    wildtta.adapt(network, "tent").unload()


@pytest.mark.parametrize("method", ["eata", "roid", "lame", "none", "cotta"])
def test_other_methods_are_refused_by_name(method):
    with pytest.raises(ValueError, match=f"{method!r} needs one adapter per stream"):
        wildtta.Fleet(vector_net(nn.LayerNorm), method)


def test_options_that_are_no_plain_step_are_refused():
    with pytest.raises(ValueError, match="episodic=True"):
        wildtta.Fleet(vector_net(nn.LayerNorm), "tent", episodic=True)
