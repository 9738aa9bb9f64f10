"""Claims about figures 1, 4, 5 and 6. The paper prints no numbers for them; its words are turned into tests here."""

from __future__ import annotations

from collections.abc import Sequence

from wildtta.paper.claim import Claim, Verdict, arrow, claim
from wildtta.paper.experiment import NotRun, View
from wildtta.paper.figures_curve import LEVELS
from wildtta.paper.settings import BN, GN, VIT


def _f1_c1(view: View) -> Verdict:
    alone, mixture = (view.mean(BN, "Tent", column) for column in ("one corruption at a time", "mixture"))
    sizes = sorted(int(c.removeprefix("batch ")) for c in view.columns if c.startswith("batch "))
    large, small = (view.mean(BN, "Tent", f"batch {size}") for size in (sizes[-1], sizes[0]))
    ordered = view.mean(BN, "Tent", "class-ordered")
    return Verdict(
        holds=mixture < alone and small < large and ordered < large,
        numbers=f"mixture {alone:.1f} → {mixture:.1f}; batch {sizes[-1]} → {sizes[0]}: {large:.1f} → {small:.1f}; "
        f"class-ordered {ordered:.1f}",
    )


def _sizes(view: View, method: str, network: str, level: str) -> dict[int, float]:
    columns = [str(size) for size in view.setting.scale.batch_sizes if method != "TTT" or size <= 16]
    return {int(column): view.mean(method, network, level, column) for column in columns}


def _f4_c1(view: View) -> Verdict:
    values = _sizes(view, "Tent", BN, "level 5")
    small = [value for size, value in values.items() if size < 8]
    if not small:
        raise NotRun("no batch below 8 was run")
    return Verdict(holds=max(small) < 0.5 * values[64], numbers=f"BN level 5: {arrow(values.values())}")


def _f4_c2(view: View) -> Verdict:
    texts, holds = [], True
    for network, level in ((VIT, "level 5"), (VIT, "level 3"), (GN, "level 3")):
        values = list(_sizes(view, "Tent", network, level).values())
        holds = holds and max(values) - min(values) <= 3
        texts.append(f"{network} {level}: {min(values):.1f} to {max(values):.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f4_c3(view: View) -> Verdict:
    best = max(_sizes(view, "Tent", GN, "level 5").values())
    alone = view.mean("NoAdapt", GN, "level 5", "na")
    return Verdict(holds=best < alone, numbers=f"Tent at best {best:.1f}, no adaptation {alone:.1f}")


def _f4_c4(view: View) -> Verdict:
    texts, holds = [], True
    for level in LEVELS:
        for network in (BN, GN, VIT):
            lowest = min(_sizes(view, "TTT", network, level).values())
            alone = view.mean("NoAdapt", network, level, "na")
            holds = holds and lowest > alone
            texts.append(f"{network} {level}: at worst {lowest:.1f}, alone {alone:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _ttt_spread(view: View, columns: Sequence[str]) -> Verdict:
    spread: dict[str, float] = {}
    for network in (BN, GN, VIT):
        values = [view.value("TTT", network, level, column) for level in LEVELS for column in columns]
        if values[0].seeds < 3:
            raise NotRun(f"a standard deviation needs at least 3 seeds; there are {values[0].seeds}")
        spread[network] = max(value.std for value in values)
    others = max(spread[BN], spread[GN])
    text = ", ".join(f"{network} {value:.2f}" for network, value in spread.items())
    return Verdict(holds=spread[VIT] > 2 * others, numbers=f"largest std of TTT: {text}")


def _f4_c5(view: View) -> Verdict:
    return _ttt_spread(view, [str(size) for size in view.setting.scale.batch_sizes if size <= 16])


def _bars(view: View, method: str, network: str, level: str) -> tuple[float, float, float]:
    alone, average, mixture = (
        view.mean(method, network, level, column) for column in ("no adapt", "avg adapt", "mix adapt")
    )
    return alone, average, mixture


def _f5_c1(view: View) -> Verdict:
    texts, holds = [], True
    for method in ("Tent", "TTT"):
        for level in LEVELS:
            _, average, mixture = _bars(view, method, BN, level)
            holds = holds and mixture < average
            texts.append(f"{method} {level}: {average:.1f} → {mixture:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f5_c2(view: View) -> Verdict:
    texts, holds = [], True
    for method, network, level in (("TTT", GN, "level 5"), ("TTT", GN, "level 3"), ("Tent", VIT, "level 3")):
        _, average, mixture = _bars(view, method, network, level)
        holds = holds and abs(average - mixture) <= 2
        texts.append(f"{method} {network} {level}: {average:.1f} and {mixture:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f5_c3(view: View) -> Verdict:
    texts, holds = [], True
    for network, level in ((GN, "level 5"), (GN, "level 3"), (VIT, "level 5")):
        alone, _, mixture = _bars(view, "Tent", network, level)
        holds = holds and mixture < alone
        texts.append(f"{network} {level}: no adapt {alone:.1f}, mixture {mixture:.1f}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f5_c4(view: View) -> Verdict:
    return _ttt_spread(view, ("avg adapt", "mix adapt"))


def _ratios(view: View, method: str, network: str, level: str) -> list[float]:
    return [view.mean(method, network, level, f"{ratio:g}") for ratio in view.setting.scale.ratios]


def _f6_c1(view: View) -> Verdict:
    values = _ratios(view, "Tent", BN, "level 5")
    return Verdict(holds=values[-1] < 0.5 * values[0], numbers=f"BN level 5: {arrow(values)}")


def _f6_c2(view: View) -> Verdict:
    texts, holds = [], True
    for network in (GN, VIT):
        values = _ratios(view, "Tent", network, "level 3")
        holds = holds and max(values) - min(values) <= 3
        texts.append(f"{network}: {arrow(values)}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f6_c3(view: View) -> Verdict:
    texts, holds = [], True
    for network in (BN, GN, VIT):
        values = _ratios(view, "TTT", network, "level 5")
        holds = holds and values[-1] >= 0.7 * values[0]
        texts.append(f"{network}: {arrow(values)}")
    return Verdict(holds=holds, numbers="; ".join(texts))


def _f6_c4(view: View) -> Verdict:
    group, batch = (_ratios(view, "Tent", network, "level 5")[0] for network in (GN, BN))
    alone, alone_batch = (view.mean("NoAdapt", network, "level 5", "na") for network in (GN, BN))
    return Verdict(
        holds=group < alone and batch > alone_batch,
        numbers=f"ratio 1: GN {group:.1f} (alone {alone:.1f}), BN {batch:.1f} (alone {alone_batch:.1f})",
    )


CLAIMS: tuple[Claim, ...] = (
    claim(
        "figure-1/C1", "Tent on batch norm degrades under the mixture, with small batches and under label shift", _f1_c1
    ),
    claim("figure-4/C1", "Tent on batch norm falls sharply below a batch of 8", _f4_c1),
    claim("figure-4/C2", "Tent is flat in the batch size for ViT at both levels and for GN at level 3", _f4_c2),
    claim("figure-4/C3", "Tent on GN at level 5 is below no adaptation", _f4_c3),
    claim("figure-4/C4", "TTT works at every batch size on every network", _f4_c4),
    claim("figure-4/C5", "TTT on ViT varies much between runs; the others hardly", _f4_c5),
    claim("figure-5/C1", "On batch norm the mixture is below one corruption at a time, for Tent and TTT", _f5_c1),
    claim("figure-5/C2", "The mixture costs nothing for TTT on GN and for Tent on ViT at level 3", _f5_c2),
    claim("figure-5/C3", "Under the mixture Tent fails on GN at both levels and on ViT at level 5", _f5_c3),
    claim("figure-5/C4", "TTT on ViT varies much between runs", _f5_c4),
    claim("figure-6/C1", "Tent on batch norm falls steeply with the imbalance ratio", _f6_c1),
    claim("figure-6/C2", "GN and ViT at level 3 are stable over the ratio", _f6_c2),
    claim("figure-6/C3", "TTT falls mildly with the ratio", _f6_c3),
    claim("figure-6/C4", "At ratio 1 and level 5 Tent is below no adaptation on GN and above it on batch norm", _f6_c4),
)
