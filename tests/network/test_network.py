"""Somebody's network: which head, which norms learn (by position), the paper's rule, overrides, clear refusals."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import CLASSES, SIDE, SmallResNet, SmallViT, build, images, layer_norm_mlp
from wildtta.network import inspect_network


def _learned_norms(network: nn.Module, method: str = "sar") -> list[str]:
    names = wildtta.adapt(network, method).learned_parameters
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def _all_norms(network: nn.Module) -> list[str]:
    kinds = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)
    return [name for name, module in network.named_modules() if isinstance(module, kinds)]


def _meta_free(make):
    """Big networks are only inspected: weights of zeros are enough, and quick."""
    with torch.device("meta"):
        network = make()
    network = network.to_empty(device="cpu")
    for tensor in (*network.parameters(), *network.buffers()):
        tensor.detach().zero_()
    return network.eval()


def _timm(name: str):
    import timm

    return timm.create_model(name, pretrained=False)


def _torchvision(name: str):
    import torchvision

    return torchvision.models.get_model(name, weights=None)


def _without(names: list[str], *prefixes: str) -> list[str]:
    return [name for name in names if not name.startswith(prefixes)]


VIT_TOP = ("blocks.9.", "blocks.10.", "blocks.11.", "norm")
TORCHVISION_VIT_TOP = (*(f"encoder.layers.encoder_layer_{i}." for i in (9, 10, 11)), "encoder.ln")


@pytest.mark.parametrize(
    ("make", "frozen", "family"),
    [
        # The paper's own rule for its two networks: layer4; blocks 9 to 11 and the final norm.
        pytest.param(partial(_timm, "resnet50"), ("layer4.",), "convolutional", id="timm-resnet50"),
        pytest.param(partial(_timm, "resnet50_gn"), ("layer4.",), "convolutional", id="timm-resnet50_gn"),
        pytest.param(partial(_timm, "vit_base_patch16_224"), VIT_TOP, "transformer", id="timm-vit_base"),
        pytest.param(partial(_timm, "deit_tiny_patch16_224"), VIT_TOP, "transformer", id="timm-deit"),
        # Stages: the last one, and every norm between it and the head.
        pytest.param(
            partial(_timm, "swin_tiny_patch4_window7_224"), ("layers.3.", "norm"), "transformer", id="timm-swin"
        ),
        pytest.param(partial(_timm, "convnext_tiny"), ("stages.3.", "head.norm"), "convolutional", id="timm-convnext"),
        pytest.param(partial(_torchvision, "resnet18"), ("layer4.",), "convolutional", id="torchvision-resnet18"),
        pytest.param(partial(_torchvision, "vit_b_16"), TORCHVISION_VIT_TOP, "transformer", id="torchvision-vit"),
        pytest.param(partial(_torchvision, "swin_t"), ("features.7.", "norm"), "transformer", id="torchvision-swin"),
        pytest.param(
            partial(_torchvision, "convnext_tiny"),
            ("features.7.", "classifier."),
            "convolutional",
            id="torchvision-convnext",
        ),
    ],
)
def test_known_networks_learn_all_norms_but_the_top(make, frozen: tuple[str, ...], family: str) -> None:
    network = _meta_free(make)
    norms = _all_norms(network)
    facts = inspect_network(network)
    assert facts.family == family
    assert facts.classes == 1000
    assert sorted(facts.norm_names) == sorted(norms)
    expected = [name for name in norms if not any(name == top or name.startswith(top) for top in frozen)]
    assert _learned_norms(network) == expected
    assert len(expected) < len(norms)


def test_networks_of_the_paper_keep_their_numbers_of_learned_values() -> None:
    """ResNet50-GN without layer4; ViT-B/16: 18 LayerNorms of 768, weight and bias."""
    adapter = wildtta.adapt(_meta_free(partial(_timm, "vit_base_patch16_224")), "sar")
    assert sum(dict(adapter.network.named_parameters())[n].numel() for n in adapter.learned_parameters) == 18 * 2 * 768
    assert sorted(adapter.learned_parameters) == sorted(
        f"blocks.{block}.{norm}.{kind}"
        for block in range(9)
        for norm in ("norm1", "norm2")
        for kind in ("weight", "bias")
    )


def test_deep_vit_freezes_the_last_quarter_and_not_names_with_a_9() -> None:
    from timm.models.vision_transformer import VisionTransformer

    network = VisionTransformer(
        img_size=32, patch_size=16, num_classes=5, embed_dim=16, depth=24, num_heads=2, mlp_ratio=1
    )
    expected = [f"blocks.{block}.{norm}" for block in range(18) for norm in ("norm1", "norm2")]
    assert _learned_norms(network) == expected


@pytest.mark.parametrize("method", ["tent", "infomax"])
def test_tent_and_infomax_learn_every_norm(method: str) -> None:
    network = build("ln_vit")
    assert _learned_norms(network, method) == _all_norms(build("ln_vit"))


class Wrapped(nn.Module):
    """[stem, body] of one class: the body is the trunk, whatever is in it."""

    def __init__(self, stem: nn.Module, body: nn.Module, pool: nn.Module, width: int) -> None:
        super().__init__()
        self.stem, self.body, self.pool, self.fc = stem, body, pool, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.body(self.stem(x))).flatten(1))


def test_a_wrapping_is_not_taken_for_stages() -> None:
    made = SmallResNet()
    stem = nn.Sequential(made.stem, made.stem_norm)
    stages = Wrapped(
        stem, nn.Sequential(made.stage1, made.stage2, made.stage3, made.stage4), nn.AdaptiveAvgPool2d(1), 20
    )
    assert _learned_norms(stages) == ["stem.1", *(f"body.{s}.0.{n}" for s in range(3) for n in ("norm1", "norm2"))]
    blocks = nn.Sequential(*[nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)) for _ in range(8)])
    tokens = Wrapped(nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6)), blocks, nn.Identity(), 6)
    assert _learned_norms(tokens) == ["stem.1", *(f"body.{b}.0" for b in range(6))]


def test_a_long_stage_is_not_taken_for_the_trunk() -> None:
    """ResNet-101's layer3 holds most of its norms; its stages still decide."""
    network = _meta_free(partial(_timm, "resnet101"))
    assert _learned_norms(network) == _without(_all_norms(network), "layer4.")
    network = _meta_free(partial(_timm, "swin_base_patch4_window7_224"))
    assert _learned_norms(network) == [name for name in _without(_all_norms(network), "layers.3.") if name != "norm"]


def test_small_networks_follow_the_same_rules() -> None:
    assert _learned_norms(build("gn_resnet")) == _without(_all_norms(build("gn_resnet")), "stage4.")
    assert _learned_norms(build("ln_vit")) == _without(_all_norms(build("ln_vit")), "blocks.6.", "blocks.7.", "norm")
    assert _learned_norms(build("ln_mlp")) == ["1", "4"]  # anything else: the last max(1, n // 4) of n norms


def test_anything_else_freezes_a_quarter_of_its_norms_and_one_norm_is_never_frozen() -> None:
    layers: list[nn.Module] = []
    for _ in range(9):
        layers += [nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()]
    nine = nn.Sequential(*layers, nn.Linear(6, 3))
    assert _learned_norms(nine) == [str(3 * i + 1) for i in range(7)]
    one = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    assert _learned_norms(one) == ["1"]


class RegisteredBackwards(nn.Module):
    """Stages that run in the opposite order of their registration: position must mean execution."""

    def __init__(self) -> None:
        super().__init__()
        made = SmallResNet()
        self.fc = made.fc
        self.d, self.c, self.b, self.a = made.stage4, made.stage3, made.stage2, made.stage1
        self.stem_norm, self.stem = made.stem_norm, made.stem

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        return self.fc(self.d(self.c(self.b(self.a(x)))).mean((2, 3)))


def test_position_is_the_order_of_execution_not_of_registration() -> None:
    network = RegisteredBackwards()
    assert inspect_network(network).norm_names[0] == "stem_norm"
    assert set(_learned_norms(network)) == {"stem_norm", *(f"{s}.0.{n}" for s in "abc" for n in ("norm1", "norm2"))}


class RMSNorm(nn.Module):
    """The usual hand-written one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(8),
        nn.LayerNorm(8),
        nn.LayerNorm(8, bias=False),
        nn.GroupNorm(2, 8),
        nn.RMSNorm(8),
        RMSNorm(8),
        nn.SyncBatchNorm(8),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_kinds_of_norm_are_recognised(norm: nn.Module) -> None:
    network = nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    assert wildtta.adapt(network.eval(), "tent").learned_parameters == [f"1.{n}" for n, _ in norm.named_parameters()]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_batch_and_instance_norms_of_every_rank(dimensions: int) -> None:
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dimensions - 1]
    instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dimensions - 1]
    pool = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dimensions - 1]
    network = nn.Sequential(
        convolution(2, 4, 3, padding=1),
        batch(4),
        convolution(4, 4, 3, padding=1),
        instance(4, affine=True),
        pool(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    adapter = wildtta.adapt(network, "tent", lr=0.1)
    assert adapter.learned_parameters == ["1.weight", "1.bias", "3.weight", "3.bias"]
    adapter(torch.randn(4, 2, *[8] * dimensions))
    assert bool(adapter.last.learned)
    with pytest.raises(ValueError, match=f"rank {dimensions + 2}"):
        adapter(torch.randn(2, *[8] * dimensions))


def test_timm_and_torchvision_norm_subclasses_are_norms() -> None:
    from timm.layers import BatchNormAct2d, GroupNormAct, LayerNorm2d
    from torchvision.models.convnext import LayerNorm2d as TorchvisionLayerNorm2d

    for norm in (BatchNormAct2d(8), GroupNormAct(8, 2), LayerNorm2d(8), TorchvisionLayerNorm2d(8)):
        network = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        assert wildtta.adapt(network.eval(), "tent").learned_parameters == ["1.weight", "1.bias"]


# -- the head ------------------------------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    """A classifier registered and run before an auxiliary head of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 4)
        self.body = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8))
        self.auxiliary = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        logits = self.classifier(features)
        self.auxiliary_loss = self.auxiliary(features).mean().detach()
        return logits


def test_head_is_the_layer_that_makes_the_logits_and_can_be_named() -> None:
    assert inspect_network(TwoHeads()).head_name == "classifier"
    network = TwoHeads()
    assert inspect_network(network, "auxiliary").head_name == "auxiliary"
    assert inspect_network(network, network.auxiliary).head_name == "auxiliary"
    with pytest.raises(ValueError, match=r"head='fc'.*classifier \(8 to 4\)"):
        wildtta.adapt(TwoHeads(), head="fc")
    with pytest.raises(ValueError, match=r"no layer of this network"):
        wildtta.adapt(TwoHeads(), head=nn.Linear(8, 4))


def test_features_are_the_heads_input() -> None:
    network = build("gn_resnet", dtype=torch.float64)
    x = images("gn_resnet", 6, dtype=torch.float64)
    taken: list[Tensor] = []
    handle = network.fc.register_forward_pre_hook(lambda module, inputs: taken.append(inputs[0]))
    with torch.no_grad():
        network(x)
    handle.remove()
    alive = taken[0][:, taken[0].std(0) > 0]  # a dimension that ReLU silences contributes nothing
    standard = (alive - alive.mean(0)) / alive.std(0, unbiased=False)
    correlation = standard.T @ standard / 6
    off = correlation.square().sum() - correlation.diagonal().square().sum()
    adapter = wildtta.adapt(network, "none")
    adapter(x)
    assert adapter.last.redundancy.item() == pytest.approx(off.item() / 19, rel=1e-9)


# -- overrides -----------------------------------------------------------------------------------------------------------


def test_parameters_by_list_pattern_and_function() -> None:
    by_list = wildtta.adapt(build("ln_vit"), "sar", parameters=["norm.bias", "blocks.0.norm1.weight"])
    assert by_list.learned_parameters == ["blocks.0.norm1.weight", "norm.bias"]
    by_pattern = wildtta.adapt(build("ln_vit"), "sar", parameters=r"blocks\.[01]\.mlp\.\d\.weight")
    assert by_pattern.learned_parameters == [f"blocks.{b}.mlp.{i}.weight" for b in (0, 1) for i in (0, 3)]
    by_function = wildtta.adapt(build("ln_vit"), "tent", parameters=lambda name, p: p.dim() == 3)
    assert by_function.learned_parameters == ["position"]
    for adapter in (by_list, by_pattern, by_function):
        before = {name: p.detach().clone() for name, p in adapter.network.named_parameters()}
        for seed in range(3):
            adapter(images("ln_vit", 8, seed=seed))
        moved = {name for name, p in adapter.network.named_parameters() if not torch.equal(p, before[name])}
        assert moved == set(adapter.learned_parameters)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (["fc.weigth"], r"fc\.weigth.*its parameters: stem\.weight"),
        (r"nothing_like_this", r"chose none"),
        (r"(", r"no regular expression"),
        (lambda name, parameter: False, r"chose none"),
        ([], r"chose none"),
    ],
)
def test_parameter_choices_that_cannot_be_meant_are_refused(choice: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wildtta.adapt(build("gn_resnet"), "sar", parameters=choice)


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_network_without_norms_is_refused_with_advice() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"no normalisation layer.*parameters="):
        wildtta.adapt(plain, "sar2")
    frozen = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"no normalisation layer"):
        wildtta.adapt(frozen, "tent")
    assert wildtta.adapt(plain, "tent", parameters="0").learned_parameters == ["0.weight", "0.bias"]
    assert wildtta.adapt(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), "none").learned_parameters == []


def test_fewer_than_two_classes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 output.*at least 2 classes"):
        wildtta.adapt(layer_norm_mlp(classes=1))


def test_things_that_are_no_network_are_refused() -> None:
    with pytest.raises(TypeError, match=r"nn\.Module"):
        wildtta.adapt(lambda x: x)
    adapter = wildtta.adapt(build("ln_mlp"))
    with pytest.raises(TypeError, match=r"unload"):
        wildtta.adapt(adapter)


def test_network_that_returns_something_else_is_refused() -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layer_norm_mlp()

        def forward(self, x: Tensor) -> tuple[int, Tensor]:
            return 1, self.layers(x)

    with pytest.raises(TypeError, match=r"returned tuple.*\.logits"):
        wildtta.adapt(Strange())


def test_made_inside_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        network = layer_norm_mlp()
    with pytest.raises(ValueError, match=r"inference_mode"):
        wildtta.adapt(network, "tent")


@pytest.mark.parametrize("method", ["tent", "sar2"])
def test_float16_is_refused_with_advice(method: str) -> None:
    with pytest.raises(TypeError, match=r"float16.*bf16"):
        wildtta.adapt(build("ln_mlp").half(), method)
    adapter = wildtta.adapt(build("ln_mlp"), method)
    with pytest.raises(TypeError, match=r"float16.*bf16"):
        adapter.half()
    assert {p.dtype for p in adapter.network.parameters()} == {torch.float32}
    adapter(images("ln_mlp", 4))


# -- inspection leaves no trace ------------------------------------------------------------------------------------------


def test_inspection_leaves_modes_buffers_and_randomness_alone() -> None:
    network = build("bn_resnet").train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    inspect_network(network)
    assert torch.equal(torch.rand(3), expected)
    assert all(module.training for module in network.modules())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_repr_names_what_learns_and_what_is_frozen() -> None:
    text = repr(wildtta.adapt(build("gn_resnet"), "sar"))
    assert "method=sar" in text
    assert f"{CLASSES} classes" in text
    assert "head=fc (20 features)" in text
    assert "stem_norm.weight" in text
    assert "frozen norms=stage4.0.norm1, stage4.0.norm2" in text


def test_vit_with_another_depth_freezes_its_own_quarter() -> None:
    for depth, learning in ((4, 3), (5, 4), (8, 6), (13, 10)):
        names = _learned_norms(SmallViT(depth=depth))
        assert names == [f"blocks.{b}.{n}" for b in range(learning) for n in ("norm1", "norm2")]
    assert SIDE == 16


def test_hugging_face_network_gives_its_own_kind_of_object_back() -> None:
    from transformers import ViTConfig, ViTForImageClassification
    from transformers.modeling_outputs import ImageClassifierOutput

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=32,
        patch_size=8,
        num_labels=7,
    )
    network = ViTForImageClassification(config).eval()
    x = torch.randn(5, 3, 32, 32)
    with torch.no_grad():
        bare = network(x).logits
    facts = inspect_network(network)
    assert (facts.family, facts.classes, facts.head_name) == ("transformer", 7, "classifier")
    adapter = wildtta.adapt(network, "sar", reliable=None, lr=0.05)
    assert not any("layer.3" in name or "layers.3" in name for name in adapter.learned_parameters)
    assert len(adapter.learned_parameters) == 3 * 2 * 2
    output = adapter(x)
    assert isinstance(output, ImageClassifierOutput)
    assert torch.equal(output.logits, bare)
    assert torch.equal(output["logits"], bare)
    assert not output.logits.requires_grad
    assert not torch.equal(adapter(x).logits, bare)
