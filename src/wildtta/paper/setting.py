"""Where and how large the paper's experiments are run: data, networks, stream lengths, seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from wildtta.bench import Cell

Where = Literal["glyphs", "imagenet-c", "folder"]
WHERE: tuple[Where, ...] = ("glyphs", "imagenet-c", "folder")

BN, GN, VIT, CONVNEXT = "ResNet50-BN", "ResNet50-GN", "VitBase-LN", "ConvNeXt-LN"

#: The paper's order; the last column of its big tables is the plain mean of these 15.
CORRUPTIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)

#: The weights that the paper's names stand for. timm has served different ViT-B/16 files under one name over the years,
#: so the tag is part of the name.
IMAGENET_NETWORKS: dict[str, str] = {
    BN: "torchvision:resnet50",
    GN: "timm:resnet50_gn.a1h_in1k",
    VIT: "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
    CONVNEXT: "timm:convnext_base.fb_in1k",
}
#: The embedded networks: small ones that play the part of the paper's.
GLYPH_NETWORKS: dict[str, str] = {GN: "glyphs:resnet_gn", VIT: "glyphs:vit"}

#: On glyphs the natural shift of ImageNet-R is played by a corruption outside the 15.
GLYPH_RENDITION = "spatter"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How long the streams are. ``None`` means all there is; sizes count images."""

    name: str
    limit: int | None
    draws: int
    single_limit: int | None
    mixed_limit: int | None
    shift_limit: int | None = None
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    corruptions: tuple[str, ...] = CORRUPTIONS
    batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    large_batches: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    ratios: tuple[float, ...] = (1, 1000, 2000, 3000, 4000, 5000, 500000)
    seeds: int = 3


_FINE = {"surface": {"steps": 21}}
_COARSE = {"surface": {"steps": 7, "images": 64}, "scatter": {"images": 64}}

FULL = Scale(name="full", limit=None, draws=100, single_limit=None, mixed_limit=None, measures=_FINE)
#: Glyphs are unlimited; this is what a CPU does in an evening and what shows the effects.
GLYPHS = Scale(
    name="full",
    limit=4000,
    draws=20,
    single_limit=2000,
    mixed_limit=15000,
    measures=_FINE,
    ratios=(1, 10, 100, 1000, 500000),
    large_batches=(32, 64, 128, 256, 512),
)
QUICK = Scale(
    name="quick",
    limit=256,
    draws=2,
    single_limit=48,
    mixed_limit=384,
    measures=_COARSE,
    corruptions=("gaussian_noise", "contrast"),
    batch_sizes=(4, 16, 64),
    large_batches=(32, 64, 128),
    ratios=(1, 500000),
    seeds=1,
)
TINY = Scale(
    name="tiny",
    limit=64,
    draws=1,
    single_limit=8,
    mixed_limit=64,
    measures=_COARSE,
    corruptions=("contrast",),
    batch_sizes=(16, 64),
    large_batches=(32, 64),
    ratios=(1, 500000),
    seeds=1,
)


def scale_named(name: str, where: Where) -> Scale:
    """``full`` (the paper's sizes; on glyphs what a CPU can do), ``quick`` or ``tiny``."""
    scales = {"full": GLYPHS if where == "glyphs" else FULL, "quick": QUICK, "tiny": TINY}
    if name not in scales:
        raise ValueError(f"unknown scale {name!r}: expected one of {', '.join(scales)}")
    return scales[name]


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the benchmark: how to make it, and which weights; ``own`` marks one that the user brought."""

    model: str
    model_options: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    own: bool = False


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

    @property
    def same_as_paper(self) -> bool:
        """Whether a difference to the printed numbers means anything: the paper's data, networks and stream lengths."""
        pinned = {name: network.model for name, network in self.networks.items()}
        return (
            self.where == "imagenet-c"
            and self.scale.name == "full"
            and self.scale.limit is None
            and not self.overrides
            and all(IMAGENET_NETWORKS.get(name) == model for name, model in pinned.items())
            and all(_is_pinned(network) for network in self.networks.values())
        )

    @property
    def label(self) -> str:
        """In words, for the head of every table."""
        size = "" if self.scale.name == "full" else f", {self.scale.name} streams"
        if self.where == "glyphs":
            names = ", ".join(f"{network.model} for {name}" for name, network in self.networks.items())
            random = "" if all(_is_pinned(n) for n in self.networks.values()) else ", not the trained weights"
            return f"glyphs, 200 classes, small networks ({names}){random}{size}"
        names = {"imagenet-c": "ImageNet-C", "folder": "own folder, corrupted on the fly"}[self.where]
        weights = "" if all(_is_pinned(n) for n in self.networks.values()) else ", not the paper's weights"
        return f"{names}, preprocessing {self.protocol}{weights}{size}"

    @property
    def brief(self) -> str:
        """In a few words, for each table and figure."""
        size = "" if self.scale.name == "full" else f", {self.scale.name}"
        if self.where == "glyphs":
            return f"glyphs, not ImageNet-C{size}"
        return {"imagenet-c": "ImageNet-C", "folder": "own folder"}[self.where] + f", {self.protocol}{size}"

    def missing(self, network: str, method: str) -> str:
        """Why this network and method cannot be run here; empty where they can."""
        if network not in self.networks:
            return f"{network} has no counterpart on {self.where}"
        if method not in self.methods:
            return f"method {method!r} is not available in this version"
        if method == "dda" and self.where == "glyphs":
            return "DDA needs a diffusion model of these images"
        return ""

    def corruptions(self) -> tuple[str, ...]:
        """The corruptions of a table over all 15."""
        return self.scale.corruptions

    def cells(
        self,
        network: str,
        method: str,
        *,
        options: Mapping[str, Any] | None = None,
        scenario: str = "mild",
        corruptions: Sequence[str] = (),
        severity: int = 5,
        batch_size: int = 64,
        ratio: float | None = None,
        data: str | None = None,
        measure: Sequence[str] = (),
    ) -> tuple[Cell, ...]:
        """The same run once per seed. The caller has asked ``missing`` before."""
        place = self.networks[network]
        stream: dict[str, Any] = {}
        limit = self.scale.limit
        if scenario in ("label_shift", "continual_label_shift"):
            stream = {"draws": self.scale.draws, "ratio": math.inf if ratio is None else ratio}
            limit = self.scale.shift_limit
        elif scenario == "single":
            limit = self.scale.single_limit
        elif scenario == "mixed":
            limit = self.scale.mixed_limit
        return tuple(
            Cell(
                model=place.model,
                model_options=place.model_options,
                weights=place.weights,
                method=method,
                options={**(options or {}), **self.overrides.get(method, {})},
                scenario=scenario,
                scenario_options=stream,
                data=data or self.where,
                corruptions=tuple(corruptions),
                severity=severity,
                batch_size=1 if scenario == "single" else batch_size,
                seed=seed,
                limit=limit,
                protocol=self.protocol,
                model_name=network if place.own else None,
                measure=tuple(measure),
                measure_options={name: self.scale.measures[name] for name in measure if name in self.scale.measures},
            )
            for seed in range(self.seeds)
        )


def _is_pinned(network: Network) -> bool:
    return network.weights is None and not network.model_options


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

    ``protocol`` is the preprocessing: ``paper`` (ImageNet statistics for every network, as the printed numbers need) or
    ``timm`` (each network's own). ``limit`` cuts every stream to that many images. ``random_weights`` builds the real
    architectures without their trained weights: a check of the machinery, never a result.
    """
    import wildtta

    if where not in WHERE:
        raise ValueError(f"unknown data {where!r}: expected one of {', '.join(WHERE)}")
    size = scale_named(scale, where)
    if limit is not None:
        size = dataclasses.replace(size, limit=limit, single_limit=limit, mixed_limit=limit, shift_limit=limit)
    if networks is None:
        names = GLYPH_NETWORKS if where == "glyphs" else IMAGENET_NETWORKS
        options = {"pretrained": False} if random_weights else {}
        networks = {name: Network(model=model, model_options=options) for name, model in names.items()}
    return Setting(
        where=where,
        scale=size,
        seeds=size.seeds if seeds is None else seeds,
        protocol=protocol or ("glyphs" if where == "glyphs" else "paper"),
        networks=networks,
        methods=frozenset(wildtta.methods() if methods is None else methods),
        overrides=dict(overrides or {}),
    )
