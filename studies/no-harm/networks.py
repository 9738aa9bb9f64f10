"""The battery's networks in plain torch and torchvision, by name, with what each is trained on.

``build(name)`` makes one; ``load(name, folder)`` makes it with its weights. Names of networks with 200 classes may end in
``@k``: the network with its head limited to k classes spread evenly over the 200 (see ``limited_classes``).
"""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load as read_tensors
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from wildtta import glyphs
from wildtta.glyphs.networks import weights_file


@dataclass(frozen=True)
class Recipe:
    """How a network is made and trained; ``images``: training images that it sees, ``epochs``: passes over 30,000."""

    make: Callable[[int], nn.Module]
    classes: tuple[int, ...] | None = None
    """CIFAR-10 classes merged into the network's classes: entry c is the new class of class c; None: all ten."""
    images: int = 30_000
    epochs: int = 30
    transformer: bool = False
    aside: bool = False
    """Kept aside from every choice."""
    data: str = "cifar"
    """What it was trained on: cifar, tiny (the testbed), glyphs (the package's), glyphs-1000."""
    packaged: str | None = None
    """Its name among the package's glyph networks, where its weights come with the package."""

    @property
    def testbed(self) -> bool:
        return self.data == "tiny"

    @property
    def count(self) -> int:
        known = {"tiny": 200, "glyphs": 200, "glyphs-1000": 1000}
        return known.get(self.data, 10 if self.classes is None else max(self.classes) + 1)


def group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(8, channels // 2), channels)


def group_norm_32(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels)


class Narrow(nn.Module):
    """A CIFAR ResNet of 6n + 2 layers (16, 32, 64 channels): D = 64."""

    def __init__(self, classes: int, norm: Callable[[int], nn.Module], blocks: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = norm(16)
        self.layer1 = self._stage(16, 16, blocks, 1, norm)
        self.layer2 = self._stage(16, 32, blocks, 2, norm)
        self.layer3 = self._stage(32, 64, blocks, 2, norm)
        self.fc = nn.Linear(64, classes)

    @staticmethod
    def _stage(wide: int, out: int, blocks: int, stride: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
        layers = []
        for index in range(blocks):
            before, step = (wide, stride) if index == 0 else (out, 1)
            change = None
            if step != 1 or before != out:
                change = nn.Sequential(nn.Conv2d(before, out, 1, step, bias=False), norm(out))
            layers.append(BasicBlock(before, out, step, change, norm_layer=norm))
        return nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class Attention(nn.Module):
    """Multi-head self-attention with timm's parameter names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*qkv.unbind(0))
        return self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))


class Mlp(nn.Module):
    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, ratio * width)
        self.fc2 = nn.Linear(ratio * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """A transformer block, norms before (ViT) or after (BERT) what they belong to."""

    def __init__(self, width: int, heads: int, ratio: int, post: bool, eps: float) -> None:
        super().__init__()
        self.post = post
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, ratio)

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A ViT with timm's parameter names; ``post``: norms after each part and no last norm."""

    def __init__(
        self,
        classes: int,
        width: int,
        depth: int,
        heads: int,
        size: int,
        patch: int,
        ratio: int = 4,
        post: bool = False,
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, ratio, post, 1e-6) for _ in range(depth)))
        self.norm = nn.Identity() if post else nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed.proj(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def torchvision_resnet(block: type, layers: list[int], classes: int, norm: Callable[[int], nn.Module]) -> nn.Module:
    """A torchvision ResNet with a stem for 32 pixels (3×3, stride 1, no pooling)."""
    network = ResNet(block, layers, num_classes=classes, norm_layer=norm)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def testbed_resnet(norm: Callable[[int], nn.Module]) -> nn.Module:
    network = ResNet(Bottleneck, [2, 2, 2, 2], num_classes=200, norm_layer=norm)
    network.maxpool = nn.Identity()
    return network


def small_vit(classes: int, post: bool = False) -> nn.Module:
    return Transformer(classes, width=128, depth=6, heads=4, size=32, patch=4, ratio=2, post=post)


def packaged_network(name: str, transformer: bool = False) -> Recipe:
    """One of the package's glyph networks: accurate, and nothing to train."""
    return Recipe(
        lambda c: glyphs.network(name, pretrained=False, classes=c),
        data="glyphs", packaged=name, transformer=transformer,
    )  # fmt: skip


ANIMALS = (0, 0, 1, 1, 1, 1, 1, 1, 0, 0)
FIVE = (0, 1, 2, 3, 2, 3, 4, 4, 0, 1)
"""Sky and sea, road, bird and deer, cat and dog, frog and horse: five classes out of ten."""

RECIPES: dict[str, Recipe] = {
    "gn64": Recipe(lambda c: Narrow(c, group_norm), epochs=40),
    "gn64-weak": Recipe(lambda c: Narrow(c, group_norm), images=1_500, epochs=10),
    "gn64-two": Recipe(lambda c: Narrow(c, group_norm), classes=ANIMALS, epochs=25),
    "vit128": Recipe(small_vit, epochs=60, transformer=True),
    "vit128-weak": Recipe(small_vit, images=4_000, epochs=12, transformer=True),
    "bn64": Recipe(lambda c: Narrow(c, nn.BatchNorm2d), epochs=30),
    "bn64-weak": Recipe(lambda c: Narrow(c, nn.BatchNorm2d), images=1_500, epochs=10),
    "post128": Recipe(lambda c: small_vit(c, post=True), epochs=50, transformer=True, aside=True),
    "resnet18": Recipe(
        lambda c: torchvision_resnet(BasicBlock, [2, 2, 2, 2], c, nn.BatchNorm2d), epochs=16, aside=True
    ),
    "wide2048": Recipe(lambda c: torchvision_resnet(Bottleneck, [1, 1, 1, 1], c, group_norm_32), epochs=12, aside=True),
    "bn64-five": Recipe(lambda c: Narrow(c, nn.BatchNorm2d), classes=FIVE, epochs=15, aside=True),
    "bn64-two": Recipe(lambda c: Narrow(c, nn.BatchNorm2d), classes=ANIMALS, epochs=15, aside=True),
    "rn26_gn": Recipe(lambda c: testbed_resnet(group_norm_32), data="tiny"),
    "rn26_bn": Recipe(lambda c: testbed_resnet(nn.BatchNorm2d), data="tiny", aside=True),
    "vit": Recipe(lambda c: Transformer(200, 256, 12, 4, 64, 8), data="tiny", transformer=True),
    "glyph-gn": packaged_network("resnet_gn"),
    "glyph-vit": packaged_network("vit", transformer=True),
    "glyph-bn": packaged_network("resnet_bn"),
    "glyph-1000": Recipe(
        lambda c: glyphs.network("resnet_gn", pretrained=False, classes=c), data="glyphs-1000", aside=True
    ),
}


def limited_classes(count: int, of: int = 200) -> list[int]:
    """``count`` classes spread evenly over ``of``: which ones a limited network keeps."""
    return [index * of // count + (of // count) // 2 for index in range(count)]


def split_name(name: str) -> tuple[str, int | None]:
    base, _, limit = name.partition("@")
    return base, int(limit) if limit else None


def classes_of(name: str) -> int:
    base, limit = split_name(name)
    return limit or RECIPES[base].count


def head_of(network: nn.Module) -> nn.Linear:
    head = network.head if hasattr(network, "head") else network.fc
    assert isinstance(head, nn.Linear)
    return head


def build(name: str) -> nn.Module:
    base, _ = split_name(name)
    return RECIPES[base].make(RECIPES[base].count)


def unpacked(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights from float16, or from int8 with a scale per row (``rounded`` in prepare.py), as float32."""
    scales = {key: value for key, value in stored.items() if key.endswith("#scale")}
    plain = {key: value.float() for key, value in stored.items() if key not in scales}
    for key, scale in scales.items():
        name = key.removesuffix("#scale")
        plain[name] = plain[name] * scale.float().reshape(-1, *[1] * (plain[name].dim() - 1))
    return plain


def stored_weights(base: str, folder: Path) -> dict[str, Tensor]:
    """A network's weights as float32: those that ``prepare.py`` packed into ``folder``, or the package's own."""
    packaged = RECIPES[base].packaged
    if packaged is not None:
        return unpacked(read_tensors(weights_file(packaged).read_bytes()))
    path = folder / f"{base}.safetensors.xz"
    if not path.exists():
        raise FileNotFoundError(f"no weights of {base} in {folder}")
    return unpacked(read_tensors(lzma.decompress(path.read_bytes())))


def load(name: str, folder: Path) -> nn.Module:
    """The network ``name`` with its weights from ``folder``, in eval mode, its head limited where the name says so."""
    base, limit = split_name(name)
    network = build(name)
    missing = network.load_state_dict(stored_weights(base, folder), strict=False)
    if missing.unexpected_keys or any(not key.endswith("num_batches_tracked") for key in missing.missing_keys):
        raise ValueError(f"{base}: {missing}")
    if limit is not None:
        head = head_of(network)
        kept = torch.tensor(limited_classes(limit))
        smaller = nn.Linear(head.in_features, limit)
        smaller.weight.data, smaller.bias.data = head.weight.data[kept].clone(), head.bias.data[kept].clone()
        setattr(network, "head" if hasattr(network, "head") else "fc", smaller)
    return network.eval()


def battery(name: str, folder: str = "data/weights") -> nn.Module:
    """:func:`load` as a grid calls it; ``folder`` is relative to where ``wildtta bench`` runs."""
    return load(name, Path(folder))
