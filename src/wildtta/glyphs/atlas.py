"""The atlas: one grey mask per glyph class and font face, rendered once from the fonts that matplotlib ships.

It is a constant; everything random about a glyph image comes later (:mod:`wildtta.glyphs.composition`). It can
be written to a file, so that a machine without matplotlib and Pillow can train on glyphs.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from wildtta.glyphs.characters import CHARACTERS

if TYPE_CHECKING:
    from PIL import Image, ImageFont

#: The faces of every class: three families in four styles. All of them hold every chosen character.
FACES: tuple[str, ...] = tuple(
    f"{family}{style}"
    for family, styles in (
        ("DejaVuSans", ("", "-Bold", "-Oblique", "-BoldOblique")),
        ("DejaVuSansMono", ("", "-Bold", "-Oblique", "-BoldOblique")),
        ("DejaVuSerif", ("", "-Bold", "-Italic", "-BoldItalic")),
    )
    for style in styles
)

#: Side of a mask in pixels, and the longer side of its ink. 44·√2 < 64: no rotation moves ink outside.
MASK_SIZE = 64
INK_SIZE = 44

_MEASURING_POINTS = 96


@functools.cache
def glyph_atlas() -> torch.Tensor:
    """The masks as uint8 ``[classes, faces, 64, 64]`` (0 = paper, 255 = ink), rendered once per process."""
    fonts = font_folder()
    masks = [[render_mask(character, fonts / f"{face}.ttf") for face in FACES] for character in CHARACTERS]
    return torch.from_numpy(np.array(masks, dtype=np.uint8))


def render_mask(character: str, font_file: Path) -> npt.NDArray[np.uint8]:
    """One centred mask ``[64, 64]`` in the font size that makes the ink's longer side ``INK_SIZE`` pixels.

    Normalising the size takes away the difference between, say, ``o`` and ``O``, which an image of random
    size could not carry anyway; :data:`CHARACTERS` holds no two characters that differ in nothing else.
    """
    from PIL import Image

    measured = _ink(character, _font(font_file, _MEASURING_POINTS))
    ink = _ink(character, _font(font_file, round(_MEASURING_POINTS * INK_SIZE / max(measured.size))))
    mask = Image.new("L", (MASK_SIZE, MASK_SIZE))
    mask.paste(ink, ((MASK_SIZE - ink.width) // 2, (MASK_SIZE - ink.height) // 2))
    return np.asarray(mask)


def _ink(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """The character cropped to its ink. (A font's own bounding box includes the space beside the ink.)"""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (3 * int(font.size), 3 * int(font.size)))
    ImageDraw.Draw(canvas).text((int(font.size), int(font.size) // 2), character, fill=255, font=font)
    return canvas.crop(canvas.getbbox())


def save_atlas(path: Path, atlas: torch.Tensor) -> None:
    """Write the atlas as a compressed npz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, masks=atlas.numpy(), characters=np.array(CHARACTERS))


def load_atlas(path: Path) -> torch.Tensor:
    """Read what :func:`save_atlas` wrote; an atlas of other characters or another shape is an error."""
    with np.load(path, allow_pickle=False) as stored:
        if set(stored.files) != {"masks", "characters"}:
            raise ValueError(f"{path}: expected the arrays 'masks' and 'characters', found {sorted(stored.files)}")
        masks, characters = stored["masks"], tuple(stored["characters"].tolist())
    expected = (len(CHARACTERS), len(FACES), MASK_SIZE, MASK_SIZE)
    if masks.shape != expected or masks.dtype != np.uint8 or characters != CHARACTERS:
        raise ValueError(
            f"{path}: expected a uint8 atlas of shape {expected} of this version's {len(CHARACTERS)} characters, "
            f"found {masks.dtype} {masks.shape} of {len(characters)} characters; "
            "write it again with 'wildtta train-glyphs --export-atlas'"
        )
    return torch.from_numpy(masks)


@functools.cache
def _font(font_file: Path, points: int) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    # The basic layout engine: the other one (Raqm) is not in every build of Pillow and would move the pixels.
    return ImageFont.truetype(str(font_file), points, layout_engine=ImageFont.Layout.BASIC)


def font_folder() -> Path:
    """Where the fonts of the glyphs are; an error says what to install."""
    try:
        import matplotlib
        import PIL  # noqa: F401 - rendering needs it; better said here than in the middle
    except ImportError as missing:
        raise ImportError(
            f"glyphs are rendered with Pillow from the fonts of matplotlib, and {missing.name} is not installed: "
            "pip install 'wildtta[data]' (or pass an atlas file written on another machine)"
        ) from missing
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    absent = [face for face in FACES if not (folder / f"{face}.ttf").is_file()]
    if absent:
        raise FileNotFoundError(
            f"matplotlib's font folder {folder} lacks {', '.join(f'{face}.ttf' for face in absent)}; "
            "reinstall matplotlib from its wheel (some distributions strip the fonts)"
        )
    return folder
