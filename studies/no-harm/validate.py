"""The laboratory beside the library: the same network, the same batches, the same answers and nearly the same weights.

PYTHONPATH=src python studies/no-harm/validate.py <folder with data and weights/> vit [batch] [batches]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lab import BASELINES, Copies, Group
from networks import RECIPES, load, split_name
from torch import nn
from train import normalised

import wildtta
from streams import load_pool, make

LIBRARY_NAMES = {"steady-0.1": ("steady", "sar2-single"), "sar2": ("sar2-paper", "sar2")}


def main(folder: Path, name: str, batch: int, batches: int) -> None:
    device = "cpu"
    pool = load_pool(name, "choose", folder, ["fog-3"], device)
    stream = make(pool.labels, pool.names, "short-order", "fog-3", length=batch * batches, batch=batch)
    images = normalised(pool.pixels[0][torch.from_numpy(stream.images)]).split(batch)
    transformer = RECIPES[split_name(name)[0]].transformer
    for rule in BASELINES:
        known = wildtta.methods()
        method = next(n for n in LIBRARY_NAMES.get(rule.name, (rule.name,)) if n in known)
        model = wildtta.adapt(load(name, folder / "weights"), method, batch_size=batch)
        theirs = [model(piece).argmax(1) for piece in images]
        copies = Copies(load(name, folder / "weights"), transformer, device)
        group = Group(copies, [rule, rule], batch)
        ours = [group.step(torch.stack((piece, piece)), None)[1] for piece in images]
        norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm | nn.LayerNorm | nn.BatchNorm2d)]
        theirs_after = torch.cat([p.detach() for m in norms for p in (m.weight, m.bias)])
        alike = (torch.cat(ours) == torch.cat(theirs)).float().mean().item()
        moved = (theirs_after - copies.source).norm()
        apart = (group.theta[1] - theirs_after).norm()
        print(f"{rule.name:12} answers alike {alike:.3f}; weights moved {moved:.5f}, apart {apart:.5f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *(int(v) for v in sys.argv[3:5] or ("8", "8")))
