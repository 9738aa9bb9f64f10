"""Claims about tables A, L, M, P and Q."""

from __future__ import annotations

from wildtta.paper.claim import Claim, Verdict, all_of, arrow, claim, rising
from wildtta.paper.experiment import AVERAGE, View
from wildtta.paper.settings import BN, CONVNEXT, GN

_LEVELS = ("0.1", "0.01", "0.001")


def _ttt(view: View, network: str) -> list[float]:
    return [view.mean(network, "TTT (lr 0.001*BS)", column) for column in view.columns]


def _ta_c1(view: View) -> Verdict:
    values = _ttt(view, BN)
    return Verdict(holds=values[-1] > values[0], numbers=f"BN {arrow(values)}")


def _ta_c2(view: View) -> Verdict:
    values = _ttt(view, GN)
    return Verdict(holds=max(values) - min(values) <= 1.5, numbers=f"GN {arrow(values)}")


def _tl_c1(view: View) -> Verdict:
    pairs = {c: (view.mean("initial inequity class", c), view.mean("Tent collapse class", c)) for c in view.columns}
    equal = [column for column, (before, after) in pairs.items() if before == after]
    text = ", ".join(f"{column} {before:.0f}→{after:.0f}" for column, (before, after) in pairs.items())
    return Verdict(holds=len(equal) >= 6 / 8 * len(pairs), numbers=f"{len(equal)} of {len(pairs)} equal: {text}")


def _tm_c1(view: View) -> Verdict:
    before, after = ([view.mean(row, f"{GN}/m={level}") for level in _LEVELS] for row in ("NoAdapt", "Tent Adapted"))
    rises = all(b > a for a, b in zip(before, after, strict=True))
    text = ", ".join(f"{a:.1f} → {b:.1f}" for a, b in zip(before, after, strict=True))
    return Verdict(holds=rises, numbers=f"GN, m = 0.1, 0.01, 0.001: {text} %")


def _tm_c2(view: View) -> Verdict:
    values = [view.mean(row, f"{BN}/m={level}") for row in ("NoAdapt", "Tent Adapted") for level in _LEVELS]
    return Verdict(holds=max(values) < 0.05, numbers=f"BN: at most {max(values):.2f} %")


def _mixed_batches(view: View, level: str) -> dict[int, float]:
    columns = [column for column in view.columns if column.startswith("mix bs")]
    return {int(column.removeprefix("mix bs")): view.mean(BN, level, column) for column in columns}


def _tp_c1(view: View) -> Verdict:
    values = list(_mixed_batches(view, "level 5").values())
    return Verdict(holds=rising(values), numbers=f"level 5: {arrow(values)}")


def _tp_c2(view: View) -> Verdict:
    values = _mixed_batches(view, "level 3")
    best = max(values, key=values.__getitem__)
    return Verdict(holds=min(values) < best < max(values), numbers=f"level 3: {arrow(values.values())}, best at {best}")


def _tp_c3(view: View) -> Verdict:
    parts = []
    for level in ("level 5", "level 3"):
        best, average = max(_mixed_batches(view, level).values()), view.mean(BN, level, "avg_adapt bs64")
        parts.append((best < average, f"{level}: mixture at best {best:.1f}, one at a time {average:.1f}"))
    return all_of(parts)


def _tq_c1(view: View) -> Verdict:
    parts = []
    for network, level, helped in (
        (CONVNEXT, "level 5", False),
        (CONVNEXT, "level 3", True),
        (BN, "level 5", False),
        (BN, "level 3", False),
    ):
        alone, tent = (view.mean(network, method, level, AVERAGE) for method in ("NoAdapt", "Tent"))
        parts.append(((tent > alone) == helped, f"{network} {level}: {alone:.1f} → {tent:.1f}"))
    return all_of(parts)


def _tq_c2(view: View) -> Verdict:
    parts = []
    for level, columns in (("level 5", ("elastic_transform", "frost", "zoom_blur")), ("level 3", ("snow",))):
        for column in columns:
            alone, tent = (view.mean(CONVNEXT, method, level, column) for method in ("NoAdapt", "Tent"))
            parts.append((tent < alone / 2, f"{column} at {level}: {alone:.1f} → {tent:.1f}"))
    return all_of(parts, "ConvNeXt ")


CLAIMS: tuple[Claim, ...] = (
    claim("table-a/C1", "On batch norm TTT gains with the batch size (21.2 to 24.6)", _ta_c1),
    claim("table-a/C2", "On GN TTT is flat in the batch size (about 41)", _ta_c2),
    claim("table-l/C1", "Tent collapses to the class that the mean feature favoured before, in 6 of 8 cases", _tl_c1),
    claim("table-m/C1", "Tent drives more GN feature dimensions towards zero", _tm_c1),
    claim("table-m/C2", "Batch norm has no such dimensions", _tm_c2),
    claim("table-p/C1", "At level 5 Tent on batch norm gains from larger batches under the mixture", _tp_c1),
    claim("table-p/C2", "At level 3 it peaks in between (at 256) and then falls", _tp_c2),
    claim("table-p/C3", "The mixture is always below adapting to one corruption at a time", _tp_c3),
    claim("table-q/C1", "Tent lowers ConvNeXt at level 5 and lifts it at level 3; it ruins batch norm at both", _tq_c1),
    claim(
        "table-q/C2", "ConvNeXt under Tent fails on elastic, frost and zoom at level 5 and on snow at level 3", _tq_c2
    ),
)
