"""Features in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def tsne(points: Tensor, *, seed: int = 0, perplexity: float = 30.0) -> np.ndarray[Any, Any]:
    """t-SNE coordinates ``[n, 2]`` of features ``[n, D]`` (scikit-learn, PCA start, so that a seed decides it)."""
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ImportError("t-SNE needs scikit-learn: pip install 'wildtta[report]'") from error
    if len(points) < 4:
        raise ValueError(f"t-SNE needs at least 4 points, got {len(points)}")
    # scikit-learn wants a perplexity below the number of points.
    transform = TSNE(2, perplexity=min(perplexity, (len(points) - 1) / 3), init="pca", random_state=seed)
    return np.asarray(transform.fit_transform(points.float().cpu().numpy()))
