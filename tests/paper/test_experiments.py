"""The paper's 41 experiments: what they run, that they cover every printed number, and that they run."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import wildtta
from printed_journal import papers_setting
from wildtta import SAR2
from wildtta.bench import read
from wildtta.paper import Network, Setting, Spot, View, claims, experiments, needs, printed, select, setting, unique
from wildtta.paper.estimate import Pace, estimate, images_in, measured_rates, passes
from wildtta.paper.sections import row_label


def names() -> list[str]:
    tables = [*"123456789", *"abcdefghijklmnopqr"]
    figures = [*"123456789", *"abcde"]
    return [f"table-{n}" for n in tables] + [f"figure-{n}" for n in figures]


@pytest.fixture(scope="module")
def full() -> Setting:
    return papers_setting()


def app() -> object:
    import typer

    from wildtta.cli import report, reproduce

    made = typer.Typer()
    reproduce.register(made)
    report.register(made)
    return made


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app(), list(words))  # type: ignore[arg-type]
    return result.exit_code, result.output


def test_all_41_are_there_in_the_papers_order() -> None:
    assert list(experiments()) == names()
    assert len(names()) == 41
    assert [e.name for e in select(["figure-e", "table-1"])] == ["figure-e", "table-1"]
    first = [e.name for e in select(["figure-e", "all"])]
    assert first[:2] == ["figure-e", "table-1"]
    assert sorted(first) == sorted(experiments())
    with pytest.raises(ValueError, match=r"unknown experiment 'table-z'.*table-a … table-r"):
        select(["table-z"])


def test_claims_are_numbered_within_their_experiment() -> None:
    assert len(claims()) == 125
    for experiment in experiments().values():
        names = [claim.name for claim in experiment.claims]
        assert names == [f"{experiment.name}/C{n}" for n in range(1, len(names) + 1)]


def test_list_names_all_41_with_needs_and_cost(tmp_path: Path) -> None:
    code, output = run("reproduce", "--list", "--quick", "--journal", str(tmp_path / "none.jsonl"), "--device", "cpu")
    assert code == 0, output
    listed = re.findall(r"^((?:table|figure)-\w)\b", output, flags=re.MULTILINE)
    assert listed == names()
    assert output.count("about") >= 41, "every entry has a cost from measured steps"


@pytest.mark.parametrize("name", [*"123456789", *"ABCDEFGHIJKLMNOPQR"])
def test_every_printed_number_has_its_place(name: str, full: Setting) -> None:
    """The multiset of numbers that an experiment compares with is the printed table's."""
    table = printed(name)
    wanted = Counter(
        float(value)
        for row in table.rows
        for value in row.values
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    planned = Counter(
        spot.printed for spot in experiments()[f"table-{name.lower()}"].plan(full) if spot.printed is not None
    )
    assert planned == wanted


def test_streams_and_networks_are_the_papers(full: Setting) -> None:
    cells = experiments()["table-1"].cells(full)
    assert {cell.model for cell in cells} == {
        "torchvision:resnet50",
        "timm:resnet50_gn.a1h_in1k",
        "timm:vit_base_patch16_224.augreg_in21k_ft_in1k",
    }
    assert {(c.scenario, c.batch_size, c.severity, c.protocol, c.limit) for c in cells} == {
        ("label_shift", 64, 5, "paper", None)
    }
    assert {(c.scenario_options["draws"], c.scenario_options["ratio"]) for c in cells} == {(100, "inf")}
    assert {c.seed for c in cells} == {0, 1, 2}
    assert len(cells) == 3 * 15 * 25, "25 printed rows, 15 corruptions, 3 seeds"
    assert images_in(cells[0]) == 100_000
    assert {c.batch_size for c in experiments()["table-3"].cells(full)} == {1}
    continual = [c for c in experiments()["table-5"].cells(full) if c.scenario == "continual_label_shift"]
    assert len({c.key for c in continual}) == 3 * 16, "one stream over 15 domains each"
    others = {c.key for c in experiments()["table-5"].cells(full)} - {c.key for c in continual}
    assert others < {c.key for c in cells}, "MEMO and DDA have the runs of table 1"
    assert images_in(experiments()["table-4"].cells(full)[0]) == 750_000
    fixed = {c.options.get("lr") for c in experiments()["table-p"].cells(full) if c.scenario == "mixed"}
    assert fixed == {None, 2.5e-4}, "table P keeps the learning rate of batch 64 (where it is the rule's own)"


def test_tables_share_their_cells(full: Setting) -> None:
    """Running everything costs far less than the sum of the experiments."""
    keys = {name: {cell.key for cell in experiments()[name].cells(full)} for name in ("table-1", "table-r", "table-f")}
    methods = {"sar", "tent"}
    assert keys["table-r"] & keys["table-1"]
    shared = [cell for cell in experiments()["table-f"].cells(full) if cell.key in keys["table-1"]]
    assert {cell.method for cell in shared} == methods


def test_what_a_setting_lacks_is_said() -> None:
    own = setting("folder", scale="tiny", networks={"ResNet50-GN": Network(model="my.module:build")})
    spots = {spot.row: spot for spot in experiments()["table-1"].plan(own)}
    assert "no counterpart on folder" in spots["ResNet50-BN", "Tent"].missing
    assert "diffusion model" in spots["ResNet50-GN", "DDA"].missing
    assert spots["ResNet50-GN", "SAR2"].missing == ""
    only = setting("glyphs", scale="tiny", methods=["none", "sar2"])
    spots = {spot.row: spot for spot in experiments()["table-1"].plan(only)}
    assert "'tent' is not available" in spots["ResNet50-GN", "Tent"].missing


def test_needs_are_what_the_plan_reads(full: Setting) -> None:
    told = {name: needs(experiments()[name], full) for name in ("table-1", "table-d", "figure-8", "figure-d")}
    assert told["table-1"] == (
        "ImageNet-C severity 5 (15 corruptions); ResNet50-BN, ResNet50-GN, VitBase-LN; --source for eata, recap"
    )
    assert told["table-d"].startswith("ImageNet-R; ")
    assert told["figure-8"] == "ImageNet-C severity 5 (snow); VitBase-LN; scikit-learn"
    assert "ImageNet's clean images" in told["figure-d"]
    bare = setting("imagenet-c")
    assert "wildtta diffusion-train" in needs(experiments()["table-1"], bare), "DDA's file is not there"
    assert needs(experiments()["table-r"], setting("glyphs")) == "nothing (embedded)"


def test_slow_methods_see_every_class_of_an_ordered_stream() -> None:
    glyphs = setting("glyphs")
    cells = {(c.method, c.scenario): c for n in ("table-1", "table-3") for c in experiments()[n].cells(glyphs)}
    memo, tent = cells["memo", "label_shift"], cells["tent", "label_shift"]
    assert (memo.scenario_options["draws"], memo.limit, images_in(memo)) == (1, None, 200)
    assert (tent.scenario_options["draws"], tent.limit, images_in(tent)) == (20, None, 4000)
    assert cells["dda", "single"].limit == 320
    seeds = {(c.method, c.seed) for c in experiments()["table-1"].cells(glyphs)}
    assert ("memo", 1) not in seeds, "order changes nothing for MEMO"
    assert ("tent", 2) in seeds
    assert cells["sar2", "single"].limit == 1000


def test_brief_streams_are_long_enough_to_decide() -> None:
    """Every stream has 20 updates and every bank of SAR² can fill: 100 of 200 classes."""
    place = setting("folder", scale="brief", networks={"VitBase-LN": Network(model="own.py:vit")}, seeds=1)
    assert len(place.scale.corruptions) == 6
    for name in ("table-1", "table-3", "table-4", "table-5"):
        for cell in experiments()[name].cells(place):
            if cell.method == "sar2":
                images = images_in(cell) if cell.limit is None else cell.limit
                assert images / cell.batch_size >= 20, cell.describe()
                assert images >= 2 * 200, cell.describe()


def test_a_network_of_ones_own_goes_by_its_function() -> None:
    networks = {"VitBase-LN": Network(model="folder/own.py:vit"), "ResNet50-GN": Network(model="own.module:gn")}
    place = setting("folder", networks=networks)
    assert place.title("VitBase-LN") == "vit for VitBase-LN"
    assert place.title("ResNet50-GN") == "own.module:gn for ResNet50-GN"
    assert place.renamed("folder/own.py:vit for VitBase-LN tent mild") == "vit tent mild"
    assert "vit for VitBase-LN, own.module:gn for ResNet50-GN" in place.label
    assert place.cells("VitBase-LN", "tent", options={})[0].model == "folder/own.py:vit"


def test_warm_up_is_100_on_imagenet_r(full: Setting) -> None:
    for name in ("table-d", "table-e"):
        configs = [cell.config for cell in experiments()[name].cells(full) if cell.method == "sar2"]
        assert configs
        assert {config.warmup_rows(200) for config in configs if isinstance(config, SAR2)} == {100}


def test_glyphs_lack_nothing() -> None:
    """Every row of every experiment has a network, and TTT and DDA have the packaged parts."""
    glyphs = setting("glyphs", scale="tiny")
    missing = {spot.missing for experiment in experiments().values() for spot in experiment.plan(glyphs)}
    assert missing == {""}
    cells = {(c.model, c.method): c.options for e in ("table-1", "figure-4") for c in experiments()[e].cells(glyphs)}
    for name in ("resnet_bn", "resnet_gn", "vit"):
        assert cells[f"glyphs:{name}", "ttt"]["branch"] == f"glyphs:{name}"
    assert cells["glyphs:vit", "dda"] == {"diffusion": "glyphs", "factor": 2, "depth": 30, "guidance": 12}


@pytest.mark.parametrize("name", ["figure-1", "figure-4", "figure-5", "figure-6", "table-a", "table-p", "table-q"])
def test_batch_norm_is_run_on_the_batch_norm_network(name: str) -> None:
    spots = experiments()[name].plan(setting("glyphs", scale="tiny"))
    assert any(cell.model == "glyphs:resnet_bn" for spot in spots for cell in spot.cells)
    assert not [label for spot in spots for label in spot.row if "in place of ResNet50-BN" in label]
    if name == "figure-1":
        assert {cell.method for spot in spots for cell in spot.cells} == {"tent", "sar", "sar2"}


@pytest.mark.parametrize("name", ["figure-4", "figure-5"])
def test_beside_ttt_the_network_alone_sees_the_same_images(name: str) -> None:
    """Where TTT sees few images, what it is compared with sees those: other images have another accuracy."""
    for where, few in ((setting("glyphs"), True), (papers_setting(), False)):
        cells = experiments()[name].cells(where)
        streams = {
            method: {
                (cell.model, cell.scenario, cell.corruptions, cell.severity, cell.limit)
                for cell in cells
                if cell.method == method and cell.severity == 5
            }
            for method in ("ttt", "none")
        }
        assert streams["ttt"] <= streams["none"]
        assert {stream[-1] is not None for stream in streams["ttt"]} == {few}


def test_a_setting_survives_a_journal() -> None:
    """What ``asked_by`` keeps of a setting plans the same cells again."""
    own = {"ResNet50-GN": Network(model="my.module:build", weights="gn.safetensors")}
    for where in (
        setting("glyphs", scale="tiny"),
        papers_setting(seeds=2),
        papers_setting(limit=640, random_weights=True),
        setting("folder", networks=own, methods=["none", "sar"], protocol="timm"),
    ):
        again = Setting.from_json(json.loads(json.dumps(where.to_json())))
        assert again == where
        assert again.same_as_paper == where.same_as_paper
        for name in ("table-1", "figure-d"):
            keys = [cell.key for cell in experiments()[name].cells(where)]
            assert [cell.key for cell in experiments()[name].cells(again)] == keys


def test_passes_come_from_the_method() -> None:
    assert passes("none") == (1, 0)
    assert passes("memo") == (65, 64)
    forward, backward = passes("sar")
    assert 1 < forward < 2, "the selected samples pass twice"
    assert backward == pytest.approx(2 * (forward - 1))
    assert passes("not-a-method") == (2, 1)


def test_estimate_adds_up_passes() -> None:
    cells = [cell for cell in experiments()["table-2"].cells(papers_setting(seeds=1)) if cell.scenario == "mild"]
    chosen = [cell for cell in cells if cell.method in ("tent", "sar2", "memo")]
    pace = {cell.model: Pace(forward=1.0, backward=2.0) for cell in chosen}
    told = estimate(chosen, pace)
    # The paper's cost table: 50,000 + 100,000 + 50,000 x 65 forward, 50,000 + 100,000 + 50,000 x 64 backward.
    assert told.forwards == 50_000 + 100_000 + 3_250_000
    assert told.backwards == 50_000 + 100_000 + 3_200_000
    assert told.seconds == pytest.approx((3_400_000 * 1 + 3_350_000 * 2) / 1000)
    rows = [{"status": "ok", "cell": chosen[0].to_json(), "metrics": {"samples": 100}, "wall_s": 5.0}]
    assert measured_rates(rows) == {(chosen[0].model, chosen[0].method, 64): 0.05}
    assert estimate(chosen[:1], {}, measured_rates(rows)).seconds == pytest.approx(2500)
    assert estimate(chosen[:1], {}).seconds is None


#: A representative half: every scenario, every diagnostic, every kind of plot and every kind of option.
HALF = [
    "table-1", "table-2", "table-4", "table-5", "table-7", "table-8", "table-9", "table-e", "table-i", "table-k",
    "table-l", "table-m", "table-n", "table-p", "figure-1", "figure-2", "figure-3", "figure-7", "figure-8", "figure-9",
    "figure-d",
]  # fmt: skip


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Half of the paper at tiny size on the embedded data: the command, as a user gives it."""
    folder = tmp_path_factory.mktemp("reproduce")
    journal, out = folder / "tiny.jsonl", folder / "report"
    code, output = run(
        "reproduce", *HALF, "--scale", "tiny", "--journal", str(journal), "--out", str(out), "--device", "cpu",
    )  # fmt: skip
    assert code == 0, output[-3000:]
    return journal, out


def test_half_of_the_paper_runs_on_glyphs(tiny_run: tuple[Path, Path]) -> None:
    rows = {row["key"]: row for row in read(tiny_run[0])}
    assert all(row["status"] == "ok" for row in rows.values())
    where = setting("glyphs", scale="tiny")
    for name in HALF:
        view = View(experiments()[name], where, rows)
        numbers = [view.value_at(spot).mean for spot in view.spots if not spot.missing and spot.cells]
        assert numbers, name
        if view.experiment.draw is not None:
            charts = view.experiment.draw(view)
            assert charts, f"{name} draws nothing"


def test_a_second_run_finds_everything(tiny_run: tuple[Path, Path], tmp_path: Path) -> None:
    before = tiny_run[0].read_bytes()
    code, _ = run(
        "reproduce", "table-1", "figure-2", "--scale", "tiny", "--journal", str(tiny_run[0]),
        "--out", str(tmp_path / "again"), "--device", "cpu",
    )  # fmt: skip
    assert code == 0
    assert tiny_run[0].read_bytes() == before


def test_the_report_command_knows_the_experiments_again(tiny_run: tuple[Path, Path], tmp_path: Path) -> None:
    """A row says which experiments asked for it, and in which setting."""
    code, output = run("report", str(tiny_run[0]), "--out", str(tmp_path / "report"))
    assert code == 0, output
    text = (tmp_path / "report" / "report.md").read_text()
    for name in HALF:
        assert f"### {experiments()[name].heading}." in text, name
    assert "glyphs, not ImageNet-C, tiny" in text
    assert "other data and are not compared" in text
    assert "Overview" not in text, "every row belongs to an experiment"
    assert "Figure 4." not in text, "nobody asked for it, though some of its runs are there"


def test_cells_follow_the_spots(full: Setting) -> None:
    """Each experiment's cells are those of its spots, once."""
    for experiment in experiments().values():
        spots: list[Spot] = experiment.plan(full)
        assert len({(spot.row, spot.column) for spot in spots}) == len(spots), experiment.name
        cells = experiment.cells(full)
        assert [c.key for c in cells] == [c.key for c in unique(c for spot in spots for c in spot.cells)]


def test_the_papers_noadapt_goes_by_our_name(full: Setting) -> None:
    told = [label for experiment in experiments().values() for spot in experiment.plan(full) for label in spot.row]
    assert "NoAdapt" in told
    shown = {row_label(full, label) for label in told}
    assert not any("NoAdapt" in label for label in shown)
    assert wildtta.NoAdaptation.title in shown


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for words, message in (
        (["table-99"], "unknown experiment 'table-99'"),
        (["table-1", "--on", "cifar"], "unknown data 'cifar'"),
        (["table-1", "--scale", "huge"], "unknown scale 'huge'"),
        (["table-1", "--set", "sar2=1"], "METHOD.OPTION=VALUE"),
        (["table-1", "--network", "AlexNet"], "no network 'AlexNet'"),
        (["table-1", "--method", "tennt"], "unknown method 'tennt'. Did you mean 'tent'? There are"),
        (["table-1", "--weights", "x.pth"], "'pinned' or 'none'"),
        (["table-1", "--model", "AlexNet=a:b"], "NAME=MODEL"),
        (["table-1", "--on", "imagenet-c"], "--data"),
    ):
        code, output = run("reproduce", *words, "--journal", str(tmp_path / "j.jsonl"))
        assert code == 2, (words, output)
        assert message in output, (words, output)
        assert len(output.strip().splitlines()) == 1
