"""DeYO: learn from samples whose prediction depends on the object's shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import Rates
from wildtta.methods.gradient import EntropyMethod, GradientMethod, threshold
from wildtta.methods.options import AT_LEAST_ONE, POSITIVE, Range, option
from wildtta.methods.registry import register
from wildtta.methods.sar import SAR
from wildtta.methods.views import told
from wildtta.network.parameters import Scope
from wildtta.randomness import next_generator, no_draws_yet
from wildtta.step.loop import Selection
from wildtta.step.report import Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Destruction = Literal["patch", "pixel", "occlusion"]
Destroyer = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class ShapeSensitive(GradientMethod):
    """What DeYO and ReCAP share: a filter by PLPD, the probability that the predicted class loses with the shape.

    PLPD(x) = p_ŷ(x) − p_ŷ(x′),   ŷ = argmax p(x),   x′: x with the object destroyed
    """

    scope: ClassVar[Scope] = "norms below the top"
    updates: ClassVar[str] = SAR.updates
    needs_images: ClassVar[bool] = True
    learning_rates: ClassVar[Rates] = SAR.learning_rates

    plpd: float | None = option("only samples whose PLPD is above this; None: no such filter", 0.2, within=Range(-1, 1))
    destruction: Destruction | Destroyer = option(
        "how objects are destroyed: patch, pixel, occlusion, or a function of (images, generator)", "patch"
    )
    grid: int = option("patches along each side", 4, within=AT_LEAST_ONE)
    seed: int = option("seed of the random permutations", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.destruction != "patch" and self.grid != 4:
            raise ValueError(f"grid={self.grid} has no effect while destruction is not 'patch'; leave it out")

    @property
    def selects(self) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        return {**super().declare(engine), **no_draws_yet()}

    def shape_sensitive(self, engine: Engine, first: Output, candidates: Tensor) -> Selection:
        """The candidates (a mask) that also pass the PLPD filter; ``extra["plpd"]`` holds the values, 0 elsewhere."""
        candidates = candidates if first.usable is None else candidates & first.usable
        positions = engine.positions(candidates)  # the step's one read: how many to destroy
        values = first.entropies.new_zeros(len(candidates))
        if len(positions):
            destroyed = self._destroy(engine, first.images[positions])
            after = engine.forward(destroyed, grad=False).logits.softmax(-1)
            before = first.logits.detach()[positions].softmax(-1)
            labels = first.labels[positions, None]
            values[positions] = (before.gather(1, labels) - after.gather(1, labels)).squeeze(1)
        mask = candidates if self.plpd is None else candidates & (values > self.plpd)
        return Selection(
            mask,
            first.labels,
            extra={"plpd": values},
            candidates=positions,
            further_forwards=len(positions),
        )

    def _destroy(self, engine: Engine, images: Tensor) -> Tensor:
        transform = self.destruction if callable(self.destruction) else destroyer(self.destruction, self.grid)
        destroyed = transform(images, next_generator(engine.memory, self.seed, torch.device("cpu")))
        if not isinstance(destroyed, Tensor) or destroyed.shape != images.shape:
            raise ValueError(f"destruction= must keep the images' shape {tuple(images.shape)}, gave {told(destroyed)}")
        return destroyed


@register
@dataclass(frozen=True, kw_only=True)
class DeYO(ShapeSensitive, EntropyMethod):
    """Destroy your object (Lee et al., ICLR 2024): learn from confident samples whose confidence needs the shape.

        min over norm parameters of mean over S of  (e^{E₀ − E(x)} + e^{PLPD(x)}) · E(x),
        S = { x : E(x) < τ  and  PLPD(x) > 0.2 },   PLPD(x) = p_ŷ(x) − p_ŷ(x′)

    with τ = 0.5 ln C, E₀ = 0.4 ln C, and x′ the image with its patches shuffled (4 × 4), its pixels shuffled, or its middle
    occluded. The top of the network does not learn; a batch without a selected sample changes nothing. Permutations come
    from a generator of the adapter's own; ``destruction=`` takes a function of (images, generator) instead.
    Paper: https://arxiv.org/abs/2403.07366. Code of its authors: https://github.com/Jhyun17/DeYO.
    """

    name: ClassVar[str] = "deyo"
    title: ClassVar[str] = "DeYO"
    paper: ClassVar[str] = "Lee et al., ICLR 2024, https://arxiv.org/abs/2403.07366"
    order: ClassVar[int] = 50
    passes: ClassVar[str] = "1 + c / s (c: share with small entropy, s: of these, share with large PLPD)"

    reliable: float | None = option("τ in units of ln C; None: entropy does not filter", 0.5, within=POSITIVE)
    margin: float | None = option(
        "E₀ of the weight e^{E₀−E}, in units of ln C; None: no such weight", 0.4, within=POSITIVE
    )
    weigh_plpd: bool = option("weight e^{PLPD}", True)
    step_without_samples: bool = option(
        "a batch without a selected sample still moves the weights by momentum", False, needs="momentum"
    )

    @property
    def needs_samples(self) -> bool:
        return not self.step_without_samples

    def select(self, engine: Engine, first: Output) -> Selection:
        uncertainty = self.uncertainty(first).detach()
        selection = self.shape_sensitive(engine, first, uncertainty < threshold(self.reliable, engine))
        if self.margin is None and not self.weigh_plpd:
            return selection
        selection.weights = torch.zeros_like(uncertainty)
        if self.margin is not None:
            selection.weights += (self.margin * math.log(engine.network.classes) - uncertainty).exp()
        if self.weigh_plpd:
            selection.weights += selection.extra["plpd"].exp()
        return selection


def permute_patches(images: Tensor, order: Tensor, grid: int = 4) -> Tensor:
    """Cut each image into ``grid`` × ``grid`` patches and put patch ``order[b, j]`` at place j (row by row).

    ``order`` is [B, grid²]. A side that is no multiple of the grid is resized to one and back, as DeYO's authors do.
    Signals [B, C, L] and vectors [B, L] are cut along their length, into as many pieces as ``order`` has; a rest stays.
    """
    if images.dim() in (2, 3):
        return _permute_pieces(images, order)
    if images.dim() != 4:
        raise ValueError(
            f"patches are cut from images [B, C, H, W], signals [B, C, L] or vectors [B, L], got {tuple(images.shape)}; "
            "give a transformation of your own as destruction="
        )
    batch, channels, height, width = images.shape
    high, wide = height // grid, width // grid
    if high == 0 or wide == 0:
        raise ValueError(f"images of {height} × {width} cannot be cut into {grid} × {grid} patches; use a smaller grid")
    exact = (high * grid, wide * grid)
    whole = images if exact == (height, width) else _resize(images, exact)
    patches = whole.reshape(batch, channels, grid, high, grid, wide).permute(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(batch, grid * grid, channels, high, wide)
    patches = patches[torch.arange(batch, device=images.device)[:, None], order]
    patches = patches.reshape(batch, grid, grid, channels, high, wide).permute(0, 3, 1, 4, 2, 5)
    shuffled = patches.reshape(batch, channels, *exact)
    return shuffled if exact == (height, width) else _resize(shuffled, (height, width))


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def _permute_pieces(signals: Tensor, order: Tensor) -> Tensor:
    pieces, length = order.shape[1], signals.shape[-1]
    long = length // pieces
    if long == 0:
        raise ValueError(f"a length of {length} cannot be cut into {pieces} pieces; use a smaller grid")
    within = torch.arange(long, device=signals.device)
    places = (order[:, :, None] * long + within).flatten(1)
    rest = torch.arange(pieces * long, length, device=signals.device).expand(len(signals), -1)
    places = torch.cat([places, rest], dim=1)
    if signals.dim() == 3:
        places = places[:, None].expand_as(signals)
    return signals.gather(-1, places)


def permute_pixels(images: Tensor, order: Tensor) -> Tensor:
    """Pixel ``order[j]`` (row by row) at place j, the same in all images and channels; ``order`` is [H·W]."""
    if images.dim() == 2:
        return images[:, order]
    return images.flatten(2)[:, :, order].reshape(images.shape)


def occlude(images: Tensor) -> Tensor:
    """The middle half of each side (a quarter of an image) replaced by the channel's mean."""
    first = 2 if images.dim() > 2 else 1
    hidden = images
    inside = torch.ones((), dtype=torch.bool, device=images.device)
    for dim in range(first, images.dim()):
        side = images.shape[dim]
        place = torch.arange(side, device=images.device)
        middle = (place >= side // 4) & (place < side // 4 + max(1, side // 2))
        inside = inside & middle.view(-1, *(1,) * (images.dim() - dim - 1))
        hidden = hidden.mean(dim, keepdim=True)
    return torch.where(inside, hidden, images)


def destroyer(kind: Destruction, grid: int) -> Destroyer:
    """The transformation by name; what is random in it is drawn from the generator that it is given."""

    def patch(images: Tensor, generator: torch.Generator) -> Tensor:
        pieces = grid * grid if images.dim() == 4 else min(grid * grid, images.shape[-1])
        order = torch.rand(len(images), pieces, generator=generator).argsort(-1)
        return permute_patches(images, order.to(images.device), grid)

    def pixel(images: Tensor, generator: torch.Generator) -> Tensor:
        places = images[0, 0].numel() if images.dim() > 2 else images.shape[1]
        return permute_pixels(images, torch.randperm(places, generator=generator).to(images.device))

    def occlusion(images: Tensor, generator: torch.Generator) -> Tensor:
        return occlude(images)

    return {"patch": patch, "pixel": pixel, "occlusion": occlusion}[kind]
