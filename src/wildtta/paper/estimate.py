"""What an experiment costs: samples through the network, and hours where steps have been measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wildtta.bench import Cell, Row
from wildtta.bench.workload import images_in, passes


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Milliseconds per sample of one network on one device."""

    forward: float
    backward: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Samples of an experiment; seconds where every network's pace is known."""

    forwards: float
    backwards: float
    seconds: float | None

    @property
    def words(self) -> str:
        """``1.2M forward, 0.3M backward, about 2 h``."""
        text = f"{_many(self.forwards)} forward, {_many(self.backwards)} backward"
        return text if self.seconds is None else f"{text}, {_duration(self.seconds)}"


def estimate(
    cells: Sequence[Cell], paces: Mapping[str, Pace], rates: Mapping[tuple[str, str, int], float] | None = None
) -> Estimate:
    """Add up the cells; ``rates`` (:func:`measured_rates`) win over ``paces`` (:func:`measure_pace`)."""
    forwards = backwards = seconds = 0.0
    known = True
    for cell in cells:
        images = images_in(cell)
        ahead, back = passes(cell.method)
        forwards += ahead * images
        backwards += back * images
        rate = (rates or {}).get((cell.model, cell.method, cell.batch_size))
        pace = paces.get(cell.model)
        if rate is not None:
            seconds += rate * images
        elif pace is not None:
            seconds += images * (ahead * pace.forward + back * pace.backward) / 1000
        else:
            known = False
    return Estimate(forwards=forwards, backwards=backwards, seconds=seconds if known else None)


def measured_rates(rows: Iterable[Row]) -> dict[tuple[str, str, int], float]:
    """Seconds per image by (model, method, batch size) from finished rows."""
    spent: dict[tuple[str, str, int], tuple[float, int]] = {}
    for row in rows:
        samples = (row.get("metrics") or {}).get("samples")
        if row["status"] != "ok" or not samples:
            continue
        cell = Cell.from_json(row["cell"])
        place = (cell.model, cell.method, cell.batch_size)
        seconds, images = spent.get(place, (0.0, 0))
        spent[place] = seconds + float(row["wall_s"]), images + int(samples)
    return {place: seconds / images for place, (seconds, images) in spent.items()}


def measure_pace(model: str, *, device: str, side: int, batch: int, steps: int = 2) -> Pace:
    """Time a few batches of random images through a network with random weights: forward, and Tent's step."""
    import torch

    import wildtta
    from wildtta.bench.models import build_model
    from wildtta.metrics.cost import Stopwatch

    network = build_model(Cell(model=model, model_options={"pretrained": False})).to(device)
    images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    spent = {}
    for method in ("none", "tent"):
        adapted = wildtta.adapt(network, method, batch_size=batch)
        watch = Stopwatch(torch.device(device), steps + 1)
        for _ in range(steps + 1):  # the first call pays for set-up and is not counted
            watch.start()
            adapted(images)
            watch.stop()
        spent[method] = watch.summary()["ms_per_batch"] / batch
        network = adapted.unload()
    return Pace(forward=spent["none"], backward=max(spent["tent"] - spent["none"], 0.0))


def _many(samples: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if samples >= size:
            return f"{samples / size:.3g}{letter}"
    return f"{samples:.0f}"


def _duration(seconds: float) -> str:
    for least, each, unit in ((86400 * 2, 86400, "days"), (5400, 3600, "h"), (90, 60, "min")):
        if seconds >= least:
            return f"about {seconds / each:.0f} {unit}"
    return f"about {max(seconds, 1):.0f} s"
