"""Running cells: the same numbers whatever ran before and wherever; what fails is recorded; what is asked is measured."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wildtta
from bench_parts.folder import NETWORK, small_cell, write_images
from wildtta.bench import BenchError, Cell, Journal, launch, read, run_cell
from wildtta.bench.datasets import open_images
from wildtta.bench.models import build_model
from wildtta.bench.running import Conditions
from wildtta.bench.streaming import stream_of
from wildtta.bench.workers import AHEAD, images_of, place_of_next
from wildtta.methods.eata import fisher_diagonal

NUMBERS = ("metrics", "series", "diagnostics", "versions")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def conditions(images: Path) -> Conditions:
    return Conditions(root=str(images))


class Silent:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notices: list[str] = []

    def begin(self, total: int, done: int, workers: int) -> None: ...

    def running(self, cell: Cell, share: float) -> None: ...

    def finished(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def end(self) -> None: ...


def numbers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What must be equal between two runs of the same cells: everything but times and memory."""
    told = {}
    for row in rows:
        counts = {k: v for k, v in row.get("cost", {}).items() if not k.startswith("ms_") and k != "peak_mb"}
        told[row["key"]] = {"status": row["status"], "cost": counts, **{name: row.get(name) for name in NUMBERS}}
    return json.loads(json.dumps(told))


def test_a_cell_equals_the_loop_written_by_hand(images: Path, conditions: Conditions) -> None:
    cell = small_cell(method="sar", corruptions=("contrast",), severity=3, seed=4, options={"lr": 0.01})
    row = run_cell(cell, conditions)
    from wildtta.data import corrupt, folder, preprocess
    from wildtta.streams import mild

    data = folder(images)
    clean = torch.stack([data[i][0] for i in range(len(data))])
    shifted = preprocess(corrupt(clean, "contrast", 3, seed=0), "native")
    order = mild(data.labels, seed=4)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = wildtta.adapt(build_model(cell), "sar", lr=0.01, batch_size=16)
    logits = torch.cat([model(shifted[torch.from_numpy(part)]) for part in np.split(order, range(16, len(order), 16))])
    torch.set_num_threads(threads)
    labels = torch.from_numpy(data.labels[order])
    assert row["metrics"]["accuracy"] == pytest.approx(
        100 * float((logits.argmax(1) == labels).float().mean()), abs=1e-4
    )
    assert row["metrics"]["nll"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), abs=1e-5)
    assert row["metrics"]["samples"] == len(data) == 120
    assert row["cost"]["forwards"] == model.cost.forwards
    assert row["cost"]["backwards"] == model.cost.backwards > 0
    assert row["protocol"] == "native"


def test_a_row_says_what_ran(conditions: Conditions) -> None:
    row = run_cell(small_cell(method="sar", options={"precision": "fp32", "lr_scale": 2.0}, limit=16), conditions)
    assert row["resolved"]["reliable"] == 0.4
    assert row["resolved"]["lr_scale"] == 2.0
    # A batch of 16 has sixteen times the rate of one sample, which is a sixteenth of that of 64 (D38).
    assert row["resolved"]["learning_rate"] == pytest.approx(2 * 0.00025)
    assert row["resolved"]["learning_rates"]["convolutional"] == pytest.approx(2 * 0.00025)
    usual = run_cell(small_cell(method="sar", limit=16, batch_size=64), conditions)
    assert usual["resolved"]["learning_rates"]["convolutional"] == [0.00025 / 16, 0.00025]


def test_shared_cells_agree_between_runs_with_different_methods(images: Path) -> None:
    def cells(methods: list[str]) -> list[Cell]:
        scenarios: list[dict[str, Any]] = [
            {"scenario": "mild"},
            {"scenario": "label_shift", "scenario_options": {"draws": 6}},
            {"scenario": "mixed", "corruptions": ("fog", "contrast")},
        ]
        return [small_cell(method=method, **scenario) for method in methods for scenario in scenarios]

    torch.manual_seed(1)
    few = launch(cells(["sar", "tent"]), root=images, device="cpu", observer=Silent()).rows
    torch.manual_seed(2)
    torch.rand(100)
    many = launch(cells(["none", "infomax", "tent", "sar2", "sar"]), root=images, device="cpu", observer=Silent()).rows
    shared = {row["key"] for row in few}
    assert len(shared) == 6
    assert all(row["status"] == "ok" for row in many)
    assert numbers(few) == numbers([row for row in many if row["key"] in shared])


@pytest.mark.parametrize(
    ("scenario", "options", "corruptions", "samples"),
    [
        ("mild", {}, ("fog",), 120),
        ("mild", {}, (), 120),
        ("single", {}, ("fog",), 120),
        ("label_shift", {"draws": 3, "ratio": math.inf}, ("fog",), 30),
        ("dirichlet", {"gamma": 0.1}, ("fog",), 120),
        ("mixed", {}, ("fog", "snow"), 240),
        ("continual", {}, ("fog", "snow"), 240),
        ("continual_label_shift", {"draws": 3}, ("fog", "snow"), 60),
        ("gradual", {}, ("fog", "contrast"), None),
    ],
)
def test_every_scenario_runs(
    conditions: Conditions, scenario: str, options: dict[str, Any], corruptions: tuple[str, ...], samples: int | None
) -> None:
    size = 1 if scenario == "single" else 16
    cell = small_cell(
        scenario=scenario, scenario_options=options, corruptions=corruptions, severity=2, method="none", batch_size=size
    )
    metrics = run_cell(cell, conditions)["metrics"]
    assert set(metrics["per_corruption"]) == set(corruptions or ("clean",))
    if samples is None:
        samples = metrics["samples"]
        assert samples > 120
    else:
        # Equally many images of each corruption: the plain mean of their accuracies is the accuracy.
        mean = sum(metrics["per_corruption"].values()) / len(metrics["per_corruption"])
        assert metrics["accuracy"] == pytest.approx(mean, abs=1e-9)
    assert metrics["samples"] == samples


def test_a_cell_leaves_the_random_state_and_settings_as_they_were(conditions: Conditions) -> None:
    torch.manual_seed(3)
    before = (torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    run_cell(small_cell(seed=9), conditions)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())


def test_seeds_change_the_stream_and_not_the_images(conditions: Conditions) -> None:
    none = [run_cell(small_cell(method="none", seed=seed), conditions)["metrics"] for seed in (0, 1)]
    # Without adaptation and with every image once, another order changes nothing but the order.
    assert none[0]["accuracy"] == none[1]["accuracy"]
    assert none[0]["running"] != none[1]["running"]


def test_failures_are_recorded_and_the_rest_goes_on(images: Path, tmp_path: Path) -> None:
    broken = NETWORK.replace(":network", ":exploding_network")
    hungry = NETWORK.replace(":network", ":hungry_network")
    cells = [small_cell(model=broken), small_cell(), small_cell(model=hungry), small_cell(seed=1)]
    journal = tmp_path / "j.jsonl"
    outcome = launch(cells, journal=journal, root=images, device="cpu", observer=Silent())
    assert (outcome.ran, outcome.failed) == (4, 2)
    assert [row["status"] for row in outcome.rows] == ["failed", "ok", "failed", "ok"]
    assert "non-finite at sample 0" in outcome.rows[0]["reason"]
    assert outcome.rows[2]["reason"] == "MemoryError: no room for the network"
    # What failed is tried again, what is finished is not.
    again = launch(cells, journal=journal, root=images, device="cpu", observer=Silent())
    assert (again.ran, again.found) == (2, 2)
    assert len(read(journal)) == 4


def test_diagnostics_are_made_where_asked_for(conditions: Conditions) -> None:
    every = ("representation", "health", "sparsity", "predictions", "scatter", "surface", "tsne")
    options = {"surface": {"steps": 3, "images": 32}, "scatter": {"images": 5}, "tsne": {"classes": 4, "per_class": 6}}
    plain = run_cell(small_cell(method="sar2", options={"warmup": 2}), conditions)
    row = run_cell(small_cell(method="sar2", options={"warmup": 2}, measure=every, measure_options=options), conditions)
    assert plain["diagnostics"] == {}
    # Looking doesn't disturb.
    assert row["metrics"] == plain["metrics"]
    assert row["cost"]["forwards"] == plain["cost"]["forwards"]
    assert {"redundancy", "inequity", "gradient_norm", "entropy"} <= set(plain["series"])
    assert {"feature_redundancy", "feature_redundancy_rows", "feature_inequity"} <= set(row["series"])
    found = row["diagnostics"]
    assert set(found) == {*every, "normalisation"} - {"representation"}
    assert found["normalisation"] == "rows", "what SAR² minimises on GroupNorm and ReLU"
    assert len(found["scatter"]["entropy"]) == 5
    assert len(found["tsne"]["points"]) == 24
    assert np.shape(found["surface"]["entropy"]) == (3, 3)
    assert found["health"]["samples"] == 120
    assert 0 <= found["health"]["inequity"] <= math.log(10)
    assert found["predictions"]["label"][-1] in range(10)


def test_splits_partition_what_no_adaptation_scores(conditions: Conditions) -> None:
    whole = run_cell(small_cell(method="none"), conditions)["metrics"]
    halves = [
        run_cell(small_cell(method="none", data_options={"split": split}), conditions)["metrics"]
        for split in ("first-half", "second-half")
    ]
    assert [half["samples"] for half in halves] == [60, 60]
    assert sum(half["accuracy"] for half in halves) / 2 == pytest.approx(whole["accuracy"], abs=1e-9)


def test_weights_and_options_reach_the_users_function(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    made = build_model(small_cell(model_options={"width": 4}))
    assert made.head.in_features == 16  # type: ignore[union-attr]
    twin = {name: torch.randn_like(value) for name, value in made.state_dict().items()}
    save_file(twin, tmp_path / "w.safetensors")
    loaded = build_model(small_cell(model_options={"width": 4}, weights=str(tmp_path / "w.safetensors")))
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, twin[name])
    with pytest.raises(BenchError, match="does not fit the network"):
        build_model(small_cell(weights=str(tmp_path / "w.safetensors")))
    with pytest.raises(BenchError, match="wrong"):
        build_model(small_cell(model_options={"wrong": 1}))


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18"])
def test_models_of_the_zoo_with_random_weights(name: str) -> None:
    pytest.importorskip(name.split(":")[0])
    cells = [Cell(model=name, model_options={"pretrained": False}) for _ in range(2)]
    first, second = (build_model(cell) for cell in cells)
    assert torch.equal(first.fc.weight, second.fc.weight)  # type: ignore[union-attr, arg-type]
    assert first.fc.out_features == 1000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "nope"}, "unknown method 'nope'"),
        ({"options": {"lrr": 1}}, "tent has no option 'lrr'"),
        ({"model": "timm:not_a_model"}, "timm has no model"),
        ({"model": "nothing"}, "unknown model 'nothing'. Expected glyphs:NAME"),
        ({"model": "resnet18"}, "Did you mean timm:resnet18 or torchvision:resnet18"),
        ({"model": "nets.py"}, "Name the function in the file too: nets.py:FUNCTION"),
        ({"model": "no.such.module:f"}, "no module"),
        ({"model": NETWORK + "x"}, "has no 'networkx'. Did you mean 'network'. It has SmallNetwork"),
        ({"corruptions": ("rain",)}, "unknown corruption 'rain'; there are gaussian_noise"),
        ({"corruptions": ("fogg",)}, "unknown corruption 'fogg'. Did you mean 'fog'. There are gaussian_noise"),
        ({"data": "imagenet-z"}, "unknown data 'imagenet-z'"),
        ({"scenario_options": {"ratio": 3}}, "scenario 'mild' has no option 'ratio'"),
        ({"data_options": {"split": "third"}}, "unknown split 'third'"),
        ({"weights": "absent.safetensors"}, "no weights file at absent.safetensors"),
    ],
)
def test_what_cannot_run_is_said_before_anything_runs(images: Path, tmp_path: Path, changes: Any, message: str) -> None:
    journal = tmp_path / "j.jsonl"
    with pytest.raises(BenchError, match=message) as caught:
        launch([small_cell(), small_cell(**changes)], journal=journal, root=images, device="cpu", observer=Silent())
    assert len(str(caught.value).splitlines()) == 1
    assert not journal.exists()


def test_a_folder_with_too_few_classes_fails_with_both_numbers(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", classes=9, per_class=2, side=16)
    row = launch([small_cell()], root=root, device="cpu", observer=Silent()).rows[0]
    assert row["status"] == "failed"
    assert "9 classes, but the network has 10 outputs" in row["reason"]
    assert len(row["reason"].splitlines()) == 1


def test_tensorboard_files_hold_the_running_accuracy(images: Path, tmp_path: Path) -> None:
    event_files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    outcome = launch([small_cell()], root=images, device="cpu", tensorboard=str(tmp_path / "board"))
    folder = next((tmp_path / "board").iterdir())
    events = event_files.EventAccumulator(str(folder))
    events.Reload()
    last = events.Scalars("accuracy so far")[-1]
    assert last.step == 120
    assert last.value == pytest.approx(outcome.rows[0]["metrics"]["accuracy"], abs=1e-3)


def test_a_journal_in_use_stops_the_launch(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path), pytest.raises(BenchError, match="another process"):
        launch([small_cell()], journal=path, root=images, device="cpu", observer=Silent())


def test_stored_corruptions_give_the_numbers_of_those_made_on_the_fly(images: Path, tmp_path: Path) -> None:
    from PIL import Image

    from wildtta.data import corrupt, folder

    data = folder(images)
    clean = torch.stack([data[i][0] for i in range(len(data))])
    for name in ("fog", "pixelate"):
        for i, image in enumerate(corrupt(clean, name, 4, seed=0)):
            place = tmp_path / name / "4" / data.classes[int(data.labels[i])] / f"{i:04d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(place)
    cell = small_cell(scenario="mixed", corruptions=("fog", "pixelate"), severity=4)
    made = run_cell(cell, Conditions(root=str(images)))
    # Files are read in the order of their names, so image i is image i again.
    assert [int(label) for label in folder(tmp_path / "fog" / "4").labels] == data.labels.tolist()
    order = [int(Path(folder(tmp_path / "fog" / "4").where(i)).stem) for i in range(len(data))]
    assert order == sorted(order)
    stored = run_cell(cell, Conditions(root=str(tmp_path)))
    assert numbers([made]) == numbers([stored])
    with pytest.raises(ValueError, match=r"has no snow of severity 4; it has fog \(4\), pixelate \(4\)"):
        run_cell(small_cell(corruptions=("snow",), severity=4), Conditions(root=str(tmp_path)))
    with pytest.raises(ValueError, match=r"has no clean images; it has fog \(4\), pixelate \(4\)"):
        run_cell(small_cell(corruptions=()), Conditions(root=str(tmp_path)))
    (tmp_path / "clean").symlink_to(images, target_is_directory=True)
    made, stored = (run_cell(small_cell(corruptions=()), Conditions(root=str(root))) for root in (images, tmp_path))
    assert numbers([made]) == numbers([stored])


@pytest.mark.parametrize("corruptions", [(), ("fog",)])
def test_classes_with_numbers_for_names_are_no_severities(
    images: Path, tmp_path: Path, corruptions: tuple[str, ...]
) -> None:
    for number, place in enumerate(sorted(place for place in images.iterdir() if place.is_dir())):
        (tmp_path / "val").mkdir(exist_ok=True)
        (tmp_path / "val" / f"{number:03d}").symlink_to(place, target_is_directory=True)
    cell = small_cell(corruptions=corruptions)
    plain, wrapped = (run_cell(cell, Conditions(root=str(root))) for root in (images, tmp_path))
    assert numbers([plain]) == numbers([wrapped])


def test_large_data_stream_from_their_files_with_the_same_numbers(
    conditions: Conditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = small_cell(
        method="sar", scenario="mixed", corruptions=("fog", "gaussian_noise"), data_options={"corruption_seed": 5}
    )
    kept = run_cell(cell, conditions)
    monkeypatch.setattr("wildtta.data.loading.kept_images", lambda *_: None)
    streamed = run_cell(cell, conditions)
    assert numbers([kept]) == numbers([streamed])


def test_methods_that_augment_are_told_the_preprocessing(conditions: Conditions) -> None:
    named = run_cell(small_cell(method="memo", limit=8, batch_size=4, options={"lr": 0.01}), conditions)
    imagenet = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    same = run_cell(small_cell(method="memo", limit=8, batch_size=4, options={"lr": 0.01, **imagenet}), conditions)
    other = {"mean": [0.2, 0.2, 0.2], "std": [0.9, 0.9, 0.9]}
    different = run_cell(small_cell(method="memo", limit=8, batch_size=4, options={"lr": 0.01, **other}), conditions)
    assert named["metrics"]["nll"] == same["metrics"]["nll"] != different["metrics"]["nll"]


def test_methods_that_want_source_images_get_them_or_say_so(images: Path, conditions: Conditions) -> None:
    all_selected = {"redundant": 1.0, "reliable": 1.0, "lr": 0.01}
    cell = small_cell(method="eata", options=all_selected, data_options={"source_images": 30})
    row = launch([cell], root=images, device="cpu", observer=Silent()).rows[0]
    assert row["status"] == "failed"
    assert "name a folder (or zip) of clean images with --source" in row["reason"]
    # ReCAP can do without, and says what it did.
    assert run_cell(small_cell(method="recap"), conditions)["data_note"] == "no source images"
    with_source = run_cell(cell, Conditions(root=str(images), source=str(images)))
    assert with_source["data_note"] == f"30 source images: {images.name}"
    plain = run_cell(small_cell(method="eta", options=all_selected), conditions)
    assert with_source["metrics"]["nll"] != plain["metrics"]["nll"], "the Fisher penalty had no effect"


def test_what_is_known_of_the_source_is_found_out_once_and_changes_no_number(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(engine: wildtta.Engine, source: Any, batch_size: int) -> torch.Tensor:
        asked.append(batch_size)
        return fisher_diagonal(engine, source, batch_size)

    # `wildtta.methods` is a function too, so that the module is not found by its path.
    monkeypatch.setattr(sys.modules["wildtta.methods.eata"], "fisher_diagonal", counted)
    options = {"redundant": 1.0, "reliable": 1.0, "lr": 0.0123}  # a rate that no other test has
    cell = small_cell(method="eata", options=options, data_options={"source_images": 30})
    sourced = Conditions(root=str(images), source=str(images))
    first, again = run_cell(cell, sourced), run_cell(cell, sourced)
    assert numbers([first]) == numbers([again])
    run_cell(replace(cell, corruptions=("fog",)), sourced)
    assert len(asked) == 1
    run_cell(replace(cell, model_options={"sharpen": 10.0}), sourced)
    assert len(asked) == 2, "another network has a Fisher information of its own"
    run_cell(replace(cell, regularise=1), sourced)
    assert len(asked) == 3, "steps before the stream make another network of it"


def test_a_method_that_answers_image_by_image_gets_several_at_once() -> None:
    pytest.importorskip("diffusers")
    options = {"diffusion": "glyphs", "factor": 2, "depth": 2, "guidance": 12.0}
    cell = Cell(
        model="glyphs:resnet_gn",
        method="dda",
        options=options,
        scenario="single",
        batch_size=1,
        corruptions=("fog",),
        limit=6,
    )
    row = run_cell(cell)
    network = build_model(cell)
    data, _ = open_images(cell, None, network, torch.device("cpu"))
    stream = stream_of(cell, data.labels)
    assert stream.batch_count == 6
    scale = {name: getattr(data.protocol, name) for name in ("mean", "std")}
    adapter = wildtta.adapt(network, "dda", batch_size=1, **scale, **options)
    by_hand = torch.cat([adapter(inputs).clone() for inputs in data.batches(stream)])
    labels = torch.from_numpy(data.labels[stream.index])
    nll = float(torch.nn.functional.cross_entropy(by_hand, labels))
    assert row["metrics"]["nll"] == pytest.approx(nll, abs=1e-4)
    assert (row["cost"]["batches"], row["cost"]["forwards"]) == (1, 12)


def test_a_cell_may_name_a_folder_below_the_root(images: Path, conditions: Conditions) -> None:
    below = small_cell(data_options={"folder": images.name})
    row = run_cell(below, Conditions(root=str(images.parent)), "cpu")
    assert row["metrics"] == run_cell(small_cell(), conditions, "cpu")["metrics"]
    # The source has one of that name, too: cells of several sets each get their own.
    options = {"redundant": 1.0, "reliable": 1.0, "lr": 0.01}
    sourced = small_cell(method="eata", options=options, data_options={"folder": images.name, "source_images": 30})
    everything = Conditions(root=str(images.parent), source=str(images.parent))
    assert run_cell(sourced, everything)["data_note"] == f"30 source images: {images.name}"
    with pytest.raises(BenchError, match=r"no data at .*elsewhere"):
        run_cell(small_cell(data_options={"folder": "elsewhere"}), conditions, "cpu")


def test_a_shift_comes_and_goes_in_a_cell(conditions: Conditions) -> None:
    row = run_cell(small_cell(scenario="comes_and_goes", scenario_options={"every": 4}), conditions, "cpu")
    assert set(row["metrics"]["per_corruption"]) == {"clean", "gaussian_noise"}


def test_cells_go_to_a_worker_that_has_their_images() -> None:
    fog, snow = small_cell(corruptions=("fog",)), small_cell(corruptions=("snow",))
    other_method, other_level = replace(fog, method="sar"), replace(fog, severity=3)
    made = {images_of(fog)}
    assert place_of_next([snow, other_level, other_method], made) == 2
    assert place_of_next([snow, other_level], made) == 0, "none of these: in the order of the queue"
    assert place_of_next([snow] * AHEAD + [fog], made) == 0, "too far ahead"
