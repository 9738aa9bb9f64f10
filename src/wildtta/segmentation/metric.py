"""Intersection over union, counted batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORE = 255
"""The label of pixels that do not count."""


class Confusion:
    """Counts of (label, prediction) pairs on the device; pixels labelled ``ignore`` are left out."""

    def __init__(self, classes: int, *, ignore: int = IGNORE, device: torch.device | str = "cpu") -> None:
        self.classes, self.ignore = classes, ignore
        self.counts = torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def update(self, maps: Tensor, labels: Tensor) -> None:
        """Add logits [B, C, H, W] against labels [B, H, W] of the same size."""
        if maps.shape[-2:] != labels.shape[-2:] or len(maps) != len(labels) or maps.shape[1] != self.classes:
            raise ValueError(
                f"expected logits [{len(labels)}, {self.classes}, {labels.shape[-2]}, {labels.shape[-1]}] for labels "
                f"{tuple(labels.shape)}, got {tuple(maps.shape)}; resize the logits to the labels' size"
            )
        counted = labels != self.ignore
        wrong = counted & ((labels < 0) | (labels >= self.classes))
        if bool(wrong.any()):
            raise ValueError(
                f"labels must be 0 to {self.classes - 1} or {self.ignore} (left out), got {int(labels[wrong][0])}"
            )
        pairs = labels[counted].long() * self.classes + maps.argmax(1)[counted]
        self.counts += torch.bincount(pairs, minlength=self.classes**2).view(self.classes, self.classes)

    def per_class(self) -> Tensor:
        """|label ∩ prediction| / |label ∪ prediction| of each class; NaN for one that neither has."""
        hits = self.counts.diagonal().double()
        return hits / (self.counts.sum(0) + self.counts.sum(1) - hits)

    def mean(self) -> float:
        """mIoU in percent, over the classes that occur."""
        return 100 * float(self.per_class().nanmean())

    def accuracy(self) -> float:
        """Share of pixels that are right, in percent."""
        return 100 * float(self.counts.diagonal().sum() / self.counts.sum().clamp(min=1))
