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
from wildtta.paper import claims, experiments, sections, setting
from wildtta.report import write
from wildtta.report.chart import BarChart, Line, LineChart, PictureChart, ScatterChart, SurfaceChart
from wildtta.report.command import command_for, configuration
from wildtta.report.document import Document, gather
from wildtta.report.drawing import draw, standalone
from wildtta.report.latex import escape, table_latex
from wildtta.report.markdown import table_markdown
from wildtta.report.table import Column, Number, Table, TableRow, with_best
from wildtta.report.verdicts import reasons_of, unexplained, verdicts


@pytest.fixture(scope="module")
def paper_rows() -> list[Row]:
    """Table 4 with the paper's own numbers: 3 seeds each."""
    return list(printed_journal(experiments()["table-4"], papers_setting()).values())


def of_paper(rows: list[Row]) -> Document:
    return gather(rows, title="t", sections=sections(rows))


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
                "top_class_share": {"none": 60.0, "sar2": 90.0}[method] if corruption == "fog" else 12.0,
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
    document = of_paper(paper_rows)
    table = next(table for table in document.tables if table.name == "table-4")
    text = table_markdown(table)
    line = next(line for line in text.splitlines() if line.startswith("| SAR² |"))
    # Mean and deviation of the three synthetic seeds are the printed ones, so every difference is zero.
    for cell, printed in zip(
        cells_of(line)[1:], ("43.3 ± 0.1", "59.8 ± 0.01", "61.2 ± 0.03", "72.9 ± 0.01"), strict=False
    ):
        mean = printed.split()[0]
        assert re.fullmatch(rf"\*\*{mean} ± 0\.0\*\* \({printed}, ±0\.0\)", cell), cell
    recap = next(line for line in text.splitlines() if line.startswith("| ReCAP |"))
    assert cells_of(recap)[2].startswith("**59.8"), "a tie is best twice, as printed"
    assert not cells_of(recap)[1].startswith("**")
    assert "`wildtta reproduce table-4 --on imagenet-c --data DIR --protocol paper --seeds 3`" in text


def test_other_data_are_never_compared() -> None:
    where = setting("glyphs", scale="quick")
    rows = []
    for cell in experiments()["table-4"].cells(where):
        row = empty_row(cell, experiments()["table-4"], where)
        row["metrics"] = {"accuracy": 12.3}
        rows.append(row)
    document = of_paper(rows)
    table = next(table for table in document.tables if table.name == "table-4")
    assert not table.comparable
    assert all(number.difference is None for row in table.rows for number in row.numbers)
    assert "(30.6" not in table_markdown(table)
    assert "glyphs" in table.subtitle


def test_a_grid_becomes_pivot_tables(tmp_path: Path) -> None:
    document = gather(grid_rows(), title="grid")
    assert not document.sections
    overview, _, _, mild, mixed, quality = document.tables
    assert [column.label for column in overview.columns] == ["mild, level 5", "mixed, level 5"]
    by_method = {row.labels[1]: row for row in mild.rows}
    assert [column.label for column in mild.columns] == ["Snow", "Fog", "Avg"]
    snow, fog, average = by_method["SAR²"].numbers
    assert (fog.mean, snow.mean, average.mean) == (41.0, 51.0, 46.0)
    assert fog.std == pytest.approx(2**0.5)
    assert (fog.seeds, len(average.keys)) == (2, 4)
    assert fog.best
    assert fog.collapsed
    assert not average.collapsed, "a mean over corruptions is not a run that collapsed"
    assert not by_method["no adaptation"].numbers[1].collapsed, "a network that is left alone cannot collapse"
    assert [number.mean for number in mixed.rows[0].numbers] == [36.0, 30.0, 33.0]
    assert {c.label: n.mean for c, n in zip(quality.columns, quality.rows[0].numbers, strict=True)}[
        "forwards / image"
    ] == 2.0
    (figure,) = document.figures
    assert len(figure.charts) == 2, "a running-accuracy chart per corruption that two methods ran"
    written = write(grid_rows(), tmp_path)
    assert written.claims is None
    assert "† collapsed: " in written.markdown.read_text()


def test_partial_journals_give_partial_reports(paper_rows: list[Row]) -> None:
    some = [row for row in paper_rows if row["cell"]["method"] in ("sar", "tent") and row["cell"]["seed"] == 0]
    document = of_paper(some)
    table = next(table for table in document.tables if table.name == "table-4")
    rows = {row.labels[0]: row for row in table.rows}
    assert rows["SAR"].numbers[0].seeds == 1
    assert rows["SAR"].numbers[0].std is None
    assert rows["SAR²"].numbers[0].mean is None
    status = {outcome.name: outcome.status for outcome in document.outcomes}
    assert status["table-4/C1"] == "not run"
    assert status["table-4/C2"] == "holds"
    assert status["table-1/C1"] == "not run"


def test_settings_are_found_again() -> None:
    where = papers_setting()
    full = printed_journal(experiments()["table-e"], where)
    (found,) = sections(list(full.values()))
    assert found.label == where.label
    assert found.keys == set(full)
    assert [(table.name, table.comparable) for table in found.tables] == [("table-e", True)]
    random = papers_setting(random_weights=True, seeds=1)
    rows = list(printed_journal(experiments()["table-4"], random).values())
    (table,) = of_paper(rows).tables
    assert not table.comparable, "random weights are not the paper's"
    cut = papers_setting(limit=640, seeds=1)
    short = list(printed_journal(experiments()["table-4"], cut).values())
    (table,) = of_paper(short).tables
    assert "--limit 640" in table.command
    assert not table.comparable, "short streams are not the paper's"
    both = of_paper([*rows, *short])
    assert sorted(table.name for table in both.tables) == ["table-4", "table-4-2"], "names are anchors"


def test_later_seeds_join_the_earlier() -> None:
    """Asked for one seed, then for three: one table of three."""
    first, then = papers_setting(seeds=1), papers_setting(seeds=3)
    rows = {**printed_journal(experiments()["table-4"], then), **printed_journal(experiments()["table-4"], first)}
    (table,) = of_paper(list(rows.values())).tables
    assert {number.seeds for row in table.rows for number in row.numbers} == {3}


def test_claims_stand_with_their_table(paper_rows: list[Row], tmp_path: Path) -> None:
    document = of_paper(paper_rows)
    (table,) = document.tables
    assert [claim.name for claim in table.claims] == [f"table-4/C{n}" for n in range(1, 7)]
    assert {claim.status for claim in table.claims} == {"holds"}
    assert len(document.outcomes) == len(claims())
    text = table_markdown(table)
    for claim in table.claims:
        assert f"| {claim.name} | ✓ |" in text
    page = write(paper_rows, tmp_path, sections=sections(paper_rows)).html.read_text()
    article = page[page.index('<article id="table-4"') : page.index("</article>")]
    assert article.count('data-status="holds"') == 6


def test_markdown_has_the_papers_numbers_of_other_data() -> None:
    where = setting("glyphs")
    rows = []
    for cell in experiments()["table-4"].cells(where):
        row = empty_row(cell, experiments()["table-4"], where)
        row["metrics"] = {"accuracy": 12.3}
        rows.append(row)
    (table,) = of_paper(rows).tables
    line = next(line for line in table_markdown(table).splitlines() if line.startswith("| SAR² |"))
    assert "[43.3 ± 0.1]" in line
    assert "not compared" in table_markdown(table)


def glyph_document(name: str, **lengths: int) -> Document:
    """An experiment on glyphs in which methods saw so many images."""
    where = setting("glyphs", scale="quick")
    rows = []
    for cell in experiments()[name].cells(where):
        row = empty_row(cell, experiments()[name], where)
        samples = lengths.get(cell.method, 4000)
        row["metrics"] = {"accuracy": 12.3, "samples": samples}
        row["cost"] = {"forwards": 3 * samples, "backwards": samples, "ms_per_batch": 8.0, "batches": samples // 4}
        if "redundancy" in cell.options and cell.options["redundancy"] is None:
            row["resolved"] = {"normalisation": "auto", "redundancy": None}  # as a run without R leaves it
        elif "sar2" in cell.method:
            row["resolved"] = {"normalisation": "rows" if "gn" in cell.model else "columns"}
        rows.append(row)
    return of_paper(rows)


def test_a_row_says_how_many_images_it_saw_where_rows_differ() -> None:
    (table,) = glyph_document("table-4", memo=200).tables
    assert table.columns[-1].label == "images"
    lengths = {row.labels[0]: row.numbers[-1].words for row in table.rows}
    assert (lengths["MEMO"], lengths["Tent"]) == ("200", "4,000")
    assert "| 200 |" in next(line for line in table_markdown(table).splitlines() if line.startswith("| MEMO |"))
    (alike,) = glyph_document("table-4").tables
    assert alike.columns[-1].label == "Avg"


def test_a_glyph_network_is_called_so_in_every_row_and_column() -> None:
    (table,) = glyph_document("table-1").tables
    assert {row.labels[0] for row in table.rows} == {
        "glyphs:resnet_bn for ResNet50-BN", "glyphs:resnet_gn for ResNet50-GN", "glyphs:vit for VitBase-LN",
    }  # fmt: skip
    (mixture,) = glyph_document("table-4").tables
    assert [column.label for column in mixture.columns][:2] == ["glyphs:resnet_gn level 5", "glyphs:resnet_gn level 3"]
    five, six = (glyph_document(name).figures[0].charts for name in ("figure-5", "figure-6"))
    assert isinstance(five[0], BarChart)
    assert list(five[0].groups) == ["glyphs:resnet_bn", "glyphs:resnet_gn", "glyphs:vit"]
    assert isinstance(six[0], LineChart)
    assert [line.label for line in six[0].lines][:2] == ["glyphs:resnet_bn", "glyphs:resnet_bn, no adaptation"]
    (papers,) = of_paper(list(printed_journal(experiments()["table-4"], papers_setting()).values())).tables
    assert papers.columns[0].label == "ResNet50-GN level 5"


def test_a_table_names_the_normalisation_of_r() -> None:
    (table,) = glyph_document("table-1").tables
    note = "R over rows on glyphs:resnet_gn for ResNet50-GN; R over columns on glyphs:vit for VitBase-LN"
    assert sorted(table.note.split("; ")) == sorted(note.split("; "))
    assert "R over rows on glyphs:resnet\\_gn" in table_latex(table)
    (regularisers,) = glyph_document("table-7").tables
    assert "auto" not in regularisers.note, "SAR with I alone has no R whose normalisation could be told"


def test_costs_are_per_image_and_have_a_column_of_words() -> None:
    """A fifth of the images, the same numbers: table 2 counts for 50,000 images."""
    few, many = (glyph_document("table-2", **lengths).tables[0] for lengths in ({"memo": 200, "tent": 200}, {}))
    labels = [column.label for column in few.columns]
    assert labels[:4] == ["forward", "backward", "other computation", "seconds"]
    for table in (few, many):
        numbers = {row.labels[1]: row.numbers for row in table.rows}
        assert [numbers["Tent"][place].mean for place in (0, 1, 3)] == [150_000, 50_000, 100.0]
        assert (numbers["MEMO"][2].words, numbers["MEMO"][2].printed_words) == ("64 AugMix views", "AugMix")
    line = next(line for line in table_markdown(few).splitlines() if "| MEMO |" in line)
    assert "64 AugMix views [AugMix]" in line
    assert "64 AugMix views" in table_latex(few)


def test_verdicts_page_counts_claims_and_asks_for_reasons(paper_rows: list[Row]) -> None:
    spoiled = [
        {**row, "metrics": {"accuracy": 32.0 if row["cell"]["method"] == "tent" else row["metrics"]["accuracy"]}}
        for row in paper_rows
    ]
    document = of_paper(spoiled)
    failing = ("figure-5/C3", "table-4/C1")  # both say that Tent is below no adaptation in the mixture
    reasons = reasons_of({name: {"because": "network", "why": "Tent | works."} for name in failing}, document.outcomes)
    page = verdicts(document, reasons)
    assert "network: Tent \\| works." in page
    assert "the networks (2)" in page
    assert page.index("## Claims that hold") < page.index("## How it was made"), "findings first"
    assert unexplained(document, {}) == [f"{name} fails and has no reason" for name in failing]
    assert unexplained(document, reasons) == []
    assert "not explained yet" in verdicts(document, {})
    counts = list(map(int, re.findall(r"\d+", page.splitlines()[2])))
    every = len(claims())
    assert counts == [every, 5, 2, 0, every - 7], "in all, hold, fail, too short, not run"
    missing = page[page.index("## Not run") : page.index("## Claims that hold")]
    named = [len(cells_of(line)[1].split(",")) for line in missing.splitlines() if re.match(r"\| (table|figure)-", line)]
    others = {claim.experiment for claim in claims()} - {"table-4"}
    assert (len(named), sum(named)) == (len(others), every - 7), "a line for each, with all of its claims"
    assert unexplained(of_paper(paper_rows), reasons) == [f"{name} has a reason and does not fail" for name in failing]
    with pytest.raises(ValueError, match="no claim 'table-4/C99'"):
        reasons_of({"table-4/C99": {"because": "scale", "why": ""}}, document.outcomes)
    with pytest.raises(ValueError, match="because = one of scale, network, claim"):
        reasons_of({"table-4/C1": {"because": "luck", "why": ""}}, document.outcomes)


def simple_table(**changes: Any) -> Table:
    columns = (
        Column(label="a_b %"),
        Column(label="ECE", better="low"),
        Column(label="passes", better="none", digits=0),
    )
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
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", written.latex.name],
        cwd=tmp_path,
        capture_output=True,
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


def test_names_of_users_stay_text(tmp_path: Path) -> None:
    """A method's title is anybody's text: neither a browser nor a spreadsheet program may run it."""
    evil, formula = "<script>alert(1)</script> a < b", "=HYPERLINK(1)"
    rows = grid_rows(seeds=1)
    for row in rows:
        row["cell"]["name"] = evil if row["cell"]["method"] == "sar2" else formula
        row["cell"]["model_name"] = "<img src=x onerror=alert(2)>"
    failed = {**rows[0], "key": "0" * 16, "status": "failed", "reason": "<script>alert(3)</script>"}
    written = write([*rows, failed], tmp_path, title="<script>alert(4)</script>")
    for file in (written.markdown, written.numbers, written.html):
        text = file.read_text()
        assert "<script>alert" not in text
        assert "<img src=x" not in text
    assert "&lt;script>alert(1)&lt;/script> a < b" in written.markdown.read_text()
    lines = list(csv.DictReader(io.StringIO(written.numbers.read_text())))
    assert not any(value.startswith(("=", "+", "@")) for line in lines for value in line.values())
    assert any(formula in line["row"] for line in lines)


def test_command_repeats_the_cell() -> None:
    """The command shown for a number parses back to the very cell."""
    from typer.testing import CliRunner

    import wildtta.bench
    import wildtta.cli.run as verb

    cell = Cell(
        model="timm:resnet50_gn", model_options={"pretrained": False}, method="sar2",
        options={"inequity": None, "redundancy": 1e4}, regularise=4, scenario="label_shift",
        scenario_options={"ratio": "inf", "draws": 2},
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
    assert not re.search(r"(stroke|fill|color)[^;]{0,3}(#|rgb|black|white)", drawn), "colours must follow the theme"
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == chart.title
    assert text == standalone(draw(chart)), "the same chart, the same bytes"
    assert len(set(ids := re.findall(r'id="([^"]+)"', text))) == len(ids)


def texts(chart: Any) -> list[str]:
    """What a drawing says, as text that scales and can be searched."""
    root = ET.fromstring(standalone(draw(chart)))
    return ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]


def test_drawings_say_what_they_show() -> None:
    lines, bars, dots, surface, pictures = (texts(chart) for chart in CHARTS)
    assert {"lines & more", "x", "y", "a<b", "1", "2", "4"} <= set(lines), "a tick at every value of a logarithmic axis"
    assert {"bars", "s", "t", "2.0", "3.0", "–"} <= set(bars)
    assert {"dots", "E₀", "h"} <= set(dots)
    assert {"surface", "entropy"} <= set(surface)
    assert {"pictures", "fog", "3 %"} <= set(pictures)
    many = [Line(label=f"method {i}", x=[0, 40_000], y=[0, i]) for i in range(12)]
    words = texts(LineChart(title="a title that is far too long for a single line of the drawing", lines=many))
    assert "40k" in words
    assert {line.label for line in many} <= set(words)
    assert not any("too long for a single line of the drawing" in word for word in words), "it is folded"


def test_bars_tell_their_value_to_the_mouse() -> None:
    assert "<title>t, two words: 3.0</title>" in draw(CHARTS[1])


def test_pictures_are_kept_as_they_are() -> None:
    import base64

    from PIL import Image

    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    drawn = draw(PictureChart(title="p", pictures=[picture], captions=["c"]))
    data = base64.b64decode(re.search(r"data:image/png;base64,([^\"]+)", drawn)[1])  # type: ignore[index]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), picture)


def test_nothing_in_reports_knows_the_paper() -> None:
    import wildtta.report

    for path in Path(wildtta.report.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) wildtta\.paper", path.read_text(), flags=re.MULTILINE), path


def test_the_page_is_one_file_without_addresses(tmp_path: Path, paper_rows: list[Row]) -> None:
    page = write(paper_rows, tmp_path, title="Title <script>", sections=sections(paper_rows)).html.read_text()
    assert "Title &lt;script&gt;" in page
    outside = [found for found in re.findall(r'(?:src|href)="([^"#]+)"', page) if not found.startswith("data:")]
    assert outside == []
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


def test_same_rows_same_page(tmp_path: Path) -> None:
    one, two = (write(grid_rows(), tmp_path / name).html.read_bytes() for name in ("one", "two"))
    assert one == two
