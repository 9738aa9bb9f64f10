"""``wildtta train-glyphs``: train the two networks that the package carries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("train-glyphs")(train_glyphs)


def train_glyphs(
    out: Annotated[Path, typer.Option(help="Folder for <network>.safetensors.")] = Path("glyph-networks"),
    atlas: Annotated[Path | None, typer.Option(help="Atlas file; rendered from fonts if absent.")] = None,
    export_atlas: Annotated[
        Path | None, typer.Option(help="Write the atlas to this npz file and stop: for a machine without matplotlib.")
    ] = None,
    network: Annotated[list[str] | None, typer.Option(help="Train only this network (may be repeated).")] = None,
    device: Annotated[str, typer.Option(help="A GPU takes a minute or two, a CPU hours.")] = "cpu",
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimizer steps, each on fresh images; default: those of the packaged weights."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the training images.")] = 0,
    test_images: Annotated[int, typer.Option(min=1, help="Clean test images to measure on.")] = 10_000,
    corrupted_images: Annotated[int, typer.Option(min=0, help="Test images per corruption; 0: none.")] = 2_000,
) -> None:
    """Train the embedded glyph networks (GroupNorm ResNet, LayerNorm ViT) from scratch on rendered glyphs."""
    from wildtta.glyphs import NETWORKS, glyph_atlas, load_atlas, save_atlas
    from wildtta.glyphs.training import TrainingPlan, train_networks

    try:
        masks = load_atlas(atlas) if atlas else glyph_atlas()
        if export_atlas:
            save_atlas(export_atlas, masks)
            typer.echo(f"wrote {export_atlas} ({export_atlas.stat().st_size:,} bytes)")
            return
        plan = TrainingPlan(
            names=tuple(network or NETWORKS),
            steps=steps,
            batch_size=batch_size,
            seed=seed,
            device=device,
            test_images=test_images,
            corrupted_images=corrupted_images,
        )
    except (ValueError, OSError, ImportError) as problem:
        typer.echo(f"train-glyphs: {problem}", err=True)
        raise typer.Exit(2) from problem
    train_networks(plan, masks, out, typer.echo)
