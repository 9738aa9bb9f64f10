"""TTT: before each prediction the trunk learns to tell how the image was rotated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.methods.base import BatchStatistics, Method, Rates, answer_with
from wildtta.methods.options import AT_LEAST_ONE, POSITIVE, SHARE, option
from wildtta.methods.registry import register
from wildtta.methods.ttt.rotation import TURNS, load_branch, rotate, rotation_branch, training_views
from wildtta.network import Network
from wildtta.network.parameters import ParameterChoice, Scope
from wildtta.network.stages import middle_stage, parameters_up_to
from wildtta.network.statistics import Moments, unbiased
from wildtta.randomness import COUNTER, next_generator, no_draws_yet
from wildtta.step.precision import losses_in_full_precision
from wildtta.step.report import Answer, Output

if TYPE_CHECKING:
    from wildtta.step.engine import Engine

Branch = str | Path | nn.Module | Callable[[nn.Module], nn.Module]


@register
@dataclass(frozen=True, kw_only=True)
class TTT(Method):
    """Test-time training by rotation prediction (Sun et al., ICML 2020), for a network that is trained already.

        Θ_b, Θ_s ← Θ_b, Θ_s − η ∇ mean over copies of CE(branch(trunk(turned copy; Θ_b); Θ_s), turn),
        then predict

    Each image is copied 20 times, cropped, mirrored and turned at random. The trunk is what comes before the middle of the
    network (``layer2`` of a ResNet, the sixth of twelve blocks), the branch goes on from there; its weights Θ_s learn too,
    as in the authors' code (the paper's formula leaves them alone: ``update_branch=False``). ``episodic`` starts each batch
    from the source (their "standard" version). In BatchNorm networks the copies are normalised by their own statistics,
    and the running ones, which predictions use, follow by ``norm_momentum``.
    Paper: https://arxiv.org/abs/1909.13231. Code of its authors: https://github.com/yueatsprograms/ttt_imagenet_release.

    ``branch`` is a file of ``wildtta ttt-train``, ``glyphs:NAME`` (packaged, for the embedded network of that name), a
    module from the stage's output to four logits, or a function that makes one from the network. ``augment`` is called as
    ``augment(copies, generator)``, ``turns`` as ``turns(number, generator)`` for quarter turns 0 … 3; the generator lives
    on the host.
    """

    name: ClassVar[str] = "ttt"
    title: ClassVar[str] = "TTT"
    needs_images: ClassVar[bool] = True
    order: ClassVar[int] = 100
    paper: ClassVar[str] = "Sun et al., ICML 2020, https://arxiv.org/abs/1909.13231"
    updates: ClassVar[str] = "all parameters up to the middle stage, and the rotation branch"
    needs_source: ClassVar[str] = "yes, to train the rotation branch (wildtta ttt-train)"
    passes: ClassVar[str] = "21 / 20"
    prediction: ClassVar = "after the update"
    scope: ClassVar[Scope] = "everything"
    batch_statistics: ClassVar[BatchStatistics] = "source"
    learning_rates: ClassVar[Rates] = {
        "convolutional": (1e-3, 1e-3),
        "transformer": (1e-4, 1e-4),
    }

    branch: Branch | None = option(
        "the rotation branch: a file of ttt-train, glyphs:NAME, a module, or a function", None
    )
    stage: str = option("module after which the branch begins; auto: the middle of the network", "auto")
    lr: float | None = option("learning rate; None: the paper's for the network's family", None, within=POSITIVE)
    copies: int = option("rotated copies of an image", 20, within=AT_LEAST_ONE)
    steps: int = option("updates per batch", 1, within=AT_LEAST_ONE)
    episodic: bool = option("start every batch from the source weights", False)
    update_branch: bool = option("the branch learns too", True)
    norm_momentum: float = option("weight of the copies in BatchNorm's running statistics", 0.1, within=SHARE)
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = option(
        "changes the copies before they are rotated; None: crop and (where the branch was trained so) mirror", None
    )
    turns: Callable[[int, torch.Generator], Tensor] | None = option("quarter turns of the copies; None: draws", None)
    seed: int = option("seed of crops and rotations", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.branch is None:
            raise ValueError(
                "ttt needs a rotation branch: train one on source images with wildtta ttt-train and give its file, "
                "adapt(network, 'ttt', branch='branch.safetensors')"
            )

    @classmethod
    def example_options(cls, images: Tensor) -> dict[str, Any]:
        return {"branch": rotation_branch, "copies": 4}

    def parameter_choice(self, network: Network) -> ParameterChoice:
        return parameters_up_to(network.module, self._stage(network.module))

    def _stage(self, network: nn.Module) -> str:
        if self.stage != "auto":
            return self.stage
        if isinstance(self.branch, str | Path):
            return load_branch(self.branch, network).stage
        try:
            return middle_stage(network)[0]
        except ValueError as error:
            raise ValueError(f"ttt needs a network that can be branched in the middle: {error}") from error

    def _branch(self, engine: Engine) -> FunctionalModule:
        kept = engine.companions.get("branch")
        if isinstance(kept, FunctionalModule):
            return kept
        network = engine.network.module
        engine.companions["stage"] = self._stage(network)
        if isinstance(self.branch, str | Path):
            module, _, mirrored = load_branch(self.branch, network)
            engine.companions["mirror"] = mirrored
        elif isinstance(self.branch, nn.Module):
            module = self.branch
        else:
            assert self.branch is not None
            module = self.branch(network)
        engine.companions["branch"] = FunctionalModule(module)
        return self._branch(engine)

    def mixes_samples(self, engine: Engine) -> bool:
        return True

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        state = {"branch": self._branch(engine).first_weights(engine.device, engine.learnables.dtype), **no_draws_yet()}
        if engine.norms:
            state["running_mean"], state["running_var"] = engine.norms.source()
        return state

    # -- answering -----------------------------------------------------------------------------------------------------

    def step(self, engine: Engine, images: Tensor) -> Answer:
        memory = engine.memory
        if self.episodic:
            drawn = memory[COUNTER].clone()
            engine.restart()
            memory[COUNTER].copy_(drawn)
        sound = torch.ones((), dtype=torch.bool, device=engine.device)
        facts: dict[str, Any] = {}
        for _ in range(self.steps):
            loss, norm, fine = self._learn(engine, images)
            sound = sound & fine
            facts = {"loss": loss, "gradient_norm": norm}
        passed = self.copies * self.steps * len(images)
        return answer_with(
            engine,
            self.predicted(engine, images),
            forwards=len(images) + passed,
            backwards=passed,
            learned=sound,
            skipped=~sound,
            **facts,
        )

    def predicted(self, engine: Engine, images: Tensor) -> Output:
        memory = engine.memory

        def rule(place: slice, batch: Moments, count: int) -> Moments:
            return memory["running_mean"][place], memory["running_var"][place]

        with engine.normalised_by(rule):
            return engine.forward(images, grad=False)

    # -- learning --------------------------------------------------------------------------------------------------------

    def _learn(self, engine: Engine, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step on the pretext task: loss, gradient norm, and whether all was finite."""
        memory, learnables, branch = engine.memory, engine.learnables, self._branch(engine)
        copies, turns = self._turned(engine, images)
        weights = memory["branch"].clone().requires_grad_(True)
        running: dict[str, Tensor] = {
            name: value.clone() for name, value in memory.items() if name.startswith("running_")
        }
        features = self._to_stage(engine, copies, running)
        with losses_in_full_precision(engine.device):
            loss = F.cross_entropy(branch(weights, features.to(weights.dtype)), turns)
        found = torch.autograd.grad(loss, [weights, *learnables.parameters], allow_unused=True)
        reached = zip(learnables.names, learnables.parameters, found[1:], strict=True)
        gradient = learnables.join({name: torch.zeros_like(p) if g is None else g for name, p, g in reached})
        theta, rate = learnables.vector(), engine.lr
        updated = theta - rate * gradient
        fresh = dict(running)
        if self.update_branch and found[0] is not None:
            fresh["branch"] = memory["branch"] - rate * found[0]
        sound = torch.isfinite(updated).all() & torch.isfinite(gradient).all() & torch.isfinite(loss.detach())
        learnables.assign(torch.where(sound, updated, theta))
        engine.keep(sound, fresh)
        return loss.detach(), gradient.norm(), sound

    def _turned(self, engine: Engine, images: Tensor) -> tuple[Tensor, Tensor]:
        """The copies of all images and by how many quarters each was turned."""
        generator = next_generator(engine.memory, self.seed, torch.device("cpu"))
        copies = images.repeat_interleave(self.copies, 0)
        if self.augment is None:
            copies = training_views(copies, generator, mirror=bool(engine.companions.get("mirror", True)))
        else:
            copies = self.augment(copies, generator)
        if self.turns is None:
            turns = torch.randint(TURNS, (len(copies),), generator=generator)
        else:
            turns = self.turns(len(copies), generator).long()
        turns = turns.to(images.device)
        return rotate(copies, turns), turns

    def _to_stage(self, engine: Engine, copies: Tensor, running: dict[str, Tensor]) -> Tensor:
        def rule(place: slice, batch: Moments, count: int) -> Moments:
            running["running_mean"][place].lerp_(batch[0].detach(), self.norm_momentum)
            running["running_var"][place].lerp_(unbiased(batch[1].detach(), count), self.norm_momentum)
            return batch

        with engine.normalised_by(rule):
            return engine.forward_to(str(engine.companions["stage"]), copies, grad=True)


class FunctionalModule:
    """A module in evaluation mode as a function of its weights, one flat vector: so they can be declared state."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.deepcopy(module).eval().requires_grad_(False)
        self._shapes = {name: parameter.shape for name, parameter in self._module.named_parameters()}

    def first_weights(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The module's own parameters as a vector."""
        parameters = [parameter.reshape(-1) for parameter in self._module.parameters()]
        return torch.cat(parameters).detach().to(device, dtype).clone()

    def named(self, weights: Tensor) -> dict[str, Tensor]:
        """The vector as named parameters (views)."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        pieces = torch.split(weights, sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)}

    def __call__(self, weights: Tensor, inputs: Tensor) -> Tensor:
        buffers = {
            name: buffer.to(weights.device, weights.dtype if buffer.is_floating_point() else buffer.dtype)
            for name, buffer in self._module.named_buffers()
        }
        result = torch.func.functional_call(self._module, {**self.named(weights), **buffers}, (inputs,))
        assert isinstance(result, Tensor)
        return result
