"""Semantic segmentation: networks that give logits [B, C, H, W], with pixels as samples.

:func:`adapt_segmentation` is :func:`wildtta.adapt` for them. :class:`Confusion` measures mIoU.
:mod:`~wildtta.segmentation.scenes` is an embedded set of rendered scenes with a small network;
:mod:`~wildtta.segmentation.driving` reads Cityscapes and ACDC.
"""

from wildtta.segmentation.metric import IGNORE, Confusion
from wildtta.segmentation.pixels import Pixels, Segmentation, adapt_segmentation, photometric, resized

__all__ = ["IGNORE", "Confusion", "Pixels", "Segmentation", "adapt_segmentation", "photometric", "resized"]
