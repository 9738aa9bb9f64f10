"""The unadapted network's answers: how sure they are, and whether a corrupted copy gets the same one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wildtta.methods.losses import entropy


@dataclass(frozen=True)
class Inputs:
    """One kind of input (clean, or under one corruption) as the unadapted network sees it; shares from 0 to 1."""

    name: str
    score: float
    """Accuracy; without labels the same as ``agreement``."""
    agreement: float
    """Share of images that get the answer of their clean version."""
    confidence: float
    """Mean probability of the answer."""
    entropy: float
    """Mean entropy in units of ln C: 0 is sure, 1 knows nothing."""
    top_class: float
    """Share of the class that is answered most."""


def summarised(name: str, logits: Tensor, clean: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> Inputs:
    """What ``logits`` [N, C] tell, beside the answers on the ``clean`` images [N] and the labels or stand-ins [N]."""
    if not bool(torch.isfinite(logits).all()):
        bad = int((~torch.isfinite(logits).all(1)).sum())
        raise ValueError(
            f"the network's outputs are not finite for {bad} of {len(logits)} images ({name}); look at its weights and at "
            "the preprocessing"
        )
    answers = answered(logits)
    probabilities = logits.double().softmax(1)
    return Inputs(
        name=name,
        score=float((answers == targets).mean()),
        agreement=float((answers == clean).mean()),
        confidence=float(probabilities.amax(1).mean()),
        entropy=float(entropy(logits.double()).mean()) / math.log(logits.shape[1]),
        top_class=float(np.bincount(answers).max() / len(answers)),
    )


def answered(logits: Tensor) -> npt.NDArray[np.int64]:
    """The class of each row."""
    answers: npt.NDArray[np.int64] = logits.argmax(1).cpu().numpy()
    return answers
