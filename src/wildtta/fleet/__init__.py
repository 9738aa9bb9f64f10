"""Many streams on one network in one batch, each with its own norm weights and state."""

from wildtta.fleet.fleet import Fleet, Turn
from wildtta.fleet.locks import StreamHeld
from wildtta.fleet.stream import Stream

__all__ = ["Fleet", "Stream", "StreamHeld", "Turn"]
