"""Writes the core of the no-harm battery with every method of the package, ``studies/no-harm/core.toml``, and its table.

    python studies/later-methods/core.py > studies/no-harm/core.toml
    python studies/later-methods/core.py runs/no-harm.jsonl [docs/results/later-methods.md]

Networks, images, corruptions and order are of the part that is kept aside. Cells of none and Steady are those of
battery.toml, so that one journal serves both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from cells import show

from methods import methods_for
from wildtta.bench import read

NETWORKS = {
    "resnet18": "cifar-10.zip", "wide2048": "cifar-10.zip", "post128": "cifar-10.zip",
    "vit@50": "tiny-50.zip", "rn26_bn": "tiny-200.zip", "rn26_gn@50": "tiny-50.zip",
}  # fmt: skip
"""With their images; the slowest last."""
LONG_RUN = {"cifar-10.zip": 400, "tiny-50.zip": 400, "tiny-200.zip": 100}
"""Images of one class after the other; battery.toml's."""
LEFT_OUT = {"memo"}
"""64 views of every image: hours."""
WITH_ASR = ("tent", "eta")
"""Methods that also run with ASR, the selective reset, as their recovery."""
ASIDE = ["shot_noise", "motion_blur", "zoom_blur", "frost", "brightness", "speckle_noise", "spatter", "saturate"]

HEAD = """\
# The core of the battery with every method of the package, on the part that is kept aside.
# Written by studies/later-methods/core.py; {cells} cells.
#   python studies/no-harm/prepare.py folders data images
#   wildtta bench studies/no-harm/core.toml --journal runs/no-harm.jsonl --data images --source images/source \\
#     --device cuda --per-device 14
#   python studies/no-harm/page.py runs/no-harm.jsonl

[defaults]
data = "folder"
protocol = "native"
options = {{ precision = "tf32" }}
"""


def streams(run: int) -> list[tuple[str, list[str]]]:
    """Corruptions of a grid, and its scenarios: seven streams of 4,000 images."""
    shuffled = '{ scenario = "runs", run = 1, length = 4000 }'
    ordered = f'{{ scenario = "runs", run = {run}, length = 4000 }}'
    one_class = '{ scenario = "one_class", length = 4000 }'
    mixture = '{ scenario = "mixed", within = "runs", run = 1, length = 4000 }'
    continual = '{ scenario = "continual", within = "runs", run = 1, length = 500, reshuffle = true }'
    listed = ", ".join(f'"{name}"' for name in ASIDE)
    return [
        ('corruptions = ["frost"]', [shuffled, ordered, one_class]),
        (f"corruptions = [{listed}]", [mixture, continual]),
        ('corruptions = "clean"', [shuffled, ordered]),
    ]


def parts() -> Iterator[str]:
    for name in WITH_ASR:
        yield f'[methods."{name} + asr"]\nmethod = "{name}"\noptions = {{ recovery = "asr" }}\n'
    for name in NETWORKS:
        yield f'[models."{name}"]\nmodel = "networks.py:battery"\nmodel_options = {{ name = "{name}" }}\n'
    for name, folder in NETWORKS.items():
        every = [method for method in methods_for(name) if method not in LEFT_OUT]
        every += [f"{method} + asr" for method in WITH_ASR]
        listed = ", ".join(f'"{method}"' for method in every)
        for corruptions, scenarios in streams(LONG_RUN[folder]):
            told = "".join(f"    {scenario},\n" for scenario in scenarios)
            yield (
                f'[[grid]]\nmodels = ["{name}"]\nmethods = [{listed}]\ndata_options = {{ folder = "{folder}" }}\n'
                f"{corruptions}\nseverities = [5]\nseeds = [1]\nscenarios = [\n{told}]\n"
            )


def grid() -> str:
    """The file."""
    cells = sum(7 * (len(set(methods_for(name)) - LEFT_OUT) + len(WITH_ASR)) for name in NETWORKS)
    return "\n".join([HEAD.format(cells=cells), *parts()])


def table(journal: str, page: str | None = None) -> None:
    """Each method's verdict on the streams of a journal that all kinds of methods have run."""
    from page import scores, shared_by_methods, verdicts  # of the battery; methods.py names its folder

    show(verdicts(shared_by_methods(scores(read(journal)))), "no-harm core", None if page is None else Path(page))


if __name__ == "__main__":
    if sys.argv[1:]:
        table(*sys.argv[1:])
    else:
        print(grid(), end="")
