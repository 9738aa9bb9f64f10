"""The benchmark scripts run from end to end and write what they document; ``plain.py`` learns what wildtta learns."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import wildtta
from toy_networks import CLASSES, batches, build

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import fleet
import growth
import pieces
import scaling
import share
import speed

SPEED_KEYS = {
    "model",
    "batch",
    "method",
    "precision",
    "ms",
    "plain_ms",
    "inference_ms",
    "images_per_s",
    "ratio_to_plain",
    "ratio_to_inference",
    "peak_mb",
    "plain_peak_mb",
}


# -- plain against ours --------------------------------------------------------------------------------------------------

BATCH, STEPS, THRESHOLD = 16, 20, 0.4
RATES = {"tent": 1e-3, "sar": 1e-3, "sar2": 1e-5, "sar2-efficient": 1e-5, "steady": 1e-6}
"""On an untrained network SAR² is chaotic at its usual rate: rounding alone grows with every step."""
METHODS = list(RATES)


@pytest.mark.parametrize("method", METHODS)
def test_plain_learns_what_wildtta_learns(method: str) -> None:
    # Features without a ReLU: one that dies out would leave a column whose variance is below the rounding of its past.
    network = build("ln_vit", dtype=torch.float64)
    rows = torch.randn(CLASSES, network.head.in_features, dtype=torch.float64) * 0.5 + 1.0
    lr = RATES[method]
    options: dict[str, float | None] = {} if method == "tent" else {"reliable": THRESHOLD, "recovery": None}
    if method == "steady":
        options["evidence"] = False
    adapter = wildtta.adapt(copy.deepcopy(network), method, lr=lr, batch_size=BATCH, **options)
    if method in ("sar2", "sar2-efficient", "steady"):
        speed.fill_bank(adapter, rows)
    twin = copy.deepcopy(network)
    step = speed.theirs(twin, twin.head, adapter, THRESHOLD * math.log(CLASSES), rows, lr)
    bare, dropped = copy.deepcopy(network).requires_grad_(False), 0
    apart = learned = 0.0
    for images in batches("ln_vit", STEPS, BATCH, dtype=torch.float64):
        ours, theirs = adapter(images), step(images)
        apart = max(apart, float((ours - theirs).abs().max()))
        learned = max(learned, float((ours - bare(images)).abs().max()))
        if method != "tent":
            assert 0 < adapter.last.selected < BATCH, "all or none were reliable, so selecting was not compared"
            dropped += int(adapter.last.selected - adapter.last.selected_second)
    assert learned > 1e-3, "nothing was learned, so nothing was compared"
    assert apart < 1e-5
    if method in ("sar", "sar2", "sar2-efficient"):
        assert dropped > 0, "the second filter dropped no sample, so it was not compared"


# -- the scripts ---------------------------------------------------------------------------------------------------------


class TinyTimm(nn.Module):
    """The interface of a timm network, at a price that tests can pay."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 32, 32)
        self.norm = nn.GroupNorm(2, 8)
        self.mix = nn.Conv2d(8, 96, 7)
        self.head = nn.Linear(96, num_classes)

    def get_classifier(self) -> nn.Linear:
        return self.head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mix(torch.relu(self.norm(self.stem(images)))).flatten(1))


@pytest.fixture(scope="module")
def tiny_model() -> str:
    registry = pytest.importorskip("timm.models")

    def wildtta_tiny(pretrained: bool = False, num_classes: int = 1000, **kwargs: object) -> nn.Module:
        return TinyTimm(num_classes)

    registry.register_model(wildtta_tiny)
    return "wildtta_tiny"


def test_auto_is_set_beside_the_best_fixed_precision() -> None:
    found = {"fp32": 8.0, "tf32": 4.0, "bf16": 2.0, "auto": 2.1}
    rows = [{"model": "m", "batch": 1, "method": "tent", "precision": name, "ms": ms} for name, ms in found.items()]
    (line,) = speed.auto_beside_the_best(rows)
    assert "bf16" in line
    assert line.endswith("1.050 of the best")
    assert speed.auto_beside_the_best(rows[:3]) == []


def test_speed_writes_one_object_per_combination(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "speed.json"
    command = f"speed.py --device cpu --models {tiny_model} --batches 8,1 --precision fp32 --repetitions 1 --json {file}"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--methods", ",".join(METHODS)])
    speed.main()
    rows = json.loads(file.read_text())
    assert all(set(row) == SPEED_KEYS for row in rows)
    found = [(row["model"], row["batch"], row["method"], row["precision"]) for row in rows]
    assert found == [(tiny_model, batch, method, "fp32") for batch in (8, 1) for method in METHODS]
    for row in rows:
        assert row["ratio_to_plain"] == pytest.approx(row["plain_ms"] / row["ms"], rel=0.01)
        assert row["ratio_to_inference"] == pytest.approx(row["ms"] / row["inference_ms"], rel=0.01)
        assert row["images_per_s"] == pytest.approx(1e3 * row["batch"] / row["ms"], rel=0.01)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(tiny_model)]
    chosen = {(int(line.split()[1]), line.split()[2]): line.split("selected ")[1] for line in lines}
    assert {chosen[8, method] for method in ("sar", "sar2", "sar2-efficient")} == {"2/2"}, "a quarter, twice reliable"
    assert {chosen[1, method] for method in ("sar", "sar2", "sar2-efficient")} == {"1/1"}


def test_a_fleet_is_timed_and_weighed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.main(["speed", "--methods", "tent", "--repeats", "1", "--singles", "2"])
    assert "| tent |" in capsys.readouterr().out
    fleet.main(["many", "--streams", "80", "--images", "160", "--at-once", "1", "--resident", "4", "--folder", str(tmp_path)])
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert [row[2].strip() for row in rows] == ["80", "160"]
    assert float(rows[1][-3]) > 0, "states on disk"
    assert len(list(tmp_path.glob("*/*.stream"))) == 80


def test_scaling_measures_every_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results" / "scaling.json"
    sizes = "--batch 1,4 --classes 10,20 --width 16,32 --steps 100"
    scaling.main(f"--device cpu --quick {sizes} --json {file}".split())
    result = json.loads(file.read_text())
    assert set(result) == {"machine", "command", "device", "seconds", "points", "growth", "share"}
    assert result["share"] == []
    assert result["command"].startswith("benchmarks/scaling.py --device cpu --quick")
    found = [(point["axis"], point["size"], point["what"]) for point in result["points"]]
    subjects = (*scaling.METHODS, *scaling.PIECES)
    axes = {"batch": (1, 4), "classes": (10, 20), "width": (16, 32)}
    wanted = [(axis, size, what) for axis, values in axes.items() for size in values for what in subjects]
    wanted += [("steps", size, method) for method in ("sar", "sar2") for size in (10, 100)]
    assert sorted(found) == sorted(wanted)
    for point in result["points"]:
        assert point["us_per_image"] == pytest.approx(1e3 * point["ms"] / point["batch"], rel=0.01, abs=0.1)
    explained = {(row["axis"], row["what"]) for row in result["growth"]}
    assert explained == {(axis, what) for axis, _, what in wanted}
    out = capsys.readouterr().out
    assert out.startswith(f"# {speed.machine('cpu')}\n# benchmarks/scaling.py")
    assert "µs per image" in out
    assert "expected" in out


def test_share_has_one_row_per_combination(tiny_model: str, tmp_path: Path) -> None:
    file = tmp_path / "share.json"
    options = f"--models {tiny_model} --batches 8,1 --precision fp32,auto --repetitions 1"
    scaling.main(f"--device cpu --share {options} --json {file}".split())
    result = json.loads(file.read_text())
    assert result["points"] == result["growth"] == []
    rows = result["share"]
    assert all(tuple(row) == share.KEYS for row in rows)
    found = [(row["model"], row["batch"], row["precision"]) for row in rows]
    assert found == [(tiny_model, batch, precision) for batch in (8, 1) for precision in ("fp32", "auto")]
    for row in rows:
        assert (row["classes"], row["width"]) == (1000, 96)
        assert row["share"] == pytest.approx(row["bank_ms"] / row["step_ms"], rel=0.01)
        assert row["chosen"] in ("fp32", "bf16")


# -- what the figures rest on --------------------------------------------------------------------------------------------


def test_exponents_are_those_of_power_laws() -> None:
    sizes = [1, 2, 8, 32]
    assert growth.exponent(sizes, [3.0 * size**1.7 for size in sizes]) == pytest.approx(1.7, abs=1e-3)
    assert growth.exponent(sizes, [5.0] * 4) == pytest.approx(0.0, abs=1e-3)
    assert growth.exponent([4], [1.0]) is None
    assert growth.exponent([1, 2], [0.0, 1.0]) is None


def test_peak_counts_what_is_alive_together() -> None:
    megabyte = 2**18

    def one_after_another() -> None:
        for _ in range(3):
            torch.empty(megabyte).fill_(1.0)

    def together() -> None:
        kept = [torch.empty(megabyte).fill_(1.0) for _ in range(3)]
        del kept

    assert scaling.peak_mb(one_after_another, "cpu") == pytest.approx(1.0, abs=0.01)
    assert scaling.peak_mb(together, "cpu") == pytest.approx(3.0, abs=0.01)


def test_memory_grows_as_expected() -> None:
    """Bytes are exact, so that their exponents can be asserted: R's peak is D² and does not know C, the bank's state does."""

    def measured(quantity: str, axis: str, what: str, sizes: list[scaling.Sizes]) -> float:
        points = [p for size in sizes for p in scaling.measure_point(axis, size, "cpu", 0.0, 1) if p.what == what]
        slope = growth.exponent([p.size for p in points], [getattr(p, quantity) for p in points])
        assert slope is not None
        return slope

    widths = [scaling.Sizes(4, 20, width, 8, 8) for width in (512, 1024, 2048)]  # where D² outweighs what grows with D
    classes = [scaling.Sizes(4, count, 32, 8, 8) for count in (200, 800, 3200)]
    assert measured("peak_mb", "width", "redundancy", widths) == pytest.approx(2.0, abs=0.1)
    assert measured("peak_mb", "classes", "redundancy", classes) == pytest.approx(0.0, abs=0.02)
    assert measured("peak_mb", "classes", "direct_redundancy", classes) == pytest.approx(1.0, abs=0.15)
    assert measured("state_mb", "classes", "sar2", classes) == pytest.approx(1.0, abs=0.2)


def test_pieces_are_the_step_s_own_numbers() -> None:
    """The pieces run on the adapter's bank and add up to a step: a refresh by the piece is the refresh by a step."""
    sizes = scaling.Sizes(6, 10, 16, 8, 8)
    images = torch.randn(sizes.batch, 3, sizes.side, sizes.side)
    stepped, pieced = (scaling.prepared("sar2", sizes, images) for _ in range(2))
    with torch.no_grad():
        features = pieced.network.features(pieced.network.body(images))
        labels = pieced.network.head(features).argmax(1)
    work = pieces.BankPieces(pieced, features, labels)
    state, expected = pieced.engine.memory, stepped.engine.memory
    before = state["bank_rows"].clone()
    work.redundancy()
    work.inequity()
    assert torch.equal(state["bank_rows"], before), "only the refresh may change the bank"
    work.everything()
    stepped(images)
    for name in ("bank_rows", "bank_outer", "bank_sum", "bank_count"):
        torch.testing.assert_close(state[name], expected[name])
    assert not torch.equal(state["bank_rows"], before)
