"""The corruptions by name, and their parameters at severities 1 to 5.

The parameters are those of the scripts that made ImageNet-C, Tiny-ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich,
"Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019).
"""

from __future__ import annotations

from typing import Final, Literal

Constants = Literal["auto", "imagenet", "tiny", "cifar"]

Level = tuple[float, ...]
"""The parameters of one corruption at one severity; the corruption's function says what they mean."""

SMALLEST_IMAGENET_SIDE: Final = 128
"""Images with a longer side of at least this many pixels take ImageNet's constants under "auto"."""


# Of each corruption five levels for ImageNet (224 x 224), five for Tiny-ImageNet (64 x 64), five for CIFAR (32 x 32).
_TABLE = """
gaussian_noise     0.08  0.12  0.18  0.26  0.38   0.04  0.08  0.12  0.15  0.18   0.04  0.06  0.08  0.09  0.1
shot_noise         60  25  12  5  3   250  100  50  30  15   500  250  100  75  50
impulse_noise      0.03  0.06  0.09  0.17  0.27   0.01  0.02  0.05  0.08  0.14   0.01  0.02  0.03  0.05  0.07
defocus_blur       3,0.1  4,0.5  6,0.5  8,0.5  10,0.5   0.5,0.6  1,0.1  1.5,0.1  2.5,0.01  3,0.1
                   0.3,0.4  0.4,0.5  0.5,0.6  1,0.2  1.5,0.1
glass_blur         0.7,1,2  0.9,2,1  1,2,3  1.1,3,2  1.5,4,2   0.1,1,1  0.5,1,1  0.6,1,2  0.7,2,1  0.9,2,2
                   0.05,1,1  0.25,1,1  0.4,1,1  0.25,1,2  0.4,1,2
motion_blur        10,3  15,5  15,8  15,12  20,15   10,1  10,1.5  10,2  10,2.5  12,3
                   6,1  6,1.5  6,2  8,2  9,2.5
zoom_blur          1.11,0.01  1.16,0.01  1.21,0.02  1.26,0.02  1.31,0.03
                   1.06,0.01  1.11,0.01  1.16,0.01  1.21,0.01  1.26,0.01
                   1.06,0.01  1.11,0.01  1.16,0.01  1.21,0.01  1.26,0.01
snow               0.1,0.3,3,0.5,10,4,0.8  0.2,0.3,2,0.5,12,4,0.7  0.55,0.3,4,0.9,12,8,0.7
                   0.55,0.3,4.5,0.85,12,8,0.65  0.55,0.3,2.5,0.85,12,12,0.55
                   0.1,0.2,1,0.6,8,3,0.8  0.1,0.2,1,0.5,10,4,0.8  0.15,0.3,1.75,0.55,10,4,0.7
                   0.25,0.3,2.25,0.6,12,6,0.65  0.3,0.3,1.25,0.65,14,12,0.6
                   0.1,0.2,1,0.6,8,3,0.95  0.1,0.2,1,0.5,10,4,0.9  0.15,0.3,1.75,0.55,10,4,0.9
                   0.25,0.3,2.25,0.6,12,6,0.85  0.3,0.3,1.25,0.65,14,12,0.8
frost              1,0.4,1  0.8,0.6,1  0.7,0.7,1  0.65,0.7,1  0.6,0.75,1
                   1,0.3,0.3  0.9,0.4,0.3  0.8,0.45,0.3  0.75,0.5,0.3  0.7,0.55,0.3
                   1,0.2,0.2  1,0.3,0.2  0.9,0.4,0.2  0.85,0.4,0.2  0.75,0.45,0.2
fog                1.5,2  2,2  2.5,1.7  2.5,1.5  3,1.4   0.4,3  0.7,3  1,2.5  1.5,2  2,1.75
                   0.2,3  0.5,3  0.75,2.5  1,2  1.5,1.75
brightness         0.1  0.2  0.3  0.4  0.5   0.1  0.2  0.3  0.4  0.5   0.05  0.1  0.15  0.2  0.3
contrast           0.4  0.3  0.2  0.1  0.05   0.4  0.3  0.2  0.1  0.05   0.75  0.5  0.4  0.3  0.15
elastic_transform  2,0.7,0.1  2,0.08,0.2  0.05,0.01,0.02  0.07,0.01,0.02  0.12,0.01,0.02
                   0,0,0.08  0.05,0.3,0.06  0.1,0.08,0.06  0.1,0.03,0.03  0.16,0.03,0.02
                   0,0,0.08  0.05,0.2,0.07  0.08,0.06,0.06  0.1,0.04,0.05  0.1,0.03,0.03
pixelate           0.6  0.5  0.4  0.3  0.25   0.9  0.8  0.7  0.6  0.5   0.95  0.9  0.85  0.75  0.65
jpeg_compression   25  18  15  10  7   65  58  50  40  25   80  65  58  50  40
speckle_noise      0.15  0.2  0.35  0.45  0.6   0.15  0.2  0.25  0.3  0.35   0.06  0.1  0.12  0.16  0.2
gaussian_blur      1  2  3  4  6   0.5  0.75  1  1.25  1.5   0.4  0.6  0.7  0.8  1
spatter            0.65,0.3,4,0.69,0.6,0  0.65,0.3,3,0.68,0.6,0  0.65,0.3,2,0.68,0.5,0
                   0.65,0.3,1,0.65,1.5,1  0.67,0.4,1,0.65,1.5,1
                   0.62,0.1,0.7,0.7,0.6,0  0.65,0.1,0.8,0.7,0.6,0  0.65,0.3,1,0.69,0.6,0
                   0.65,0.1,0.7,0.68,0.6,1  0.65,0.1,0.5,0.67,0.6,1
                   0.62,0.1,0.7,0.7,0.5,0  0.65,0.1,0.8,0.7,0.5,0  0.65,0.3,1,0.69,0.5,0
                   0.65,0.1,0.7,0.69,0.6,1  0.65,0.1,0.5,0.68,0.6,1
saturate           0.3,0  0.1,0  2,0  5,0.1  20,0.2   0.3,0  0.1,0  2,0  5,0.1  30,0.2
                   0.3,0  0.1,0  1.5,0  2,0.1  2.5,0.2
"""


def _read(columns: slice, elastic_side: int) -> dict[str, list[Level]]:
    """The levels of one data set by corruption; those of the elastic transform are shares of a side."""
    levels: dict[str, list[Level]] = {}
    for word in _TABLE.split():
        if word[0].isalpha():
            current = levels.setdefault(word, [])
        else:
            current.append(tuple(map(float, word.split(","))))
    levels = {name: found[columns] for name, found in levels.items()}
    levels["elastic_transform"] = [tuple(elastic_side * s for s in shares) for shares in levels["elastic_transform"]]
    return levels


# 244, not 224: the published data set was made with this side, so it stays.
CONSTANT_SETS: Final = {"imagenet": _read(slice(5), 244), "tiny": _read(slice(5, 10), 64), "cifar": _read(slice(10, 15), 32)}

_NAMES: Final = tuple(CONSTANT_SETS["imagenet"])
CORRUPTIONS: Final = _NAMES[:15]
"""The 15 corruptions of the benchmark, in the order of the paper's tables."""

EXTRA_CORRUPTIONS: Final = _NAMES[15:]
"""The 4 held-out corruptions, meant for validation: speckle noise, Gaussian blur, spatter and saturate."""


def level(corruption: str, severity: int, height: int, width: int, constants: str = "auto") -> Level:
    """Parameters of ``corruption`` at ``severity`` for images of the given size."""
    if corruption not in _NAMES:
        raise ValueError(f"unknown corruption {corruption!r}; expected one of {', '.join(_NAMES)}")
    if severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"severity must be 1, 2, 3, 4 or 5, got {severity!r}")
    if constants == "auto":
        constants = "imagenet" if max(height, width) >= SMALLEST_IMAGENET_SIDE else "tiny"
    if constants not in CONSTANT_SETS:
        raise ValueError(f'constants must be "auto", "imagenet", "tiny" or "cifar", got {constants!r}')
    return CONSTANT_SETS[constants][corruption][severity - 1]
