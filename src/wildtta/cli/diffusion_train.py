"""``wildtta diffusion-train``: train a small diffusion model that DDA can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wildtta.cli.launching import one_line_errors


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("diffusion-train")(diffusion_train)


def diffusion_train(
    out: Annotated[Path, typer.Option(help="Folder of the model (unet/, scheduler/).")] = Path("diffusion-model"),
    on: Annotated[str, typer.Option(help="Source images: glyphs, imagenet, folder ...")] = "glyphs",
    data: Annotated[Path | None, typer.Option(help="Folder (or zip) of the source images.", metavar="DIR")] = None,
    count: Annotated[int, typer.Option(min=1, help="Different glyphs.")] = 50_000,
    protocol: Annotated[str, typer.Option(help="For the images' size; auto: glyphs' own, else paper.")] = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 4000,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    lr: Annotated[float, typer.Option()] = 1e-3,
    channels: Annotated[str, typer.Option(help="Channels of the UNet's levels, with commas.")] = "24,48,64",
    layers: Annotated[int, typer.Option(min=1, help="Residual layers per level.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Reading processes.")] = 0,
    atlas: Annotated[Path | None, typer.Option(help="Glyph atlas file; rendered from fonts if absent.")] = None,
) -> None:
    """Train a small unconditional diffusion model on source images (for large images, take a published checkpoint)."""
    import torch

    from wildtta.data import input_protocol
    from wildtta.training.batches import source_images
    from wildtta.training.diffusion import DiffusionPlan, save_diffusion, train_diffusion

    with one_line_errors():
        images = source_images(on, data, count=count, seed=seed, atlas=atlas)
        chosen = input_protocol(("glyphs" if on == "glyphs" else "paper") if protocol == "auto" else protocol)
        plan = DiffusionPlan(
            steps=steps,
            batch_size=batch_size,
            lr=lr,
            channels=tuple(int(width) for width in channels.split(",")),
            layers=layers,
            seed=seed,
            workers=workers,
        )
        save_diffusion(train_diffusion(images, chosen, plan, torch.device(device), typer.echo), out)
    typer.echo(f"wrote {out}: use it with adapt(network, 'dda', diffusion={str(out)!r})")
