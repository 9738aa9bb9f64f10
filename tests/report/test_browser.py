"""The page in a real browser: no console error, no request, tables that sort, figures that are seen."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from printed_journal import empty_row, papers_setting, printed_journal
from real_browser import NEEDS_BROWSER, show, started
from wildtta.bench import Cell, Row
from wildtta.cli import demo
from wildtta.cli.story import Story
from wildtta.paper import experiments, sections, setting
from wildtta.report import write

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with tables that can be compared, tables that cannot, claims, and every kind of figure."""
    rows: list[Row] = list(printed_journal(experiments()["table-4"], papers_setting()).values())
    small = setting("glyphs", scale="quick")
    for name in ("figure-1", "figure-2", "figure-8", "figure-9", "figure-d", "figure-a"):
        for spot in experiments()[name].plan(small):
            for place, cell in enumerate(spot.cells):
                rows.append(filled(empty_row(cell, experiments()[name], small), 20.0 + place))
    rows = list(united(rows).values())
    return write(rows, tmp_path_factory.mktemp("page"), title="A page", sections=sections(rows)).html


def united(rows: list[Row]) -> dict[str, Row]:
    """One row per key, asked for by all who asked for it."""
    found: dict[str, Row] = {}
    for row in rows:
        before = found.setdefault(row["key"], row)
        before["asked_by"] += [asker for asker in row["asked_by"] if asker not in before["asked_by"]]
    return found


def filled(row: Row, value: float) -> Row:
    steps = range(30)
    row["metrics"] = {"accuracy": value, "histogram": [3, 1] * 100, "top_class_share": 75.0, "collapsed": False}
    row["series"] = {"batch": list(steps), "gradient_norm": [math.sin(i) + 2 for i in steps]}
    axis = [i / 3 - 1 for i in range(7)]
    row["diagnostics"] = {
        "predictions": {"position": list(steps), "predicted": [i % 7 for i in steps], "label": list(steps)},
        "tsne": {"points": [[math.cos(i), math.sin(3 * i)] for i in steps], "labels": [i % 20 for i in steps]},
        "surface": {"axis": axis, "entropy": [[a * a + b * b for b in axis] for a in axis], "centre": 0.0},
        "health": {"redundancy": value, "redundancy_rows": 9.0, "inequity": value / 10, "inequity_class": 3},
        "normalisation": "columns",
    }
    return row


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def opened(browser: Any, page: Path, *, width: int = 1280, dark: bool = False) -> Any:
    show(browser, page.as_uri(), width=width, dark=dark)
    return browser


def pixels(element: Any) -> np.ndarray[Any, Any]:
    from PIL import Image

    data = base64.b64decode(element.screenshot_as_base64)
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).reshape(-1, 3)


def test_loads_without_errors_and_without_requests(browser: Any, page: Path) -> None:
    browser.get_log("performance")
    opened(browser, page)
    assert browser.title == "A page"
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert [url for url in asked if url.startswith("file:")] in ([], [page.as_uri()]), "nothing but the page itself"


def column(browser: Any, place: int) -> list[str]:
    return list(
        browser.execute_script(
            "return [...document.querySelectorAll('#table-4 tbody tr')].map(r => r.cells[arguments[0]].dataset.value)",
            place,
        )
    )


def test_tables_sort_on_click(browser: Any, page: Path) -> None:
    opened(browser, page)
    before = column(browser, 1)
    heading = browser.find_elements("css selector", "#table-4 thead button")[1]
    cell = browser.find_elements("css selector", "#table-4 thead th")[1]
    for order, sign in (("descending", -1), ("ascending", 1)):
        browser.execute_script("arguments[0].click()", heading)
        assert cell.get_attribute("aria-sort") == order
        values = [float(value) for value in column(browser, 1)]
        assert values == sorted(values, key=lambda value, sign=sign: sign * value)
        assert len(values) == 10
    browser.execute_script("arguments[0].click()", heading)
    assert cell.get_attribute("aria-sort") is None
    assert column(browser, 1) == before, "the third click gives the paper's order back"


def test_a_number_tells_its_command(browser: Any, page: Path) -> None:
    opened(browser, page)
    number = browser.find_element("css selector", "#table-4 tbody tr:nth-child(10) .num")
    browser.execute_script("arguments[0].click()", number)
    dialog = browser.find_element("css selector", "dialog[open]")
    assert "wildtta run --model timm:resnet50_gn.a1h_in1k --method sar2" in dialog.text
    assert dialog.text.count("wildtta run") == 3, "one command per seed"
    browser.execute_script("arguments[0].click()", dialog.find_element("css selector", "[data-close]"))
    assert not browser.find_elements("css selector", "dialog[open]")


def test_claims_filter(browser: Any, page: Path) -> None:
    opened(browser, page)
    button = browser.find_element("css selector", "[data-filter=holds]")
    browser.execute_script("arguments[0].click()", button)
    seen = [item for item in browser.find_elements("css selector", ".claims li") if item.is_displayed()]
    assert seen
    assert {item.get_attribute("data-status") for item in seen} == {"holds"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_figures_are_seen(browser: Any, page: Path, dark: bool) -> None:
    opened(browser, page, dark=dark)
    drawings = browser.find_elements("css selector", ".charts svg")
    assert len(drawings) >= 12
    for drawing in drawings:
        browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", drawing)
        shot = pixels(drawing).astype(int)
        background = np.median(shot[:200], axis=0)  # along the upper edge: what is drawn may fill more than half
        assert (background.mean() < 60) == dark, "the paper follows the theme"
        far = np.abs(shot - background).max(axis=1) > 90
        assert far.mean() > 0.002, f"{drawing.get_attribute('aria-label')} is (nearly) blank"


def test_the_toggle_wins_over_the_system(browser: Any, page: Path) -> None:
    opened(browser, page)
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.execute_script("document.getElementById('theme').click()")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    browser.execute_script("document.getElementById('theme').click()")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == light


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_runs_out_of_the_window(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    smallest = browser.execute_script(
        # A turned label is as wide as its letters are high.
        "return Math.min(...[...document.querySelectorAll('.charts svg text')]"
        ".map(t => t.getBoundingClientRect()).map(r => Math.max(r.width, r.height)))"
    )
    assert smallest >= 9, "labels stay readable"


def test_the_demonstrations_table_is_seen_whole(browser: Any, tmp_path: Path) -> None:
    """At 1280 pixels every column of the table is in the window, without scrolling sideways."""
    networks, methods = dict(demo.NETWORKS), dict(demo.METHODS)
    rows = {
        (network, stream, method): filled(
            empty_row(Cell(model=network, model_name=networks[network], method=method, seed=place)), 40.0 + place
        )
        for network in networks
        for place, stream in enumerate(demo.SCENARIOS)
        for method in methods
    }
    for row in rows.values():
        row["diagnostics"]["predictions"] = {"label": [1] * 20, "predicted": [1] * 8 + [0] * 12}
    story = Story(rows=rows, networks=networks, streams=demo.SCENARIOS, methods=methods)
    written = write(list(rows.values()), tmp_path, intro=story.words, sections=[story.section])
    opened(browser, written.html)
    sheet = browser.find_element("css selector", "#story .scroll")
    assert sheet.get_property("scrollWidth") <= sheet.get_property("clientWidth")
    headings = browser.find_elements("css selector", "#story thead th")
    assert len(headings) == 1 + len(demo.SCENARIOS)
    assert all(heading.rect["x"] >= 0 and heading.rect["x"] + heading.rect["width"] <= 1280 for heading in headings)
