"""When a run counts as collapsed: adaptation ended with one class for nearly everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLLAPSE_SHARE = 0.2
LEAST_ANSWERS = 20
"""Of the last fifth; among fewer, one class has a large share by chance."""


def collapsed(
    top_share: float,
    true_share: float,
    *,
    adapts: bool,
    answers: int = LEAST_ANSWERS,
    unadapted_share: float | None = None,
) -> bool:
    """Whether one class takes more than a fifth of the predictions, at least twice what it should, by adaptation.

    A class-ordered stream may rightly show one class for a while, hence the comparison with the labels. A
    network that is not adapted may be just as one-sided on hard images, but nothing made it collapse; so an
    adapted one has collapsed only where its share is at least twice the unadapted one's s, or has gone at
    least half of the way from s to everything: min(2s, (1 + s) / 2).

    Args:
        top_share: of the most predicted class, among the predictions of the last fifth of the stream; 0 to 1.
        true_share: of the same class among the labels of the same samples.
        adapts: whether the network was adapted.
        answers: how many samples these are.
        unadapted_share: of the unadapted network's most predicted class on the same stream; None: not known.

    >>> collapsed(0.6, 0.01, adapts=True), collapsed(0.6, 0.5, adapts=True)
    (True, False)
    >>> collapsed(0.5, 0.01, adapts=True, unadapted_share=0.48), collapsed(0.9, 0.01, adapts=True, unadapted_share=0.48)
    (False, True)
    """
    one_sided = top_share > COLLAPSE_SHARE and top_share >= 2 * true_share
    alone = unadapted_share or 0.0
    made_so = top_share >= min(2 * alone, (1 + alone) / 2)
    return adapts and one_sided and made_so and answers >= LEAST_ANSWERS


def row_collapsed(metrics: Mapping[str, Any], *, adapts: bool) -> bool:
    """The same from the metrics of a journal's row, where shares are in percent.

    Rows of version 0.1 have no ``top_class_true_share``; the labels explain no share in the published ones.
    ``unadapted_top_class_share`` is put beside them by :func:`wildtta.bench.unadapted.beside_unadapted`.
    """
    true_share = metrics.get("top_class_true_share", 0.0) / 100
    answers = metrics.get("samples", 5 * LEAST_ANSWERS) // 5
    alone = metrics.get("unadapted_top_class_share")
    return collapsed(
        metrics["top_class_share"] / 100,
        true_share,
        adapts=adapts,
        answers=answers,
        unadapted_share=None if alone is None else alone / 100,
    )
