"""A thousand characters that can be told apart, for a glyph network with 1,000 classes.

The package's 200 come first. The others are those that all of its faces hold, in Unicode's order, each taken where its
blurred mask resembles none before it too much (mean correlation over the faces); the limit is the smallest that leaves 1,000.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.glyphs.atlas import FACES, font_folder, render_mask
from wildtta.glyphs.characters import CHARACTERS

CLASSES = 1_000
SOME_FACES = ("DejaVuSans", "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Italic")
"""A third of the package's faces, so that the atlas travels."""
KINDS = ("Lu", "Ll", "Lo", "Nd", "Nl", "No", "Sm", "Sc", "So", "Po")
"""Letters, numbers, symbols and signs of punctuation; no accents and no spaces."""


def candidates() -> list[str]:
    """The package's characters, then every other one that all of its faces hold."""
    from matplotlib.ft2font import FT2Font

    held = [set(FT2Font(str(font_folder() / f"{face}.ttf")).get_charmap()) for face in FACES]
    common = sorted(chr(code) for code in set.intersection(*held))
    return [*CHARACTERS, *(c for c in common if unicodedata.category(c) in KINDS and c not in CHARACTERS)]


def likeness(masks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Mean correlation over the faces of blurred masks [N, faces, 64, 64], [N, N]."""
    small = nn.functional.avg_pool2d(torch.from_numpy(masks).float(), 9, stride=4, padding=4).flatten(2)
    small = small - small.mean(2, keepdim=True)
    small = small / small.norm(dim=2, keepdim=True).clamp(min=1e-6)
    alike: npt.NDArray[np.float32] = (torch.einsum("nfp,mfp->nm", small, small) / masks.shape[1]).numpy()
    return alike


def told_apart(alike: npt.NDArray[np.float32], limit: float) -> list[int]:
    """Places of those that are less than ``limit`` like each one taken before; the package's are taken as they are."""
    taken = list(range(len(CHARACTERS)))
    for place in range(len(CHARACTERS), len(alike)):
        if alike[place, taken].max() < limit:
            taken.append(place)
    return taken


def thousand() -> tuple[list[str], Tensor]:
    """1,000 characters and their masks, uint8 [1000, faces, 64, 64]."""
    every = candidates()
    masks = np.array([[render_mask(c, font_folder() / f"{face}.ttf") for face in SOME_FACES] for c in every], np.uint8)
    alike = likeness(masks)
    limits = np.arange(0.80, 1.0, 0.005)
    enough = next(limit for limit in limits if len(told_apart(alike, limit)) >= CLASSES)
    places = told_apart(alike, enough)[:CLASSES]
    print(f"{len(every)} characters, {CLASSES} of them less than {enough:.3f} alike")
    return [every[place] for place in places], torch.from_numpy(masks[places])
