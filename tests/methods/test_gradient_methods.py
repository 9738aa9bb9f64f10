"""COME, ZeroSiam, ETA, EATA, RDumb, DeYO, ReCAP, ROID: equations, seams, state. Recorded trajectories: test_parity.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import wildtta
from toy_networks import KINDS, batches, build, images
from wildtta.methods.deyo import destroyer, occlude, permute_patches, permute_pixels
from wildtta.methods.losses import opinion_entropy
from wildtta.methods.recap import Moments, Region
from wildtta.methods.roid import smoothed_prior, soft_likelihood_ratio, stretched
from wildtta.methods.source_images import in_batches
from wildtta.methods.zerosiam import symmetric_divergence

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = ("come", "zerosiam", "eta", "eata", "rdumb", "deyo", "recap", "roid")
DOUBLE = torch.float64


def adapted(name: str, kind: str = "gn_resnet", **options: Any) -> wildtta.Adapter:
    cls = {method: getattr(wildtta, title) for method, title in zip(NAMES, TITLES, strict=True)}[name]
    examples = cls.example_options(images(kind, 32, seed=77, dtype=DOUBLE))
    return wildtta.adapt(build(kind, dtype=DOUBLE), name, **{**examples, **options})


TITLES = ("COME", "ZeroSiam", "ETA", "EATA", "RDumb", "DeYO", "ReCAP", "ROID")


def learned_vector(adapter: wildtta.Adapter) -> Tensor:
    state = adapter.online_state()
    return torch.cat([state[f"parameters/{name}"].flatten() for name in adapter.learned_parameters])


def gradient_of(network: nn.Module, names: list[str], loss: Tensor) -> Tensor:
    """∂loss/∂(named parameters) by plain autograd, flat."""
    parameters = dict(network.named_parameters())
    return torch.cat([piece.flatten() for piece in torch.autograd.grad(loss, [parameters[name] for name in names])])


def plain(kind: str, names: list[str]) -> nn.Module:
    """The network by itself, the named parameters with gradients."""
    network = build(kind, dtype=DOUBLE).requires_grad_(False)
    parameters = dict(network.named_parameters())
    for name in names:
        parameters[name].requires_grad_()
    return network


def numeric_gradient(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences."""
    gradient = torch.empty_like(at)
    for place in range(at.numel()):
        shift = torch.zeros_like(at).view(-1)
        shift[place] = step
        shift = shift.view_as(at)
        gradient.view(-1)[place] = (function(at + shift) - function(at - shift)) / (2 * step)
    return gradient


# -- COME ----------------------------------------------------------------------------------------------------------------


def masses(logits: Tensor) -> Tensor:
    """Beliefs and uncertainty as subjective logic defines them, from evidence."""
    evidence = logits.exp()
    classes = logits.shape[-1]
    strength = evidence.sum(-1, keepdim=True) + classes
    return torch.cat([evidence / strength, classes / strength], -1)


def test_opinion_entropy_is_the_entropy_of_beliefs_and_uncertainty() -> None:
    logits = 3 * torch.randn(6, 9, dtype=DOUBLE)
    opinion = masses(logits)
    torch.testing.assert_close(opinion.sum(-1), torch.ones(6, dtype=DOUBLE))
    torch.testing.assert_close(opinion_entropy(logits), -(opinion * opinion.log()).sum(-1))


def test_opinion_entropy_gradient_holds_the_length() -> None:
    logits = 2 * torch.randn(5, dtype=DOUBLE)
    length = logits.norm()

    def of_direction(x: Tensor) -> Tensor:
        opinion = masses((x / x.norm() * length)[None])
        return -(opinion * opinion.log()).sum()

    x = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(opinion_entropy(x[None]).sum(), x)
    torch.testing.assert_close(gradient, numeric_gradient(of_direction, logits), rtol=1e-7, atol=1e-9)
    assert abs(float(gradient @ logits)) < 1e-12
    huge = opinion_entropy(torch.tensor([[1e4, -1e4], [0.0, 0.0]]))
    assert torch.isfinite(huge).all()
    torch.testing.assert_close(huge, torch.tensor([0.0, 1.5 * math.log(2)]))


def test_come_takes_the_step_of_its_equation() -> None:
    batch = images("gn_resnet", 8, dtype=DOUBLE)
    adapter = adapted("come", lr=0.05)
    before = learned_vector(adapter)
    adapter(batch)
    network = plain("gn_resnet", adapter.learned_parameters)
    logits = network(batch)
    held = logits / logits.norm(dim=-1, keepdim=True) * logits.norm(dim=-1, keepdim=True).detach()
    opinion = masses(held)
    expected = gradient_of(network, adapter.learned_parameters, -(opinion * opinion.log()).sum(-1).mean())
    torch.testing.assert_close(learned_vector(adapter), before - 0.05 * expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sar", "sar2", "eta"])
def test_conservative_objective_selects_by_opinion(name: str) -> None:
    batch = images("gn_resnet", 16, dtype=DOUBLE)
    options = {"warmup": 2} if name == "sar2" else {}
    adapter = wildtta.adapt(build("gn_resnet", dtype=DOUBLE), name, objective="conservative", reliable=0.7, **options)
    before = learned_vector(adapter)
    logits = adapter(batch)
    opinion = masses(logits)
    expected = -(opinion * opinion.log()).sum(-1) < 0.7 * math.log(10)
    assert 0 < int(expected.sum()) < 16
    assert torch.equal(adapter.last.mask, expected)
    assert not torch.equal(adapter.last.mask, adapter.last.entropies < 0.7 * math.log(10))
    assert not torch.equal(learned_vector(adapter), before)


# -- ZeroSiam ------------------------------------------------------------------------------------------------------------


def siamese_loss(features: Tensor, target: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """H(p_o) + KL(p_t‖p_o) + KL(p_o‖p_t), by torch's own divergence; ``target`` is held fixed by the caller."""
    online = (features @ predictor.T) @ weight.T + bias
    p, log_p = online.softmax(-1), online.log_softmax(-1)
    towards = F.kl_div(log_p, target.softmax(-1), reduction="none").sum(-1)
    back = F.kl_div(target.log_softmax(-1), p, reduction="none").sum(-1)
    return (-(p * log_p).sum(-1) + towards + back).mean()


def test_symmetric_divergence() -> None:
    one, other = torch.randn(2, 4, 6, dtype=DOUBLE)
    expected = torch.distributions.kl_divergence
    p, q = torch.distributions.Categorical(logits=one), torch.distributions.Categorical(logits=other)
    torch.testing.assert_close(symmetric_divergence(one, other), expected(p, q) + expected(q, p))
    assert float(symmetric_divergence(one, one).abs().max()) == 0.0


def test_zerosiam_takes_the_steps_of_its_equation() -> None:
    kind, rate, multiple = "ln_mlp", 0.002, 0.5
    adapter = adapted("zerosiam", kind, lr=rate, predictor_rate=multiple)
    names = adapter.learned_parameters
    theta = learned_vector(adapter)
    predictor = torch.eye(16, dtype=DOUBLE)
    momenta = [torch.zeros_like(theta), torch.zeros_like(predictor)]
    network = plain(kind, names)
    parameters = dict(network.named_parameters())
    head = network[-1]
    assert isinstance(head, nn.Linear)
    for batch in batches(kind, 3, 8, dtype=DOUBLE):
        logits = adapter(batch)
        features = network[:-1](batch)
        torch.testing.assert_close(logits, head(features).detach(), rtol=1e-9, atol=1e-12)
        leaf = predictor.clone().requires_grad_()
        loss = siamese_loss(features, head(features).detach(), leaf, head.weight, head.bias)
        fixed = (features.detach(), head(features).detach())
        by_differences = numeric_gradient(lambda p, f=fixed: siamese_loss(*f, p, head.weight, head.bias), predictor)
        (of_predictor,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        torch.testing.assert_close(of_predictor, by_differences, rtol=1e-5, atol=1e-8)
        momenta = [0.9 * momenta[0] + gradient_of(network, names, loss), 0.9 * momenta[1] + of_predictor]
        theta, predictor = theta - rate * momenta[0], predictor - rate * multiple * momenta[1]
        torch.testing.assert_close(learned_vector(adapter), theta, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(adapter.online_state()["memory/predictor"], predictor, rtol=1e-5, atol=1e-8)
        with torch.no_grad():
            for name, piece in zip(names, theta.split([parameters[name].numel() for name in names]), strict=True):
                parameters[name].copy_(piece.view_as(parameters[name]))


def test_zerosiam_norm_gradient_by_differences() -> None:
    """The norms feel the loss through the online branch alone: the target is held while they are shifted."""
    kind = "ln_mlp"
    batch = images(kind, 6, dtype=DOUBLE)
    adapter = adapted("zerosiam", kind, lr=1.0, parameters="^7", predictor_rate=0.0)
    before = learned_vector(adapter)
    adapter(batch)
    network = build(kind, dtype=DOUBLE).requires_grad_(False)
    norm, head = network[7], network[-1]
    target = network(batch)

    def loss(flat: Tensor) -> Tensor:
        norm.weight.copy_(flat[:16])
        norm.bias.copy_(flat[16:])
        return siamese_loss(network[:-1](batch), target, torch.eye(16, dtype=DOUBLE), head.weight, head.bias)

    expected = numeric_gradient(loss, before.clone())
    torch.testing.assert_close(before - learned_vector(adapter), expected, rtol=1e-5, atol=1e-8)


# -- ETA, EATA, RDumb ----------------------------------------------------------------------------------------------------


def test_eata_without_source_explains_itself() -> None:
    adapter = wildtta.adapt(build("gn_resnet"), "eata")
    with pytest.raises(ValueError, match=r"fisher_images=.*'eta'"):
        adapter(images("gn_resnet", 4))
    with adapter.paused():
        assert adapter(images("gn_resnet", 4)).shape == (4, 10)


def test_fisher_is_the_mean_squared_gradient_and_travels_with_the_state(tmp_path: Path) -> None:
    source = images("bn_resnet", 48, seed=5, dtype=DOUBLE)
    adapter = adapted("eata", "bn_resnet", fisher_images=source, fisher_batch=16)
    stream = batches("bn_resnet", 4, 8, dtype=DOUBLE)
    adapter(stream[0])
    names = adapter.learned_parameters
    network = plain("bn_resnet", names)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    expected = torch.zeros_like(learned_vector(adapter))
    for batch in source.split(16):
        logits = network(batch)
        expected += gradient_of(network, names, F.cross_entropy(logits, logits.argmax(-1))).square() / 3
    torch.testing.assert_close(adapter.online_state()["memory/fisher"], expected, rtol=1e-9, atol=1e-15)

    adapter.save(tmp_path / "state.safetensors")
    resumed = wildtta.adapt(build("bn_resnet", dtype=DOUBLE), "eata", fisher_batch=16)
    resumed.load(tmp_path / "state.safetensors")
    for batch in stream[1:]:
        assert torch.equal(resumed(batch), adapter(batch))
    assert torch.equal(learned_vector(resumed), learned_vector(adapter))
    resumed.reset()
    torch.testing.assert_close(resumed.online_state()["memory/fisher"], expected, rtol=1e-9, atol=1e-15)
    resumed(stream[0])


def test_source_images_in_any_batches() -> None:
    source = torch.randn(10, 3)
    loader = [(source[:3], torch.zeros(3)), (source[3:8], torch.zeros(5)), (source[8:], torch.zeros(2))]
    for given in (source, loader, iter([source[:1], source[1:]])):
        taken = list(in_batches(given, 4, torch.device("cpu")))
        assert [len(batch) for batch in taken] == [4, 4, 2]
        assert torch.equal(torch.cat(taken), source)
    with pytest.raises(TypeError, match="floating point"):
        list(in_batches(torch.zeros(2, 3, dtype=torch.uint8), 4, torch.device("cpu")))


def test_eata_pulls_towards_the_source_and_counts() -> None:
    stream = batches("gn_resnet", 12, 16, dtype=DOUBLE)
    far: dict[float, float] = {}
    for fisher in (1e-6, 100.0):
        adapter = adapted("eata", lr=0.01, fisher=fisher, redundant=1.0)
        before, taught = learned_vector(adapter), 0
        for batch in stream:
            adapter(batch)
            taught += int(adapter.last.selected)
            assert int(adapter.last.backwards) == int(adapter.last.selected)
        far[fisher] = float((learned_vector(adapter) - before).norm())
        assert adapter.cost.forwards == 12 * 16
        assert adapter.cost.backwards == taught
        assert 0 < taught < 12 * 16
    assert far[100.0] < far[1e-6]


def test_recovery_on_eata_goes_back_to_the_first_day() -> None:
    adapter = adapted("eata", lr=0.01, recovery=10.0)
    source = learned_vector(adapter)
    adapter(images("gn_resnet", 16, dtype=DOUBLE))
    assert adapter.cost.resets == 1
    assert torch.equal(learned_vector(adapter), source)
    state = adapter.online_state()
    assert state["memory/mean_prediction"].isnan().all()
    assert not state["memory/momentum"].any()
    calm = adapted("eata", lr=0.01, recovery=1e-6)
    calm(images("gn_resnet", 16, dtype=DOUBLE))
    mean = float(calm.last.entropies[calm.last.mask].mean())
    assert float(calm.last.e_m) == pytest.approx(mean, rel=1e-12)


def test_eta_without_a_teacher_changes_nothing() -> None:
    adapter = adapted("eta", lr=0.1)
    adapter(images("gn_resnet", 16, dtype=DOUBLE))
    before = {name: value.clone() for name, value in adapter.online_state().items()}
    for parameter in (adapter.network.fc.weight, adapter.network.fc.bias):
        parameter.data.mul_(1e-6)  # now every prediction is uncertain
    adapter(images("gn_resnet", 16, seed=1, dtype=DOUBLE))
    assert int(adapter.last.selected) == 0
    for name in ("memory/momentum", "memory/mean_prediction", *(n for n in before if n.startswith("parameters/"))):
        assert torch.equal(adapter.online_state()[name], before[name])


def test_rdumb_is_eta_between_resets() -> None:
    stream = batches("ln_mlp", 7, 16, dtype=DOUBLE)
    adapter = adapted("rdumb", "ln_mlp", lr=0.05, reset_every=3)
    for start in (0, 3, 6):
        fresh = adapted("eta", "ln_mlp", lr=0.05, reliable=adapter.method.reliable)
        for batch in stream[start : start + 3]:
            assert torch.equal(adapter(batch), fresh(batch))
    assert adapter.cost.resets == 2
    assert adapter.cost.forwards == 7 * 16


# -- DeYO ----------------------------------------------------------------------------------------------------------------


def test_patches_are_put_where_the_order_says() -> None:
    pictures = torch.arange(2 * 64, dtype=DOUBLE).reshape(2, 1, 8, 8)
    order = torch.stack([torch.randperm(16), torch.randperm(16)])
    shuffled = permute_patches(pictures, order, 4)
    for sample, place in ((0, 0), (0, 7), (1, 15)):
        row, column = divmod(place, 4)
        from_row, from_column = divmod(int(order[sample, place]), 4)
        there = shuffled[sample, 0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        here = pictures[sample, 0, 2 * from_row : 2 * from_row + 2, 2 * from_column : 2 * from_column + 2]
        assert torch.equal(there, here)
    assert torch.equal(permute_patches(shuffled, order.argsort(-1), 4), pictures)
    odd = torch.randn(2, 3, 10, 13)
    assert permute_patches(odd, order, 4).shape == odd.shape
    vectors = torch.arange(10.0).expand(2, 10)
    thirds = permute_patches(vectors, torch.tensor([[2, 0, 1], [0, 1, 2]]), 4)
    assert thirds[0].tolist() == [6, 7, 8, 0, 1, 2, 3, 4, 5, 9]
    assert torch.equal(thirds[1], vectors[1])
    with pytest.raises(ValueError, match="smaller grid"):
        permute_patches(torch.zeros(2, 3, 2, 2), order, 4)


def test_pixels_and_occlusion() -> None:
    pictures = torch.randn(3, 2, 4, 6)
    order = torch.randperm(24)
    assert torch.equal(permute_pixels(pictures, order).flatten(2), pictures.flatten(2)[..., order])
    hidden = occlude(pictures)
    torch.testing.assert_close(hidden[1, 0, 1:3, 1:4], pictures[1, 0].mean().expand(2, 3))
    hidden[:, :, 1:3, 1:4] = pictures[:, :, 1:3, 1:4]
    assert torch.equal(hidden, pictures)
    for kind in ("patch", "pixel", "occlusion"):
        for shape in ((3, 2, 8, 8), (3, 2, 20), (3, 12)):
            inputs = torch.randn(shape)
            first, again = (destroyer(kind, 4)(inputs, torch.Generator().manual_seed(1)) for _ in range(2))
            assert first.shape == inputs.shape
            assert torch.equal(first, again)
            assert not torch.equal(first, inputs)


@pytest.mark.parametrize("kind", ["gn_resnet", "bn_resnet"])
def test_deyo_takes_the_step_of_its_equation(kind: str) -> None:
    batch = images(kind, 16, dtype=DOUBLE)
    adapter = adapted("deyo", kind, lr=0.05, plpd=0.6, destruction=lambda inputs, generator: inputs.flip(-1))
    names, before = adapter.learned_parameters, learned_vector(adapter)
    adapter(batch)
    network = plain(kind, names)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    logits = network(batch)
    p, log_p = logits.softmax(-1), logits.log_softmax(-1)
    entropies = -(p * log_p).sum(-1)
    candidates = entropies < 0.5 * math.log(10)
    with torch.no_grad():
        destroyed = network(batch[candidates].flip(-1)).softmax(-1)
    labels = logits.argmax(-1)
    rows = torch.arange(int(candidates.sum()))
    plpd = (p[candidates][rows, labels[candidates]] - destroyed[rows, labels[candidates]]).detach()
    kept = plpd > 0.6
    assert 0 < int(kept.sum()) < int(candidates.sum()) < 16
    chosen = entropies[candidates][kept]
    weights = (0.4 * math.log(10) - chosen.detach()).exp() + plpd[kept].exp()
    expected = gradient_of(network, names, (weights * chosen).mean())
    torch.testing.assert_close(learned_vector(adapter), before - 0.05 * expected, rtol=1e-8, atol=1e-11)
    assert int(adapter.last.forwards) == 16 + int(candidates.sum())
    assert int(adapter.last.backwards) == int(kept.sum())


@pytest.mark.parametrize("name", ["deyo", "recap", "roid"])
def test_random_draws_resume_where_they_were(name: str, tmp_path: Path) -> None:
    stream = batches("gn_resnet", 6, 8, dtype=DOUBLE)
    options: dict[str, Any] = {"lr": 0.02} if name == "roid" else {"lr": 0.02, "plpd": -1.0}
    straight, first, second = (adapted(name, **options) for _ in range(3))
    other = adapted(name, seed=1, **options)
    answers = [straight(batch) for batch in stream]
    for batch in stream[:3]:
        first(batch)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    for batch, answer in zip(stream[3:], answers[3:], strict=True):
        assert torch.equal(second(batch), answer)
    for batch in stream:
        other(batch)
    for item, twin in zip(straight.online_state().values(), second.online_state().values(), strict=True):
        assert torch.equal(item, twin) or (item.isnan() & twin.isnan()).all()
    if name != "recap":  # ReCAP's weights do not look at PLPD, and all pass here
        assert not torch.equal(learned_vector(other), learned_vector(straight))


def test_destruction_must_keep_the_shape() -> None:
    adapter = adapted("deyo", destruction=lambda inputs, generator: inputs[:, :, :4])
    with pytest.raises(ValueError, match="keep the images' shape"):
        adapter(images("gn_resnet", 8, dtype=DOUBLE))
    with pytest.raises(ValueError, match="a function or 'patch' or 'pixel' or 'occlusion'"):
        wildtta.DeYO(destruction="patches")


# -- ReCAP ---------------------------------------------------------------------------------------------------------------


def regional(logits: Tensor, weight: Tensor, sigma: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The closed forms with every tensor written out: C × C × D and B × C × C."""
    apart = (weight[None] - weight[:, None]) * (sigma * tau / 0.1).sqrt()
    spread = (0.5 * apart.square().sum(-1)).exp()
    p = logits.softmax(-1)
    q = (p[:, None] * spread).sum(-1)
    shifted = (logits + 0.0005 * weight.square().sum(-1)).softmax(-1)
    return (shifted * (q.log() - p.log())).sum(-1), (p * q.log()).sum(-1)


def test_region_equals_the_written_out_forms() -> None:
    weight, sigma = torch.randn(7, 5, dtype=DOUBLE), torch.rand(5, dtype=DOUBLE) * 0.1
    logits = (2 * torch.randn(4, 7, dtype=DOUBLE)).requires_grad_()
    ours = Region.of_head(weight, sigma, 1.2).losses(logits)
    theirs = regional(logits, weight, sigma, 1.2)
    for mine, written in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, written, rtol=1e-11, atol=1e-12)
        (one,) = torch.autograd.grad(mine.sum(), logits, retain_graph=True)
        (other,) = torch.autograd.grad(written.sum(), logits, retain_graph=True)
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", ["gn", "vit"])
def test_region_equals_the_recorded_one(model: str) -> None:
    from safetensors.torch import load_file

    with np.load(GOLDEN / "cases" / f"recap_sigma_{model}.f64.npz", allow_pickle=False) as file:
        recorded = {name: torch.from_numpy(file[name]) for name in file.files}
    weights = load_file(GOLDEN / "models" / f"{model}.safetensors")
    weight = weights["fc.weight" if model == "gn" else "head.weight"].double()
    region = Region.of_head(weight, recorded["sigma"], 1.2)
    torch.testing.assert_close(region.spread * region.peak.exp()[:, None], recorded["prob_aug"], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(region.shift, recorded["normW"], rtol=1e-6, atol=1e-12)


def test_region_stays_finite_where_exponentials_would_not() -> None:
    weight, sigma = 50 * torch.randn(6, 8), torch.ones(8)
    logits = torch.tensor([[80.0, 0, 0, 0, 0, -80.0], [0.0] * 6], requires_grad=True)
    entropy, instability = Region.of_head(weight, sigma, 1.2).losses(logits)
    (gradient,) = torch.autograd.grad((entropy + instability).sum(), logits)
    assert torch.isfinite(torch.cat([entropy, instability, gradient.flatten()])).all()


class LargestTensor(TorchDispatchMode):
    """How many elements the largest result of any operation has, the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, Tensor):
                stored = item.untyped_storage().nbytes() // item.element_size()
                self.elements = max(self.elements, min(stored, item.numel()))  # views count for what they show
        return result


def test_recap_adds_nothing_larger_than_the_head() -> None:
    samples, classes, width = 64, 1000, 2048
    weight, sigma = torch.randn(classes, width) / 45, torch.full((width,), 0.01)
    logits = torch.randn(samples, classes, requires_grad=True)
    with LargestTensor() as making:
        region = Region.of_head(weight, sigma, 1.2)
    with LargestTensor() as using:
        entropy, instability = region.losses(logits)
        torch.autograd.grad((entropy + 0.5 * instability).mean(), logits)
    assert making.elements <= classes * width
    assert using.elements <= classes * classes  # the C × C matrix itself, transposed; per batch B × C
    with LargestTensor() as control:
        regional(logits[:2, :20].detach(), weight[:20], sigma, 1.2)
    assert control.elements == 20 * 20 * width


def test_recap_measures_the_stream_where_there_is_no_source() -> None:
    stream = batches("ln_vit", 6, 8, dtype=DOUBLE)
    options: dict[str, Any] = {"lr": 0.05, "sigma_share": 0.05, "plpd": -1.0, "region_reliable": 9.0, "recovery": None}
    adapter = adapted("recap", "ln_vit", source_images=None, measure=24, **options)
    before = learned_vector(adapter)
    for batch in stream[:3]:
        adapter(batch)
        assert torch.equal(learned_vector(adapter), before)
        assert adapter.online_state()["memory/momentum"].abs().sum() == 0
    sigma = adapter.online_state()["memory/sigma"]
    network = build("ln_vit", dtype=DOUBLE)
    features: list[Tensor] = []
    network.head.register_forward_pre_hook(lambda module, args: features.append(args[0].detach()))
    network(torch.cat(stream[:3]))
    torch.testing.assert_close(sigma, 0.05 * features[0].var(0, correction=0), rtol=1e-9, atol=1e-14)
    adapter(stream[3])
    assert not torch.equal(learned_vector(adapter), before)
    of_source = adapted("recap", "ln_vit", source_images=[*stream[:3]], **options)
    of_source(stream[3])
    torch.testing.assert_close(of_source.online_state()["memory/sigma"], sigma, rtol=1e-9, atol=1e-14)
    assert not torch.equal(learned_vector(of_source), before)
    assert torch.equal(of_source.last.mask, adapter.last.mask)
    of_source.reset()
    torch.testing.assert_close(of_source.online_state()["memory/sigma"], sigma, rtol=1e-9, atol=1e-14)
    adapter.reset()
    assert adapter.online_state()["memory/sigma"].isnan().all()


@pytest.mark.parametrize(("kind", "usual"), [("gn_resnet", 3.0), ("ln_vit", 1.5)])
def test_recaps_largest_weight_is_5_with_batches_of_one(kind: str, usual: float) -> None:
    """A.2: updates are scaled by at most 3.0 (ResNet) or 1.5 (ViT), and by 5.0 with batches of one."""
    sigma = torch.full((wildtta.adapt(build(kind), "none").engine.network.feature_width,), 1e-9)

    def after_one_step(size: int, **options: Any) -> Tensor:
        # L₀ far above any entropy, so that every weight is the largest one.
        options |= {"sigma": sigma, "plpd": None, "margin": 9.0, "region_reliable": 9.0, "recovery": None}
        model = adapted("recap", kind, batch_size=size, lr=1e-3, **options)
        model(images(kind, size, dtype=DOUBLE))
        return learned_vector(model)

    for size, weight in ((1, 5.0), (2, usual)):
        start = learned_vector(adapted("recap", kind, sigma=sigma))
        moved = after_one_step(size) - start
        wanted = weight * (after_one_step(size, largest_weight=1.0) - start)
        torch.testing.assert_close(moved, wanted, rtol=1e-6, atol=1e-12)
        assert moved.abs().max() > 0


def test_moments_by_parts() -> None:
    rows = torch.randn(50, 3, dtype=DOUBLE) * 2 + 100
    zeros = torch.zeros(3, dtype=DOUBLE)
    moments = Moments(zeros.new_zeros(()), zeros, zeros)
    for part in rows.split([1, 7, 42]):
        moments = moments.with_rows(part)
    torch.testing.assert_close(moments.variance, rows.var(0, correction=0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.mean, rows.mean(0))


def test_recap_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ValueError, match=r"shape \(20,\)"):
        adapted("recap", sigma=torch.ones(3))
    with pytest.raises(ValueError, match="source_images="):
        wildtta.ReCAP(episodic=True)


# -- ROID ----------------------------------------------------------------------------------------------------------------


def test_stretching_and_prior() -> None:
    values = torch.tensor([3.0, -1.0, 1.0])
    assert stretched(values).tolist() == [1.0, 0.0, 0.5]
    assert stretched(torch.tensor([2.0])).tolist() == [0.0]
    assert stretched(torch.full((4,), 0.3)).tolist() == [0.0] * 4
    logits = torch.randn(5, 8, dtype=DOUBLE)
    prior = smoothed_prior(logits)
    assert float(prior.sum()) == pytest.approx(1.0)
    assert torch.equal(prior.argsort(), logits.softmax(-1).mean(0).argsort())


def test_soft_likelihood_ratio_keeps_its_gradient_when_sure() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0]], dtype=DOUBLE)
    p = logits.softmax(-1)
    expected = -(p * (p / (1 - p) + 1e-5).log()).sum(-1)
    torch.testing.assert_close(soft_likelihood_ratio(logits), expected)
    by_differences = numeric_gradient(lambda x: soft_likelihood_ratio(x).sum(), logits)
    leaf = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(soft_likelihood_ratio(leaf).sum(), leaf)
    torch.testing.assert_close(gradient, by_differences, rtol=1e-6, atol=1e-9)


def test_roid_learns_from_one_sample_and_from_equal_ones() -> None:
    for number in (1, 4):
        batch = images("gn_resnet", 1, dtype=DOUBLE).expand(number, -1, -1, -1).contiguous()
        adapter = adapted("roid", lr=0.01, consistency=False, ensembling=None, nesterov=False)
        before = learned_vector(adapter)
        logits = adapter(batch)
        network = plain("gn_resnet", adapter.learned_parameters)
        loss = soft_likelihood_ratio(network(batch)).mean()
        expected = before - 0.01 * gradient_of(network, adapter.learned_parameters, loss)
        torch.testing.assert_close(learned_vector(adapter), expected, rtol=1e-9, atol=1e-12)
        assert torch.isfinite(logits).all()


def test_roid_is_pulled_to_the_source() -> None:
    batch = images("gn_resnet", 8, dtype=DOUBLE)
    free = adapted("roid", lr=0.01, consistency=False, ensembling=None)
    held = adapted("roid", lr=0.01, consistency=False, ensembling=0.75)
    source = learned_vector(free)
    free(batch)
    held(batch)
    moved = source + 0.75 * (learned_vector(free) - source)
    torch.testing.assert_close(learned_vector(held), moved, rtol=1e-12, atol=1e-14)


def test_roid_counts_its_views_and_corrects_the_prior() -> None:
    batch = images("gn_resnet", 16, dtype=DOUBLE)
    adapter = adapted("roid", prior_correction=True)
    with adapter.paused():
        bare = build("gn_resnet", dtype=DOUBLE)(batch).detach()
        torch.testing.assert_close(adapter(batch), bare * smoothed_prior(bare), rtol=1e-9, atol=1e-12)
    logits = adapter(batch)
    torch.testing.assert_close(logits, bare * smoothed_prior(bare), rtol=1e-9, atol=1e-12)
    chosen = int(adapter.last.selected)
    assert int(adapter.last.forwards) == 16 + chosen
    assert int(adapter.last.backwards) == 2 * chosen
    broken = batch.clone()
    broken[3] = math.nan
    answer = adapter(broken)
    assert answer[3].isnan().all()
    assert torch.isfinite(answer[[0, 1, 2, 4]]).all()


def test_roid_explains_that_vectors_have_no_views() -> None:
    adapter = wildtta.adapt(build("ln_mlp"), "roid")
    with pytest.raises(ValueError, match=r"augment=.*consistency=False"):
        adapter(images("ln_mlp", 4))


# -- all of them -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_is_not_finite_changes_nothing(name: str, kind: str) -> None:
    adapter = adapted(name, kind, lr=0.01)
    for batch in batches(kind, 2, 8, dtype=DOUBLE):
        adapter(batch)
    before = {key: value.clone() for key, value in adapter.online_state().items()}
    skipped = adapter.cost.skipped
    broken = images(kind, 8, seed=9, dtype=DOUBLE)
    broken.view(8, -1)[:, 0] = math.inf
    assert adapter(broken).isnan().all()
    counters = {"skipped", "left_out", "forwards", "backwards", "computed_forwards", "computed_backwards"}
    for key, value in adapter.online_state().items():
        if key.removeprefix("memory/") not in counters:
            torch.testing.assert_close(value, before[key], rtol=0, atol=0, equal_nan=True, msg=key)
    assert adapter.cost.skipped == skipped + 1
    assert not bool(adapter.last.learned)


@pytest.mark.parametrize("name", NAMES)
def test_documented_and_registered(name: str) -> None:
    cls = dict(zip(NAMES, TITLES, strict=True))[name]
    method = getattr(wildtta, cls)()
    assert name in wildtta.methods()
    assert "arxiv.org/abs/" in method.paper
    assert "github.com/" in (type(method).__doc__ or "")
    for family in ("convolutional", "transformer"):
        at_one, at_sixty_four = method.learning_rates[family]
        assert 0 < at_one < at_sixty_four
