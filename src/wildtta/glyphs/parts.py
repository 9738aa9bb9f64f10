"""What two methods need on glyphs, trained and packaged: a rotation branch for each network (TTT), and a diffusion model (DDA).

Their names are values of the methods' options: ``adapt(network, "ttt", branch="glyphs:vit")`` and
``adapt(network, "dda", diffusion="glyphs")``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wildtta.glyphs.networks import NETWORKS

_FOLDER = Path(__file__).parent

#: The rotation branches by name.
BRANCHES: dict[str, Path] = {f"glyphs:{name}": _FOLDER / f"{name}.rotation.safetensors" for name in NETWORKS}
#: The diffusion model by name.
DIFFUSIONS: dict[str, Path] = {"glyphs": _FOLDER / "diffusion"}

#: DDA's settings for images of 32 pixels. Shrunk by 4, as its authors do at 256 pixels, a glyph has no structure left.
_DDA = {"diffusion": "glyphs", "factor": 2, "depth": 30, "guidance": 12.0}


def with_packaged_part(options: Mapping[str, Any], *, method: str, model: str, data: str) -> dict[str, Any]:
    """The options, and where they lack the part that the method needs on glyphs, the packaged one with its settings."""
    if method == "ttt" and model in BRANCHES and "branch" not in options:
        return {"branch": model, **options}
    if method == "dda" and data == "glyphs" and "diffusion" not in options:
        return {**_DDA, **options}
    return dict(options)
