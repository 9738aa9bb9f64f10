"""Training what methods and tests need: ``wildtta ttt-train``, ``diffusion-train`` and ``train-glyphs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from torch import nn

from wildtta.bench import Cell
from wildtta.bench.models import build_model
from wildtta.cli.launching import one_line_errors
from wildtta.data import InputProtocol, input_protocol
from wildtta.glyphs import NETWORKS, glyph_atlas, load_atlas, save_atlas
from wildtta.glyphs.training import TrainingPlan, train_networks
from wildtta.methods.ttt.rotation import Initial, save_branch
from wildtta.training.batches import source_images
from wildtta.training.diffusion import DiffusionPlan, save_diffusion, train_diffusion
from wildtta.training.rotation import BranchPlan, train_branch

Atlas = Annotated[Path | None, typer.Option(help="Glyph atlas file; rendered from fonts if absent.")]
BatchSize = Annotated[int, typer.Option(min=1)]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
On = Annotated[str, typer.Option(help="Source images: glyphs, imagenet, folder ...")]
Data = Annotated[Path | None, typer.Option(help="Folder (or zip) of the source images.", metavar="DIR")]
Protocol = Annotated[str, typer.Option(help="Preprocessing; auto: glyphs' own, else paper.")]
Seed = Annotated[int, typer.Option(help="Seed of the weights and of the images' order.")]
Workers = Annotated[int, typer.Option(min=0, help="Reading processes.")]
Half = Annotated[bool, typer.Option("--half", help="Store float16: half the size, for a package.")]


def register(app: typer.Typer) -> None:
    for verb in (ttt_train, diffusion_train, train_glyphs):
        app.command(verb.__name__.replace("_", "-"))(verb)


def ttt_train(
    out: Annotated[Path, typer.Option(help="The branch's file (safetensors).")] = Path("rotation-branch.safetensors"),
    model: Annotated[str, typer.Option(help="glyphs:NAME, timm:NAME, torchvision:NAME ...")] = "glyphs:resnet_gn",
    weights: Annotated[str | None, typer.Option(help="A safetensors file with the model's weights.")] = None,
    on: On = "glyphs",
    data: Data = None,
    count: Annotated[int, typer.Option(min=1, help="Glyphs per epoch.")] = 20_000,
    protocol: Protocol = "auto",
    epochs: Annotated[int, typer.Option(min=1)] = 10,
    lr: Annotated[float | None, typer.Option(help="Default: the paper's, 0.1 (convolutional), 0.005 (ViT).")] = None,
    initial: Annotated[
        str, typer.Option(help="Weights that the branch begins with: random (the paper's), or copied from the network.")
    ] = "random",
    clip: Annotated[
        float | None, typer.Option(help="Largest norm of a gradient; default: no limit. Copied stages need one.")
    ] = None,
    mirror: Annotated[
        bool | None, typer.Option("--mirror/--no-mirror", help="Mirrored images too. Default: not for glyphs.")
    ] = None,
    batch_size: BatchSize = 128,
    device: Device = "cpu",
    seed: Seed = 0,
    workers: Workers = 0,
    atlas: Atlas = None,
    half: Half = False,
) -> None:
    """Train a rotation branch on source images, the network's trunk frozen (10 epochs, as in the paper)."""
    with one_line_errors():
        network = build_model(Cell(model=model, weights=weights)).to(device)
        images = source_images(on, data, count=count, seed=seed, atlas=atlas)
        mirrored = on != "glyphs" if mirror is None else mirror
        plan = BranchPlan(
            epochs=epochs,
            lr=lr,
            initial=cast(Initial, initial),
            clip=clip,
            mirror=mirrored,
            batch_size=batch_size,
            seed=seed,
            workers=workers,
        )
        branch, stage = train_branch(network, images, _protocol(protocol, on, network), plan, typer.echo)
        save_branch(out, branch, stage, mirror=mirrored, half=half)
    typer.echo(f"wrote {out} ({out.stat().st_size:,} bytes): a branch after {stage} of {model}")


def diffusion_train(
    out: Annotated[Path, typer.Option(help="Folder of the model (unet/, scheduler/).")] = Path("diffusion-model"),
    on: On = "glyphs",
    data: Data = None,
    count: Annotated[int, typer.Option(min=1, help="Different glyphs.")] = 50_000,
    protocol: Protocol = "auto",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 4000,
    batch_size: BatchSize = 64,
    lr: float = 1e-3,
    channels: Annotated[str, typer.Option(help="Channels of the UNet's levels, with commas.")] = "24,48,64",
    layers: Annotated[int, typer.Option(min=1, help="Residual layers per level.")] = 1,
    device: Device = "cpu",
    seed: Seed = 0,
    workers: Workers = 0,
    atlas: Atlas = None,
    half: Half = False,
) -> None:
    """Train a small unconditional diffusion model on source images (for large ones, take a published one)."""
    with one_line_errors():
        widths = tuple(int(width) for width in channels.split(","))
        plan = DiffusionPlan(
            steps=steps, batch_size=batch_size, lr=lr, channels=widths, layers=layers, seed=seed, workers=workers
        )
        images = source_images(on, data, count=count, seed=seed, atlas=atlas)
        trained = train_diffusion(images, _protocol(protocol, on), plan, torch.device(device), typer.echo)
        save_diffusion(trained, out, half=half)
    typer.echo(f"wrote {out}: use it with adapt(network, 'dda', diffusion={str(out)!r})")


def train_glyphs(
    out: Annotated[Path, typer.Option(help="Folder for <network>.safetensors.")] = Path("glyph-networks"),
    atlas: Atlas = None,
    export_atlas: Annotated[
        Path | None, typer.Option(help="Write the atlas to this npz file and stop: for a machine without matplotlib.")
    ] = None,
    network: Annotated[list[str] | None, typer.Option(help="Train only this network (may be repeated).")] = None,
    device: Annotated[str, typer.Option(help="A GPU takes a minute or two, a CPU hours.")] = "cpu",
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimizer steps, each on fresh images; default: those of the packaged weights."),
    ] = None,
    label_smoothing: Annotated[
        float, typer.Option(min=0, max=1, help="Share of a label spread over all classes.")
    ] = 0.1,
    batch_size: BatchSize = 1024,
    seed: Seed = 0,
    test_images: Annotated[int, typer.Option(min=1, help="Clean test images to measure on.")] = 10_000,
    corrupted_images: Annotated[int, typer.Option(min=0, help="Test images per corruption; 0: none.")] = 2_000,
) -> None:
    """Train the embedded glyph networks (GroupNorm and BatchNorm ResNet, LayerNorm ViT) from scratch on rendered glyphs."""
    with one_line_errors():
        masks = load_atlas(atlas) if atlas else glyph_atlas()
        if export_atlas:
            save_atlas(export_atlas, masks)
            typer.echo(f"wrote {export_atlas} ({export_atlas.stat().st_size:,} bytes)")
            return
        plan = TrainingPlan(
            names=tuple(network or NETWORKS),
            steps=steps,
            label_smoothing=label_smoothing,
            batch_size=batch_size,
            seed=seed,
            device=device,
            test_images=test_images,
            corrupted_images=corrupted_images,
        )
        train_networks(plan, masks, out, typer.echo)


def _protocol(name: str, on: str, network: nn.Module | None = None) -> InputProtocol:
    return input_protocol(("glyphs" if on == "glyphs" else "paper") if name == "auto" else name, network)
