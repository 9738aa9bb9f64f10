"""The places where people work: each example of docs/examples does what it says, with the real libraries."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import wildtta
from toy_networks import same_bits, snapshot

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


def _example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An example as a module; its neighbours can be imported, as when it is run."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in EXAMPLES.glob("*.py") if f'_example("{path.stem}"' not in here] == []


def test_a_data_loader_loop_gains_and_gives_the_network_back(monkeypatch: pytest.MonkeyPatch) -> None:
    example = _example("dataloader", monkeypatch)
    bare = example.network("resnet_gn")
    before = snapshot(bare)
    loader = example.noisy_glyphs(count=600)
    assert example.adapted_accuracy(bare, loader) > example.adapted_accuracy(bare, loader, "none")
    assert same_bits(snapshot(bare), before) == []


@pytest.mark.slow
def test_replicas_under_torchrun_gain_as_one_adapter_does(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run([*command, EXAMPLES / "replicas.py"], capture_output=True, text=True, timeout=500, check=True)
    told = dict(re.findall(r"(\w+): ([\d.]+)% in 2 processes", ran.stdout))
    example = _example("replicas", monkeypatch)
    loop = _example("dataloader", monkeypatch)
    assert example.network is loop.network
    # The order within a batch is another one, which moves an answer now and then.
    for method in ("none", "steady"):
        alone = 100 * loop.adapted_accuracy(loop.network("resnet_gn"), loop.noisy_glyphs(), method)
        assert float(told[method]) == pytest.approx(alone, abs=0.5)
    assert float(told["steady"]) > float(told["none"])


@pytest.mark.slow
def test_lightning_adapts_in_its_inference_mode_and_gives_the_network_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    example = _example("lightning_adaptation", monkeypatch)
    loop = _example("dataloader", monkeypatch)
    plain = example.accuracy()
    adapted = example.accuracy(example.TestTimeAdaptation())
    # Lightning's mean over batches is the loop's accuracy: every batch but the last is as long.
    assert adapted == pytest.approx(loop.adapted_accuracy(loop.network("resnet_gn"), loop.noisy_glyphs()), abs=1e-3)
    assert adapted > plain

    module = example.Classifier()
    before = snapshot(module.model)
    trainer = example.lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[example.TestTimeAdaptation(method="tent")],
    )
    trainer.test(module, loop.noisy_glyphs(count=64), verbose=False)
    assert not isinstance(module.model, wildtta.Adapter)
    assert same_bits(snapshot(module.model), before) == []


def test_a_transformers_pipeline_answers_as_before_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    example = _example("transformers_pipeline", monkeypatch)
    torch.manual_seed(0)
    pipe, images = example.small_pipeline(), example.pictures(8)
    bare = pipe(images, batch_size=8)
    pipe.model = wildtta.adapt(pipe.model, "tent", lr=0.1)
    assert pipe(images, batch_size=8) == bare
    assert pipe(images, batch_size=8) != bare
    assert int(pipe.model.cost.backwards) == 16
    pipe.model = pipe.model.unload()
    assert pipe(images, batch_size=8) == bare


def test_tensorboard_gets_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    example = _example("loggers", monkeypatch)
    example.follow(str(tmp_path))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    entries = events.Scalars("tta/entropy")
    assert [entry.step for entry in entries] == [1, 6]
    assert all(0 < entry.value < 5.3 for entry in entries)  # between 0 and ln 200


def test_three_lines_on_a_plain_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wildtta.adapt(_example("three_lines", monkeypatch).classifier())
    assert model(torch.randn(16, 3, 32, 32)).shape == (16, 10)
