"""The later methods on the battery's small networks, shuffled and in class order: who does harm?

    python studies/later-methods/harm.py weights source.zip cifar-10-c runs/harm.jsonl

``cifar-10-c``: the folder that cifar.py writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from methods import methods_for
from wildtta.bench import Cell, launch

HERE = Path(__file__).resolve().parent
NETWORKS = ("gn64", "vit128", "bn64")
METHODS = ("none", "tent", "sar", "sar2", "steady", "neo", "t3a", "foa", "shot", "cmf", "spa", "poem")
SHIFTS = (("gaussian_noise", 3), ("fog", 5), ("pixelate", 5))
ORDERS: dict[str, dict[str, object]] = {"mild": {}, "label_shift": {"ratio": "inf", "draws": 400}}


def main(weights: str, source: str, folder: str, journal: str) -> None:
    cells = [
        Cell(
            model=f"{HERE / 'battery.py'}:battery",
            model_options={"name": network, "folder": weights},
            model_name=network,
            method=method,
            options={"precision": "tf32", **({"recovery": "asr"} if asr else {})},
            name=f"{method} + ASR" if asr else method,
            scenario=scenario,
            scenario_options=options,
            corruptions=(corruption,),
            severity=severity,
            data="cifar-10-c",
            data_options={"source_images": 500},
            protocol="native",
        )
        for network in NETWORKS
        for method, asr in [(name, False) for name in METHODS if name in methods_for(network)] + [("eta", False), ("eta", True)]
        for corruption, severity in SHIFTS
        for scenario, options in ORDERS.items()
    ]
    launch(cells, journal=journal, root=folder, source=source, device="cuda", per_device=12)


if __name__ == "__main__":
    main(*sys.argv[1:])
