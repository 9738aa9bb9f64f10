"""A fast laboratory: adapts K copies of one network on K streams at once, in plain torch.

The convolutions and linear layers are shared; every copy has its own affine norm parameters (one row of θ [K, P]),
its own BatchNorm estimates and its own state, so that one forward and one backward pass serve K cells (a cell is a
rule on a stream). Rules are numbers in :class:`Rule`; cells with the same batch size and number of passes run
together.

    results = run(network, "gn64", pool, [Cell(rule, stream), …])
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from networks import head_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from train import normalised

from streams import Pool, Stream

INF = math.inf


@dataclass(frozen=True)
class Rule:
    """What one cell does. The first part is the library's (0.1), the second what this study tries."""

    name: str
    conv_rate: tuple[float, float] = (0.0, 0.0)
    """Learning rate at batch sizes 1 and 64, linear between; this for convolutional networks."""
    transformer_rate: tuple[float, float] = (0.0, 0.0)
    entropy: float = 0.0
    """Weight of the mean entropy of the selected samples."""
    reliable: float = INF
    """Samples with an entropy below this times ln C are selected."""
    redundancy: float = 0.0
    """Weight of R in units of 1/D."""
    inequity: float = 0.0
    momentum: float = 0.9
    bound: float = INF
    """Longest gradient, in units of the norm of the source weights."""
    pull: float = 0.0
    """Share of the way back to the source after 64 samples."""
    class_cap: float = INF
    """Most that one predicted class weighs in the entropy term, in units of 1/C, at most 0.3."""
    recovery: float = 0.0
    sharpness: float = 0.0
    below_top: bool = False
    batch_statistics: bool = True
    """BatchNorm by the batch's statistics; otherwise by the estimate of ``bn_prior`` and ``bn_window``."""
    predictor: float = 0.0
    """ZeroSiam: weight of its loss (entropy and alignment); 0: no predictor."""
    predictor_conv: float = 10.0
    """The predictor's learning rate as a multiple of the norms'."""
    predictor_transformer: float = 1.0

    # What the study tries.
    bn_prior: float = INF
    """Samples that the source's statistics are worth; inf: they stay."""
    bn_depth: float = 0.0
    """The stream's share in a BatchNorm layer's statistics falls as (1 − depth)^this from the first layer to the last."""
    bn_window: float = 1_000.0
    """Samples after which what was seen of the stream counts 1/e."""
    centred: float = 0.0
    """1: the entropy's gradient with respect to the logits, less its mean over batch and recent samples."""
    centre_window: float = 256.0
    recentre: float = 0.0
    """Answers' logits less this times those of the mean feature (NEO); its own mean over ``recentre_window``."""
    recentre_window: float = 1_000.0
    recentre_bank: bool = False
    """The mean of the class centroids in place of the mean of the samples."""
    gate: float = 0.0
    """Entropy that recentring may cost, in units of ln C: trust is 1 up to a quarter of this, 0 from this on."""
    evidence: bool = False
    """Trust by what recentring costs the last samples and by how many classes the bank has really seen: steady 0.2."""
    cost_limits: tuple[float, float] = (0.02, 0.08)
    error_limits: tuple[float, float] = (0.1, 0.2)
    """Between these sampling errors of the rows' mean, trust in it falls from 1 to 0."""
    dominance_power: float = 1.5
    error_weight: float = 1.5
    smallest_shift: float = 0.25
    recentre_rows: float = 0.0
    """Share of the rows' mean that is taken from the answers where the rows speak louder than the last samples."""
    hold: float = 0.0
    """Samples over which the strength of a step is held (0: not)."""
    boost: float = 2.0
    """Steps are scaled by the strength of the evidence times this, at most 1."""
    binary: bool = False
    """Trust as it is also with two classes; otherwise times (C − 2)/(C − 1)."""
    gate_step: bool = False
    """Steps scaled by that trust."""
    least_shift: float = 0.0
    """Recentring shrinks to nothing where the mean logits are shorter than this times the spread about them."""
    choose: float = INF
    """Answer with the source unless the adapted network's recent entropy is lower by this times ln C."""
    relative_terms: bool = False
    """R and I as ln(R) and ln(ln C - H + 0.01) would have it: divided by their present value."""
    excess: bool = False
    """R less its least value for N rows in D dimensions, (D/(N−1) − 1), not below 0."""
    rest: float = 0.0
    """Scale of the gradient from the first ``rest`` batches; the step is the gradient over that scale (no bound)."""
    step: float = 0.0
    """With ``rest``: length of a step of that scale, in units of the source's norm, per 64 samples."""
    trust: float = INF
    """Longest distance from the source weights, in units of their norm."""
    blend: float = 0.0
    """Weight of the source's log-probabilities in the answer (costs a forward pass)."""
    relative_reliable: float = 0.0
    """Select samples below this quantile of the recent entropies (0: off)."""
    spread: float = 0.0
    """The step times (effective classes of the last samples / of all recent ones) to this power."""
    source_divergence: float = 0.0
    """Weight of KL(source ‖ adapted) on the same batch (costs a forward pass)."""

    @property
    def learns(self) -> bool:
        return any((self.entropy, self.redundancy, self.inequity, self.predictor, self.source_divergence))

    def rate(self, transformer: bool, batch: int) -> float:
        at_one, at_sixty_four = self.transformer_rate if transformer else self.conv_rate
        return at_one + (at_sixty_four - at_one) * min(1.0, (batch - 1) / 63)


@dataclass(frozen=True)
class Cell:
    rule: Rule
    stream: Stream


class StreamNorm(nn.Module):
    """A norm layer whose affine parameters, and for BatchNorm also the statistics, differ from copy to copy."""

    def __init__(self, norm: nn.Module, place: int, owner: Copies) -> None:
        super().__init__()
        self.norm = norm
        self.place = place
        self.owner = [owner]

    def forward(self, x: Tensor) -> Tensor:
        owner = self.owner[0]
        weight, bias = owner.affine[self.place]
        copies, channels = weight.shape
        norm = self.norm
        if isinstance(norm, nn.LayerNorm):
            plain = F.layer_norm(x, norm.normalized_shape, eps=norm.eps)
            shape = (copies, 1, *[1] * (x.dim() - 2), channels)
        else:
            shape = (copies, 1, channels, *[1] * (x.dim() - 2))
            if isinstance(norm, nn.GroupNorm):
                plain = F.group_norm(x, norm.num_groups, eps=norm.eps)
            else:
                mean, variance = owner.statistics(self.place, norm, x.reshape(copies, -1, *x.shape[1:]))
                weight = weight * (variance + norm.eps).rsqrt()
                bias = bias - mean * weight
                plain = x
        scaled = torch.addcmul(bias.view(shape), plain.reshape(copies, -1, *x.shape[1:]), weight.view(shape))
        return scaled.reshape(x.shape)


class Copies:
    """K copies of a network that share everything but their norms."""

    def __init__(self, network: nn.Module, transformer: bool, device: str) -> None:
        self.network = network.to(device).eval().requires_grad_(False)
        self.transformer = transformer
        self.device = device
        head = head_of(network)
        self.head_weight, self.head_bias = head.weight.detach(), head.bias.detach()
        self.classes, self.width = self.head_weight.shape
        setattr(self.network, "head" if hasattr(self.network, "head") else "fc", nn.Identity())
        top = top_names(network)
        self.sizes: list[int] = []
        pieces, below, self.batch_norms = [], [], []
        norms = [(n, m) for n, m in network.named_modules() if isinstance(m, nn.LayerNorm | nn.GroupNorm | _BatchNorm)]
        for place, (name, norm) in enumerate(norms):
            pieces += [norm.weight.detach(), norm.bias.detach()]
            self.sizes += [norm.weight.numel()] * 2
            below.append(torch.full((2 * norm.weight.numel(),), not name.startswith(top)))
            if isinstance(norm, _BatchNorm):
                self.batch_norms.append(place)
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, StreamNorm(norm, place, self))
        self.source = torch.cat(pieces).to(device)
        self.below = torch.cat(below).to(device)
        self.affine: list[tuple[Tensor, Tensor]] = []

    def begin(self, rules: Sequence[Rule], batch: int) -> None:
        """BatchNorm state of K copies: moments of the stream, and how many samples they are worth."""
        number = len(rules)
        self.use_batch = torch.tensor([float(r.batch_statistics) for r in rules], device=self.device)[:, None]
        self.prior = torch.tensor([r.bn_prior for r in rules], device=self.device)[:, None]
        self.depth = torch.tensor([r.bn_depth for r in rules], device=self.device)[:, None]
        self.keep = torch.tensor([math.exp(-batch / r.bn_window) for r in rules], device=self.device)[:, None]
        self.seen = torch.zeros(number, 1, device=self.device)
        self.seen_now = self.seen
        self.batch = batch
        self.moments: dict[int, tuple[Tensor, Tensor]] = {}
        self.fresh: dict[int, tuple[Tensor, Tensor]] = {}
        self.estimates = any(not r.batch_statistics and r.bn_prior < INF for r in rules)

    def statistics(self, place: int, norm: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance [K, C] that BatchNorm number ``place`` normalises ``x`` [K, B, C, …] by."""
        over = (1, *range(3, x.dim()))
        mean_source, var_source = norm.running_mean, norm.running_var
        assert mean_source is not None
        assert var_source is not None
        if not self.estimates and not self.any_batch:
            return mean_source.expand(len(x), -1), var_source.expand(len(x), -1)
        mean, square = x.mean(over[1:]), x.square().mean(over[1:])
        mean, square = mean.mean(1), square.mean(1)
        var = (square - mean.square()).clamp(min=0)
        use_mean, use_var = mean_source, var_source
        if self.estimates:
            first, second = mean.detach(), (var + mean.square()).detach()
            old = self.moments.get(place)
            if old is None:
                sums = (self.batch * first, self.batch * second)
            else:
                sums = (self.keep * old[0] + self.batch * first, self.keep * old[1] + self.batch * second)
            self.fresh[place] = sums
            self.seen_now = self.keep * self.seen + self.batch
            share = self.seen_now / (self.seen_now + self.prior)
            above = 1 - self.batch_norms.index(place) / len(self.batch_norms)
            share = share * above**self.depth
            stream_mean = sums[0] / self.seen_now
            stream_var = (sums[1] / self.seen_now - stream_mean.square()).clamp(min=0)
            use_mean = mean_source + share * (stream_mean - mean_source)
            use_var = var_source + share * (stream_var - var_source)
        w = self.use_batch
        return w * mean + (1 - w) * use_mean, w * var + (1 - w) * use_var

    def remember(self) -> None:
        """Keep what the last forward pass saw of the stream."""
        if self.estimates:
            self.moments, self.seen = self.fresh, self.seen_now
            self.fresh = {}

    def forward(self, theta: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features [K, B, D] and logits [K, B, C] of images [K, B, …] under θ [K, P]."""
        pieces = theta.split(self.sizes, 1)
        self.affine = list(zip(pieces[::2], pieces[1::2], strict=True))
        flat = self.network(images.flatten(0, 1))
        features = flat.reshape(*images.shape[:2], -1)
        return features, features @ self.head_weight.T + self.head_bias


def top_names(network: nn.Module) -> tuple[str, ...]:
    """Names of the norms that SAR leaves alone begin so: the last stage, or the last quarter of the blocks."""
    if hasattr(network, "blocks"):
        depth = len(network.blocks)
        return (*(f"blocks.{n}." for n in range(depth - max(1, depth // 4), depth)), "norm")
    return ("layer4.",) if hasattr(network, "layer4") else ("layer3.",)


def entropy(logits: Tensor) -> Tensor:
    log = F.log_softmax(logits, -1)
    return -(log.exp() * log).sum(-1)


def redundancy(rows: Tensor, filled: Tensor) -> Tensor:
    """R of the filled rows of each copy, [K, N, D] and [K, N] to [K]: the column form, through the N×N Gram matrix."""
    here = filled.to(rows.dtype)[..., None]
    count = here.sum(1).clamp(min=1)
    centred = (rows - (rows * here).sum(1, keepdim=True) / count[:, None]) * here
    variance = centred.square().sum(1) / count
    dead = variance.detach() <= 1e-10 * variance.detach().mean(1, keepdim=True) + 1e-12
    z = centred * variance.masked_fill(dead, 1.0).rsqrt().masked_fill(dead, 0.0)[:, None]
    gram = z @ z.transpose(1, 2) / count[:, None]
    alive = (~dead).sum(1).to(rows.dtype)
    return (gram.square().sum((1, 2)) - alive) / (rows.shape[2] - 1)


def column(rules: Sequence[Rule], name: str, device: str) -> Tensor:
    return torch.tensor([float(getattr(rule, name)) for rule in rules], device=device)


class Stacked:
    """The numbers of K rules as tensors [K]: ``o.pull``; ``o.any("pull")``: one of them is not the default."""

    def __init__(self, rules: Sequence[Rule], device: str) -> None:
        self.rules = rules
        for item in fields(Rule):
            if item.name not in ("name", "conv_rate", "transformer_rate", "cost_limits", "error_limits"):
                setattr(self, item.name, column(rules, item.name, device))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def any(self, name: str) -> bool:
        default = next(item.default for item in fields(Rule) if item.name == name)
        return any(getattr(rule, name) != default for rule in self.rules)


class Group:
    """K cells in step: their state, and one step of all of them."""

    def __init__(self, copies: Copies, rules: Sequence[Rule], batch: int) -> None:
        self.copies, self.batch = copies, batch
        device, number = copies.device, len(rules)
        classes, width = copies.classes, copies.width
        self.o = o = Stacked(rules, device)
        self.learns = any(rule.learns for rule in rules)
        copies.begin(rules, batch)
        copies.any_batch = bool(copies.batch_norms) and any(r.batch_statistics for r in rules)
        self.theta = copies.source.repeat(number, 1)
        self.scope = torch.where(o.below_top[:, None] > 0, copies.below.float(), torch.ones_like(copies.source))
        self.source_norm = (self.scope * copies.source).norm(dim=1)
        self.rate = torch.tensor([r.rate(copies.transformer, batch) for r in rules], device=device)
        self.velocity = torch.zeros_like(self.theta)
        self.rows = torch.zeros(number, classes, width, device=device)
        self.filled = torch.zeros(number, classes, dtype=torch.bool, device=device)
        self.shares = torch.full((number, classes), 1 / classes, device=device)
        self.moving = torch.full((number,), math.nan, device=device)
        self.resets = torch.zeros(number, device=device)
        self.steps = 0
        self.mean_pull = torch.zeros(number, classes, device=device)
        self.mean_pull_weight = torch.zeros(number, 1, device=device)
        self.feature_sum = torch.zeros(number, width, device=device)
        self.feature_weight = torch.zeros(number, 1, device=device)
        self.feature_count = torch.zeros(number, 1, device=device)
        self.scale_sum = torch.zeros(number, device=device)
        self.scale_count = torch.zeros(number, device=device)
        self.quantile = torch.full((number,), 0.5 * math.log(classes), device=device)
        self.recent = torch.full((number, classes), 1 / classes, device=device)
        self.effective_now = self.effective_all = torch.full((number,), float(classes), device=device)
        self.trust = torch.ones(number, device=device)
        self.ring = torch.zeros(number, 0, classes, device=device)
        self.spread_sum = torch.zeros(number, 1, device=device)
        self.logit_sum = torch.zeros(number, classes, device=device)
        self.advantage = torch.zeros(number, device=device)
        self.dom_rows = torch.zeros(number, classes, classes, device=device) if o.any("evidence") else None
        self.dom_weight = torch.zeros(number, classes, device=device)
        self.cost_limits = torch.tensor([r.cost_limits for r in rules], device=device).T
        self.error_limits = torch.tensor([r.error_limits for r in rules], device=device).T
        self.cost_trust = torch.zeros(number, device=device)
        self.held = torch.zeros(number, device=device)
        self.mean_sum = torch.zeros(number, classes, device=device)
        self.mean_spread = torch.zeros(number, device=device)
        self.mean_weight = torch.zeros(number, device=device)
        self.strength_sum = torch.zeros(number, device=device)
        self.zeta = min(max(10, classes // 10), classes // 2)
        if o.any("predictor"):
            self.predictor = torch.eye(width, device=device).repeat(number, 1, 1)
            self.predictor_velocity = torch.zeros_like(self.predictor)
            multiple = o.predictor_transformer if copies.transformer else o.predictor_conv
            self.predictor_rate = self.rate * multiple * (o.predictor > 0)

    # -- terms -------------------------------------------------------------------------------------------------------

    def live(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of C^t [K, C, D] and which are filled: live centroids of this batch's classes, stored ones elsewhere."""
        member = F.one_hot(labels, self.copies.classes).to(features.dtype)
        counts = member.sum(1)
        centroids = member.transpose(1, 2) @ features / counts.clamp(min=1)[..., None]
        present = counts > 0
        return torch.where(present[..., None], centroids, self.rows), self.filled | present

    def sample_weights(self, logits: Tensor, labels: Tensor, ent: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [K, B] of the entropy term, over the number selected, and the selection."""
        o = self.o
        limit = o.reliable * math.log(self.copies.classes)
        if o.any("relative_reliable"):
            limit = torch.where(o.relative_reliable > 0, self.quantile, limit)
        selected = ent.detach() < limit[:, None]
        weights = selected.float()
        if o.any("class_cap"):
            cap = (o.class_cap / self.copies.classes).clamp(max=0.3)
            cap = torch.where(o.class_cap < INF, cap, torch.full_like(cap, INF))
            weights = weights * (cap[:, None] / self.shares.gather(1, labels)).clamp(max=1.0)
        return weights / selected.sum(1, keepdim=True).clamp(min=1), selected

    def loss(self, features: Tensor, logits: Tensor, labels: Tensor, source_log: Tensor | None) -> dict[str, Tensor]:
        """The loss [K] and what is needed of its parts."""
        o, copies = self.o, self.copies
        ent = entropy(logits)
        weights, selected = self.sample_weights(logits, labels, ent)
        mean = (weights * ent).sum(1)
        out = {"selected": selected, "entropy": (selected * ent).sum(1) / selected.sum(1).clamp(min=1)}
        total = o.entropy * mean
        if o.any("centred"):
            total = torch.where(o.centred > 0, o.entropy * self.centred_entropy(logits, weights), total)
        if o.any("redundancy") or o.any("inequity"):
            rows, filled = self.live(features, labels)
            out["warm"] = filled.sum(1) >= self.zeta
            reg = torch.zeros_like(total)
            if o.any("redundancy"):
                red = redundancy(rows, filled)
                out["redundancy"] = red.detach()
                if o.any("excess"):
                    least = (copies.width / (filled.sum(1) - 1).clamp(min=1) - 1).clamp(min=0)
                    red = torch.where(o.excess > 0, (red - 1.1 * least).clamp(min=0), red)
                scale = torch.where(o.relative_terms > 0, 1 / red.detach().clamp(min=1e-3), 1 / copies.width)
                reg = reg + o.redundancy * scale * red
            if o.any("inequity"):
                here = filled.float()[..., None]
                centre = (rows * here).sum(1) / here.sum(1).clamp(min=1)
                ine = math.log(copies.classes) - entropy(centre @ copies.head_weight.T + copies.head_bias)
                out["inequity"] = ine.detach()
                scale = torch.where(o.relative_terms > 0, 1 / (ine.detach() + 0.05), 1.0)
                reg = reg + o.inequity * scale * ine
            total = total + reg
        if o.any("predictor"):
            siam = self.siamese(features, logits, self.predictor)
            total = total + o.predictor * (weights * siam).sum(1)
        if source_log is not None and o.any("source_divergence"):
            log = F.log_softmax(logits, -1)
            total = total + o.source_divergence * (source_log.exp() * (source_log - log)).sum(-1).mean(1)
        out["loss"] = total
        return out

    def centred_entropy(self, logits: Tensor, weights: Tensor) -> Tensor:
        """A loss whose gradient to the logits is the entropy's less its mean: it moves no class as a whole."""
        with torch.no_grad():
            log = F.log_softmax(logits, -1)
            p = log.exp()
            pull = -p * (log - (p * log).sum(-1, keepdim=True))
            pull = pull * weights[..., None]
            mean = pull.sum(1)
            keep = torch.exp(-self.batch / self.o.centre_window)[:, None]
            total = keep * self.mean_pull * self.mean_pull_weight + mean
            weight = keep * self.mean_pull_weight + 1
            self.next_pull = (total / weight, weight)
            pull = (
                pull - (total / weight)[:, None] * (weights / weights.sum(1, keepdim=True).clamp(min=1e-9))[..., None]
            )
        return (pull * logits).sum((1, 2))

    def siamese(self, features: Tensor, logits: Tensor, predictor: Tensor) -> Tensor:
        online = features @ predictor.transpose(1, 2) @ self.copies.head_weight.T + self.copies.head_bias
        log_online, log_target = F.log_softmax(online, -1), F.log_softmax(logits.detach(), -1)
        divergence = ((log_online.exp() - log_target.exp()) * (log_online - log_target)).sum(-1)
        return entropy(online) + divergence

    # -- one step ----------------------------------------------------------------------------------------------------

    def step(self, images: Tensor, source_log: Tensor | None) -> Tensor:
        """Answers [K, B] to images [K, B, 3, S, S] from before the update; then learn."""
        o, copies = self.o, self.copies
        if not self.learns:
            with torch.no_grad():
                features, logits = copies.forward(self.theta, images)
                copies.remember()
                self.weigh_evidence(logits)
                answers = self.answer(features, logits, source_log)
                self.keep_state(features, logits, logits.argmax(-1))
            return answers
        theta = self.theta.requires_grad_()
        features, logits = copies.forward(theta, images)
        labels = logits.detach().argmax(-1)
        parts = self.loss(features, logits, labels, source_log)
        (gradient,) = torch.autograd.grad(parts["loss"].sum(), theta)
        gradient = gradient * self.scope
        copies.remember()
        features, logits, theta = features.detach(), logits.detach(), theta.detach()
        last = parts
        if o.any("sharpness"):
            length = gradient.norm(dim=1, keepdim=True)
            moved = (theta + o.sharpness[:, None] * gradient / (length + 1e-12)).requires_grad_()
            again_features, again_logits = copies.forward(moved, images)
            limit = o.reliable
            last = self.second_loss(again_features, again_logits, labels, parts["selected"], limit)
            (gradient,) = torch.autograd.grad(last["loss"].sum(), moved)
            gradient = gradient * self.scope
        with torch.no_grad():
            self.weigh_evidence(logits)
            answers = self.answer(features, logits, source_log)
            self.update(theta, gradient, parts, last)
            self.keep_state(features, logits, labels)
        return answers

    def second_loss(
        self, features: Tensor, logits: Tensor, labels: Tensor, selected: Tensor, limit: Tensor
    ) -> dict[str, Tensor]:
        """The loss at the perturbed weights: first pass's labels, samples still below the limit."""
        o = self.o
        ent = entropy(logits)
        still = selected & (ent.detach() < (limit * math.log(self.copies.classes))[:, None])
        weights = still.float()
        if o.any("class_cap"):
            cap = (o.class_cap / self.copies.classes).clamp(max=0.3)
            cap = torch.where(o.class_cap < INF, cap, torch.full_like(cap, INF))
            weights = weights * (cap[:, None] / self.shares.gather(1, labels)).clamp(max=1.0)
        count = still.sum(1).clamp(min=1)
        out = {"selected": still, "entropy": (still * ent).sum(1) / count}
        total = o.entropy * (weights * ent).sum(1) / count
        if o.any("redundancy") or o.any("inequity"):
            rows, filled = self.live(features, labels)
            total = total + o.redundancy / self.copies.width * redundancy(rows, filled)
            here = filled.float()[..., None]
            centre = (rows * here).sum(1) / here.sum(1).clamp(min=1)
            logits = centre @ self.copies.head_weight.T + self.copies.head_bias
            total = total + o.inequity * (math.log(self.copies.classes) - entropy(logits))
        out["loss"] = total
        return out

    def update(self, theta: Tensor, gradient: Tensor, parts: dict[str, Tensor], last: dict[str, Tensor]) -> None:
        o, copies = self.o, self.copies
        gradient = torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
        length = gradient.norm(dim=1)
        limit = torch.where(o.bound < INF, o.bound * self.source_norm, torch.full_like(length, INF))
        gradient = gradient * (limit / (length + 1e-6)).clamp(max=1.0)[:, None]
        rate = self.rate
        learns = parts.get("warm", torch.ones_like(length, dtype=torch.bool))
        learns = learns | ((o.redundancy == 0) & (o.inequity == 0))
        if o.any("rest"):
            measuring = (self.scale_count < o.rest) & learns & (length > 0)
            self.scale_sum += length * measuring
            self.scale_count += measuring.float()
            scale = self.scale_sum / self.scale_count.clamp(min=1)
            relative = o.step * self.source_norm / scale.clamp(min=1e-8) * (self.batch / 64)
            # A gradient far above the first ones is cut to twice their length.
            relative = relative * (2 * scale / length.clamp(min=1e-8)).clamp(max=1.0)
            rate = torch.where(o.rest > 0, relative * (self.scale_count > 0), rate)
        if o.any("gate_step"):
            rate = torch.where(o.gate_step > 0, rate * self.trust, rate)
        if o.any("spread"):
            effective = self.effective_now / self.effective_all.clamp(min=1)
            rate = rate * effective.clamp(max=1.0) ** o.spread
        velocity = o.momentum[:, None] * self.velocity + gradient
        moved = theta - rate[:, None] * velocity
        kept = ((1 - o.pull) ** (self.batch / 64))[:, None]
        moved = kept * moved + (1 - kept) * copies.source
        if o.any("trust"):
            away = moved - copies.source
            short = (o.trust * self.source_norm / away.norm(dim=1).clamp(min=1e-9)).clamp(max=1.0)
            moved = copies.source + away * short[:, None]
        sound = learns & torch.isfinite(moved).all(1)
        self.theta = torch.where(sound[:, None], moved, theta)
        self.velocity = torch.where(sound[:, None], velocity, self.velocity)
        if o.any("recovery"):
            happened = sound & (last["selected"].sum(1) > 0)
            value = last["entropy"].detach()
            fresh = torch.where(self.moving.isnan(), value, 0.9 * self.moving + 0.1 * value)
            self.moving = torch.where(happened, fresh, self.moving)
            trigger = self.moving < o.recovery
            self.theta = torch.where(trigger[:, None], copies.source, self.theta)
            self.velocity = self.velocity * ~trigger[:, None]
            self.moving = torch.where(trigger, torch.full_like(self.moving, math.nan), self.moving)
            self.trigger = trigger
            self.resets += trigger

    def keep_state(self, features: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Bank (λ = 0.9), class shares, means and quantiles for the next batch; the predictor's own step."""
        o, copies = self.o, self.copies
        member = F.one_hot(labels, copies.classes).float()
        counts = member.sum(1)
        centroids = member.transpose(1, 2) @ features / counts.clamp(min=1)[..., None]
        present = counts > 0
        fresh = torch.where(self.filled[..., None], self.rows.lerp(centroids, 0.9), centroids)
        self.rows = torch.where(present[..., None], fresh, self.rows)
        self.filled = self.filled | present
        keep = math.exp(-self.batch / max(1000, 5 * copies.classes))
        self.shares = keep * self.shares + (1 - keep) * counts / self.batch
        if o.any("recovery"):
            self.filled = self.filled & ~self.trigger[:, None]
            self.shares = torch.where(
                self.trigger[:, None], torch.full_like(self.shares, 1 / copies.classes), self.shares
            )
        if o.any("centred"):
            self.mean_pull, self.mean_pull_weight = self.next_pull
        if o.any("relative_reliable"):
            ent = entropy(logits)
            q = torch.stack([row.quantile(v) for row, v in zip(ent, o.relative_reliable, strict=True)])
            self.quantile = q if self.steps == 0 else 0.9 * self.quantile + 0.1 * q
        if o.any("spread"):
            now = logits.softmax(-1).mean(1)
            short = math.exp(-self.batch / 64)
            self.recent = short * self.recent + (1 - short) * now
            self.effective_now, self.effective_all = entropy_of(self.recent).exp(), entropy_of(self.shares).exp()
        if o.any("predictor"):
            with torch.enable_grad():
                predictor = self.predictor.requires_grad_()
                loss = self.siamese(features, logits, predictor).mean(1)
                (gradient,) = torch.autograd.grad(loss.sum(), predictor)
            self.predictor_velocity = o.momentum[:, None, None] * self.predictor_velocity + gradient
            step = self.predictor_rate[:, None, None] * self.predictor_velocity
            self.predictor = self.predictor.detach() - step
            if o.any("pull"):
                kept = ((1 - o.pull) ** (self.batch / 64))[:, None, None]
                self.predictor = kept * self.predictor + (1 - kept) * torch.eye(copies.width, device=copies.device)
        self.steps += 1

    def weigh_evidence(self, logits: Tensor) -> None:
        """Trust in [0, 1] that the mean logits of the last 64 samples are a shift and not their classes.

        Recentring removes what the samples share. If that was a shift, they remain as certain as before; if they
        were of one class, what made them certain is gone.
        """
        o = self.o
        if o.any("evidence"):
            self.weigh_rows(logits)
            return
        if not o.any("gate"):
            return
        self.ring = torch.cat((self.ring, logits), 1)[:, -max(64, self.batch) :]
        mean = self.ring.mean(1, keepdim=True)
        cost = (entropy(self.ring - mean) - entropy(self.ring)).mean(1) / math.log(self.copies.classes)
        trust = ((o.gate - cost) / (0.75 * o.gate).clamp(min=1e-6)).clamp(0, 1)
        self.trust = torch.where(o.gate > 0, trust, torch.ones_like(trust)) * float(self.ring.shape[1] >= 16)

    def weigh_rows(self, logits: Tensor) -> None:
        """Strength in [0, 1] and the shift to take away [K, C]; see FINDINGS.md."""
        o, classes, batch = self.o, self.copies.classes, self.batch
        flat = logits - logits.mean(-1, keepdim=True)
        self.ring = torch.cat((self.ring, flat), 1)[:, -max(64, batch) :]
        labels = flat.argmax(-1)
        member = F.one_hot(labels, classes).to(flat.dtype)
        counts = member.sum(1)
        recent = F.one_hot(self.ring.argmax(-1), classes).to(flat.dtype).sum(1)
        dominance = (recent / recent.amax(1, keepdim=True).clamp(min=1)) ** o.dominance_power[:, None]
        centroids = member.transpose(1, 2) @ flat / counts.clamp(min=1)[..., None]
        weight = self.dom_weight * math.exp(-batch / 2000)
        new = counts * dominance
        share = new / (new + 4 * weight).clamp(min=1e-9)
        self.dom_rows = self.dom_rows + share[..., None] * (centroids - self.dom_rows)
        self.dom_weight = weight = torch.where(counts > 0, torch.maximum(weight, dominance), weight)
        total = weight.sum(1).clamp(min=1e-9)
        centre = (weight[..., None] * self.dom_rows).sum(1) / total[:, None]
        seen = total.square() / weight.square().sum(1).clamp(min=1e-9)
        spread = (weight * (self.dom_rows - centre[:, None]).square().sum(-1)).sum(1) / total
        error = ((1 - seen / classes).clamp(min=0) / seen.clamp(min=1e-9)).sqrt()
        identified = torch.where(o.binary > 0, 1.0, (classes - 2) / (classes - 1))
        trust_rows = identified * falling(error, self.error_limits)
        doubt = (o.error_weight * error).square() + o.smallest_shift.square()
        rows = trust_rows * (1 - doubt * spread / centre.square().sum(1).clamp(min=1e-9)).clamp(min=0)
        mean = self.ring.mean(1, keepdim=True)
        scale = math.sqrt(2 * math.log(classes)) / (self.ring.square().sum(-1).mean(1) / classes).sqrt().clamp(min=1e-9)
        scaled = self.ring * scale[:, None, None]
        cost = (entropy(self.ring - mean) - entropy(self.ring)).mean(1)
        even = (entropy(scaled - scaled.mean(1, keepdim=True)) - entropy(scaled)).mean(1)
        cost = torch.maximum(cost, even) / math.log(classes)
        now = identified * falling(cost, self.cost_limits) * float(self.ring.shape[1] >= 64)
        self.cost_trust = trust = torch.minimum(now, self.cost_trust + batch / 256)
        keep = math.exp(-batch / 1000)
        self.mean_sum = keep * self.mean_sum + trust[:, None] * flat.sum(1)
        about = (self.ring - mean).square().sum(-1).mean(1)
        self.mean_spread = keep * self.mean_spread + trust * batch * about
        self.mean_weight = keep * self.mean_weight + trust * batch
        known = self.mean_weight.clamp(min=1e-6)
        average = self.mean_sum / known[:, None]
        clear = 1 - o.smallest_shift.square() * self.mean_spread / known / average.square().sum(1).clamp(min=1e-9)
        recent_strength = trust * clear.clamp(min=0) * self.mean_weight / (self.mean_weight + 32)
        by_rows = rows > recent_strength
        self.strength = torch.maximum(rows, recent_strength)
        self.strength_sum += self.strength
        part = (o.recentre_rows * rows)[:, None] * centre
        self.shift = torch.where(by_rows[:, None], part, recent_strength[:, None] * average)
        clear_rows = (1 - doubt * spread / centre.square().sum(1).clamp(min=1e-9)).clamp(min=0)
        fade = torch.where(o.hold > 0, torch.exp(-batch / o.hold.clamp(min=1)), torch.zeros_like(o.hold))
        self.held = torch.maximum(torch.maximum(clear_rows * trust_rows.sign(), recent_strength), fade * self.held)
        trusted = torch.maximum(trust_rows, trust)
        self.trust = (torch.where(o.hold > 0, trusted * self.held, self.strength) * o.boost).clamp(max=1)

    def evident_centre(self, logits: Tensor) -> Tensor:
        """The mean logits of the stream [K, C], each batch by its trust, shrunk where they are short."""
        o = self.o
        keep = torch.exp(-self.batch / o.recentre_window)[:, None]
        flat = logits - logits.mean(-1, keepdim=True)
        weight = self.trust[:, None] * self.batch
        spread = (
            (flat - flat.mean(1, keepdim=True)) if self.batch >= 16 else self.ring - self.ring.mean(1, keepdim=True)
        )
        self.logit_sum = keep * self.logit_sum + weight * flat.mean(1)
        self.spread_sum = keep * self.spread_sum + weight * spread.square().sum(-1).mean(1)[:, None]
        self.feature_weight = keep * self.feature_weight + weight
        known = self.feature_weight.clamp(min=1e-6)
        centre, spread = self.logit_sum / known, self.spread_sum / known
        size = centre.square().sum(1, keepdim=True).clamp(min=1e-9)
        shrink = (1 - o.least_shift[:, None].square() * spread / size).clamp(min=0)
        return centre * shrink * self.feature_weight / (self.feature_weight + 32)

    def answer(self, features: Tensor, logits: Tensor, source_log: Tensor | None) -> Tensor:
        """Predicted classes [K, B], recentred or blended with the source's where the rule says so."""
        o, copies = self.o, self.copies
        if o.any("recentre"):
            keep = torch.exp(-self.batch / o.recentre_window)[:, None]
            self.feature_sum = keep * self.feature_sum + features.sum(1)
            self.feature_count = keep * self.feature_count + self.batch
            centre = self.feature_sum / self.feature_count
            if o.any("recentre_bank"):
                here = self.filled.float()[..., None]
                rows = (self.rows * here).sum(1) / here.sum(1).clamp(min=1)
                ready = (o.recentre_bank > 0) & (self.filled.sum(1) >= self.zeta)
                centre = torch.where(ready[:, None], rows, centre)
                centre = centre * (ready | (o.recentre_bank == 0))[:, None]
            moved = centre @ copies.head_weight.T
            if o.any("evidence"):
                moved = torch.where(o.evidence[:, None] > 0, self.shift, moved)
            if o.any("gate"):
                evident = self.evident_centre(logits)
                moved = torch.where(o.gate[:, None] > 0, evident, moved)
            logits = logits - (o.recentre[:, None] * moved)[:, None]
        if o.any("blend") and source_log is not None:
            w = o.blend[:, None, None]
            logits = (1 - w) * F.log_softmax(logits, -1) + w * source_log
        if o.any("choose") and source_log is not None:
            keep = math.exp(-self.batch / 64)
            gain = (entropy(source_log) - entropy(logits)).mean(1) / math.log(copies.classes)
            self.advantage = keep * self.advantage + (1 - keep) * gain
            worse = (o.choose < INF) & (self.advantage < o.choose)
            logits = torch.where(worse[:, None, None], source_log, logits)
        return logits.argmax(-1)


def falling(value: Tensor, limits: Tensor) -> Tensor:
    """1 up to the first limit, 0 from the second on, a straight line between; all [K]."""
    return ((limits[1] - value) / (limits[1] - limits[0])).clamp(0, 1)


def entropy_of(probabilities: Tensor) -> Tensor:
    return -(probabilities * probabilities.clamp(min=1e-12).log()).sum(-1)


@dataclass
class Result:
    """One cell's outcome: accuracies in percent, shares in percent of the last fifth."""

    network: str
    rule: str
    stream: str
    scenario: str
    batch: int
    images: int
    accuracy: float
    none: float
    late: float
    late_none: float
    top: float
    top_none: float
    top_true: float
    moved: float
    resets: float
    strength: float = 0.0


def source_outputs(copies: Copies, pool: Pool) -> Tensor:
    """Log-probabilities of the unadapted network for every image of every domain, [domains, N, C]."""
    copies.begin([NONE], 1)
    copies.any_batch = False
    out = []
    with torch.no_grad():
        for layer in pool.pixels:
            pieces = [copies.forward(copies.source[None], normalised(x)[None])[1][0] for x in layer.split(500)]
            out.append(F.log_softmax(torch.cat(pieces), -1))
    return torch.stack(out)


def share_of_top(labels: Tensor, classes: int) -> float:
    return float(torch.bincount(labels, minlength=classes).max()) / len(labels) * 100


def run(
    copies: Copies, name: str, pool: Pool, cells: Sequence[Cell], *, most: int = 3_072, deadline: float = INF
) -> list[Result]:
    """Run all cells, as many at once as ``most`` images allow; no group starts after ``deadline``."""
    device = copies.device
    source = source_outputs(copies, pool)
    labels = pool.labels.to(device)
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        r = cell.rule
        kind = (r.learns, r.sharpness > 0, r.predictor > 0, r.batch_statistics)
        key = (cell.stream.batch, len(cell.stream.images), *kind)
        groups.setdefault(key, []).append(cell)
    results = []
    for (batch, length, *_), members in sorted(groups.items(), key=lambda item: len(item[1])):
        width = max(1, min(most // batch, 512))
        for start in range(0, len(members), width):
            if time.time() > deadline:
                print(f"{name}: stopped with {len(members) - start} cells of batch size {batch} left", flush=True)
                break
            some = members[start : start + width]
            begun = time.time()
            group = Group(copies, [cell.rule for cell in some], batch)
            where = torch.from_numpy(np.stack([cell.stream.domains for cell in some])).to(device)
            which = torch.from_numpy(np.stack([cell.stream.images for cell in some])).to(device)
            needs_source = any(c.rule.blend or c.rule.source_divergence or c.rule.choose < INF for c in some)
            answers = []
            for at in range(0, length, batch):
                place = where[:, at : at + batch], which[:, at : at + batch]
                images = normalised(pool.pixels[place])
                answers.append(group.step(images, source[place] if needs_source else None))
            given = torch.cat(answers, 1)
            truth, bare = labels[which], source[where, which].argmax(-1)
            moved = ((group.theta - copies.source).norm(dim=1) / group.source_norm).tolist()
            fifth = length - length // 5
            for row, cell in enumerate(some):
                right, was = (given[row] == truth[row]).float() * 100, (bare[row] == truth[row]).float() * 100
                results.append(
                    Result(
                        name,
                        cell.rule.name,
                        cell.stream.name,
                        cell.stream.scenario,
                        batch,
                        length,
                        float(right.mean()),
                        float(was.mean()),
                        float(right[fifth:].mean()),
                        float(was[fifth:].mean()),
                        share_of_top(given[row, fifth:], copies.classes),
                        share_of_top(bare[row, fifth:], copies.classes),
                        share_of_top(truth[row, fifth:], copies.classes),
                        moved[row],
                        float(group.resets[row]),
                        float(group.strength_sum[row]) / max(1, length // batch),
                    )
                )
            spent = time.time() - begun
            print(f"{name}: {len(some)} cells × {length} images, batch {batch}: {spent:.1f} s", flush=True)
    return results


# -- rules -------------------------------------------------------------------------------------------------------------

NONE = Rule("none", batch_statistics=False)
TENT = Rule("tent", (2.5e-4 / 32, 2.5e-4), (1e-3 / 64, 1e-3), entropy=1.0)
SAR = Rule(
    "sar",
    (2.5e-4 / 16, 2.5e-4),
    (1e-3 / 32, 1e-3),
    entropy=1.0,
    reliable=0.4,
    sharpness=0.05,
    recovery=0.2,
    below_top=True,
)
_SAR2_RATES = ((1e-3 / 16, 1e-3), (5e-3 / 16, 5e-3))
SAR2 = Rule(
    "sar2",
    *_SAR2_RATES,
    entropy=1.0,
    redundancy=1e3,
    inequity=50.0,
    reliable=0.4,
    sharpness=0.05,
    recovery=0.2,
    below_top=True,
)
STEADY = Rule(
    "steady-0.1",
    *_SAR2_RATES,
    entropy=40.0,
    redundancy=2e5,
    inequity=4e3,
    reliable=0.4,
    recovery=0.2,
    below_top=True,
    momentum=0.0,
    bound=1.8,
    pull=0.04,
    class_cap=10.0,
)
ZEROSIAM = Rule("zerosiam", (2.5e-3 / 16, 2.5e-3), (5e-3 / 32, 5e-3), predictor=1.0)
BASELINES = (TENT, SAR, SAR2, STEADY, ZEROSIAM)
