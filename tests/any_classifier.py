"""Small classifiers of every kind with random weights and a batch for each: the table of docs/models.md.

Norms and heads are moved away from their starting values, so that all classes are predicted, with entropies on both sides
of 0.4 ln C, and some samples are selected by every method.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from toy_networks import TransformerBlock
from wildtta.network import inspect_network
from wildtta.network.features import FeatureTap, features_of
from wildtta.network.inputs import as_call, called
from wildtta.network.norms import is_batch_norm, is_norm
from wildtta.network.output import logits_of

CLASSES = 6
BATCH = 12
Batch = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A row of the table."""

    name: str
    source: str
    family: str
    inputs: str
    """What it is called with, in words."""
    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]


def _image(side: int = 32, *more: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(BATCH, *more, 3, side, side, generator=generator)


def _numbers(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(BATCH, *shape, generator=generator)


def _named(name: str, make: Callable[[torch.Generator], Tensor]) -> Callable[[torch.Generator], Batch]:
    return lambda generator: {name: make(generator)}


def _text(generator: torch.Generator) -> Batch:
    """Token ids of several lengths, padded with 0, and the mask that says so."""
    ids = torch.randint(3, 40, (BATCH, 12), generator=generator)
    lengths = torch.randint(5, 13, (BATCH, 1), generator=generator)
    mask = (torch.arange(12) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)

    return make


def _small_bit() -> nn.Module:
    from timm.layers import GroupNormAct, StdConv2d
    from timm.models.resnetv2 import ResNetV2

    return ResNetV2(
        layers=[1, 1],
        channels=(128, 128),
        stem_chs=32,
        num_classes=CLASSES,
        conv_layer=StdConv2d,
        norm_layer=GroupNormAct,
    )


def _small_mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(img_size=32, patch_size=8, num_blocks=4, embed_dim=16, num_classes=CLASSES)


def _small_poolformer() -> nn.Module:
    from timm.models.metaformer import GroupNorm1, MetaFormer

    return MetaFormer(
        depths=(1, 1, 1, 1),
        dims=(8, 8, 8, 16),
        num_classes=CLASSES,
        downsample_norm=None,
        mlp_act=nn.GELU,
        mlp_bias=True,
        norm_layers=GroupNorm1,
        layer_scale_init_values=1.0,
        res_scale_init_values=None,
        use_mlp_head=False,
    )


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)

    return make


def _small_torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, num_layers=4, num_heads=2, hidden_dim=16, mlp_dim=24, num_classes=CLASSES
    )


def _small_torchvision_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer(
        patch_size=[4, 4], embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=[4, 4], num_classes=CLASSES
    )


def _small_torchvision_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES)


_BODY = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
_WORDS = {"vocab_size": 40, "max_position_embeddings": 64, "pad_token_id": 0}
_GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 64, "pad_token_id": 0}
_GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
_DISTILBERT = {
    "vocab_size": 40,
    "dim": 16,
    "n_layers": 4,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 64,
}
_WAV2VEC2 = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4), "classifier_proj_size": 8}
_WAV2VEC2 |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
_AST = {"max_length": 32, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}


def _hugging_face(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(num_labels=CLASSES, **options)
        return getattr(transformers, model)(made)

    return make


def _clip() -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(image_size=32, patch_size=8, projection_dim=16, **_BODY)
    return wildtta.zero_shot(CLIPVisionModelWithProjection(config), torch.randn(CLASSES, 16), 20.0)


class CosineHead(nn.Module):
    """s · cos(z, w_c), the way classifiers for few examples have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, width))
        self.scale = nn.Parameter(torch.tensor(12.0))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * F.normalize(features, dim=-1) @ F.normalize(self.weight, dim=-1).T


class TemperedNetwork(nn.Module):
    """A linear head over unit features, and a temperature outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _convolutional(2, 3)
        self.head = nn.Linear(16, CLASSES, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, images: Tensor) -> Tensor:
        return self.log_scale.exp() * self.head(F.normalize(self.body(images), dim=-1))


class TiedText(nn.Module):
    """Words in, one of the first words out: the head shares the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CLASSES, 16)
        self.encoder = nn.Sequential(*[TransformerBlock(16) for _ in range(4)], nn.LayerNorm(16))
        self.decoder = nn.Linear(16, CLASSES, bias=False)
        self.decoder.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(self.encoder(self.words(tokens)).mean(1))


def _convolutional(dimensions: int, channels: int) -> nn.Sequential:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    layers: list[nn.Module] = []
    for before in (channels, 16, 16):
        layers += [convolution(before, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*layers, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[dimensions - 1](1), nn.Flatten())


class TimeSeries(nn.Module):
    """Sensor readings [batch, time, channels], transposed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _convolutional(1, 5), nn.Linear(16, CLASSES)

    def forward(self, readings: Tensor) -> Tensor:
        return self.head(self.body(readings.transpose(1, 2)))


class PointCloud(nn.Module):
    """PointNet: the same layers for every point [batch, points, 3], the maximum over them, a head."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 16, 16)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.ReLU()]
        self.points, self.head = nn.Sequential(*layers), nn.Linear(16, CLASSES)

    def forward(self, cloud: Tensor) -> Tensor:
        return self.head(self.points(cloud).amax(1))


class MeanOverFrames(nn.Module):
    """An image network on every frame of a clip [batch, frames, 3, height, width]; logits are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = _convolutional(2, 3), nn.Linear(16, CLASSES)

    def forward(self, clips: Tensor) -> Tensor:
        logits = self.head(self.body(clips.flatten(0, 1)))
        return logits.unflatten(0, clips.shape[:2]).mean(1)


class MeanOverCrops(MeanOverFrames):
    """The head runs once for each of two crops of an image."""

    def forward(self, images: Tensor) -> Tensor:
        crops = (images[..., :24, :24], images[..., 8:, 8:])
        return (self.head(self.body(crops[0])) + self.head(self.body(crops[1]))) / 2


class TwoInputs(nn.Module):
    """A picture and a table of numbers, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _convolutional(2, 3)
        self.table = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16))
        self.head = nn.Linear(32, CLASSES)

    def forward(self, picture: Tensor, *, table: Tensor) -> Tensor:
        return self.head(torch.cat((self.body(picture), self.table(table)), 1))


def _plain_conv1d() -> nn.Module:
    return nn.Sequential(_convolutional(1, 2), nn.Linear(16, CLASSES))


def _fully_convolutional() -> nn.Module:
    body = _convolutional(2, 3)[:-2]
    return nn.Sequential(body, nn.Conv2d(16, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _cosine() -> nn.Module:
    return nn.Sequential(_convolutional(2, 3), CosineHead(16))


def _tokens(generator: torch.Generator) -> Tensor:
    return torch.randint(0, CLASSES, (BATCH, 9), generator=generator)


def _two_inputs(generator: torch.Generator) -> Batch:
    return {"picture": _image(16)(generator), "table": torch.randn(BATCH, 4, generator=generator)}


_CONV, _TOKENS = "convolutional", "transformer"
_PIXELS = _named("pixel_values", _image())
TABLE = [
    Entry("ResNet (BatchNorm)", "timm", _CONV, "images", _timm("test_resnet"), _image()),
    Entry(
        "ResNetV2, BiT (GroupNorm, convolutional head)", "timm", _CONV, "images", _small_bit, _image(),
    ),
    Entry("EfficientNet", "timm", _CONV, "images", _timm("test_efficientnet"), _image(64)),
    Entry("ConvNeXt", "timm", _CONV, "images", _timm("test_convnext"), _image()),
    Entry(
        "ViT", "timm", _TOKENS, "images",
        _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2), _image(),
    ),
    Entry(
        "Swin", "timm", _TOKENS, "images",
        _timm("swin_tiny_patch4_window7_224", img_size=56, embed_dim=8, depths=(1, 1), num_heads=(2, 2)), _image(56),
    ),
    Entry(
        "MLP-Mixer", "timm", _TOKENS, "images",
        _small_mixer, _image(),
    ),
    Entry(
        "XCiT", "timm", _TOKENS, "images",
        _timm("xcit_nano_12_p16_224", img_size=64, depth=4, embed_dim=32, num_heads=2), _image(64),
    ),
    Entry("PoolFormer", "timm", _CONV, "images", _small_poolformer, _image()),
    Entry("ResNet", "torchvision", _CONV, "images", _torchvision("resnet18"), _image()),
    Entry("MobileNetV3", "torchvision", _CONV, "images", _torchvision("mobilenet_v3_small"), _image()),
    Entry("ShuffleNetV2", "torchvision", _CONV, "images", _torchvision("shufflenet_v2_x0_5"), _image()),
    Entry("ViT", "torchvision", _TOKENS, "images", _small_torchvision_vit, _image()),
    Entry("Swin", "torchvision", _TOKENS, "images", _small_torchvision_swin, _image()),
    Entry("ConvNeXt", "torchvision", _CONV, "images", _small_torchvision_convnext, _image()),
    Entry(
        "ViT", "transformers", _TOKENS, "`pixel_values`",
        _hugging_face("ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **_BODY), _PIXELS,
    ),
    Entry("Swin", "transformers", _TOKENS, "`pixel_values`",
          _hugging_face("SwinForImageClassification", "SwinConfig", **_SWIN), _PIXELS),
    Entry(
        "VideoMAE", "transformers", _TOKENS, "`pixel_values`, clips",
        _hugging_face("VideoMAEForVideoClassification", "VideoMAEConfig", image_size=32, patch_size=16, num_frames=4,
                      tubelet_size=2, **_BODY),
        _named("pixel_values", _image(32, 4)),
    ),
    Entry("BERT", "transformers", _TOKENS, "`input_ids`, `attention_mask`",
          _hugging_face("BertForSequenceClassification", "BertConfig", **_BODY, **_WORDS), _text),
    Entry("RoBERTa", "transformers", _TOKENS, "`input_ids`, `attention_mask`",
          _hugging_face("RobertaForSequenceClassification", "RobertaConfig", **_BODY, **_WORDS), _text),
    Entry("DistilBERT", "transformers", _TOKENS, "`input_ids`, `attention_mask`",
          _hugging_face("DistilBertForSequenceClassification", "DistilBertConfig", **_DISTILBERT), _text),
    Entry("GPT-2 (the last token's logits)", "transformers", _TOKENS, "`input_ids`, `attention_mask`",
          _hugging_face("GPT2ForSequenceClassification", "GPT2Config", **_GPT2), _text),
    Entry(
        "Wav2Vec2", "transformers", _TOKENS, "`input_values`, sound",
        _hugging_face("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **_BODY, **_WAV2VEC2),
        _named("input_values", _numbers(800)),
    ),
    Entry(
        "Audio Spectrogram Transformer", "transformers", _TOKENS, "`input_values`, spectrograms",
        _hugging_face("ASTForAudioClassification", "ASTConfig", **_BODY, **_AST),
        _named("input_values", _numbers(32, 16)),
    ),
    Entry("CLIP (`wildtta.zero_shot`)", "transformers", _TOKENS, "`pixel_values`", _clip, _PIXELS),
    Entry("cosine head", "plain torch", _CONV, "images", _cosine, _image(16)),
    Entry("temperature outside of the head", "plain torch", _CONV, "images", TemperedNetwork, _image(16)),
    Entry("head tied to the embedding", "plain torch", _TOKENS, "tokens", TiedText, _tokens),
    Entry("fully convolutional", "plain torch", _CONV, "images", _fully_convolutional, _image(16)),
    Entry("Conv1d", "plain torch", _CONV, "signals [batch, channels, time]", _plain_conv1d, _numbers(2, 32)),
    Entry("time series", "plain torch", _CONV, "[batch, time, channels]", TimeSeries, _numbers(32, 5)),
    Entry("point cloud (PointNet)", "plain torch", _CONV, "[batch, points, 3]", PointCloud, _numbers(24, 3)),
    Entry("mean over frames", "plain torch", _CONV, "clips", MeanOverFrames, _image(16, 3)),
    Entry("mean over crops", "plain torch", _CONV, "images", MeanOverCrops, _image(32)),
    Entry("two inputs by name", "plain torch", _CONV, "`picture`, `table`", TwoInputs, _two_inputs),
]  # fmt: skip


def name_of(entry: Entry) -> str:
    """What a test of it is called."""
    return f"{entry.source}-{entry.name.split(' (')[0]}".replace(" ", "_")


def batch_of(entry: Entry, seed: int) -> Batch:
    return entry.batch(torch.Generator().manual_seed(100 + seed))


def ask(model: nn.Module, batch: Batch) -> Any:
    """``model`` on a batch, by name where it has names."""
    return model(**batch) if isinstance(batch, dict) else model(batch)


def build(entry: Entry) -> nn.Module:
    """The network in evaluation mode, the same every time."""
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(1)
        network = entry.make().eval()
        for module in network.modules():
            if is_norm(module):
                module.weight.add_(0.2 * torch.randn_like(module.weight))
        _fit_running_statistics(network, batch_of(entry, -1))
        _spread_answers(network, batch_of(entry, -1))
    return network


def _fit_running_statistics(network: nn.Module, batch: Batch) -> None:
    """BatchNorm's buffers as training on ``batch`` would leave them."""
    layers: list[Any] = [module for module in network.modules() if is_batch_norm(module)]
    for layer in layers:
        layer.train().momentum = 1.0
    if layers:
        ask(network, batch)
    for layer in layers:
        layer.eval().momentum = 0.1


def _spread_answers(network: nn.Module, batch: Batch) -> None:
    """A random linear head without what all samples have in common, scaled to logits with a deviation of 3."""
    facts = inspect_network(network, example=batch)
    head: Any = facts.head
    if not isinstance(head, nn.Linear | nn.Conv2d) or head.weight.shape[0] != CLASSES:
        return
    tap = FeatureTap()
    with head.register_forward_hook(tap.keep):
        logits = logits_of(called(network, as_call(batch)))
    features = features_of(head, tap.take(), logits)
    common = features.mean(0)
    weight = torch.randn(CLASSES, facts.feature_width)
    weight -= torch.outer(weight @ common, common) / common.square().sum()
    spread = facts.logit_scale * F.linear(features, weight).std(0).mean()
    head.weight.copy_((3 * weight / spread).view_as(head.weight))
    if head.bias is not None:
        head.bias.zero_()
