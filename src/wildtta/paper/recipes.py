"""The paper's names of methods and ablations, as methods of the registry with options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wildtta.methods.tent import Tent
from wildtta.paper.settings import BN, GN, VIT

_FAMILIES = {BN: "convolutional", GN: "convolutional", VIT: "transformer"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A row of the paper's tables: a method with options; ``as_tent``: at Tent's rate for batches of 64."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    as_tent: bool = False

    def options_on(self, network: str) -> dict[str, Any]:
        """The options on one of the paper's networks."""
        return {**self.options, **({"lr": tent_rate(network)} if self.as_tent else {})}

    def with_(self, **options: Any) -> Recipe:
        """The same with further options."""
        return replace(self, options={**self.options, **options})


def tent_rate(network: str) -> float:
    """Tent's learning rate on one of the paper's networks for batches of 64."""
    return Tent().learning_rate(_FAMILIES[network], 64)


def _plain(method: str, **options: Any) -> Recipe:
    return Recipe(method=method, options=options)


#: SAR² with everything switched off that Tent lacks: what is left are its regularisers, on the live batch.
_TENT_AND_REGULARISERS = Recipe(
    method="sar2",
    options={"reliable": None, "sharpness": None, "recovery": None, "bank": False, "parameters": "norms"},
    as_tent=True,
)

_NAMED_AS_HERE = ("MEMO", "DDA", "TTT", "Tent", "EATA", "ROID", "DeYO", "ReCAP", "SAR", "SAR2", "SAR2-efficient")
#: The paper's own names of its rows. Ablations are settings of one method: SAR without its second and third component
#: is reliable entropy alone, and SAR² without the inequity term is "SAR+R".
RECIPES: dict[str, Recipe] = {
    "NoAdapt": _plain("none"),
    **{name: _plain(name.lower()) for name in _NAMED_AS_HERE},
    "Tent (entropy only)": _plain("tent"),
    "reliable": _plain("sar", sharpness=None, recovery=None),
    "sa": _plain("sar", reliable=None, recovery=None),
    "reliable+sa": _plain("sar", recovery=None),
    "reliable+sa+recover": _plain("sar"),
    "RE": _plain("sar", sharpness=None, recovery=None),
    "RE+SA": _plain("sar", recovery=None),
    "SAR (RE+SA+RC)": _plain("sar"),
    "SAR+R": _plain("sar2", inequity=None),
    "SAR+I": _plain("sar2", redundancy=None),
    "SAR2 (R+I)": _plain("sar2"),
    "Tent+InfoMax": _plain("infomax"),
    "Tent+I": _TENT_AND_REGULARISERS.with_(redundancy=None),
    "Tent+R": _TENT_AND_REGULARISERS.with_(inequity=None),
    "R only": _TENT_AND_REGULARISERS.with_(inequity=None, entropy=0.0),
    "Tent+recover": _plain("tent", recovery=0.2),
    "EATA+recover": _plain("eata", recovery=0.2),
    "BN statistics": _plain("bn-adapt"),
}
