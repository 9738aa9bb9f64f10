"""What a memory of the stream says about the evidence of a shift.

The evidence comes from the last samples alone. Somebody who sends again what was answered wrongly sends samples that share
something, the classes that errors fall into, and makes it look like a shift of the inputs. A guard remembers samples that it
drew at random from a longer time, with the source network's answers. As long as the inputs look the same, a shift shows on
them too: the mean of their logits is then longer than habit and chance make it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wildtta.methods.steady.evidence import clearness, smallest_shift

_FEWEST = 64
"""Remembered samples of the same kind with which the memory has a say."""
_FADING = 5000
"""Samples after which what it said counts 1/e, where nobody asks it again."""
_FULL = 0.5
"""Clearness from which on it agrees with any strength, as in the evidence."""


def supported(probabilities: Tensor, alike: Tensor) -> Tensor:
    """The largest strength in [0, 1] that remembered samples agree with, from the source's ``probabilities`` [m, C].

    Each counts as far as it is ``alike`` [m] the latest. With fewer than 64 of them the answer is 1.
    """
    logits = probabilities.clamp(min=1e-30).log()
    logits = logits - logits.mean(1, keepdim=True)
    number = alike.sum()
    weights = (alike / number.clamp(min=1e-9))[:, None]
    mean = (weights * logits).sum(0)
    spread = (weights * (logits - mean).square()).sum()
    length = mean.square().sum() - spread * weights.square().sum()  # less what chance makes of it
    clear = clearness(length.clamp(min=0), spread, smallest_shift(logits.shape[1]))
    return torch.where(number >= _FEWEST, (clear / _FULL).clamp(max=1), torch.ones_like(clear))


def faded(said: Tensor, samples: int) -> Tensor:
    """What a memory ``said``, in [0, 1], after so many more samples: nobody has a say for ever."""
    return 1 - (1 - said) * math.exp(-samples / _FADING)
