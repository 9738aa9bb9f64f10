"""Triton kernels for norm layers and attention, and when they run."""
