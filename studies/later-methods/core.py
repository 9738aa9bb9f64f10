"""Writes grids of the no-harm battery, on the part that is kept aside.

    python studies/later-methods/core.py > studies/no-harm/core.toml                      # every method of the package
    python studies/later-methods/core.py further > studies/no-harm/further.toml           # none, Tent, SAR and Steady
    python studies/later-methods/core.py singles > studies/no-harm/singles.toml           # single images, 200 classes
    python studies/later-methods/core.py batch-norm > studies/no-harm/batch-norm.toml     # BatchNorm, one class above all
    python studies/later-methods/core.py many-classes > studies/no-harm/many-classes.toml # 50 and 200 classes, no BatchNorm
    python studies/later-methods/core.py core vit@50 wide2048 > …                         # of these networks alone

What decides most stands first, since a grid is run from its beginning for as long as there is time. The core's cells of
none and Steady are those of battery.toml, so that one journal serves both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from methods import methods_for, networks
from wildtta.bench.workload import passes

IMAGES = {
    "resnet18": "cifar-10", "wide2048": "cifar-10", "post128": "cifar-10", "bn64-two": "cifar-2", "bn64-five": "cifar-5",
}  # fmt: skip
"""Which images a network sees; else by its name."""
CORE = ("resnet18", "wide2048", "post128", "vit@50", "rn26_bn", "rn26_gn@50")
FURTHER = (
    "glyph-gn@10", "glyph-vit@10", "glyph-bn@10", "glyph-gn", "glyph-vit", "glyph-bn", "bn64-two", "glyph-1000",
    "wide2048", "post128", "vit@50", "rn26_gn@50", "rn26_bn",
)  # fmt: skip
"""Accurate networks, two classes and a thousand; then those of the core, with seeds and a severity that it lacks."""
SINGLES = ("vit", "rn26_gn")
BATCH_NORM = ("rn26_bn", "resnet18", "bn64-five", "bn64-two", "glyph-bn", "glyph-bn@10")
MANY_CLASSES = ("vit", "rn26_gn", "vit@50", "rn26_gn@50", "glyph-gn", "glyph-vit")
RIVALS = ("shot", "bn-adapt", "infomax", "zerosiam", "eta")
"""Methods of at most one forward and one backward that gain most in shuffled or changing streams."""
LEFT_OUT = {"memo"}
"""64 views of every image: hours."""
WITH_ASR = ("tent", "eta")
"""Methods that also run with ASR, the selective reset, as their recovery."""
SOME_METHODS = ("none", "steady", "tent", "sar")
ASIDE = ("shot_noise", "motion_blur", "zoom_blur", "frost", "brightness", "speckle_noise", "spatter", "saturate")

HEAD = """\
# {title}
# Written by studies/later-methods/core.py; {cells} cells.
#   python studies/no-harm/prepare.py folders data images
#   wildtta bench studies/no-harm/{name}.toml --journal runs/no-harm.jsonl --data images --source images/source \\
#     --device cuda --per-device 14
#   python studies/no-harm/page.py runs/no-harm.jsonl

[defaults]
data = "folder"
protocol = "native"
options = {{ precision = "tf32" }}
"""
SHUFFLED = '{ scenario = "runs", run = 1, length = 4000 }'
ONE_CLASS = '{ scenario = "one_class", length = 4000 }'
MIXTURE = '{ scenario = "mixed", within = "runs", run = 1, length = 4000 }'
CONTINUAL = '{ scenario = "continual", within = "runs", run = 1, length = 500, reshuffle = true }'

LONG_RUNS = '{ scenario = "runs", run = 100, length = 20000 }'
LONG_CONTINUAL = '{ scenario = "continual", within = "runs", run = 100, length = 2500, reshuffle = true }'


class Part(NamedTuple):
    """One ``[[grid]]``: every combination of what it lists."""

    network: str
    methods: Sequence[str]
    corruptions: Sequence[str]
    """None of them: clean images."""
    scenarios: Sequence[str]
    severities: Sequence[int] = (5,)
    seeds: Sequence[int] = (1,)
    batch: int = 64

    @property
    def cells(self) -> int:
        single = [text for text in self.scenarios if text not in (MIXTURE, CONTINUAL, LONG_CONTINUAL)]
        streams = len(self.scenarios) - len(single) + len(single) * max(1, len(self.corruptions))
        return len(self.methods) * streams * len(self.severities) * len(self.seeds)

    def text(self) -> str:
        clean = 'corruptions = "clean"'
        lines = [
            "[[grid]]", f"models = {listed([self.network])}", f"methods = {listed(self.methods)}",
            f'data_options = {{ folder = "{images_of(self.network)}.zip" }}',
            f"corruptions = {listed(self.corruptions)}" if self.corruptions else clean,
            f"severities = {list(self.severities)}", f"seeds = {list(self.seeds)}",
            *([] if self.batch == 64 else [f"batch_sizes = [{self.batch}]"]),
            *(['protocol = "glyphs"'] if images_of(self.network).startswith("glyphs") else []),
            "scenarios = [", *(f"    {scenario}," for scenario in self.scenarios), "]",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


def listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def images_of(network: str) -> str:
    """The set of images, by its file's name."""
    base, _ = networks.split_name(network)
    known = networks.RECIPES[base].data.removesuffix("-1000")
    return IMAGES.get(network, f"{known}-{networks.classes_of(network)}")


def ordered(network: str) -> str:
    """Class order: runs of 400 images of one class, of 100 where there are many classes; battery.toml's."""
    return f'{{ scenario = "runs", run = {400 if networks.classes_of(network) <= 50 else 100}, length = 4000 }}'


def tiers(network: str) -> list[list[str]]:
    """All methods that mean something on a network: those of about two passes at most, of at most three, and the others."""
    every = [method for method in methods_for(network) if method not in LEFT_OUT]
    price = {method: sum(passes(method)) for method in every}
    found = [[method for method in every if low < price[method] <= high] for low, high in ((0, 2.15), (2.15, 3), (3, 99))]
    return [found[0] + [f"{method} + asr" for method in WITH_ASR], *found[1:]]


def core(names: Sequence[str]) -> Iterator[Part]:
    """Seven streams of 4,000 images with every method."""
    for tier in range(3):
        for name in names:
            methods = tiers(name)[tier]
            yield Part(name, methods, ["frost"], [SHUFFLED, ordered(name), ONE_CLASS])
            yield Part(name, methods, ASIDE, [MIXTURE, CONTINUAL])
            yield Part(name, methods, [], [SHUFFLED, ordered(name)])


def further(names: Sequence[str]) -> Iterator[Part]:
    """Streams of 4,000 images of severities 1 and 5; of networks that are also in the core what that lacks."""
    two, others = SOME_METHODS[:2], SOME_METHODS[2:]
    for methods in (two, others):
        for name in names:
            if name not in CORE:
                yield Part(name, methods, ["frost", "shot_noise"], [SHUFFLED, ordered(name)], severities=(5, 1))
                yield Part(name, methods, ["frost"], [ONE_CLASS])
                yield Part(name, methods, ASIDE, [MIXTURE, CONTINUAL])
                yield Part(name, methods, [], [SHUFFLED, ordered(name), ONE_CLASS])
    of_core = [name for name in names if name in CORE]
    for name in of_core:
        yield Part(name, two, ["frost"], [SHUFFLED, ordered(name), ONE_CLASS], seeds=(2, 3))
        yield Part(name, two, ASIDE, [MIXTURE, CONTINUAL], seeds=(2, 3))
        yield Part(name, two, [], [SHUFFLED, ordered(name)], seeds=(2, 3))
    for name in of_core:
        yield Part(name, SOME_METHODS, ["frost", "shot_noise"], [SHUFFLED, ordered(name)], severities=(1,))


def singles(names: Sequence[str]) -> Iterator[Part]:
    """Single images: Steady beside version 0.1's, and none."""
    some = ("shot_noise", "frost", "motion_blur", "spatter")
    for methods, seeds in ((["steady", "steady 0.1", "none"], (1,)), (["steady", "none"], (2,))):
        for name in names:
            yield Part(name, methods, some, [SHUFFLED], seeds=seeds, batch=1)


def batch_norm(names: Sequence[str]) -> Iterator[Part]:
    """BatchNorm networks: every kind of stream, one class under several corruptions and orders, ResNet-18 beside rivals."""
    two = SOME_METHODS[:2]
    for name in names:
        methods = (*two, *RIVALS) if name == "resnet18" else two
        yield Part(name, methods, ["frost"], [SHUFFLED, ordered(name)])
        yield Part(name, methods, ASIDE, [MIXTURE, CONTINUAL])
        yield Part(name, two, [], [SHUFFLED, ordered(name), ONE_CLASS])
    for name in names:
        yield Part(name, two, ["frost", "shot_noise", "motion_blur"], [ONE_CLASS], seeds=(1, 2, 3))
        yield Part(name, two, ["shot_noise"], [SHUFFLED, ordered(name)])


def many_classes(names: Sequence[str]) -> Iterator[Part]:
    """Every kind of stream with 50 and 200 classes; the testbed's two also for 20,000 images, beside version 0.1."""
    some, beside = ("shot_noise", "frost", "motion_blur", "spatter"), ("none", "steady", "steady 0.1")
    for name in names:
        if name in SINGLES:
            yield Part(name, beside, some, [LONG_RUNS], seeds=(1, 2))
            yield Part(name, beside, ASIDE, [LONG_CONTINUAL], seeds=(1, 2))
            yield Part(name, beside[2:], ASIDE, [MIXTURE], seeds=(1, 2))
    for name in names:
        methods = SOME_METHODS[:2]
        yield Part(name, methods, ["frost", "shot_noise"], [SHUFFLED, ordered(name)], severities=(5, 1))
        yield Part(name, methods, ["contrast", "fog"], [ordered(name)])
        yield Part(name, methods, ["frost"], [ONE_CLASS], seeds=(1, 2, 3))
        yield Part(name, methods, ["frost"], [ordered(name)], seeds=(2, 3))
        yield Part(name, methods, ASIDE, [MIXTURE, CONTINUAL], seeds=(1, 2, 3))
        yield Part(name, methods, [], [SHUFFLED, ordered(name), ONE_CLASS], seeds=(1, 2, 3))


KINDS = {
    "core": (core, CORE, "The core of the battery with every method of the package, on the part that is kept aside."),
    "further": (further, FURTHER, "More of the part kept aside: accurate networks, 1,000 classes, severity 1, more seeds."),
    "singles": (singles, SINGLES, "Single images with 200 classes, 4,000 of them, on the part that is kept aside."),
    "many-classes": (many_classes, MANY_CLASSES, "50 and 200 classes without BatchNorm, on the part that is kept aside."),
    "batch-norm": (batch_norm, BATCH_NORM, "BatchNorm networks of the part kept aside, one class above all."),
}  # fmt: skip
SETTINGS = {
    "tent + asr": ("tent", 'recovery = "asr"'),
    "eta + asr": ("eta", 'recovery = "asr"'),
    "steady 0.1": ("steady", "evidence = false, recovery = 0.2"),
}


def grid(kind: str, names: Sequence[str] = ()) -> str:
    """The file."""
    make, every, title = KINDS[kind]
    parts = list(make(names or every))
    used = dict.fromkeys(method for part in parts for method in part.methods)
    pieces = [HEAD.format(title=title, name=kind, cells=sum(part.cells for part in parts))]
    pieces += [
        f'[methods."{name}"]\nmethod = "{method}"\noptions = {{ {options} }}\n'
        for name, (method, options) in SETTINGS.items()
        if name in used
    ]
    pieces += [
        f'[models."{name}"]\nmodel = "networks.py:battery"\nmodel_options = {{ name = "{name}" }}\n'
        for name in dict.fromkeys(part.network for part in parts)
    ]
    return "\n".join([*pieces, *(part.text() for part in parts if part.methods)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", nargs="?", default="core", choices=KINDS)
    parser.add_argument("networks", nargs="*")
    asked = parser.parse_args()
    print(grid(asked.kind, asked.networks), end="")
