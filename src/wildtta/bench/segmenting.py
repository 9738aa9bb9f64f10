"""Cells on semantic segmentation: the embedded scenes, Cityscapes and ACDC.

Their rows have the metrics of any other, over the pixels of a regular grid in every image, and ``miou`` and
``iou_per_class`` over all pixels that count. A class order is one of the images' largest objects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from wildtta.bench.cell import Cell
from wildtta.bench.errors import BenchError, refuse_unknown
from wildtta.bench.plain import each_value, infinite, plain
from wildtta.bench.streaming import stream_of
from wildtta.data import CORRUPTIONS, EXTRA_CORRUPTIONS, InputProtocol, corrupt, input_protocol
from wildtta.methods.gradient import GradientMethod
from wildtta.metrics import Stopwatch, StreamMeter, peak_memory, reset_peak_memory
from wildtta.segmentation import IGNORE, Confusion, adapt_segmentation, driving, photometric, resized
from wildtta.segmentation import scenes as rendered
from wildtta.segmentation.pixels import Pixels, on_grid
from wildtta.streams import learning_turns

SEGMENTATION_DATA: tuple[str, ...] = ("scenes", "cityscapes", "acdc")
_SCORED_PIXELS = 256
_OPTIONS = {"scenes": ("count", "seed", "corruption_seed"), "cityscapes": ("part",), "acdc": ("part", "condition")}


@dataclass(frozen=True)
class Labelled:
    """A set of images with label maps: what a cell's stream is over."""

    read: Callable[[Sequence[int]], tuple[Tensor, Tensor]]
    """Images uint8 [B, 3, H, W] and labels [B, H, W] by position."""
    objects: npt.NDArray[np.int64]
    """Of each image, the class of its largest object: what orders and halves of a set go by."""
    classes: int
    protocol: InputProtocol


def check_segmentation(cell: Cell, root: str | None) -> None:
    """Raise :class:`BenchError` for what is wrong without opening anything large."""
    refuse_unknown(cell.data_options, ("split", *_OPTIONS[cell.data]), "data_options has no {}")
    refuse_unknown(cell.corruptions, CORRUPTIONS + EXTRA_CORRUPTIONS, "unknown corruption {}")
    if cell.data != "scenes" and root is None:
        raise BenchError(f"data {cell.data!r} lies in files; name their folder with --data")
    if cell.measure or cell.regularise:
        raise BenchError("diagnostics and regulariser-only steps are for classification; leave measure and regularise out")


def open_labelled(cell: Cell, root: str | None) -> Labelled:
    """The cell's images and label maps."""
    if cell.data == "scenes":
        images, labels = rendered.scenes(int(cell.data_options.get("count", 400)), seed=int(cell.data_options.get("seed", 0)))
        protocol = InputProtocol("scenes", (rendered.MEAN,) * 3, (rendered.STD,) * 3)
        chosen = protocol if cell.protocol == "auto" else input_protocol(cell.protocol)
        objects = _largest_objects(labels, background=(0, 3))
        return Labelled(lambda at: (images[list(at)], labels[list(at)]), objects, len(rendered.CLASSES), chosen)
    part = str(cell.data_options.get("part", "val"))
    place = Path(str(root))
    found = (
        driving.cityscapes(place, part)
        if cell.data == "cityscapes"
        else driving.acdc(place, str(cell.data_options.get("condition", "fog")), part)
    )

    def read(at: Sequence[int]) -> tuple[Tensor, Tensor]:
        pairs = [found[number] for number in at]
        return torch.stack([image for image, _ in pairs]), torch.stack([labels for _, labels in pairs])

    protocol = input_protocol("native" if cell.protocol == "auto" else cell.protocol)
    return Labelled(read, np.zeros(len(found), dtype=np.int64), len(driving.CLASSES), protocol)


def _largest_objects(labels: Tensor, background: tuple[int, ...]) -> npt.NDArray[np.int64]:
    counts = torch.stack([(labels == c).flatten(1).sum(1) for c in range(len(rendered.CLASSES))], 1)
    counts[:, list(background)] = -1
    return counts.argmax(1).numpy()


def segmentation_row(
    cell: Cell, root: str | None, network: nn.Module, device: torch.device, progress: Callable[[float], None] | None
) -> dict[str, Any]:
    """Run the cell; the part of its row that depends on the data."""
    data = open_labelled(cell, root)
    stream = stream_of(cell, data.objects)
    options = each_value(cell.options, infinite)
    if cell.method == "cotta":
        options.setdefault("augment", photometric)  # its own views move pixels about
    example, _ = data.read([0])
    inputs = data.protocol.normalise(example).to(device)
    model = adapt_segmentation(network, cell.method, example=inputs, **options)
    turns = learning_turns(stream, cell.pace) if cell.pace else np.ones(stream.batch_count, dtype=bool)
    confusion, watch = Confusion(data.classes, device=device), Stopwatch(device, stream.batch_count)
    rows, marks, domains = [], [], []
    reset_peak_memory(device)
    for number, batch in enumerate(stream.batches()):
        if batch.reset and number:
            model.reset()
        images, labels = data.read(batch.indices.tolist())
        images, labels = _corrupted(images.to(device), batch, stream.domains, cell), labels.to(device)
        watch.start()
        with nullcontext() if turns[number] else model.paused():
            answer = model(data.protocol.normalise(images))
        watch.stop()
        maps = resized(answer.maps, (int(labels.shape[-2]), int(labels.shape[-1])))
        confusion.update(maps, labels)
        flat = on_grid(labels[:, None], _SCORED_PIXELS)[:, 0]
        rows.append(on_grid(maps, _SCORED_PIXELS)[flat != IGNORE].float().cpu())
        marks.append(flat[flat != IGNORE].cpu())
        per_image = len(flat) // len(labels)
        domains.append(np.repeat(batch.domains, per_image)[(flat != IGNORE).cpu().numpy()])
        if progress is not None:
            progress((number + 1) / stream.batch_count)
    meter = StreamMeter(torch.cat(marks))
    for part in rows:
        meter.update(part)
    record = meter.record()
    if record.first_non_finite is not None:
        raise BenchError(f"the predictions became non-finite at pixel {record.first_non_finite} of the stream")
    names = [str(domain.name) for domain in stream.domains]
    summary = record.summary(data.classes, np.concatenate(domains), names, adapts=cell.method != "none")
    ious = [None if bool(value.isnan()) else round(100 * float(value), 2) for value in confusion.per_class()]
    # Methods by steps count pixels, the others images; a row counts images.
    assert isinstance(model.network, Pixels)
    rows_each = model.network.rows_per_sample if isinstance(model.method, GradientMethod) else 1
    counted = {name: int(value) for name, value in vars(model.cost).items()}
    cost = {name: value if name in ("resets", "skipped") else value // rows_each for name, value in counted.items()}
    in_force = {name: value for name, value in model.resolved.items() if name != "lr"}
    resolved = {**cell.config.identity(cell.batch_size), **in_force, "learning_rate": model.learning_rate}
    times = {**{name: round(value, 4) for name, value in watch.summary().items()}, "peak_mb": round(peak_memory(device), 1)}
    return {
        "resolved": plain(resolved, "resolved"),
        "metrics": {**summary, "miou": round(confusion.mean(), 4), "iou_per_class": ious},
        "series": {},
        "cost": {**cost, "batches": stream.batch_count, "learned_batches": int(turns.sum()), **times},
        "diagnostics": {},
        "data_note": "",
        "protocol": str(data.protocol),
    }


def _corrupted(images: Tensor, batch: Any, domains: Sequence[Any], cell: Cell) -> Tensor:
    """The batch's images, each under the corruption of its domain; an image's noise depends on its position alone."""
    seed = int(cell.data_options.get("corruption_seed", 0))
    result = images.clone()
    for number in np.unique(batch.domains):
        domain = domains[int(number)]
        if domain.severity is None or domain.name == "clean":
            continue
        chosen = np.flatnonzero(batch.domains == number)
        shown = corrupt(images[chosen.tolist()], domain.name, domain.severity, seed=seed, index=batch.indices[chosen])
        result[chosen.tolist()] = shown
    return result
