"""FOA: prompts by an evolution strategy, and shifted features; forward passes alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from wildtta.methods.base import BatchStatistics, Method, answer_with
from wildtta.methods.foa.cma import CMA
from wildtta.methods.options import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, Range, option
from wildtta.methods.recap import Moments
from wildtta.methods.registry import register
from wildtta.methods.source_images import SourceImages, source_batches
from wildtta.network.changes import Changes
from wildtta.network.parameters import Scope
from wildtta.network.stages import first_norm, token_blocks
from wildtta.randomness import next_generator, no_draws_yet, torch_generator
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

_STATISTICS = ("source_mean", "source_std")


@register
@dataclass(frozen=True, kw_only=True)
class FOA(Method):
    """Test-time forward-optimisation adaptation (Niu et al., ICML 2024), for transformers.

        min over prompts of  Σ_b H(p_b) + λ B/64 Σ_l (‖μ_l − μ_l⁰‖² + ‖σ_l − σ_l⁰‖²),   answer: h(z + μ_L⁰ − μ̂)

    Prompts are tokens behind the class token, in front of the first block. CMA-ES (:class:`wildtta.methods.foa.cma.CMA`)
    draws 27 sets of them for each batch, and the best of the batch before stays in the race; the one with the least loss
    answers. μ_l and σ_l are the batch's mean and standard deviation of the class token between the blocks (behind the
    next block's first norm) and of the features z at the end, μ⁰ and σ⁰ those of source images without prompts; μ̂ is a
    moving average (0.9) of the features' mean. λ = 0.4 (its authors take 0.2 for ImageNet-R). No weight changes and
    nothing is differentiated. The covariance holds (prompts × width)² numbers.
    Paper: https://arxiv.org/abs/2404.01650. Code of its authors: https://github.com/mr-eggplant/FOA.

    ``draws`` is called as ``draws(shape, generator)`` and gives standard normal numbers; ``first_prompts`` [prompts, width]
    are those before the first batch; None: uniform draws, as for a layer's weights.
    """

    name: ClassVar[str] = "foa"
    title: ClassVar[str] = "FOA"
    order: ClassVar[int] = 166
    paper: ClassVar[str] = "Niu et al., ICML 2024, https://arxiv.org/abs/2404.01650"
    updates: ClassVar[str] = "prompts (new tokens); the features' shift"
    needs_source: ClassVar[str] = "images, for the statistics of their features"
    batch_of_one: ClassVar[str] = "no: one image has no deviation; it is answered and not learned from"
    passes: ClassVar[str] = "28 / 0"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    prompts: int = option("tokens to insert", 3, within=AT_LEAST_ONE)
    population: int = option("draws per batch", 27, within=Range(3))
    discrepancy: float = option("λ: weight of the distance from the source's statistics", 0.4, within=NOT_NEGATIVE)
    shift: float = option("how far features are moved towards the source's mean", 1.0, within=NOT_NEGATIVE)
    shift_keep: float = option("weight of the old value in μ̂", 0.9, within=SHARE, needs="shift")
    source_images: SourceImages | None = option(
        "source images: a tensor, or an iterable of batches (a data loader)", None, data=True
    )
    draws: Callable[[tuple[int, int], torch.Generator], Tensor] | None = option("the draws of CMA-ES; None: drawn", None)
    first_prompts: Tensor | None = option("prompts before the first batch; None: drawn", None, data=True)
    seed: int = option("seed of the draws", 0)

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        return {"source_images": images, "prompts": 1, "population": 4}

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    # -- state -----------------------------------------------------------------------------------------------------------

    def _tokens(self, engine: Engine) -> Tokens:
        if "tokens" not in engine.companions:
            engine.companions["tokens"] = Tokens.of(engine.network.module)
        tokens: Tokens = engine.companions["tokens"]
        return tokens

    def _strategy(self, engine: Engine) -> CMA:
        return CMA(self.prompts * self._tokens(engine).width, self.population)

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        tokens, device = self._tokens(engine), engine.device
        size = (len(tokens.blocks) - 1) * tokens.width + engine.network.feature_width
        unknown = torch.full((size,), math.nan, dtype=engine.dtype, device=device)
        features = torch.full((engine.network.feature_width,), math.nan, dtype=engine.dtype, device=device)
        return {
            "prompts": self._first_prompts(engine).to(device, engine.dtype),
            "shifted_mean": features,
            **{name: engine.memory.get(name, unknown).to(device, unknown.dtype, copy=True) for name in _STATISTICS},
            **self._strategy(engine).first_state(device),
            **no_draws_yet(),
        }

    def _first_prompts(self, engine: Engine) -> Tensor:
        """Given, or uniform within ±√(6/(values of a patch + width)) (Xavier)."""
        tokens = self._tokens(engine)
        shape = (self.prompts, tokens.width)
        if self.first_prompts is not None:
            if self.first_prompts.shape != shape:
                raise ValueError(f"first_prompts must have shape {shape}, got {tuple(self.first_prompts.shape)}")
            return self.first_prompts
        modules = engine.network.module.modules()
        patch = next((part for part in modules if isinstance(part, nn.Conv2d)), None)  # the patch embedding
        values = tokens.width if patch is None else patch.in_channels * math.prod(patch.kernel_size)
        bound = math.sqrt(6 / (values + tokens.width))
        return bound * (2 * torch.rand(shape, generator=torch_generator(self.seed), dtype=torch.float64) - 1)

    # -- answering ---------------------------------------------------------------------------------------------------------

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        output, _ = self._pass(engine, images, engine.memory["prompts"])
        return self._shifted(engine, output)

    def step(self, engine: Engine, images: Tensor) -> Answer:
        if engine.host_steps == 0 and bool(engine.memory["source_mean"].isnan().any()):
            self._measure_source(engine)
        if len(images) == 1:
            return answer_with(engine, self.predicted(engine, images), forwards=1, skipped=True)
        memory, strategy = engine.memory, self._strategy(engine)
        for name, value in strategy.prepared(memory).items():
            memory[name].copy_(value)
        candidates = torch.cat([strategy.ask(memory, self._drawn(engine, strategy)), memory["prompts"].double().view(1, -1)])
        losses, means, best = [], [], None
        for candidate in candidates:
            output, found = self._pass(engine, images, candidate.to(engine.dtype).view_as(memory["prompts"]))
            loss = self._loss(engine, output, found)
            losses.append(loss)
            means.append(output.features.mean(0))
            # Which answer is best is known on the device: each candidate replaces the best so far where its loss is less.
            kept = (loss, output.logits, output.features) if best is None else best
            better = loss < kept[0]
            pair = zip((loss, output.logits, output.features), kept, strict=True)
            best = tuple(torch.where(better, ours, theirs) for ours, theirs in pair)
        assert best is not None
        all_losses = torch.stack(losses)
        sound = torch.isfinite(all_losses).all()
        answered = self._shifted(engine, Output(images, best[1], best[2], output.raw))
        mean = torch.stack(means).mean(0)
        old = memory["shifted_mean"]
        moved = torch.where(old.isnan(), mean, self.shift_keep * old + (1 - self.shift_keep) * mean)
        told = strategy.tell(memory, candidates, all_losses.double(), self.population)
        generation = told.pop("cma_generation")
        winner = candidates[all_losses.argmin()].to(old.dtype).view_as(memory["prompts"])
        engine.keep(sound, {**told, "shifted_mean": moved, "prompts": winner})
        memory["cma_generation"].copy_(generation)
        passed = len(candidates) * len(images)
        return answer_with(engine, answered, forwards=passed, learned=sound, skipped=~sound, loss=best[0])

    def _drawn(self, engine: Engine, strategy: CMA) -> Tensor:
        shape = (self.population, strategy.size)
        generator = next_generator(engine.memory, self.seed, engine.device)
        if self.draws is not None:
            return self.draws(shape, generator).to(engine.device, torch.float64)
        return torch.randn(shape, generator=generator, device=engine.device, dtype=torch.float64)

    def _loss(self, engine: Engine, output: Output, found: Tensor) -> Tensor:
        """Σ H + λ B/64 (distances of means and deviations)."""
        std, mean = torch.std_mean(found, dim=0)
        memory = engine.memory
        apart = (std - memory["source_std"]).square().sum() + (mean - memory["source_mean"]).square().sum()
        return output.entropies.sum() + self.discrepancy * len(found) / 64 * apart

    def _shifted(self, engine: Engine, output: Output) -> Output:
        moved = engine.memory["shifted_mean"]
        width = engine.network.feature_width
        gap = torch.where(moved.isnan(), 0.0, self.shift * (engine.memory["source_mean"][-width:] - moved))
        return output.answering(engine.head_logits(output.features + gap))

    # -- passes --------------------------------------------------------------------------------------------------------------

    def _pass(self, engine: Engine, images: Tensor, prompts: Tensor | None) -> tuple[Output, Tensor]:
        """A pass with prompts, and what is compared with the source: class tokens between blocks, and features."""
        changes = engine.changes
        without = changes.set(engine.fast, kernels=False)  # what is fused was found without prompts
        with without, self._tokens(engine).prompted(prompts, changes) as between:
            output = engine.forward(images, grad=False)
        return output, torch.cat([*(token.to(engine.dtype) for token in between), output.features], 1)

    def _measure_source(self, engine: Engine) -> None:
        if self.source_images is None:
            raise ValueError(
                "FOA draws features to the statistics of source images, and there are none: give source_images= (a tensor, "
                "or an iterable of batches, normalised like the test images), or load a state of an adapter that had them"
            )
        zeros = torch.zeros_like(engine.memory["source_mean"])
        moments = Moments(zeros.new_zeros(()), zeros, zeros)
        for images in source_batches(self.source_images, 64, engine.device, "features of the source"):
            moments = moments.with_rows(self._pass(engine, images, None)[1])
        if int(moments.count) < 2 or not bool(torch.isfinite(moments.spread).all()):
            raise ValueError(
                f"the features of the {int(moments.count)} source images have no finite deviation; give at least 2 images, "
                "normalised like the test images"
            )
        engine.memory["source_mean"].copy_(moments.mean)
        engine.memory["source_std"].copy_((moments.spread / (moments.count - 1)).sqrt())


@dataclass(frozen=True)
class Tokens:
    """The blocks of a transformer, with the norm that reads the class token in front of each but the first."""

    blocks: list[nn.Module]
    norms: list[nn.Module]
    width: int

    @classmethod
    def of(cls, network: nn.Module) -> Tokens:
        names, width = token_blocks(network)
        return cls([network.get_submodule(name) for name in names], [first_norm(network, name) for name in names], width)

    @contextlib.contextmanager
    def prompted(self, prompts: Tensor | None, changes: Changes) -> Iterator[list[Tensor]]:
        """Within, passes have ``prompts`` [n, width] behind the class token; gives the class tokens between blocks."""
        between: list[Tensor] = []

        def insert(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            between.clear()
            if prompts is None:
                return inputs
            tokens = inputs[0]
            rows = prompts.to(tokens.dtype).expand(len(tokens), -1, -1)
            return torch.cat([tokens[:, :1], rows, tokens[:, 1:]], 1), *inputs[1:]

        def read(norm: nn.Module) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            return lambda module, inputs: between.append(norm(inputs[0][:, 0]))

        with contextlib.ExitStack() as stack:
            stack.enter_context(changes.hook(self.blocks[0], insert, before=True))
            for block, norm in zip(self.blocks[1:], self.norms[1:], strict=True):
                stack.enter_context(changes.hook(block, read(norm), before=True))
            yield between
