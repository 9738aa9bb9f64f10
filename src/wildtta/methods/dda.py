"""DDA: the input is adapted, not the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.answering import answer_with
from wildtta.methods.base import BatchStatistics, Method
from wildtta.methods.gradient import help_text
from wildtta.methods.registry import register
from wildtta.network.parameters import Scope
from wildtta.network.probe import probe
from wildtta.parts.diffusion import DiffusionModel, diffusers_library, fitted, guided_images, load_diffusion
from wildtta.parts.pixels import Level, pixel_scale
from wildtta.randomness import COUNTER, next_generator, no_draws_yet
from wildtta.step.report import Answer, Output, StepReport

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class DDA(Method):
    """Diffusion-driven adaptation of the input (Gao et al., CVPR 2023).

        x̃: x noised N of T steps deep and denoised, each step pulled by −w ∇‖φ_D(x) − φ_D(x̂_0)‖₂
        answer: (p(x) + p(x̃)) / 2

    The diffusion model was trained on source images: denoising brings x back to what the classifier knows, the low-pass
    filter φ_D keeps the structure, and the ensemble keeps x itself in case the diffusion fails. Nothing learns. The
    logits returned are the logarithm of the averaged probabilities. The gradient of the guidance is part of a diffusion
    and does not count as a backward pass of the classifier. ``adapted(engine, images)`` gives the images x̃. Defaults are the
    authors' for 256 pixels; images of 32 pixels want a finer filter and less depth (factor=2, depth=30, guidance=12).
    Paper: https://arxiv.org/abs/2207.03442. Code of its authors: https://github.com/shiyegao/DDA.

    ``diffusion`` is a folder of an unconditional ``diffusers`` model (UNet2DModel, any DDPM schedule), for instance from
    ``wildtta diffusion-train``, or a :class:`wildtta.parts.diffusion.DiffusionModel`.
    """

    name: ClassVar[str] = "dda"
    title: ClassVar[str] = "DDA"
    paper: ClassVar[str] = "Gao et al., CVPR 2023, https://arxiv.org/abs/2207.03442"
    updates: ClassVar[str] = "nothing (the input)"
    needs_source: ClassVar[str] = "yes, to train the diffusion model (wildtta diffusion-train)"
    passes: ClassVar[str] = "2 / 0, and one guided diffusion"
    prediction: ClassVar = "no update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    diffusion: str | Path | DiffusionModel | None = help_text("folder of a diffusers model, or a DiffusionModel", None)
    steps: int = help_text("T: steps of the (respaced) diffusion", 100)
    depth: int = help_text("N: how many of them the image is noised and denoised", 50)
    factor: int = help_text("D: the low-pass filter shrinks by this", 4)
    guidance: float = help_text("w: strength of the guidance, at 256 × 256 pixels", 6.0)
    ensemble: bool = help_text("average the predictions of the image and the adapted one; else the latter's alone", True)
    chunk: int = help_text("images diffused at a time", 64)
    mean: Level = help_text("pixel mean of the preprocessing; None: the network's, or the range", None)
    std: Level = help_text("pixel std of the preprocessing", None)
    seed: int = help_text("seed of the noise", 0)

    def __post_init__(self) -> None:
        if self.diffusion is None:
            raise ValueError(
                "dda needs a diffusion model of the source images: adapt(network, 'dda', diffusion='folder'), where "
                "the folder is a diffusers checkpoint (unconditional) or comes from wildtta diffusion-train"
            )
        if not 1 <= self.depth <= self.steps:
            raise ValueError(f"depth must lie between 1 and steps ({self.steps}), got {self.depth}")
        if self.factor < 1 or self.chunk < 1:
            raise ValueError(f"factor and chunk must be at least 1, got {self.factor} and {self.chunk}")
        if not self.guidance >= 0:
            raise ValueError(f"guidance must be at least 0, got {self.guidance!r}")

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        library = diffusers_library()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            unet = library.UNet2DModel(
                in_channels=images.shape[1],
                out_channels=images.shape[1],
                block_out_channels=(8, 8),
                down_block_types=("DownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "UpBlock2D"),
                layers_per_block=1,
                norm_num_groups=4,
                add_attention=False,
            )
        model = DiffusionModel(unet.eval().requires_grad_(False), library.DDPMScheduler())
        return {"diffusion": model, "steps": 4, "depth": 2}

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        seen = probe(engine.network.module)
        shape = None if seen is None else seen.shapes[""][0]
        if shape is not None and len(shape) != 4:
            raise ValueError(
                f"dda changes images [batch, channels, height, width]; {type(engine.network.module).__name__} takes inputs "
                f"of shape {tuple(shape[1:])}"
            )
        return no_draws_yet()

    def step(self, engine: Engine, images: Tensor) -> Answer:
        finite = bool(torch.isfinite(images).all())  # the one read
        output = self._answered(engine, images) if finite else self._answered_in_passing(engine, images)
        extra = {"diffusions": torch.tensor(len(images))}
        return answer_with(engine, output, forwards=2 * len(images), skipped=not finite, extra=extra)

    def predict(self, engine: Engine, images: Tensor) -> Answer:
        output = self._answered_in_passing(engine, images)
        return Answer(output, StepReport.of_prediction(output, engine))

    def _answered_in_passing(self, engine: Engine, images: Tensor) -> Output:
        """An answer that does not move on in the noise: nothing of the state changes."""
        drawn = engine.memory[COUNTER].clone()
        output = self._answered(engine, images)
        engine.memory[COUNTER].copy_(drawn)
        return output

    def _answered(self, engine: Engine, images: Tensor) -> Output:
        adapted = self.adapted(engine, images)
        output = engine.forward(images, grad=False)
        other = engine.forward(adapted, grad=False).logits
        if not self.ensemble:
            return output.answering(other)
        pair = torch.stack([F.log_softmax(output.logits, -1), F.log_softmax(other, -1)])
        return output.answering(pair.logsumexp(0) - math.log(2))

    def adapted(self, engine: Engine, images: Tensor) -> Tensor:
        """x̃: ``images`` (network inputs) moved to the source's domain."""
        model = self._model(engine)
        scale = pixel_scale(engine.network.module, images, self.mean, self.std)
        generator = next_generator(engine.memory, self.seed, images.device)
        ranged = fitted((2 * scale.pixels(images) - 1).to(model.dtype), model.multiple)
        moved = [
            guided_images(
                model,
                part,
                generator,
                steps=self.steps,
                depth=self.depth,
                factor=self.factor,
                guidance=self.guidance,
            )
            for part in torch.split(ranged, self.chunk)
        ]
        result = torch.cat(moved).to(images.dtype)
        if result.shape != images.shape:
            result = F.interpolate(result, images.shape[-2:], mode="bicubic", antialias=True)
        return scale.inputs((result + 1) / 2)

    def _model(self, engine: Engine) -> DiffusionModel:
        kept = engine.companions.get("diffusion")
        if not isinstance(kept, DiffusionModel):
            assert self.diffusion is not None
            given = self.diffusion
            kept = given if isinstance(given, DiffusionModel) else load_diffusion(given)
        kept = engine.companions["diffusion"] = kept.to(engine.device)
        return kept
