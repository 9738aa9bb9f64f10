"""DDA: the input is adapted, not the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from wildtta.methods.base import BatchStatistics, Method, answer_with
from wildtta.methods.dda.diffusion import DiffusionModel, diffusers_library, fitted, guided_images, load_diffusion
from wildtta.methods.options import AT_LEAST_ONE, FINITE, NOT_NEGATIVE, POSITIVE, option
from wildtta.methods.registry import register
from wildtta.methods.views import MEAN_HELP, STD_HELP, Level, pixel_scale
from wildtta.network.parameters import Scope
from wildtta.network.probe import probe
from wildtta.randomness import COUNTER, next_generator, no_draws_yet
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine


@register
@dataclass(frozen=True, kw_only=True)
class DDA(Method):
    """Diffusion-driven adaptation of the input (Gao et al., CVPR 2023).

        x̃: x noised N of T steps deep and denoised, each step pulled by −w ∇‖φ_D(x) − φ_D(x̂_0)‖₂
        answer: (p(x) + p(x̃)) / 2

    The diffusion model was trained on source images: denoising brings x back to what the classifier knows, the low-pass
    filter φ_D keeps the structure, and the ensemble keeps x itself in case the diffusion fails. Nothing learns, and each
    image has noise of its own, so that its answer is the same in whichever batch it comes. The
    logits returned are the logarithm of the averaged probabilities. The gradient of the guidance is part of a diffusion
    and does not count as a backward pass of the classifier. ``adapted(engine, images)`` gives the images x̃. Defaults are the
    authors' for 256 pixels; images of 32 pixels want a finer filter and less depth (factor=2, depth=30, guidance=12).
    Paper: https://arxiv.org/abs/2207.03442. Code of its authors: https://github.com/shiyegao/DDA.

    ``diffusion`` is a folder of an unconditional ``diffusers`` model (UNet2DModel, any DDPM schedule), for instance from
    ``wildtta diffusion-train``; ``glyphs``, the packaged model of the glyphs; or a
    :class:`wildtta.methods.dda.diffusion.DiffusionModel`.
    """

    name: ClassVar[str] = "dda"
    title: ClassVar[str] = "DDA"
    needs_images: ClassVar[bool] = True
    image_by_image: ClassVar[bool] = True
    order: ClassVar[int] = 110
    paper: ClassVar[str] = "Gao et al., CVPR 2023, https://arxiv.org/abs/2207.03442"
    updates: ClassVar[str] = "nothing (the input)"
    needs_source: ClassVar[str] = "yes, to train the diffusion model (wildtta diffusion-train)"
    passes: ClassVar[str] = "2 / 0, and one guided diffusion"
    prediction: ClassVar = "no update"
    scope: ClassVar[Scope] = "nothing"
    batch_statistics: ClassVar[BatchStatistics] = "source"

    diffusion: str | Path | DiffusionModel | None = option(
        "folder of a diffusers model, glyphs, or a DiffusionModel", None
    )
    steps: int = option("T: steps of the (respaced) diffusion", 100, within=AT_LEAST_ONE)
    depth: int = option("N: how many of them the image is noised and denoised", 50, within=AT_LEAST_ONE)
    factor: int = option("D: the low-pass filter shrinks by this", 4, within=AT_LEAST_ONE)
    guidance: float = option("w: strength of the guidance, at 256 × 256 pixels", 6.0, within=NOT_NEGATIVE)
    ensemble: bool = option("average the predictions of the image and the adapted one; else the latter's alone", True)
    chunk: int = option("images diffused at a time", 64, within=AT_LEAST_ONE)
    mean: Level = option(MEAN_HELP, None, within=FINITE)
    std: Level = option(STD_HELP, None, within=POSITIVE)
    seed: int = option("seed of the noise", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.diffusion is None:
            raise ValueError(
                "dda needs a diffusion model of the source images: adapt(network, 'dda', diffusion='folder'), where "
                "the folder is a diffusers checkpoint (unconditional) or comes from wildtta diffusion-train"
            )
        if not 1 <= self.depth <= self.steps:
            raise ValueError(f"depth must lie between 1 and steps ({self.steps}), got {self.depth}")

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

    def mixes_samples(self, engine: Engine) -> bool:
        return True

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
        extra = {"diffusions": torch.tensor(len(images))}
        return answer_with(engine, self._answered(engine, images), forwards=2 * len(images), extra=extra)

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        """The next noise is drawn, and drawn again in the next step: nothing of the state changes."""
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
        generators = [next_generator(engine.memory, self.seed, images.device) for _ in images]
        ranged = fitted((2 * scale.pixels(images) - 1).to(model.dtype), model.multiple)
        moved = [
            guided_images(
                model,
                ranged[start : start + self.chunk],
                generators[start : start + self.chunk],
                steps=self.steps,
                depth=self.depth,
                factor=self.factor,
                guidance=self.guidance,
            )
            for start in range(0, len(ranged), self.chunk)
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
