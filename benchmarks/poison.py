"""Poisoned inputs for a network that learns from them: each attack yields the batches that its attacker sends.

An attacker here sends every input. ``benign`` images (with labels) are what it owns; what it may change of one is bounded
by ``epsilon`` in every pixel, unless it makes its images from nothing. White-box attacks look at the present weights before
each batch. The attacks are written from their papers' descriptions, in the form that fits any method: where a paper follows
the victim's own loss, they follow the entropy, which every victim here minimises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, interpolate, pad

import wildtta
from wildtta.methods.losses import entropy

BATCH = 64
PGD_STEPS = 5


@dataclass
class Attacker:
    """What an attacker owns: images in the network's units, their labels, the limits of a pixel, and what it may look at."""

    images: Tensor
    labels: Tensor
    low: Tensor
    high: Tensor
    epsilon: Tensor
    source: nn.Module
    """The network as it was published: never changes."""
    victim: wildtta.Adapter
    """White-box attacks read its present weights."""
    inputs: int
    generator: torch.Generator

    @property
    def sizes(self) -> list[int]:
        """Of the batches that hold all its inputs."""
        full, rest = divmod(self.inputs, BATCH)
        return [BATCH] * full + ([rest] if rest else [])

    def draw(self, number: int, among: Tensor | None = None) -> Tensor:
        """Positions of images, drawn at random."""
        places = torch.arange(len(self.labels)) if among is None else among.cpu()
        return places[torch.randint(len(places), (number,), generator=self.generator)].to(self.labels.device)

    def drawn_class(self) -> int:
        classes = self.labels.unique().cpu()
        return int(classes[torch.randint(len(classes), (1,), generator=self.generator)])

    def within(self, images: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(images, self.low), self.high)

    def descend(self, start: Tensor, loss: Callable[[Tensor], Tensor], *, bounded: bool = True) -> Tensor:
        """Projected signed gradient steps on the pixels; unbounded ones may go anywhere. The best images on the way count."""
        reach = self.epsilon if bounded else (self.high - self.low) / 4
        images = best = start.clone()
        lowest = torch.full((), torch.inf, device=start.device)
        for step in range(PGD_STEPS + 1):
            images.requires_grad_(True)
            with torch.enable_grad():
                present = loss(images)
                (slope,) = torch.autograd.grad(present, images)
            best = torch.where(present.detach() < lowest, images.detach(), best)
            lowest = torch.minimum(lowest, present.detach())
            if step == PGD_STEPS:
                break
            moved = images.detach() - 2 * reach / PGD_STEPS * slope.sign()
            if bounded:
                moved = torch.minimum(torch.maximum(moved, start - reach), start + reach)
            images = self.within(moved)
        return best.detach()


def one_class(attacker: Attacker) -> Iterator[Tensor]:
    """A flood of ordinary images of one class."""
    own = (attacker.labels == attacker.drawn_class()).nonzero().squeeze(1)
    for size in attacker.sizes:
        yield attacker.images[attacker.draw(size, own)]


def one_class_pgd(attacker: Attacker) -> Iterator[Tensor]:
    """Images of all classes, changed until the present network calls them all one class."""
    target = attacker.drawn_class()
    for size in attacker.sizes:
        start = attacker.images[attacker.draw(size)]
        wanted = torch.full((size,), target, device=start.device)
        yield attacker.descend(start, lambda x, y=wanted: cross_entropy(attacker.victim.network(x), y))  # type: ignore[misc]


def grey(attacker: Attacker) -> Iterator[Tensor]:
    """One grey, with a trace of noise."""
    middle = (attacker.low + attacker.high) / 2
    for size in attacker.sizes:
        noise = torch.randn((size, *attacker.images.shape[1:]), generator=attacker.generator).to(middle.device)
        yield attacker.within(middle + 0.1 * attacker.epsilon * noise)


def confident_noise(attacker: Attacker) -> Iterator[Tensor]:
    """Uniform noise, changed without bound until the present network is certain of something."""
    for size in attacker.sizes:
        share = torch.rand((size, *attacker.images.shape[1:]), generator=attacker.generator).to(attacker.images.device)
        start = attacker.low + share * (attacker.high - attacker.low)
        yield attacker.descend(start, lambda x: entropy(attacker.victim.network(x)).mean(), bounded=False)


def tepa(attacker: Attacker) -> Iterator[Tensor]:
    """TePA (https://arxiv.org/abs/2308.08505): adversarial images of a surrogate, made on diverse inputs and sent blindly.

    The surrogate is the published network; the images leave the class that it gives them.
    """
    for size in attacker.sizes:
        start = attacker.images[attacker.draw(size)]
        with torch.no_grad():
            labels = attacker.source(start).argmax(1)

        def loss(images: Tensor, labels: Tensor = labels) -> Tensor:
            return -cross_entropy(attacker.source(_diverse(images, attacker.generator)), labels)

        yield attacker.descend(start, loss)


def rip(attacker: Attacker) -> Iterator[Tensor]:
    """R.I.P. (https://arxiv.org/abs/2412.01154): ordinary images that were answered wrongly are sent again and again."""
    for size in attacker.sizes:
        tried = attacker.draw(4 * BATCH)
        with torch.no_grad():
            wrong = attacker.victim.network(attacker.images[tried]).argmax(1) != attacker.labels[tried]
        kept = tried[wrong]
        yield attacker.images[attacker.draw(size, kept if len(kept) else tried)]


def dia(attacker: Attacker) -> Iterator[Tensor]:
    """DIA (https://arxiv.org/abs/2301.12576): a part of each batch is malicious, so that the step on it harms the others.

    Half of each batch is the attacker's. It is changed so that the entropy step on the whole batch raises the loss of the
    benign half.
    """
    for size in attacker.sizes:
        places = attacker.draw(size)
        images, labels = attacker.images[places], attacker.labels[places]
        half = size // 2
        harm = _gradient(attacker, cross_entropy(attacker.victim.network(images[half:]), labels[half:]))

        def loss(mine: Tensor, others: Tensor = images[half:], harm: Tensor = harm) -> Tensor:
            return _alignment(attacker, torch.cat([mine, others]), harm)

        yield torch.cat([attacker.descend(images[:half], loss), images[half:]])


def anti_aligned(attacker: Attacker) -> Iterator[Tensor]:
    """White box: every image is changed so that the entropy step on the batch climbs the loss of benign images."""
    yield from _against(attacker, agreement=0.0)


def guard_aware(attacker: Attacker) -> Iterator[Tensor]:
    """The same by somebody who knows the guard: the harm must leave the answers close to the source network's."""
    yield from _against(attacker, agreement=2.0)


def new_kind(attacker: Attacker) -> Iterator[Tensor]:
    """Anti-aligned on images at a third of their contrast, by somebody who knows that a new kind is learned at full pace."""
    yield from _against(attacker, agreement=0.0, contrast=1 / 3)


def _against(attacker: Attacker, *, agreement: float, contrast: float = 1.0) -> Iterator[Tensor]:
    network, middle = attacker.victim.network, (attacker.low + attacker.high) / 2
    for size in attacker.sizes:
        known = attacker.draw(BATCH)
        images, labels = attacker.images[known], attacker.labels[known]
        with torch.enable_grad():
            logits = network(images)
            aim = cross_entropy(logits, labels)
            if agreement:
                with torch.no_grad():
                    published = attacker.source(images).softmax(1)
                aim = aim - agreement * cross_entropy(logits, published)
        harm = _gradient(attacker, aim)
        start = torch.lerp(middle, attacker.images[attacker.draw(size)], contrast)
        yield attacker.descend(start, lambda x, harm=harm: _alignment(attacker, x, harm))  # type: ignore[misc]


def _gradient(attacker: Attacker, loss: Tensor, *, create_graph: bool = False) -> Tensor:
    """∂loss/∂θ over what the victim learns."""
    parameters = attacker.victim.engine.learnables.parameters
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=create_graph)])


def _alignment(attacker: Attacker, images: Tensor, harm: Tensor) -> Tensor:
    """⟨∇θ entropy(images), ``harm``⟩ / ‖``harm``‖: where it is negative, a descent on the entropy climbs the harm."""
    with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
        step = _gradient(attacker, entropy(attacker.victim.network(images)).mean(), create_graph=True)
    return (step @ harm) / (harm.norm() + 1e-12)


def _diverse(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shrunk by up to a tenth and put somewhere on a blank image (Xie et al., https://arxiv.org/abs/1803.06978)."""
    side = images.shape[-1]
    smaller = side - int(torch.randint(side // 10 + 1, (1,), generator=generator))
    left, top = (int(torch.randint(side - smaller + 1, (1,), generator=generator)) for _ in range(2))
    shrunk = interpolate(images, size=(smaller, smaller), mode="bilinear", align_corners=False)
    return pad(shrunk, (left, side - smaller - left, top, side - smaller - top))


ATTACKS: dict[str, Callable[[Attacker], Iterator[Tensor]]] = {
    "TePA": tepa,
    "DIA": dia,
    "R.I.P.": rip,
    "one class": one_class,
    "one class, PGD": one_class_pgd,
    "grey": grey,
    "confident noise": confident_noise,
    "anti-aligned": anti_aligned,
    "knows the guard": guard_aware,
    "new kind": new_kind,
}
