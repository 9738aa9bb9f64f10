"""ASR: a recovery that watches the diversity of predictions, and puts back as much of the network as it must."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wildtta.methods.losses import entropy, masked_mean, mean_row

if TYPE_CHECKING:
    from wildtta.step.engine import Engine
    from wildtta.step.report import Output

_FISHER_KEEP = 0.9
# The authors' for ResNet-50 on every benchmark, and for a ViT-B/16 with ETA on CCC-Medium and CCC-Easy.
_DEFAULTS = {
    "convolutional": {"rate": 0.15, "penalty": 5.0, "start": 0.5, "kept": 0.5, "depth": 20.0},
    "transformer": {"rate": 0.99, "penalty": 5.0, "start": 0.005, "kept": 0.5, "depth": 50.0},
}


@dataclass(frozen=True, kw_only=True)
class ASR:
    """Adaptive and selective reset (Lim, Hwang and Lee, ICLR 2026), as ``recovery=`` of every method that takes steps.

        reset where  H(mean_b x_b) < h,      else  h ← μ h + (1 − μ) H(mean_b x_b),   μ = 1 − rate·(1 − f)

    H(mean_b x_b) is the entropy of the batch's mean logits, low where all predictions agree; f is the share of samples
    that the source network would label otherwise (one more forward pass). h starts at ln(start·C). A reset keeps the
    first max(kept − depth·(h − H), 0) of the learned tensors and puts the later ones back to the source, clears momentum
    and the method's averages, and starts h again. What was learned is not lost: between resets, the squared gradients
    and the weights are averaged into a Fisher information F and an anchor a (0.9 old + 0.1 new over resets), and

        penalty·f² · Σ_i F_i (θ_i − a_i)²

    is added to the loss from the first reset on. None stands for the authors' values, by the network's family:
    0.15, 5, 0.5, 0.5, 20 (convolutional) and 0.99, 5, 0.005, 0.5, 50 (transformer).
    Paper and code of its authors: https://github.com/YonseiML/asr.
    """

    rate: float | None = None
    """m₀: how much faster h follows where predictions still agree with the source's."""
    penalty: float | None = None
    """p₀: weight of the Fisher penalty."""
    start: float | None = None
    """a₀: h starts at ln(a₀ C)."""
    kept: float | None = None
    """r₀: share of the learned tensors that a reset keeps at most."""
    depth: float | None = None
    """r₁: how fast that share falls with how far the entropy fell."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{item.name} of ASR must be a number at least 0 or None (by family), got {value!r}")

    @classmethod
    def of(cls, given: Any) -> ASR:
        """From ``"asr"``, a mapping of its numbers (a table in a grid), or an ASR."""
        if isinstance(given, ASR):
            return given
        if isinstance(given, str) and given == "asr":
            return cls()
        names = [item.name for item in fields(cls)]
        if isinstance(given, Mapping) and given and set(given) <= set(names):
            return cls(**given)
        raise ValueError(
            "recovery must be a number, 'relative', 'asr', wildtta.ASR(…) or a table of "
            f"{', '.join(names)}, or None, got {given!r}"
        )

    def numbers(self, engine: Engine) -> dict[str, float]:
        """The values in force on a network."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return {**_DEFAULTS[engine.network.family], **given}

    # -- state -----------------------------------------------------------------------------------------------------------

    def declare(self, engine: Engine) -> dict[str, Tensor]:
        zeros = torch.zeros(engine.learnables.size, dtype=engine.learnables.dtype, device=engine.device)
        number = torch.zeros((), dtype=engine.dtype, device=engine.device)
        start = math.log(self.numbers(engine)["start"] * engine.network.classes)
        return {
            "asr_threshold": torch.full_like(number, start),
            "asr_flips": number.clone(),
            "asr_steps": number.clone(),
            "asr_resets": number.clone(),
            **{name: zeros.clone() for name in ("asr_squares", "asr_weights", "asr_fisher", "asr_anchor")},
        }

    # -- a step ----------------------------------------------------------------------------------------------------------

    def penalised(self, engine: Engine, gradient: Tensor, theta: Tensor) -> Tensor:
        """The gradient with that of the penalty; F is 0 before the first reset."""
        memory, weight = engine.memory, self.numbers(engine)["penalty"]
        pull = 2 * memory["asr_fisher"] * (theta - memory["asr_anchor"])
        return gradient + (weight * memory["asr_flips"].square()).to(gradient.dtype) * pull

    def watch(
        self, engine: Engine, output: Output, gradient: Tensor, theta: Tensor, values: Tensor, sound: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The weights after the step, put back in part where it is time, and whether it is (a boolean on the device).

        Args:
            output: the pass that answered, at the weights ``theta``.
            gradient: the method's own at ``theta``, without the penalty.
            values: the weights after the optimizer's step.
            sound: whether the batch counts.
        """
        assert engine.source is not None
        memory, numbers = engine.memory, self.numbers(engine)
        with engine.at(engine.source, back_to=theta):
            before = engine.forward(output.images, grad=False).labels
        flips = masked_mean((before != output.labels).to(memory["asr_flips"].dtype), output.usable)
        diversity = entropy(mean_row(output.logits.detach(), output.usable))
        steps, threshold = memory["asr_steps"] + 1, memory["asr_threshold"]
        squares, weights = memory["asr_squares"] + gradient.square(), memory["asr_weights"] + theta
        trigger = sound & (diversity < threshold)

        first = memory["asr_resets"] == 0
        fresh = {"asr_fisher": squares / steps.to(theta.dtype), "asr_anchor": weights / steps.to(theta.dtype)}
        blended = {
            name: torch.where(first, value, _FISHER_KEEP * memory[name] + (1 - _FISHER_KEEP) * value)
            for name, value in fresh.items()
        }
        share = (numbers["kept"] - numbers["depth"] * (threshold - diversity)).clamp(min=0)
        late = self._positions(engine) >= share * len(engine.learnables.parameters)
        values = torch.where(trigger & late, engine.source, values)

        keep = 1 - numbers["rate"] * (1 - flips)
        followed = keep * threshold + (1 - keep) * diversity
        start = torch.full_like(threshold, math.log(numbers["start"] * engine.network.classes))
        engine.keep(trigger, {**blended, "asr_resets": memory["asr_resets"] + 1})
        going_on = ~trigger
        engine.keep(
            sound,
            {
                "asr_threshold": torch.where(trigger, start, followed),
                "asr_flips": flips,
                "asr_steps": steps * going_on,
                "asr_squares": squares * going_on,
                "asr_weights": weights * going_on,
            },
        )
        memory["momentum"].mul_(going_on)
        engine.count(resets=trigger)
        return values, trigger

    def _positions(self, engine: Engine) -> Tensor:
        """Of each learned value, the number of its tensor."""
        sizes = torch.tensor([parameter.numel() for parameter in engine.learnables.parameters])
        return torch.arange(len(sizes)).repeat_interleave(sizes).to(engine.device)
