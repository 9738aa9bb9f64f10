"""``wildtta ttt-train``: train the rotation branch that TTT needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wildtta.cli.launching import one_line_errors


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ttt-train")(ttt_train)


def ttt_train(
    out: Annotated[Path, typer.Option(help="The branch's file (safetensors).")] = Path("rotation-branch.safetensors"),
    model: Annotated[str, typer.Option(help="glyphs:NAME, timm:NAME, torchvision:NAME ...")] = "glyphs:resnet_gn",
    weights: Annotated[str | None, typer.Option(help="A safetensors file with the model's weights.")] = None,
    on: Annotated[str, typer.Option(help="Source images: glyphs, imagenet, folder ...")] = "glyphs",
    data: Annotated[Path | None, typer.Option(help="Folder (or zip) of the source images.", metavar="DIR")] = None,
    count: Annotated[int, typer.Option(min=1, help="Glyphs per epoch.")] = 20_000,
    protocol: Annotated[str, typer.Option(help="Preprocessing; auto: glyphs' own, else paper.")] = "auto",
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    lr: Annotated[float | None, typer.Option(help="Default: the paper's, 0.1 (convolutional), 0.005 (ViT).")] = None,
    mirror: Annotated[
        bool | None, typer.Option("--mirror/--no-mirror", help="Mirrored images too. Default: not for glyphs.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Reading processes.")] = 0,
    atlas: Annotated[Path | None, typer.Option(help="Glyph atlas file; rendered from fonts if absent.")] = None,
) -> None:
    """Train a rotation branch on source images, the network's trunk frozen (10 epochs, as in the paper)."""
    from wildtta.bench.cell import Cell
    from wildtta.bench.models import build_model
    from wildtta.data import input_protocol
    from wildtta.methods.ttt.rotation import save_branch
    from wildtta.training.batches import source_images
    from wildtta.training.rotation import BranchPlan, train_branch

    with one_line_errors():
        network = build_model(Cell(model=model, weights=weights)).to(device)
        images = source_images(on, data, count=count, seed=seed, atlas=atlas)
        chosen = input_protocol(("glyphs" if on == "glyphs" else "paper") if protocol == "auto" else protocol, network)
        mirrored = on != "glyphs" if mirror is None else mirror
        plan = BranchPlan(epochs=epochs, lr=lr, mirror=mirrored, batch_size=batch_size, seed=seed, workers=workers)
        branch, stage = train_branch(network, images, chosen, plan, typer.echo)
        save_branch(out, branch, stage, mirror=mirrored)
    typer.echo(f"wrote {out} ({out.stat().st_size:,} bytes): a branch after {stage} of {model}")
