"""A classifier from an encoder and one embedding per class, as CLIP is used: cosine similarities times a scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wildtta.network.head import head_weights


class ZeroShotClassifier(nn.Module):
    """logits = s · ⟨z/‖z‖, e_c/‖e_c‖⟩ for features z of ``encoder`` and class embeddings e; made by :func:`zero_shot`.

    The unit features enter a linear head with the weights s · e_c/‖e_c‖: so they are what adaptation sees as features.
    """

    def __init__(self, encoder: nn.Module, embeddings: Tensor, scale: float, *, normalise: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalise = normalise
        classes, width = embeddings.shape
        self.head = nn.Linear(width, classes, bias=False, device=embeddings.device, dtype=embeddings.dtype)
        with torch.no_grad():
            self.head.weight.copy_(scale * (F.normalize(embeddings, dim=-1) if normalise else embeddings))

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        """Logits [batch, classes]; the arguments are the encoder's."""
        features = _features(self.encoder(*arguments, **named))
        logits: Tensor = self.head(F.normalize(features, dim=-1) if self.normalise else features)
        return logits


def zero_shot(
    image_encoder: nn.Module,
    text_embeddings: Tensor | nn.Module,
    logit_scale: float | Tensor = 100.0,
    *,
    normalise: bool = True,
) -> ZeroShotClassifier:
    """A classifier that :func:`wildtta.adapt` takes, from an image encoder and the embeddings of the classes' names.

    Args:
        image_encoder: gives features [batch, width], or Hugging Face's object with ``image_embeds`` or ``pooler_output``
            (``CLIPVisionModelWithProjection``; open_clip's ``model.visual``).
        text_embeddings: one row per class, [classes, width]; or a layer whose weight has these rows, for a head that
            shares its matrix with it (an embedding).
        logit_scale: what cosines are multiplied by. CLIP learns its logarithm: give ``clip.logit_scale.exp()``.
        normalise: False for plain products instead of cosines.

    Example:
        >>> import torch, wildtta
        >>> from torch import nn
        >>> encoder = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 6))
        >>> model = wildtta.adapt(wildtta.zero_shot(encoder, torch.randn(5, 6)), "tent")
        >>> model(torch.randn(3, 8)).shape
        torch.Size([3, 5])
    """
    embeddings = text_embeddings
    if isinstance(embeddings, nn.Module):
        embeddings = embeddings.weight if isinstance(embeddings, nn.Embedding) else head_weights(embeddings)[0]
    if embeddings.dim() != 2 or len(embeddings) < 2:
        raise ValueError(
            f"expected text_embeddings [classes, width] with at least 2 classes, got {tuple(embeddings.shape)}; "
            "average the embeddings of several prompts per class first"
        )
    scale = float(logit_scale)
    if not scale > 0:
        raise ValueError(
            f"logit_scale must be positive, got {scale:g}; CLIP keeps its logarithm: give logit_scale.exp()"
        )
    reference = next(image_encoder.parameters(), embeddings)
    return ZeroShotClassifier(image_encoder, embeddings.detach().to(reference), scale, normalise=normalise)


def _features(output: Any) -> Tensor:
    """The features in what an encoder returned."""
    for found in (output, getattr(output, "image_embeds", None), getattr(output, "pooler_output", None)):
        if isinstance(found, Tensor):
            return found
    raise TypeError(
        f"the encoder returned {type(output).__name__}; expected a tensor of features [batch, width], or an object with "
        "image_embeds or pooler_output"
    )
