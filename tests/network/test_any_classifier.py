"""Somebody's classifier, whatever it reads and however it ends: the table of docs/models.md, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wildtta
from any_classifier import BATCH, CLASSES, TABLE, Entry, MeanOverFrames, TiedText, ask, batch_of, build, name_of
from toy_networks import flags, same_bits, snapshot
from wildtta.methods.registry import config_classes
from wildtta.network import inspect_network
from wildtta.network.inputs import gathered
from wildtta.network.norms import is_batch_norm, is_norm
from wildtta.network.output import logits_of

ROOT = Path(__file__).parent.parent.parent
METHODS = ("tent", "sar", "sar2", "steady")
# Settings, by the name of the option, with which a few samples of random networks are enough to learn from.
SMALL = {"lr": 0.005, "reliable": 0.95, "warmup": 2, "recovery": None, "evidence": False}


def _adapted(network: nn.Module, method: str) -> wildtta.Adapter:
    known = {item.name for item in dataclasses.fields(config_classes()[method])}
    return wildtta.adapt(network, method, **{name: value for name, value in SMALL.items() if name in known})


def _bare_answers(network: nn.Module, batch: Any) -> list[Tensor]:
    """What the network answers by itself; with the batch's own statistics where it has BatchNorm, as is documented.

    With only norms that learn, and without a graph: torch chooses its kernels by who needs a gradient, and they round
    differently.
    """
    twin = copy.deepcopy(network).eval().requires_grad_(False)
    for module in twin.modules():
        if is_batch_norm(module):
            module.train()
        if is_norm(module):
            module.requires_grad_(True)
    answers = []
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            answers.append(logits_of(ask(twin, batch)).detach())
    return answers


# Every model with one of the methods, in turn; all combinations among the slow tests.
CELLS = [
    pytest.param(entry, method, id=f"{name_of(entry)}-{method}", marks=() if turn % 4 == place else pytest.mark.slow)
    for turn, entry in enumerate(TABLE)
    for place, method in enumerate(METHODS)
]


@pytest.mark.parametrize(("entry", "method"), CELLS)
def test_a_model_adapts_learns_saves_resumes_and_comes_back(entry: Entry, method: str, tmp_path: Path) -> None:
    pytest.importorskip({"plain torch": "torch"}.get(entry.source, entry.source))
    network = build(entry)
    before, flags_before = snapshot(network), flags(network)
    stream = [batch_of(entry, seed) for seed in range(3)]
    bare = _bare_answers(network, stream[0])
    by_statistics = method == "steady" and any(map(is_batch_norm, network.modules()))
    if by_statistics:
        # It follows the stream's moments in place of learning, as is documented; a paused twin says what it answers.
        with _adapted(build(entry), method).paused() as paused:
            bare = [logits_of(ask(paused, stream[0]))]

    adapter = _adapted(network, method)
    initial = {name: value.clone() for name, value in adapter.online_state().items()}
    first = ask(adapter, stream[0])
    assert type(first) is type(ask(build(entry), stream[0]))
    assert any(torch.equal(logits_of(first), answer) for answer in bare)
    assert logits_of(first).shape == (BATCH, CLASSES)

    if method == "steady" and not by_statistics:
        # As it comes, too: there is no evidence of a shift before the first batch.
        as_it_comes = logits_of(ask(wildtta.adapt(build(entry)), stream[0]))
        assert any(torch.equal(as_it_comes, answer) for answer in bare)

    learned = bool(adapter.last.learned)
    adapter.save(tmp_path / "state.safetensors")
    later = []
    for batch in stream[1:]:
        later.append(logits_of(ask(adapter, batch)))
        learned = learned or bool(adapter.last.learned)
    moved = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    if by_statistics:
        assert moved == []
        assert "memory/stream_mean" in same_bits(adapter.online_state(), initial)
    else:
        assert learned
        assert moved
    assert set(moved) <= set(adapter.learned_parameters)
    assert all(not torch.equal(later[-1], answer) for answer in _bare_answers(build(entry), stream[-1]))

    twin = _adapted(build(entry), method)
    twin.load(tmp_path / "state.safetensors")
    for batch, answer in zip(stream[1:], later, strict=True):
        assert torch.equal(logits_of(ask(twin, batch)), answer)

    assert adapter.unload() is network
    assert same_bits(snapshot(network), before) == []
    assert flags(network) == flags_before


@pytest.mark.parametrize("entry", [pytest.param(entry, id=name_of(entry)) for entry in TABLE])
def test_features_explain_the_logits_and_the_family_is_right(entry: Entry) -> None:
    """h(z) of the features that the methods see is the network's answer, however it pools and scales."""
    pytest.importorskip({"plain torch": "torch"}.get(entry.source, entry.source))
    network = build(entry)
    facts = inspect_network(network)
    assert (facts.family, facts.classes) == (entry.family, CLASSES)
    batch = batch_of(entry, 0)
    engine = wildtta.adapt(network, "none").engine
    call = gathered(network, (), batch) if isinstance(batch, dict) else gathered(network, (batch,), {})
    with engine.calling(call) as samples:
        output = engine.forward(samples, grad=False)
        some = engine.forward(samples[torch.tensor([5, 2])], grad=False)
    assert output.features.shape == (BATCH, facts.feature_width)
    torch.testing.assert_close(engine.head_logits(output.features), output.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(some.logits, output.logits[[5, 2]], rtol=1e-4, atol=1e-4)


def test_the_page_lists_the_models_of_this_table() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ([^|]+) \| (timm|torchvision|transformers|plain torch) \| ([^|]+) \| ([^|]+) \|$", page, re.M
    )
    assert rows == [(entry.name, entry.source, entry.inputs, entry.family) for entry in TABLE]


# -- calls ---------------------------------------------------------------------------------------------------------------


def test_one_tensor_by_the_name_of_the_first_parameter_is_that_tensor() -> None:
    """So that methods that augment work with pixel_values=, and steps can be recorded."""
    entry = next(entry for entry in TABLE if entry.inputs == "`pixel_values`")
    images = batch_of(entry, 0)["pixel_values"]  # type: ignore[index]
    assert gathered(build(entry), (), {"pixel_values": images}) is images
    by_name, by_place = wildtta.adapt(build(entry), "memo", views=2), wildtta.adapt(build(entry), "memo", views=2)
    assert torch.equal(by_name(pixel_values=images).logits, by_place(images).logits)


def test_samples_that_are_not_selected_are_left_out_of_every_argument() -> None:
    """SAR passes reliable samples again: pictures and tables must be cut alike, and the rest of the call stays."""
    entry = next(entry for entry in TABLE if entry.name == "two inputs by name")
    network = build(entry)
    sizes: list[tuple[int, int]] = []
    network.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append((len(kwargs["picture"]), len(kwargs["table"]))), with_kwargs=True
    )
    adapter = wildtta.adapt(network, "sar", reliable=0.5)
    sizes.clear()
    adapter(**batch_of(entry, 0))
    selected = int(adapter.last.selected)
    assert 0 < selected < BATCH
    assert sizes == [(BATCH, BATCH), (selected, selected), (selected, selected)]


class DictNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 3)

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        return {"logits": self.head(self.body(batch["values"] * batch["gain"])), "gain": batch["gain"]}


def test_a_dictionary_as_the_only_argument() -> None:
    batch = {"values": torch.randn(5, 4), "gain": torch.tensor(2.0), "note": "as it is"}
    network = DictNetwork()
    with torch.no_grad():
        bare = network(batch)["logits"]
    adapter = wildtta.adapt(network, "tent", lr=0.1, example=(batch,))
    assert torch.equal(adapter(batch)["logits"], bare)
    assert not torch.equal(adapter(batch)["logits"], bare)


def test_a_network_whose_inputs_cannot_be_made_up_says_so_and_takes_an_example() -> None:
    with pytest.warns(UserWarning, match=r"DictNetwork could not be run.*example=batch"):
        wildtta.adapt(DictNetwork(), "tent")
    with pytest.raises(TypeError, match=r"example= must be a tensor.*got str"):
        wildtta.adapt(DictNetwork(), "tent", example="batch")


def test_a_sample_that_is_not_finite_spoils_no_other_in_batch_norm() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.head(self.norm(torch.cat((left, right), 1)))

    left, right = torch.randn(8, 4), torch.randn(8, 2)
    right[3, 0] = torch.nan
    adapter = wildtta.adapt(Two(), "tent", example=(left[:3], right[:3]))
    answer = adapter(left, right)
    assert torch.isfinite(answer).all(1).tolist() == [row != 3 for row in range(8)]
    assert (int(adapter.last.left_out), int(adapter.last.skipped)) == (1, 0)
    assert bool(adapter.last.learned)


@pytest.mark.parametrize(
    ("arguments", "named", "error", "message"),
    [
        ((), {}, TypeError, "got nothing"),
        ((None,), {}, TypeError, "expected a tensor of images.*NoneType"),
        ((), {"picture": "a path"}, TypeError, "arguments with tensors in them, got str"),
        ((), {"picture": torch.zeros(0, 3, 16, 16), "table": torch.zeros(0, 4)}, ValueError, "empty batch"),
        (
            (),
            {"picture": torch.zeros(2, 3, 16, 16).double(), "table": torch.zeros(2, 4)},
            TypeError,
            "picture are.*float64",
        ),
        (
            (),
            {"picture": torch.zeros(2, 3, 16, 16), "table": torch.zeros(2, 4, device="meta")},
            ValueError,
            "table.*meta",
        ),
    ],
)
def test_calls_that_cannot_be_meant_are_refused(arguments: Any, named: Any, error: Any, message: str) -> None:
    entry = next(entry for entry in TABLE if entry.name == "two inputs by name")
    adapter = wildtta.adapt(build(entry), "tent", example=batch_of(entry, 0))
    with pytest.raises(error, match=message):
        adapter(*arguments, **named)


def test_methods_that_change_images_refuse_text() -> None:
    entry = next(entry for entry in TABLE if entry.name == "BERT")
    adapter = wildtta.adapt(build(entry), "memo")
    with pytest.raises(TypeError, match=r"memo works on images themselves.*input_ids, attention_mask"):
        adapter(**batch_of(entry, 0))
    with pytest.raises(TypeError, match=r"called with tokens"):
        wildtta.adapt(TiedText(), "deyo")(torch.zeros(2, 4, dtype=torch.long))


def test_whole_numbers_are_tokens_only_where_something_looks_them_up() -> None:
    adapter = wildtta.adapt(TiedText(), "tent")
    assert adapter(torch.zeros(2, 4, dtype=torch.long)).shape == (2, CLASSES)
    with pytest.raises(TypeError, match=r"floating-point images, got torch.uint8"):
        wildtta.adapt(MeanOverFrames(), "tent")(torch.zeros(2, 3, 3, 16, 16, dtype=torch.uint8))


# -- heads ---------------------------------------------------------------------------------------------------------------


def test_a_fully_convolutional_network_is_pooled_like_its_logits() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    images = torch.randn(4, 3, 12, 12)
    adapter = wildtta.adapt(network, "tent")
    with torch.no_grad():
        expected = network[1](network[0](images)).mean((2, 3))
    output = adapter.engine.forward(images, grad=False)
    torch.testing.assert_close(output.features, expected)


def test_any_module_may_be_named_as_the_head() -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.widths = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.rand(5, 8))

        def forward(self, features: Tensor) -> Tensor:
            return -((features[:, None] - self.centres).square() * self.widths).sum(-1)

    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), Prototypes())
    adapter = wildtta.adapt(network, "sar2", head="4", reliable=None, warmup=1, lr=0.01)
    values = torch.randn(6, 4)
    with torch.no_grad():
        features = network[:4](values)
    torch.testing.assert_close(adapter.engine.head_logits(features), adapter(values))
    assert bool(adapter.last.learned)


def test_a_product_with_a_matrix_is_no_layer_and_the_error_names_the_way() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
            self.words = nn.Parameter(torch.randn(5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) @ self.words.T

    with pytest.raises(ValueError, match=r"no layer of Functional makes its 5 logits.*wildtta\.zero_shot"):
        wildtta.adapt(Functional())
    made = wildtta.zero_shot(Functional().body, torch.randn(5, 8), 1.0, normalise=False)
    assert wildtta.adapt(made, "tent")(torch.randn(3, 4)).shape == (3, 5)


def test_zero_shot_gives_cosines_times_the_scale() -> None:
    encoder = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 6)).double()
    embeddings, values = torch.randn(3, 6, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    model = wildtta.zero_shot(encoder, embeddings, torch.tensor(4.0).log().exp())
    expected = 4 * torch.stack([F.cosine_similarity(encoder(values), row[None]) for row in embeddings], 1)
    torch.testing.assert_close(model(values), expected)
    tied = wildtta.zero_shot(encoder, nn.Embedding.from_pretrained(embeddings), 4.0)
    torch.testing.assert_close(tied(values), expected)


@pytest.mark.parametrize(
    ("embeddings", "scale", "message"),
    [(torch.randn(1, 6), 1.0, "at least 2 classes"), (torch.randn(3, 6), -1.0, r"logit_scale\.exp\(\)")],
)
def test_zero_shot_refuses_what_is_no_classifier(embeddings: Tensor, scale: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wildtta.zero_shot(nn.Linear(4, 6), embeddings, scale)
    model = wildtta.zero_shot(DictNetwork(), torch.randn(3, 8))
    with pytest.raises(TypeError, match="the encoder returned dict"):
        model({"values": torch.randn(2, 4), "gain": 1})


def test_a_whole_clip_is_pointed_to_zero_shot() -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.CLIPConfig(
        vision_config={**small, "image_size": 32, "patch_size": 16},
        text_config={**small, "vocab_size": 40},
        projection_dim=8,
    )
    example = {"pixel_values": torch.randn(2, 3, 32, 32), "input_ids": torch.randint(0, 40, (3, 5))}
    with pytest.raises(TypeError, match=r"wildtta\.zero_shot"):
        wildtta.adapt(transformers.CLIPModel(config), example=example)


# -- what is no classifier -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["regression", "multi_label_classification"])
def test_other_tasks_are_refused_with_a_sentence(task: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=40, num_labels=4,
        problem_type=task,
    )  # fmt: skip
    with pytest.raises(ValueError, match=rf"problem_type='{task}'.*need a classifier"):
        wildtta.adapt(transformers.BertForSequenceClassification(config))


def test_regression_and_dense_prediction_are_refused_with_a_sentence() -> None:
    regressor = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    with pytest.raises(ValueError, match=r"1 output.*regression.*cannot be adapted"):
        wildtta.adapt(regressor)
    dense = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 5, 1))
    with pytest.raises(ValueError, match=r"one answer per sample.*adapt_segmentation"):
        wildtta.adapt(dense, "tent")
    flat = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1), nn.Flatten(0))
    with pytest.raises(ValueError, match=r"shape \(2,\).*Regression"):
        wildtta.adapt(flat, "tent")


def test_other_kinds_of_networks_are_shown_their_way() -> None:
    torchvision = pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    streets = torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    with pytest.raises(TypeError, match=r"returned OrderedDict.*wildtta\.segmentation\.adapt_segmentation"):
        wildtta.adapt(streets, "tent")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=40, num_labels=4
    )
    with pytest.raises(ValueError, match=r"shape \(2, 16, 4\).*one answer per sample.*answers per token"):
        wildtta.adapt(transformers.BertForTokenClassification(config), "tent")
    with pytest.raises(TypeError, match=r"returned BaseModelOutput.*Wrap the network"):
        wildtta.adapt(transformers.BertModel(config), "tent")
    plain = torchvision.models.vgg11(weights=None, num_classes=4)
    with pytest.raises(ValueError, match=r"VGG has no normalisation layer with affine parameters.*parameters="):
        wildtta.adapt(plain, "tent")
