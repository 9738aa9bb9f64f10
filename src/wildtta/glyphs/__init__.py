"""Glyphs: the embedded 200-class image set and three small networks trained on it. Nothing needs a download.

A demonstration and a test bed, not evidence: what a method is worth is measured on real data.
"""

from __future__ import annotations

from wildtta.glyphs.atlas import glyph_atlas, load_atlas, save_atlas
from wildtta.glyphs.characters import CHARACTERS
from wildtta.glyphs.image_set import Glyphs
from wildtta.glyphs.networks import NETWORKS, network

__all__ = ["CHARACTERS", "NETWORKS", "Glyphs", "glyph_atlas", "load_atlas", "network", "save_atlas"]
