"""The demonstration's outcome in a table and in two sentences that follow the numbers."""

from __future__ import annotations

from pathlib import Path

from printed_journal import empty_row
from wildtta.bench import Cell, Row
from wildtta.cli.story import Place, Story
from wildtta.report import write

NETWORKS = {"glyphs:resnet_gn": "ResNet, GroupNorm", "glyphs:vit": "ViT, LayerNorm"}
STREAMS = {"noise": "label shift, Gaussian noise", "fog": "batch size 1, fog"}
METHODS = {"none": "no adaptation", "tent": "Tent", "steady": "Steady (ours)"}
ACCURACY = {"none": 40.0, "tent": 12.0, "steady": 46.5}


def answers(accuracy: float, images: int = 200) -> dict[str, list[int]]:
    """The first images answered rightly, as many as the accuracy says."""
    right = round(accuracy * images / 100)
    return {"label": [1] * images, "predicted": [1] * right + [0] * (images - right)}


def story() -> Story:
    """Tent falls to one class everywhere; Steady gains 6.5 and, on the ViT in fog, 8.5 points."""
    rows: dict[Place, Row] = {}
    for network in NETWORKS:
        for place, stream in enumerate(STREAMS):
            for method, accuracy in ACCURACY.items():
                row = empty_row(Cell(model=network, model_name=NETWORKS[network], method=method, seed=place))
                more = 2.0 if (network, stream, method) == ("glyphs:vit", "fog", "steady") else 0.0
                share = {"tent": 90.0, "none": 60.0}.get(method, 2.0)
                row["metrics"] = {
                    "accuracy": accuracy + more, "top_class_share": share, "top_class_true_share": 1.0,
                    "running": [[10, 5.0], [20, accuracy]],
                }  # fmt: skip
                row["diagnostics"] = {"predictions": answers(accuracy + more)}
                rows[network, stream, method] = row
    return Story(rows=rows, networks=NETWORKS, streams=STREAMS, methods=METHODS)


def test_the_words_follow_the_numbers() -> None:
    ran, outcome = story().words.split(". ")
    assert ran.startswith("No adaptation, Tent and Steady (ours) answer the same 2 streams")
    assert outcome == (
        "Tent changed the accuracy by -28.0 to -28.0 points: beyond chance upwards in 0 and downwards in 4 of 4 runs, "
        "and collapsed onto one class in 4; "
        "Steady (ours) changed the accuracy by +6.5 to +8.5 points: beyond chance upwards in 4 and downwards in 0 of 4 runs."
    )


def test_a_change_of_a_few_images_is_not_beyond_chance() -> None:
    """7 images gained and 13 lost of 2,000: a two-sided sign test gives p = 0.26."""
    told = story()
    before, after = [1] * 1000 + [0] * 1000, [0] * 13 + [1] * 994 + [0] * 993
    for method, predicted in (("none", before), ("tent", before), ("steady", after)):
        row = told.rows["glyphs:vit", "noise", method]
        row["diagnostics"] = {"predictions": {"label": [1] * 2000, "predicted": predicted}}
    steady = told.words.split("; ")[1]
    assert "by -0.3 to +8.5 points: beyond chance upwards in 3 and downwards in 0 of 4 runs" in steady


def test_the_table_is_full_and_the_unadapted_network_comes_first_and_never_collapses() -> None:
    table = story().table
    assert [row.labels for row in table.rows][:2] == [
        ("ResNet, GroupNorm", "no adaptation"),
        ("ResNet, GroupNorm", "Tent"),
    ]
    assert [column.label for column in table.columns] == list(STREAMS.values())
    assert all(number.mean is not None for number in table.numbers)
    assert {row.labels[1]: row.numbers[0].collapsed for row in table.rows} == {
        "no adaptation": False, "Tent": True, "Steady (ours)": False,
    }  # fmt: skip


def test_the_page_opens_with_the_words_and_has_the_one_table(tmp_path: Path) -> None:
    told = story()
    page = write(list(told.rows.values()), tmp_path, intro=told.words, sections=[told.section]).html.read_text()
    assert page.index("answer the same 2 streams") < page.index("Online accuracy")
    assert page.count("<h3>") == 2, "the table and the curves, nothing else"
