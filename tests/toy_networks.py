"""Small networks in plain torch for the tests: the four shapes that the method matrix runs over, and their inputs.

They are untrained; their heads are made to fit their features, so that all classes are predicted and entropies spread around
0.4 ln C: some samples teach and others do not.
"""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10
SIDE = 16


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


class ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int, norm: type[nn.Module] | None) -> None:
        super().__init__()
        make = norm or _group_norm
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = make(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = make(after)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class SmallResNet(nn.Module):
    """A stem and four stages, with GroupNorm or BatchNorm."""

    def __init__(self, norm: type[nn.Module] | None = None, classes: int = CLASSES) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.stem_norm = (norm or _group_norm)(8)
        self.stage1 = nn.Sequential(ResidualBlock(8, 8, 1, norm))
        self.stage2 = nn.Sequential(ResidualBlock(8, 12, 2, norm))
        self.stage3 = nn.Sequential(ResidualBlock(12, 16, 2, norm))
        self.stage4 = nn.Sequential(ResidualBlock(16, 20, 2, norm))
        self.fc = nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))
        return self.fc(x.mean((2, 3)))


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.5), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallViT(nn.Module):
    """Eight pre-norm blocks over 16 patches, a final norm, a linear head. Has dropout, which adaptation must keep off."""

    def __init__(self, width: int = 16, depth: int = 8, classes: int = CLASSES) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(0.5 * torch.randn(1, (SIDE // 4) ** 2, width))
        self.blocks = nn.Sequential(*[TransformerBlock(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(x)).mean(1))


def layer_norm_mlp(width: int = 16, classes: int = CLASSES, inputs: int = 12) -> nn.Sequential:
    """The plainest thing that can be adapted: linear layers, LayerNorms, ReLUs."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


KINDS = ("gn_resnet", "ln_vit", "bn_resnet", "ln_mlp")
# At this spread of the logits about half of the samples have an entropy below 0.4 ln C.
_LOGIT_SPREAD = 3.0


def _fit_running_statistics(network: nn.Module, inputs: Tensor) -> None:
    """Buffers of the BatchNorms as training would leave them."""
    layers = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = 1.0
    network.train()(inputs)
    for layer in layers:
        layer.momentum = 0.1


def _fit_head(network: nn.Module, inputs: Tensor) -> None:
    """A random linear head over the standardised features of ``inputs``."""
    head = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    taken: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda module, args: taken.append(args[0]))
    network.eval()(inputs)
    handle.remove()
    features = taken[0]
    weight = torch.randn_like(head.weight) * _LOGIT_SPREAD / features.shape[1] ** 0.5
    head.weight.copy_(weight / features.std(0).clamp(min=1e-3))
    head.bias.copy_(-head.weight @ features.mean(0))


@cache
def _built(kind: str, seed: int, classes: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        if kind == "gn_resnet":
            network: nn.Module = SmallResNet(classes=classes)
        elif kind == "bn_resnet":
            network = SmallResNet(nn.BatchNorm2d, classes=classes)
        elif kind == "ln_vit":
            network = SmallViT(classes=classes)
        elif kind == "ln_mlp":
            network = layer_norm_mlp(classes=classes)
        else:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        with torch.no_grad():
            for module in network.modules():
                if isinstance(module, nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d):
                    module.weight.add_(0.2 * torch.randn_like(module.weight))
                    module.bias.add_(0.2 * torch.randn_like(module.bias))
            inputs = images(kind, 256, seed=-1)
            if kind == "bn_resnet":
                _fit_running_statistics(network, inputs)
            _fit_head(network, inputs)
    return network.eval()


def build(kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, classes: int = CLASSES) -> nn.Module:
    """One of :data:`KINDS`, in evaluation mode, the same for the same seed; norms and buffers are not at their defaults."""
    return copy.deepcopy(_built(kind, seed, classes)).to(dtype)


def images(kind: str, number: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """A batch that the network of that kind accepts."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    shape = (12,) if kind == "ln_mlp" else (3, SIDE, SIDE)
    return torch.randn(number, *shape, generator=generator, dtype=torch.float64).to(dtype)


def batches(kind: str, steps: int, number: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A stream of batches."""
    return [images(kind, number, seed=1000 * seed + step, dtype=dtype) for step in range(steps)]


def snapshot(network: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def flags(network: nn.Module) -> dict[str, object]:
    """All that is not a tensor and must come back: requires_grad, training, tracking, hooks."""
    found: dict[str, object] = {f"{name}.requires_grad": p.requires_grad for name, p in network.named_parameters()}
    for name, module in network.named_modules():
        found[f"{name}.training"] = module.training
        found[f"{name}.hooks"] = len(module._forward_hooks) + len(module._forward_pre_hooks)
        if hasattr(module, "track_running_stats"):
            found[f"{name}.track_running_stats"] = module.track_running_stats
    return found


def same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> list[str]:
    """Names whose tensors differ in type, shape or any bit (NaN equals NaN)."""
    assert ours.keys() == theirs.keys()
    return [
        name
        for name, value in ours.items()
        if value.dtype != theirs[name].dtype
        or value.shape != theirs[name].shape
        or value.cpu().numpy().tobytes() != theirs[name].cpu().numpy().tobytes()
    ]
