"""Triton kernels for GroupNorm, LayerNorm and attention; :class:`FastPasses` decides when they run."""

from wildtta.kernels.passes import FastPasses

__all__ = ["FastPasses"]
