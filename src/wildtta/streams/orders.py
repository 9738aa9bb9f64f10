"""Orders within one domain: shuffled, temporally correlated (Dirichlet), runs of one class, one class alone.

An order is an int64 array of positions in the data set. It depends on the labels, its own options and the
seed alone: the generator is built here from the seed, and the global random state is neither read nor
changed. Every method therefore sees the same stream.
"""

from __future__ import annotations

import sys
from numbers import Real

import numpy as np
import numpy.typing as npt

from wildtta.randomness import numpy_generator
from wildtta.streams.labels import IntArray, as_labels, images_by_class, is_whole


def mild(labels: npt.ArrayLike, *, seed: int = 0) -> IntArray:
    """Every image once, shuffled uniformly.

    >>> mild([0, 0, 1, 1], seed=0).tolist()
    [2, 0, 1, 3]
    """
    return numpy_generator(seed).permutation(len(as_labels(labels))).astype(np.int64)


def stored(labels: npt.ArrayLike, *, seed: int = 0) -> IntArray:
    """Every image once, as they lie in the data set: for sets that are streams themselves (CCC). The seed changes nothing.

    >>> stored([4, 2, 2]).tolist()
    [0, 1, 2]
    """
    return np.arange(len(as_labels(labels)), dtype=np.int64)


def single(labels: npt.ArrayLike, *, seed: int = 0) -> IntArray:
    """The order for batches of one image: that of `mild`, so that only the batch size differs."""
    return mild(labels, seed=seed)


def dirichlet(labels: npt.ArrayLike, gamma: float = 0.1, *, slots: int | None = None, seed: int = 0) -> IntArray:
    """Every image once, classes clustered in time: the temporally correlated stream of the field.

    The stream is cut into `slots` periods (default: as many as there are classes). The images of each class
    are spread over the periods by proportions drawn from a symmetric Dirichlet(gamma); inside a period the
    classes come one after the other in random order. Small gamma: a class appears in a few bursts. Large
    gamma: close to shuffled, as long as a class has fewer images than there are periods.

    Source: the protocol of RoTTA (Yuan et al., CVPR 2023) and NOTE (Gong et al., NeurIPS 2022).
    """
    checked = as_labels(labels)
    if isinstance(gamma, bool) or not isinstance(gamma, Real) or not 0 < gamma <= sys.float_info.max:
        raise ValueError(f"gamma must be a positive finite number (the Dirichlet concentration), got {gamma!r}")
    gamma = float(gamma)  # numpy takes no whole number beyond 64 bits
    groups = images_by_class(checked)
    periods = len(groups) if slots is None else slots
    if not is_whole(periods) or periods < 1:
        raise ValueError(f"slots must be at least 1 (a whole number), got {periods!r}")
    generator = numpy_generator(seed)
    bursts: list[list[IntArray]] = [[] for _ in range(periods)]
    for group in groups:
        shuffled = generator.permutation(group)
        proportions = generator.dirichlet(np.full(periods, gamma))
        ends = np.rint(np.cumsum(proportions)[:-1] * len(group)).astype(np.int64)
        for period, burst in enumerate(np.split(shuffled, ends)):
            if len(burst):
                bursts[period].append(burst)
    ordered = [period[i] for period in bursts for i in generator.permutation(len(period))]
    return np.concatenate(ordered).astype(np.int64)


def runs(labels: npt.ArrayLike, *, run: int = 16, length: int | None = None, seed: int = 0) -> IntArray:
    """Runs of ``run`` images of one class after another, ``length`` in all (default: as many as there are images).

    The classes take turns in a random order, drawn anew for each round. An image of a class comes again only when all of
    that class have come.

    >>> runs([0, 0, 1, 1], run=2, seed=0).tolist()
    [0, 1, 2, 3]
    """
    checked = as_labels(labels)
    if run < 1:
        raise ValueError(f"run must be at least 1 image, got {run}")
    wanted = len(checked) if length is None else length
    if wanted < 1:
        raise ValueError(f"length must be at least 1 image, got {wanted}")
    generator = numpy_generator(seed)
    groups = [generator.permutation(group) for group in images_by_class(checked)]
    turns = -(-wanted // (run * len(groups)))
    ordered = [
        np.take(groups[at], np.arange(turn * run, (turn + 1) * run), mode="wrap")
        for turn in range(turns)
        for at in generator.permutation(len(groups))
    ]
    return np.concatenate(ordered)[:wanted].astype(np.int64)


def one_class(labels: npt.ArrayLike, *, length: int | None = None, seed: int = 0) -> IntArray:
    """Images of one class alone, drawn by ``seed``, ``length`` in all (default: as many as there are images), each round
    in another order.

    >>> one_class([0, 0, 1, 1], length=3, seed=0).tolist()
    [2, 3, 2]
    """
    checked = as_labels(labels)
    wanted = len(checked) if length is None else length
    if wanted < 1:
        raise ValueError(f"length must be at least 1 image, got {wanted}")
    generator = numpy_generator(seed)
    groups = images_by_class(checked)
    own = groups[int(generator.integers(len(groups)))]
    rounds = [generator.permutation(own) for _ in range(-(-wanted // len(own)))]
    return np.concatenate(rounds)[:wanted].astype(np.int64)
