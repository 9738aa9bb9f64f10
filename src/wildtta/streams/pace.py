"""A stream that does not wait: images arrive at the speed of the unadapted network, and learning takes time.

Alfarra et al., "Evaluation of Test-Time Adaptation Under Computational Time Constraints" (ICML 2024,
https://arxiv.org/abs/2304.04795).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from wildtta.streams.stream import Stream

TOLERANCE = 0.05
"""A cost this little above a whole number counts as that number: clocks are not better."""


def learning_turns(stream: Stream, cost: float) -> npt.NDArray[np.bool_]:
    """Of each batch, whether the method is free to learn from it when it arrives.

    The unadapted network answers a batch in the time in which the next one arrives; a batch that is learned from
    keeps the method busy for `cost` times as long. What arrives meanwhile is answered by the network as it is then,
    and not learned from: every ⌈cost⌉-th batch is. The clock starts anew where the adapter is reset.
    """
    if not cost > 0 or not math.isfinite(cost):
        raise ValueError(
            f"cost must be a positive number: the time of the method's step over the unadapted network's, got {cost}"
        )
    period = max(1, math.ceil(cost - TOLERANCE))
    turns, since = [], 0
    for batch in stream.batches():
        since = 0 if batch.reset else since + 1
        turns.append(since % period == 0)
    return np.array(turns, dtype=bool)
