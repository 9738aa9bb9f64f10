"""Reports of studies: titles, order, overviews, what is not comparable, and one page for a documentation."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from printed_journal import empty_row
from wildtta.bench import Cell, Row
from wildtta.report import write, write_page
from wildtta.report.document import Document, gather
from wildtta.report.latex import table_latex
from wildtta.report.markdown import table_markdown
from wildtta.report.order import in_order, natural
from wildtta.report.prose import prose_html
from wildtta.report.table import Column, Number, Table, TableRow, with_best

SHARED = {"precision": "tf32"}
METHODS: list[dict[str, Any]] = [
    {"method": "sar2", "options": SHARED},
    {"method": "sar2", "options": {**SHARED, "inequity": 200.0}, "name": "β = 200"},
    {"method": "sar2", "options": {**SHARED, "inequity": 20.0}, "name": "β = 20"},
    {"method": "sar2", "options": {**SHARED, "redundancy": None}},
    {"method": "tent", "options": SHARED},
    {"method": "sar2-efficient", "options": SHARED},
    {"method": "sar", "options": SHARED},
    {"method": "eata", "options": SHARED},
    {"method": "none", "options": SHARED},
]
ORDERED = ["no adaptation", "Tent", "EATA", "SAR", "SAR²", "SAR²†", "SAR² (redundancy=off)", "β = 20", "β = 200"]
STREAMS: list[dict[str, Any]] = [
    {"scenario": "single", "batch_size": 1, "corruptions": ("fog",)},
    {"scenario": "mild", "severity": 3, "corruptions": ("fog",)},
    {"scenario": "mixed", "corruptions": ("fog", "shot_noise")},
    *({"scenario": "mild", "corruptions": (name,)} for name in ("fog", "contrast", "shot_noise")),
    {"scenario": "label_shift", "scenario_options": {"draws": 100}, "corruptions": ("fog",)},
    {"scenario": "label_shift", "scenario_options": {"draws": 25}, "corruptions": ("fog",)},
]
COLUMNS = [
    "mild, level 5", "mild, level 3", "label shift, level 5, draws 25", "label shift, level 5, draws 100",
    "mixed, level 5", "batch size 1, level 5",
]  # fmt: skip


def filled(cell: Cell, draw: random.Random) -> Row:
    row = empty_row(cell)
    # The unadapted network spreads its answers, so that shares above a fifth are the methods' doing.
    accuracy, share = draw.uniform(5, 60), draw.uniform(1, 9 if cell.method == "none" else 99)
    row["metrics"] = {
        "accuracy": accuracy, "top5": 70.0, "ece": draw.uniform(1, 40), "nll": 3.0, "samples": 200,
        "top_class_share": share, "collapsed": share > 20, "running": [[100, accuracy - 1], [200, accuracy]],
        "per_corruption": dict.fromkeys(cell.corruptions, accuracy),
    }  # fmt: skip
    row["cost"] = {"forwards": 200, "backwards": 100, "ms_per_batch": 7.0, "peak_mb": 300.0}
    return row


def study(*, models: tuple[str, ...] = ("net 10", "net 9"), seeds: int = 2) -> list[Row]:
    """Every method on every stream, numbers by chance."""
    draw = random.Random(0)
    return [
        filled(Cell(model=f"glyphs:{model}", model_name=model, seed=seed, **method, **stream), draw)
        for model in models
        for method in METHODS
        for stream in STREAMS
        for seed in range(seeds)
    ]


def shuffled(rows: list[Row]) -> list[Row]:
    return random.Random(1).sample(rows, len(rows))


def titled(document: Document, beginning: str) -> Table:
    (table,) = [table for table in document.tables if table.title.startswith(beginning)]
    return table


def number_of(table: Table, method: str, column: str, model: str = "net 9") -> Number:
    row = next(row for row in table.rows if row.labels == (model, method))
    return row.numbers[[found.label for found in table.columns].index(column)]


def test_options_of_all_runs_are_told_once_and_not_in_every_name() -> None:
    document = gather(study(), title="t")
    for table in document.tables:
        assert table.subtitle == "glyphs, precision tf32"
        assert {row.labels[1] for row in table.rows} == set(ORDERED)
    (figure,) = document.figures
    assert figure.subtitle == "precision tf32"
    # One run without it, and it is no longer shared: every name that is made says it again.
    other = filled(Cell(model="glyphs:vit", model_name="net 9", method="tent", corruptions=("fog",)), random.Random(2))
    table = gather([*study(), other], title="t").tables[0]
    assert table.subtitle == "glyphs"
    names = {row.labels[1] for row in table.rows}
    assert {"Tent", "Tent (precision=tf32)", "SAR² (precision=tf32, redundancy=off)", "β = 20"} <= names


def test_the_order_is_not_that_of_completion(tmp_path: Path) -> None:
    rows = study()
    document = gather(shuffled(rows), title="t")
    for table in document.tables:
        assert [row.labels for row in table.rows] == [(model, name) for model in ("net 9", "net 10") for name in ORDERED]
    assert [column.label for column in document.tables[0].columns] == COLUMNS
    assert [table.title for table in document.tables[3:9]] == [name[0].upper() + name[1:] for name in COLUMNS]
    assert [column.label for column in titled(document, "Mild, level 5").columns] == ["Shot", "Fog", "Contr.", "Avg"]
    assert [column.label for column in titled(document, "Mixed").columns] == ["Shot", "Fog", "Avg"]
    (figure,) = document.figures
    assert all([line.label for line in chart.lines] == ORDERED for chart in figure.charts)  # type: ignore[attr-defined]
    one, two = (write(some, tmp_path / name) for name, some in (("one", rows), ("two", shuffled(rows))))
    assert one.markdown.read_bytes() == two.markdown.read_bytes()
    assert one.latex.read_bytes() == two.latex.read_bytes()
    assert one.numbers.read_bytes() == two.numbers.read_bytes()
    assert [path.read_bytes() for path in one.figures] == [path.read_bytes() for path in two.figures]


def test_texts_sort_as_people_do() -> None:
    mixed = ["SAR, 4 lr", "b = 10", "SAR, ½ lr", "a", "b = 2", "B = 0.5", "SAR, 2 lr"]
    assert sorted(mixed, key=natural) == ["a", "B = 0.5", "b = 2", "b = 10", "SAR, ½ lr", "SAR, 2 lr", "SAR, 4 lr"]
    assert in_order(["spatter", "jpeg_compression", "clean", "gaussian_noise", "jpeg_compression"]) == [
        "clean", "gaussian_noise", "jpeg_compression", "spatter",
    ]  # fmt: skip


def test_three_overviews_have_the_same_shape_and_the_right_numbers() -> None:
    rows = study()
    document = gather(shuffled(rows), title="t")
    accuracy, ece, share = document.tables[:3]
    assert ece.title == "Calibration error (ECE): mean over corruptions"
    assert share.title == "Most predicted class in the last fifth of the stream: largest share over all runs"
    for table in (ece, share):
        assert [column.label for column in table.columns] == [column.label for column in accuracy.columns]
        assert [row.labels for row in table.rows] == [row.labels for row in accuracy.rows]
        assert all(column.better == "low" for column in table.columns)

    def values(name: str, seed: int) -> list[float]:
        """Of Tent on net 9 in the mild streams of level 5."""
        wanted = {"method": "tent", "model_name": "net 9", "scenario": "mild", "severity": 5, "seed": seed}
        return [row["metrics"][name] for row in rows if wanted.items() <= row["cell"].items()]

    for table, name in ((accuracy, "accuracy"), (ece, "ece")):
        means = [statistics.fmean(values(name, seed)) for seed in (0, 1)]
        number = number_of(table, "Tent", "mild, level 5")
        assert number.mean == pytest.approx(sum(means) / 2)
        assert number.std == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
        assert len(number.keys) == 6
    number = number_of(share, "Tent", "mild, level 5")
    assert number.mean == max(values("top_class_share", 0) + values("top_class_share", 1))
    assert number.std is None
    assert len(number.keys) == 6
    for row in share.rows:
        for number in row.numbers:
            assert number.mean is not None
            assert number.collapsed == (number.mean > 20)
    for table, pick in ((accuracy, max), (ece, min), (share, min)):
        for place in range(len(COLUMNS)):
            column = [row.numbers[place] for row in table.rows if row.labels[0] == "net 9"]
            best = pick(number.mean for number in column if number.mean is not None)
            assert [number.mean for number in column if number.best] == [best]


def test_one_method_has_no_overview_of_calibration() -> None:
    alone = [row for row in study() if row["cell"]["method"] == "tent"]
    titles = [table.title for table in gather(alone, title="t").tables]
    assert titles[0] == "Overview: mean over corruptions"
    assert not any(title.startswith(("Calibration error", "Most predicted")) for title in titles)


def without(rows: list[Row], method: str, *corruptions: str) -> list[Row]:
    return [
        row
        for row in rows
        if not (row["cell"]["method"] == method and row["cell"]["scenario"] == "mild"
                and row["cell"]["severity"] == 5 and row["cell"]["corruptions"][0] in corruptions)
    ]  # fmt: skip


def test_a_mean_over_fewer_corruptions_is_marked_and_never_best(tmp_path: Path) -> None:
    rows = without(study(models=("net 9",)), "tent", "contrast")
    for row in rows:
        if row["cell"]["method"] == "tent":
            row["metrics"] |= {"accuracy": 99.0, "ece": 0.1, "top_class_share": 0.1}
    document = gather(rows, title="t")
    for table in document.tables[:3]:
        number = number_of(table, "Tent", "mild, level 5")
        assert number.partial == "2 of 3"
        assert not number.best, "its mean is over other corruptions"
        assert number_of(table, "Tent", "mild, level 3").best
        assert not any(n.partial for row in table.rows for n in row.numbers if row.labels[1] != "Tent")
        assert sum(row.numbers[0].best for row in table.rows) == 1, "the best of those that are comparable"
    mild = titled(document, "Mild, level 5")
    assert number_of(mild, "Tent", "Avg").partial == "2 of 3"
    assert number_of(mild, "Tent", "Fog").best
    written = write(rows, tmp_path)
    words = "(n of m): over n of the column's m corruptions"
    text = table_markdown(document.tables[0])
    assert re.search(r"\| net 9 \| Tent \| 99\.0 ± 0\.0 \(2 of 3\) \| \*\*99\.0", text)
    assert words in text
    assert "99.0$_{\\pm 0.0}$ {\\scriptsize(2 of 3)}" in table_latex(document.tables[0])
    assert words in written.latex.read_text()
    page = written.html.read_text()
    assert page.count('<span class="std"> (2 of 3)</span>') == 4
    assert "(n of m): over n of the column&#39;s m corruptions" in page
    lines = list(csv.DictReader(io.StringIO(written.numbers.read_text())))
    assert {line["title"] for line in lines if line["partial"]} == {
        table.title for table in (*document.tables[:3], mild)
    }  # fmt: skip
    assert {line["row"] for line in lines if line["partial"]} == {"net 9 / Tent"}


def test_as_many_corruptions_but_others_are_not_the_same() -> None:
    rows = without(without(study(models=("net 9",)), "tent", "contrast"), "sar", "fog")
    overview = gather(rows, title="t").tables[0]
    assert number_of(overview, "Tent", "mild, level 5").partial == "2 of 3"
    assert number_of(overview, "SAR", "mild, level 5").partial == "2 of 3"


def test_where_nobody_has_all_only_equals_compete() -> None:
    columns = [Column(label="a")]

    def marked(*partial: str) -> list[bool]:
        rows = [TableRow(labels=("m", str(i)), numbers=(Number(mean=float(i), partial=p),)) for i, p in enumerate(partial)]
        return [row.numbers[0].best for row in with_best(rows, columns, grouped=True)]

    assert marked("", "", "2 of 3") == [False, True, False]
    assert marked("2 of 3", "2 of 3") == [False, True]
    assert marked("2 of 3", "1 of 3") == [False, False]


def test_different_numbers_of_seeds_are_told() -> None:
    rows = [row for row in study(seeds=3) if row["cell"]["method"] == "sar2" or row["cell"]["seed"] == 0]
    document = gather(rows, title="t")
    assert all(table.note == "numbers are over 1 to 3 seeds" for table in document.tables[:-1])
    assert number_of(document.tables[0], "Tent", "mild, level 5").partial == "", "seeds are not corruptions"
    quality = document.tables[-1]
    assert "different streams or seeds" in quality.note
    assert not any(number.best for row in quality.rows for number in row.numbers)
    assert (number_of(quality, "SAR²", "runs").mean, number_of(quality, "Tent", "runs").mean) == (24, 8)
    assert gather(study(), title="t").tables[-1].note == ""


def test_figures_are_limited_but_every_stream_is_seen() -> None:
    everything = gather(study(), title="t", figures=99).figures[0]
    assert (len(everything.charts), everything.note) == (2 * len(STREAMS), "")
    some = gather(shuffled(study()), title="t", figures=13).figures[0]
    assert some.note == "13 of 16 streams are drawn"
    seen = [chart.title for chart in some.charts]
    assert {title.rpartition(" · ")[0] for title in seen} == {f"net {i} · {name}" for i in (9, 10) for name in COLUMNS}
    assert [title for title in seen if "net 9 · mild, level 5" in title] == [
        "net 9 · mild, level 5 · shot noise", "net 9 · mild, level 5 · fog",
    ]  # fmt: skip
    assert [chart.title for chart in everything.charts if chart.title in seen] == seen
    assert gather(study(), title="t", figures=0).figures == []
    with pytest.raises(ValueError, match="figures must be 0 or more, got -1"):
        gather(study(), title="t", figures=-1)


def test_no_figures_means_the_papers_too() -> None:
    from wildtta.paper import experiments, sections, setting

    figure, where = experiments()["figure-2"], setting("glyphs", scale="quick")
    rows = [empty_row(cell, figure, where) for cell in figure.cells(where)]
    assert gather(rows, title="t", sections=sections(rows)).figures
    assert not gather(rows, title="t", sections=sections(rows), figures=0).figures


def test_intro_is_text_and_nothing_else(tmp_path: Path) -> None:
    intro = (
        "## What was asked\n\nWhether *R* <script>alert(1)</script> helps, see [x](javascript:alert(1)).\n\n"
        "| a | b |\n| :-- | --: |\n| 1 | <i>2</i> |\n\n![a picture](https://example.org/x.png)\n"
    )
    written = write(study(), tmp_path, title="A study", intro=intro)
    text = written.markdown.read_text()
    assert text.startswith("# A study\n\n288 runs on cpu, 4.8 minutes of computing\n\n## What was asked\n")
    page = written.html.read_text()
    inside = page[page.index('<div class="prose">') : page.index('<div class="tiles">')]
    assert "<h2>What was asked</h2>" in inside
    assert "<em>R</em> &lt;script&gt;alert(1)&lt;/script&gt; helps" in inside
    assert 'style="text-align:right">&lt;i&gt;2&lt;/i&gt;</td>' in inside
    assert "<a" not in inside
    assert "<img" not in inside
    assert "a picture" in inside
    assert prose_html("[x](https://example.org)") == '<p><a href="https://example.org">x</a></p>\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with a journal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shuffled(study())))
    (tmp_path / "one.md").write_text("First words.\n")
    (tmp_path / "two.md").write_text("\nSecond words.\n")
    return tmp_path


def run(*words: str) -> tuple[int, str]:
    import typer

    from wildtta.cli import report

    app = typer.Typer()
    app.command("other")(lambda: None)
    report.register(app)
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_a_page_alone_with_its_figures_beside_it(here: Path) -> None:
    words = [
        "report", "runs.jsonl", "--page", "docs/my study.md", "--title", "A study: what & why", "--intro", "one.md",
        "--intro", "two.md", "--figures", "3",
    ]  # fmt: skip
    code, output = run(*words)
    assert code == 0, output
    assert sorted(path.name for path in here.iterdir()) == ["docs", "one.md", "runs.jsonl", "two.md"], "no report folder"
    page = here / "docs" / "my study.md"
    text = page.read_text()
    command = shlex.join(["wildtta", *words])
    assert text.startswith(
        "# A study: what & why\n\n288 runs on cpu, 4.8 minutes of computing\n\n"
        f"```bash\n{command}\n```\n\nFirst words.\n\nSecond words.\n\n## Tables\n"
    )
    links = re.findall(r"\]\((my%20study/[^)]+\.svg)\)", text)
    assert len(links) == 3
    drawn = sorted((here / "docs" / "my study").iterdir())
    assert [path.name for path in drawn] == sorted(link.partition("/")[2] for link in links)
    # The command in the page makes the same page.
    before = page.read_bytes(), [path.read_bytes() for path in drawn]
    page.unlink()
    code, output = run(*shlex.split(command)[1:])
    assert code == 0, output
    assert (page.read_bytes(), [path.read_bytes() for path in drawn]) == before


def test_a_page_and_a_report(here: Path) -> None:
    code, output = run("report", "runs.jsonl", "--out", "all", "--page", "page.md", "--figures", "0")
    assert code == 0, output
    assert (here / "page.md").read_text() == (here / "all" / "report.md").read_text()
    assert not (here / "page").exists(), "no figures, no folder"
    assert "<code" in (here / "all" / "index.html").read_text()
    code, _ = run("report", "runs.jsonl")
    assert code == 0
    text = (here / "wildtta-report" / "report.md").read_text()
    assert text.startswith("# wildtta report\n")
    assert "```bash\nwildtta report runs.jsonl\n```" in text
    assert len(list((here / "wildtta-report" / "figures").iterdir())) == 12


def test_what_the_command_refuses(here: Path) -> None:
    code, output = run("report", "runs.jsonl", "--page", "page.md", "--intro", "missing.md")
    assert code == 2
    assert "missing.md" in output
    assert not (here / "page.md").exists()
    code, output = run("report", "runs.jsonl", "--page", "page")
    assert code == 2
    assert "needs an ending (.md)" in output


def test_a_page_from_python(tmp_path: Path) -> None:
    page = write_page(study(), tmp_path / "study.md", title="A study", figures=1)
    text = page.read_text()
    assert text.startswith("# A study\n")
    assert "```" not in text, "no command made it"
    assert (tmp_path / "study" / "grid-running-1.svg").exists()


def test_letters_of_variants_are_known_to_latex() -> None:
    from wildtta.report.latex import escape

    assert escape("α·D = 10⁴, ζ, ½ lr") == (
        r"$\alpha$$\cdot$D = 10\textsuperscript{4}, $\zeta$, $\frac12$ lr"
    )  # fmt: skip
