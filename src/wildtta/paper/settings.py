"""Where and how large the paper's experiments are run: data, networks, stream lengths, seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from wildtta.bench import SCENARIOS, Cell
from wildtta.bench.source_data import wanted_source_fields
from wildtta.bench.workload import CLASSES
from wildtta.corruptions import constants
from wildtta.glyphs.parts import with_packaged_part
from wildtta.methods.none import NoAdaptation
from wildtta.methods.registry import config_classes

Where = Literal["glyphs", "imagenet-c", "folder"]
WHERE: tuple[Where, ...] = ("glyphs", "imagenet-c", "folder")

BN, GN, VIT, CONVNEXT = "ResNet50-BN", "ResNet50-GN", "VitBase-LN", "ConvNeXt-LN"

#: The paper's order; the last column of its big tables is the plain mean of these 15.
CORRUPTIONS: tuple[str, ...] = constants.CORRUPTIONS

#: The weights that the paper's names stand for. timm has served different ViT-B/16 files under one name over the
#: years, so the tag is part of the name.
IMAGENET_NETWORKS: dict[str, str] = {
    BN: "torchvision:resnet50",
    GN: "timm:resnet50_gn.a1h_in1k",
    VIT: "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
    CONVNEXT: "timm:convnext_base.fb_in1k",
}
#: The embedded networks: small ones that play the part of the paper's.
GLYPH_NETWORKS: dict[str, str] = {BN: "glyphs:resnet_bn", GN: "glyphs:resnet_gn", VIT: "glyphs:vit"}

#: Dozens of passes per image: on scaled-down streams they get a few images only.
SLOW = frozenset({"memo", "ttt", "dda"})
#: Of these, the ones that start every image from the source: the order of a stream changes nothing, one seed is enough.
EPISODIC = frozenset({"memo", "dda"})
#: Options without which a method cannot run on any network, and how to come by them.
FILES = {
    "ttt": ("branch", "TTT needs a rotation branch (wildtta ttt-train)"),
    "dda": ("diffusion", "DDA needs a diffusion model of these images (wildtta diffusion-train)"),
}

#: On glyphs the natural shift of ImageNet-R is played by a corruption outside the 15.
GLYPH_RENDITION = "spatter"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How long the streams are. ``None`` means all there is; sizes count images."""

    name: str
    draws: int = 100
    limits: Mapping[str, int | None] = field(default_factory=dict)
    """Images of a stream by its scenario."""
    slow_limit: int | None = None
    """Images of a stream for methods with dozens of passes per image; tables then say how many each row saw."""
    slow_draws: int | None = None
    """Of each class, where the stream is class-ordered: cut off, it would hold its first classes only."""
    source_images: int | None = None
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corruptions: tuple[str, ...] = CORRUPTIONS
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    large_batches: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    ratios: tuple[float, ...] = (1, 1000, 2000, 3000, 4000, 5000, 500000)
    seeds: int = 3


_COARSE = {"surface": {"steps": 7, "images": 64}, "scatter": {"images": 64}}
_ROUGH = {"surface": {"steps": 5, "images": 8}, "scatter": {"images": 8}, "tsne": {"classes": 8, "per_class": 4}}

FULL = Scale(name="full", measures={"surface": {"steps": 21}})
#: Glyphs are unlimited; this is what shows the effects.
GLYPHS = dataclasses.replace(
    FULL, draws=20, limits={"mild": 4000, "single": 1000, "mixed": 15000}, slow_limit=320, slow_draws=1,
    ratios=(1, 10, 100, 1000, 500000), large_batches=(32, 64, 128, 256, 512),
)  # fmt: skip
#: For a network and images of one's own on one GPU: half as long, six corruptions (those that claims name).
BRIEF = dataclasses.replace(
    GLYPHS, name="brief", draws=10, limits={"mild": 2000, "single": 500, "mixed": 6000}, slow_limit=200,
    source_images=1000, batch_sizes=(1, 4, 16, 64), ratios=(1, 100, 500000),
    corruptions=("gaussian_noise", "shot_noise", "defocus_blur", "motion_blur", "snow", "pixelate"),
)  # fmt: skip
QUICK = Scale(
    name="quick", draws=2, limits={"mild": 256, "single": 48, "mixed": 384}, slow_limit=8, source_images=128,
    measures=_COARSE, corruptions=("gaussian_noise", "contrast"), batch_sizes=(4, 16, 64), large_batches=(32, 64, 128),
    ratios=(1, 500000), seeds=1,
)  # fmt: skip
#: For tests of the machinery: a batch or two per stream, too short for SAR² to leave its warm-up.
TINY = dataclasses.replace(
    QUICK, name="tiny", draws=1, limits={**dict.fromkeys(SCENARIOS, 32), "single": 4}, slow_limit=2, source_images=32,
    measures=_ROUGH, corruptions=("contrast",), batch_sizes=(16, 64), large_batches=(32, 64),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the benchmark: how to make it, and which weights."""

    model: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None

    @property
    def title(self) -> str:
        """Its name; of a function of the user's own, without the file that holds it."""
        place, _, name = self.model.rpartition(":")
        return name if place.endswith(".py") else self.model


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that turns an experiment of the paper into cells of the benchmark."""

    where: Where
    scale: Scale
    seeds: int
    protocol: str
    networks: Mapping[str, Network]
    methods: frozenset[str]
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limit: int | None = None
    """What all streams were cut to."""

    def to_json(self) -> dict[str, Any]:
        """Plain values that say which setting this is; :meth:`from_json` is the inverse."""
        networks = {
            name: {part: value for part, value in dataclasses.asdict(network).items() if value}
            for name, network in self.networks.items()
        }
        values = {"where": self.where, "scale": self.scale.name, "seeds": self.seeds, "protocol": self.protocol}
        methods = sorted(self.methods) if self.methods != frozenset(config_classes()) else None
        rare = {"limit": self.limit, "methods": methods, "overrides": dict(self.overrides)}
        return {**values, "networks": networks, **{name: value for name, value in rare.items() if value}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Setting:
        """A setting from :meth:`to_json`'s values."""
        networks = {name: Network(**parts) for name, parts in values["networks"].items()}
        return setting(**{**values, "networks": networks})

    @property
    def same_as_paper(self) -> bool:
        """Whether a difference to the printed numbers means anything: the paper's data, networks and stream lengths."""
        # What was set for a method changes its numbers, but for the file that it cannot do without.
        changed = (
            (set(given), FILES.get(place.partition("@")[0], ("",))[0]) for place, given in self.overrides.items()
        )
        return (
            self.where == "imagenet-c"
            and self.scale.name == "full"
            and self.limit is None
            and all(options <= {file} for options, file in changed)
            and all(IMAGENET_NETWORKS.get(name) == network.model for name, network in self.networks.items())
            and self._pinned
        )

    @property
    def _pinned(self) -> bool:
        """Whether every network has the weights that its name stands for."""
        return all(network.weights is None and not network.model_options for network in self.networks.values())

    @property
    def label(self) -> str:
        """In words, for the head of every table."""
        size = "" if self.scale.name == "full" else f", {self.scale.name} streams"
        if len(self.scale.corruptions) < len(CORRUPTIONS):
            size += f", {len(self.scale.corruptions)} of the {len(CORRUPTIONS)} corruptions"
        few = self.scale.slow_limit
        size += f"; MEMO, TTT and DDA on at most {few} images of a corruption" if few else ""
        names = ", ".join(f"{network.title} for {name}" for name, network in self.networks.items())
        if self.where == "glyphs":
            random = "" if self._pinned else ", not the trained weights"
            return f"glyphs, 200 classes, small networks ({names}){random}{size}"
        data = {"imagenet-c": "ImageNet-C", "folder": "own folder, corrupted on the fly"}[self.where]
        own = any(IMAGENET_NETWORKS.get(name) != network.model for name, network in self.networks.items())
        weights = f", {names}" if own else "" if self._pinned else ", not the paper's weights"
        return f"{data}, preprocessing {self.protocol}{weights}{size}"

    @property
    def brief(self) -> str:
        """In a few words, for each table and figure."""
        size = "" if self.scale.name == "full" else f", {self.scale.name}"
        if self.where == "glyphs":
            return f"glyphs, not ImageNet-C{size}"
        name = {"imagenet-c": "ImageNet-C", "folder": "own folder"}[self.where]
        return f"{name}, preprocessing {self.protocol}{size}"

    @property
    def scaled(self) -> str:
        """What stands beside a verdict that is not on the paper's data, networks and stream lengths; else empty."""
        if self.same_as_paper:
            return ""
        where = {"glyphs": "on glyphs", "folder": "on own images", "imagenet-c": "not as in the paper"}[self.where]
        length = f"{self.limit} images" if self.limit else "" if self.scale.name == "full" else self.scale.name
        return f"{where}, {length}" if length else where

    @property
    def chance(self) -> float:
        """Accuracy (percent) of guessing; of a folder, whose classes are not known before it is read, ImageNet's."""
        return 100 / CLASSES.get(self.where, 1000)

    def title(self, network: str) -> str:
        """The paper's name of a network, with what plays its part where that is another one."""
        place = self.networks.get(network)
        same = place is None or IMAGENET_NETWORKS.get(network) == place.model
        return network if same or place is None else f"{place.title} for {network}"

    def renamed(self, text: str) -> str:
        """A text with the networks that were run in place of the paper's, and with our name for its NoAdapt."""
        for name, place in self.networks.items():
            if IMAGENET_NETWORKS.get(name) != place.model:
                # Rows may be titled by the file that holds the network.
                text = text.replace(place.model, place.title)
                text = text.replace(self.title(name), place.title).replace(name, place.title)
        return text.replace("NoAdapt", NoAdaptation.title)

    def missing(self, network: str, method: str) -> str:
        """Why this network and method cannot be run here; empty where they can."""
        if network not in self.networks:
            return f"{network} has no counterpart on {self.where}"
        if method not in self.methods:
            return f"method {method!r} is not available in this version"
        given = self.overrides_for(method, network)
        needed = FILES.get(method)
        if needed is not None and needed[0] not in given:
            return f"{needed[1]}: --set {method}@NETWORK.{needed[0]}=…"
        if method == "dda" and find_spec("diffusers") is None:
            return "DDA needs diffusers: pip install 'wildtta[diffusion]'"
        return ""

    def overrides_for(self, method: str, network: str) -> dict[str, Any]:
        """What the user set for a method, and for it on one network; on glyphs with the parts that are packaged."""
        given = {**self.overrides.get(method, {}), **self.overrides.get(f"{method}@{network}", {})}
        place = self.networks.get(network)
        if place is None or place.weights is not None:
            return given
        return with_packaged_part(given, method=method, model=place.model, data=self.where)

    def cells(
        self,
        network: str,
        method: str,
        *,
        options: Mapping[str, Any],
        scenario: str = "mild",
        ratio: float | None = None,
        data: str | None = None,
        measure: Sequence[str] = (),
        most: int | None = None,
        seeds: int | None = None,
        **stream: Any,
    ) -> tuple[Cell, ...]:
        """The same run once per seed, over ``most`` images at most; ``stream`` are further fields of a cell.

        The caller has asked ``missing`` before.
        """
        place = self.networks[network]
        ordered = scenario in ("label_shift", "continual_label_shift")
        order = {"draws": self.scale.draws, "ratio": math.inf if ratio is None else ratio} if ordered else {}
        limit, few = self.scale.limits.get(scenario), self.scale.slow_limit
        if method in SLOW and few is not None:
            limit = few
            if ordered and self.scale.slow_draws is not None:
                order["draws"], limit = self.scale.slow_draws, None
        limit = min((length for length in (limit, most) if length is not None), default=None)
        chosen = {**options, **self.overrides_for(method, network)}
        source = self.scale.source_images
        if source and not wanted_source_fields(Cell(model="-", method=method, options=chosen)):
            source = None
        cell = Cell(
            **vars(place),
            model_name=self.title(network),
            method=method,
            options=chosen,
            scenario=scenario,
            scenario_options=order,
            data=data or self.where,
            data_options={"source_images": source} if source else {},
            limit=limit,
            protocol=self.protocol,
            measure=tuple(measure),
            measure_options={name: self.scale.measures[name] for name in measure if name in self.scale.measures},
            **{**stream, **({"batch_size": 1} if scenario == "single" else {})},
        )
        count = self.seeds if seeds is None else min(seeds, self.seeds)
        if few is not None and method in EPISODIC:
            count = 1
        return tuple(dataclasses.replace(cell, seed=seed) for seed in range(count))


def setting(
    where: Where = "glyphs",
    *,
    scale: str = "full",
    seeds: int | None = None,
    protocol: str | None = None,
    limit: int | None = None,
    random_weights: bool = False,
    networks: Mapping[str, Network] | None = None,
    methods: Sequence[str] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Setting:
    """A setting with the usual choices filled in.

    ``scale`` is ``full`` (the paper's sizes; on glyphs ``short``), ``short``, ``brief``, ``quick`` or ``tiny``; ``protocol``
    the preprocessing: ``paper`` (ImageNet statistics for every network, as the printed numbers need) or ``timm`` (each
    network's own). ``limit`` cuts every stream to that many images. ``random_weights`` builds the real
    architectures without their trained weights: a check of the machinery, never a result.
    """
    if where not in WHERE:
        raise ValueError(f"unknown data {where!r}: expected one of {', '.join(WHERE)}")
    short = dataclasses.replace(GLYPHS, name="short")
    full = GLYPHS if where == "glyphs" else FULL
    scales = {"full": full, "short": short, "brief": BRIEF, "quick": QUICK, "tiny": TINY}
    if scale not in scales:
        raise ValueError(f"unknown scale {scale!r}: expected one of {', '.join(scales)}")
    size = scales[scale]
    if limit is not None:
        size = dataclasses.replace(size, limits=dict.fromkeys(SCENARIOS, limit), slow_limit=limit, slow_draws=None)
    if networks is None:
        names = GLYPH_NETWORKS if where == "glyphs" else IMAGENET_NETWORKS
        options = {"pretrained": False} if random_weights else {}
        networks = {name: Network(model=model, model_options=options) for name, model in names.items()}
    return Setting(
        where=where,
        scale=size,
        seeds=size.seeds if seeds is None else seeds,
        protocol=protocol or ("auto" if where == "glyphs" else "paper"),
        networks=networks,
        methods=frozenset(config_classes() if methods is None else methods),
        overrides=dict(overrides or {}),
        limit=limit,
    )
