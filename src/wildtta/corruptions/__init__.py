"""The corruptions of ImageNet-C on batches of uint8 tensors, on the CPU or a GPU."""

from wildtta.corruptions.apply import DrawKind, corrupt
from wildtta.corruptions.constants import CORRUPTIONS, EXTRA_CORRUPTIONS, Constants

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "Constants", "DrawKind", "corrupt"]
