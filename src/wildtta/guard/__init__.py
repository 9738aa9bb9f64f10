"""Alarms and rollback for a network that learns: what it watches, how it decides, what it does."""

from wildtta.guard.guard import Guard

__all__ = ["Guard"]
