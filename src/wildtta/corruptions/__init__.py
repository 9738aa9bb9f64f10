"""The corruptions of ImageNet-C on batches of uint8 tensors, on the CPU or a GPU."""

from wildtta.corruptions.apply import corrupt
from wildtta.corruptions.constants import CORRUPTIONS, EXTRA_CORRUPTIONS

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "corrupt"]
