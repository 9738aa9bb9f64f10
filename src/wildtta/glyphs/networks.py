"""The small networks that come with the glyphs: a GroupNorm ResNet, a LayerNorm ViT, a BatchNorm ResNet.

The first two never look at batch statistics, like the networks that the paper recommends for the wild; the
third stands for the networks that it warns of. Stages and blocks carry the usual names (``layer1`` …
``layer4``, ``fc``; ``blocks``, ``norm``, ``head``). Input: ``(x / 255 - 0.5) / 0.25``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from wildtta.glyphs.characters import CHARACTERS

Norm = Callable[[int], nn.Module]
"""The norm layer of so many channels."""


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with norms and a shortcut (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """A 14-layer ResNet for 32 x 32 images: 0.72 million weights, features of width 152."""

    def __init__(self, norm: Norm, classes: int = len(CHARACTERS)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.norm1 = norm(32)
        # Halving at once in layer1 keeps a step cheap on a CPU, where these networks are meant to run.
        self.layer1 = nn.Sequential(BasicBlock(32, 40, 2, norm), BasicBlock(40, 40, 1, norm))
        self.layer2 = nn.Sequential(BasicBlock(40, 64, 2, norm), BasicBlock(64, 64, 1, norm))
        self.layer3 = nn.Sequential(BasicBlock(64, 96, 2, norm))
        self.layer4 = nn.Sequential(BasicBlock(96, 152, 1, norm))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(152, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: torch.Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images, tokens, width = x.shape
        q, k, v = self.qkv(x).view(images, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = self.proj(attended.transpose(1, 2).reshape(images, tokens, width))
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """A ViT of 12 blocks on 64 patches of 4 x 4 pixels and a class token: 0.73 million weights, width 80.

    The patches are embedded by two strided convolutions instead of one: at this size a plain patch embedding
    trains several times slower (Xiao et al. 2021, "Early convolutions help transformers see better").
    """

    def __init__(
        self, classes: int = len(CHARACTERS), width: int = 80, depth: int = 12, heads: int = 5, hidden: int = 192
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1), nn.GELU(), nn.Conv2d(24, width, 3, stride=2, padding=1)
        )
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 65, width))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.cls_token.expand(len(x), -1, -1), patches), dim=1) + self.pos_embed
        logits: torch.Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return logits


_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "resnet_gn": partial(ResNet, partial(nn.GroupNorm, 8)),
    "vit": VisionTransformer,
    "resnet_bn": partial(ResNet, nn.BatchNorm2d),
}

#: Names that :func:`network` knows.
NETWORKS: tuple[str, ...] = tuple(_BUILDERS)


def network(name: str, pretrained: bool = True, classes: int = len(CHARACTERS)) -> nn.Module:
    """A glyph network in eval mode, float32, with the packaged weights unless ``pretrained`` is false.

    ``classes``: outputs; the packaged weights are for the 200 characters.
    """
    if name not in _BUILDERS:
        raise ValueError(f"glyph network: expected one of {', '.join(NETWORKS)}, got {name!r}")
    model = _BUILDERS[name](classes=classes)
    if pretrained:
        load_weights(model, weights_file(name))
    return model.eval()


def weights_file(name: str, folder: Path | None = None) -> Path:
    """Where the weights of a network lie: in the package, or in ``folder`` after a training run."""
    return (folder or Path(__file__).parent) / f"{name}.safetensors"


def load_weights(model: nn.Module, path: Path) -> None:
    """Fill a network, in its own type, from a file that stores float16 to halve the package."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"no weights at {path}: reinstall wildtta, or train them with 'wildtta train-glyphs'")
    model.load_state_dict(load_file(path))


def save_weights(model: nn.Module, path: Path, facts: dict[str, str]) -> None:
    """Write a network's weights as float16, with ``facts`` about their origin in the file's header."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    halves = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    save_file(halves, path, metadata=facts)


def normalise(images: torch.Tensor) -> torch.Tensor:
    """The networks' input from uint8 images: ``(x / 255 - 0.5) / 0.25``."""
    return (images.float() / 255 - 0.5) / 0.25
