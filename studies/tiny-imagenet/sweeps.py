"""What a sweep says: a table of accuracies for each grid file, and how often one class takes over.

    J=docs/results/tiny-imagenet
    S=studies/tiny-imagenet
    python $S/sweeps.py $S/sweeps/{open-questions,pull,rate,one-class,momentum}.toml --journal $J/sweeps.jsonl.gz

A row is a setting of the grid, a column a stream of a network. Accuracy in percent, the mean over seeds, ± its standard deviation
where there are several; streams of more than six corruptions have one column, their mean. Where a stream was run in at least
twelve orders, a second table has the share of the most predicted class in the stream's last fifth.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from verdicts import MODELS, accuracy, table, top_share

from wildtta.bench import Cell
from wildtta.bench.grid import load_grid
from wildtta.bench.journal import Row, read
from wildtta.methods.registry import config_classes

STREAMS = {
    "label_shift": "label shift",
    "continual_label_shift": "continual",
    "mixed": "mixed",
    "mild": "shuffled",
    "single": "batch size 1",
}
MANY_ORDERS = 12
MANY_CORRUPTIONS = 6

Column = tuple[str, str, str]
"""Network, stream, corruption (empty for a stream of several)."""
Settings = dict[str, dict[Column, list[Row]]]


def column_of(cell: Cell) -> Column:
    options = cell.scenario_options
    parts = [STREAMS[cell.scenario]]
    if "draws" in options:
        parts.append(f"{options['draws']} draws")
    if options.get("ratio", "inf") != "inf":
        parts.append(f"ratio {options['ratio']}")
    if cell.scenario != "single" and cell.batch_size != 64:
        parts.append(f"batch {cell.batch_size}")
    corruption = cell.corruptions[0].replace("_", " ") if len(cell.corruptions) == 1 else ""
    return MODELS.get(cell.model_title, f"ResNet ({cell.model_title})"), ", ".join(parts), corruption


def gathered(cells: Sequence[Cell], rows: dict[str, Row]) -> Settings:
    """The rows of each setting by network and stream."""
    found: Settings = {}
    for cell in cells:
        if cell.key in rows:
            title = cell.name or config_classes()[cell.method].title
            found.setdefault(title, {}).setdefault(column_of(cell), []).append(rows[cell.key])
    return found


def columns_of(settings: Settings) -> list[list[Column]]:
    """The columns of a table, each the columns whose mean it shows, in the order of the streams."""
    order = list(STREAMS.values())
    columns = {column for streams in settings.values() for column in streams}
    alike: dict[tuple[str, str], list[Column]] = {}
    for column in sorted(columns, key=lambda at: (order.index(at[1].split(", ")[0]), at)):
        alike.setdefault(column[:2], []).append(column)
    groups = alike.values()
    return [part for group in groups for part in ([group] if len(group) > MANY_CORRUPTIONS else [[at] for at in group])]


def heading_of(columns: Sequence[Column]) -> str:
    what = columns[0][2] if len(columns) == 1 else f"mean of {len(columns)} corruptions"
    return f"{columns[0][1]}, {what}" if what else columns[0][1]


def mean_by_seed(streams: dict[Column, list[Row]], columns: Sequence[Column]) -> list[float]:
    """The mean over the columns for each seed that has all of them."""
    seeds: dict[int, list[float]] = {}
    for column in columns:
        for row in streams.get(column, ()):
            seeds.setdefault(row["cell"]["seed"], []).append(accuracy(row))
    return [statistics.fmean(values) for values in seeds.values() if len(values) == len(columns)]


def with_deviation(values: Sequence[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def accuracies(settings: Settings, columns: Sequence[Sequence[Column]]) -> Iterator[Sequence[str]]:
    for title, streams in settings.items():
        yield title, *(with_deviation(mean_by_seed(streams, part)) for part in columns)


def one_class(settings: Settings, at: Column) -> Iterator[Sequence[str]]:
    for title, streams in settings.items():
        shares = [*map(top_share, streams.get(at, ()))]
        if len(shares) >= MANY_ORDERS:
            above = sum(share > 20 for share in shares)
            yield title, with_deviation(shares), f"{max(shares):.1f}", f"{above} of {len(shares)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", type=Path, nargs="+")
    parser.add_argument("--journal", type=Path, required=True)
    given = parser.parse_args()
    print("## Sweeps\n")
    rows = {row["key"]: row for row in read([given.journal])}
    for grid in given.grids:
        settings = gathered(load_grid(grid), rows)
        print(f"### {grid.stem.replace('-', ' ').capitalize()}\n")
        for network in sorted({at[0] for streams in settings.values() for at in streams}):
            own = {title: {at: found for at, found in s.items() if at[0] == network} for title, s in settings.items()}
            own = {title: streams for title, streams in own.items() if streams}
            columns = columns_of(own)
            print(table([network, *map(heading_of, columns)], accuracies(own, columns)) + "\n")
            for (at,) in (part for part in columns if len(part) == 1):
                shares = list(one_class(own, at))
                if shares:
                    heading = [f"{network}: one class, {heading_of([at])}", "mean ± std", "largest", "above a fifth"]
                    print(table(heading, iter(shares)) + "\n")


if __name__ == "__main__":
    main()
