"""Markdown, LaTeX, CSV and SVG: what they say about journals whose numbers are known."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from printed_journal import empty_row, papers_setting, printed_journal
from wildtta.bench import Cell, Row
from wildtta.paper import experiments
from wildtta.report import write
from wildtta.report.axes import linear_axis, log_axis, nice_ticks
from wildtta.report.chart import BarChart, Line, LineChart, PictureChart, ScatterChart, SurfaceChart
from wildtta.report.command import command_for, configuration
from wildtta.report.document import gather
from wildtta.report.from_paper import settings_in
from wildtta.report.latex import escape, table_latex
from wildtta.report.markdown import table_markdown
from wildtta.report.plots import draw
from wildtta.report.svg import png_uri, standalone
from wildtta.report.table import Column, Number, Table, TableRow, with_best


@pytest.fixture(scope="module")
def paper_rows() -> list[Row]:
    """Table 4 with the paper's own numbers: 3 seeds each."""
    return list(printed_journal(experiments()["table-4"], papers_setting()).values())


def grid_rows(*, seeds: int = 2) -> list[Row]:
    """A small grid that belongs to no table: two methods, two corruptions, one mixed stream."""
    rows = []
    accuracy = {("none", "fog"): 10.0, ("none", "snow"): 20.0, ("sar2", "fog"): 40.0, ("sar2", "snow"): 50.0}
    for seed in range(seeds):
        for (method, corruption), value in accuracy.items():
            cell = Cell(model="glyphs:vit", method=method, corruptions=(corruption,), seed=seed, limit=100)
            row = empty_row(cell)
            row["metrics"] = {
                "accuracy": value + 2 * seed, "top5": 60.0, "ece": 5.0, "nll": 2.0, "samples": 100,
                "collapsed": method == "none" and corruption == "fog", "top_class_share": 12.0,
                "running": [[50, value - 5], [100, value]],
            }  # fmt: skip
            row["cost"] = {"forwards": 200, "backwards": 100, "ms_per_batch": 7.0, "peak_mb": 300.0}
            rows.append(row)
        mixed = Cell(
            model="glyphs:vit", method="sar2", scenario="mixed", corruptions=("fog", "snow"), seed=seed, limit=100
        )
        row = empty_row(mixed)
        row["metrics"] = {"accuracy": 33.0, "per_corruption": {"fog": 30.0, "snow": 36.0}, "samples": 100}
        rows.append(row)
    return rows


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_markdown_shows_the_papers_numbers_and_the_difference(paper_rows: list[Row]) -> None:
    document = gather(paper_rows, title="t")
    table = next(table for table in document.tables if table.name == "table-4")
    text = table_markdown(table)
    line = next(line for line in text.splitlines() if line.startswith("| SAR² |"))
    # Mean and deviation of the three synthetic seeds are the printed ones, so every difference is zero.
    for cell, printed in zip(cells_of(line)[1:], ("43.3 ± 0.1", "59.8 ± 0.01", "61.2 ± 0.03", "72.9 ± 0.01"), strict=False):
        mean = printed.split()[0]
        assert re.fullmatch(rf"\*\*{mean} ± 0\.0\*\* \({printed}, ±0\.0\)", cell), cell
    recap = next(line for line in text.splitlines() if line.startswith("| ReCAP |"))
    assert cells_of(recap)[2].startswith("**59.8"), "a tie is best twice, as printed"
    assert not cells_of(recap)[1].startswith("**")
    assert "`wildtta reproduce table-4 --on imagenet-c --data DIR --protocol paper --seeds 3`" in text


def test_other_data_are_never_compared() -> None:
    from wildtta.paper import setting

    where = setting("glyphs", scale="quick")
    rows = []
    for cell in experiments()["table-4"].cells(where):
        row = empty_row(cell)
        row["metrics"] = {"accuracy": 12.3}
        rows.append(row)
    document = gather(rows, title="t")
    table = next(table for table in document.tables if table.name == "table-4")
    assert not table.comparable
    assert all(number.difference is None for row in table.rows for number in row.numbers)
    assert "(30.6" not in table_markdown(table)
    assert "glyphs" in table.subtitle


def test_a_grid_becomes_pivot_tables(tmp_path: Path) -> None:
    document = gather(grid_rows(), title="grid")
    assert not document.parts
    overview, _, _, mild, mixed, quality = document.tables
    assert [column.label for column in overview.columns] == ["mild, level 5", "mixed, level 5"]
    by_method = {row.labels[1]: row for row in mild.rows}
    assert [column.label for column in mild.columns] == ["Snow", "Fog", "Avg"]
    snow, fog, average = by_method["SAR²"].numbers
    assert (fog.mean, snow.mean, average.mean) == (41.0, 51.0, 46.0)
    assert fog.std == pytest.approx(2**0.5)
    assert (fog.seeds, len(average.keys)) == (2, 4)
    assert fog.best
    assert by_method["NoAdapt"].numbers[1].collapsed
    assert not by_method["NoAdapt"].numbers[2].collapsed, "a mean over corruptions is not a run that collapsed"
    assert [number.mean for number in mixed.rows[0].numbers] == [36.0, 30.0, 33.0]
    assert {c.label: n.mean for c, n in zip(quality.columns, quality.rows[0].numbers, strict=True)}[
        "forwards / image"
    ] == 2.0
    (figure,) = document.figures
    assert len(figure.charts) == 2, "a running-accuracy chart per corruption that two methods ran"
    written = write(grid_rows(), tmp_path)
    assert written.claims is None
    assert "† a run that ended in one class" in written.markdown.read_text()


def test_partial_journals_give_partial_reports(paper_rows: list[Row]) -> None:
    some = [row for row in paper_rows if row["cell"]["method"] in ("sar", "tent") and row["cell"]["seed"] == 0]
    document = gather(some, title="t")
    table = next(table for table in document.tables if table.name == "table-4")
    rows = {row.labels[0]: row for row in table.rows}
    assert rows["SAR"].numbers[0].seeds == 1
    assert rows["SAR"].numbers[0].std is None
    assert rows["SAR²"].numbers[0].mean is None
    status = {outcome.claim.name: outcome.status for outcome in document.outcomes}
    assert status["table-4/C1"] == "not run"
    assert status["table-4/C2"] == "holds"
    assert status["table-1/C1"] == "not run"


def test_settings_are_found_again() -> None:
    where = papers_setting()
    rows = list(printed_journal(experiments()["table-e"], where).values())
    (found,) = settings_in(rows)
    assert (found.where, found.scale.name, found.seeds, found.protocol) == ("imagenet-c", "full", 3, "paper")
    assert found.same_as_paper
    random = papers_setting(random_weights=True, seeds=1)
    rows = list(printed_journal(experiments()["table-4"], random).values())
    (found,) = settings_in(rows)
    assert not found.same_as_paper, "random weights are not the paper's"
    cut = papers_setting(limit=640, seeds=1)
    (found,) = settings_in(list(printed_journal(experiments()["table-4"], cut).values()))
    assert found.scale.limit == 640
    assert not found.same_as_paper, "short streams are not the paper's"


def simple_table(**changes: Any) -> Table:
    columns = (Column(label="a_b %"), Column(label="ECE", better="low"), Column(label="passes", better="none", digits=0))
    rows = [
        TableRow(labels=("M1", "SAR²"), numbers=(Number(mean=51.68, std=0.12, seeds=3), Number(mean=4.0), Number(mean=50000.0))),
        TableRow(labels=("M1", "Tent"), numbers=(Number(mean=2.1), Number(mean=9.0), Number(mean=1.0))),
        TableRow(labels=("M2", "Tent"), numbers=(Number(missing="not run"), Number(mean=1.0), Number(mean=2.0))),
    ]  # fmt: skip
    return Table(
        name="x", title="A & B", subtitle="100 % data", row_names=("model", "method"), columns=columns,
        rows=with_best(rows, columns, grouped=True), **changes,
    )  # fmt: skip


def test_latex_is_booktabs_with_bold_and_deviation() -> None:
    text = table_latex(simple_table())
    lines = text.splitlines()
    assert lines.count("\\toprule") == lines.count("\\bottomrule") == 1
    assert "M1 & SAR\\textsuperscript{2} & \\textbf{51.7}$_{\\pm 0.1}$ & \\textbf{4.0} & 50{,}000 \\\\" in lines
    assert "M2 & Tent & -- & 1.0 & 2 \\\\" in lines
    assert lines.index("\\midrule", lines.index("\\midrule") + 1) < lines.index("M2 & Tent & -- & 1.0 & 2 \\\\")
    assert "A \\& B" in text
    assert "100 \\% data" in text
    assert "a\\_b \\%" in text
    for line in lines:
        if line.endswith("\\\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == 4, line
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    assert escape("50_% $x^2 {ρ}") == r"50\_\% \$x\textasciicircum{}2 \{$\rho$\}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: the LaTeX file is not compiled")
def test_latex_compiles(tmp_path: Path) -> None:
    written = write(grid_rows(), tmp_path)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", written.latex.name], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_best_is_per_group_and_direction() -> None:
    table = simple_table()
    assert [[number.best for number in row.numbers] for row in table.rows] == [
        [True, True, False], [False, False, False], [False, False, False],
    ]  # fmt: skip


def test_csv_holds_everything_unrounded(tmp_path: Path) -> None:
    written = write(grid_rows(), tmp_path)
    lines = list(csv.DictReader(io.StringIO(written.numbers.read_text())))
    fog = next(line for line in lines if line["row"] == "glyphs:vit / SAR²" and line["column"] == "Fog")
    assert (float(fog["mean"]), float(fog["std"]), fog["seeds"]) == (41.0, pytest.approx(2**0.5), "2")
    assert len(fog["cells"].split()) == 2


def test_command_repeats_the_cell() -> None:
    """The command shown for a number parses back to the very cell."""
    from typer.testing import CliRunner

    import wildtta.bench
    import wildtta.cli.run as verb

    cell = Cell(
        model="timm:resnet50_gn", model_options={"pretrained": False}, method="sar2",
        options={"inequity": None, "redundancy": 1e4}, scenario="label_shift", scenario_options={"ratio": "inf", "draws": 2},
        data="imagenet-c", corruptions=("fog",), severity=3, seed=7, limit=12, protocol="paper", measure=("health",),
    )  # fmt: skip
    seen: list[Cell] = []
    import typer

    app = typer.Typer()
    verb.register(app)

    def catch(cells: list[Cell], **_: Any) -> Any:
        seen.extend(cells)
        raise wildtta.bench.BenchError("caught")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wildtta.bench, "launch", catch)
        import shlex

        CliRunner().invoke(app, shlex.split(command_for(cell))[2:])
    assert [found.key for found in seen] == [cell.key]
    assert configuration(cell)["options"] == {"inequity": None, "redundancy": 1e4}
    assert "batch_size" not in configuration(cell), "defaults are left out"


def test_ticks_are_round_and_cover() -> None:
    assert nice_ticks(0, 47.3) == [0, 10, 20, 30, 40, 50]
    assert nice_ticks(0.012, 0.019)[0] <= 0.012
    assert nice_ticks(5, 5)[0] < 5 < nice_ticks(5, 5)[-1]
    axis = linear_axis([3, 97], 100, 0)
    assert axis.place(axis.low) == 100
    assert axis.place(axis.high) == 0
    powers = log_axis([1, 2, 4, 64], 0, 60)
    assert [round(powers.place(v)) for v in (1, 2, 4, 64)] == [0, 10, 20, 60]


CURVE = Line(label="a<b", x=[1, 2, 4], y=[1, 3, 2], std=[0, 0.5, 0])
BOWL = [[2, 1, 2], [1, 0, 1], [2, 1, 2]]
CHARTS = [
    LineChart(title="lines & more", x_label="x", y_label="y", lines=[CURVE], log_x=True, marks=True),
    BarChart(
        title="bars",
        groups=["one", "two words"],
        series=["s", "t"],
        values=[[1.0, None], [2.0, 3.0]],
        stds=[[0.1, None], [0.2, 0.3]],
    ),
    ScatterChart(
        title="dots", x=[1, 2, 3], y=[3, 1, 2], group=[0, 1, 1], vertical=[(2.0, "E₀")], horizontal=[(2.0, "h")]
    ),
    SurfaceChart(title="surface", x=[-1, 0, 1], y=[-1, 0, 1], z=BOWL, level=0.5, z_label="entropy"),
    PictureChart(title="pictures", pictures=[np.zeros((4, 4, 3), dtype=np.uint8)], captions=["fog · 3 %"]),
]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: type(chart).__name__)
def test_drawings_are_wellformed_and_have_no_fixed_ink(chart: Any) -> None:
    text = standalone(draw(chart))
    root = ET.fromstring(text)
    inside = [element for element in root.iter() if element.tag.endswith(("path", "rect", "circle", "image"))]
    assert inside
    drawn = text.split("</style>")[1]
    assert not re.search(r'(stroke|fill)="#', drawn), "colours must follow the theme"
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for element in inside:
        for name, most in (("x", width), ("y", height), ("cx", width), ("cy", height)):
            if name in element.attrib:
                assert -0.5 <= float(element.attrib[name]) <= most + 0.5, "drawn outside of the picture"
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == chart.title


def test_png_is_a_png() -> None:
    import base64

    from PIL import Image

    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = base64.b64decode(png_uri(picture).split(",")[1])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), picture)
    with pytest.raises(ValueError, match="uint8"):
        png_uri(np.zeros((2, 2)))


def test_the_page_is_one_file_without_addresses(tmp_path: Path, paper_rows: list[Row]) -> None:
    page = write(paper_rows, tmp_path, title="Title <script>").html.read_text()
    assert "Title &lt;script&gt;" in page
    outside = [found for found in re.findall(r'(?:src|href)="([^"#]+)"', page) if not found.startswith("data:")]
    assert outside == []
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_same_rows_same_page(tmp_path: Path) -> None:
    one, two = (write(grid_rows(), tmp_path / name).html.read_bytes() for name in ("one", "two"))
    assert one == two
