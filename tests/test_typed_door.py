"""What a user's editor and type checker see: explicit exports, complete types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import wildtta
from wildtta.methods.registry import config_classes

USER_FILE = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import wildtta


@wildtta.register
@dataclass(frozen=True, kw_only=True)
class Sharpened(wildtta.Tent):
    name: ClassVar[str] = "sharpened-typed-example"
    title: ClassVar[str] = "Sharpened Tent"
    temperature: float = wildtta.option("of the softmax", 0.5)

    def sample_losses(self, engine: wildtta.Engine, output: wildtta.Output, selection: wildtta.Selection) -> Tensor:
        return (output.logits / self.temperature).softmax(-1).square().sum(-1)

    def loss(self, engine: wildtta.Engine, output: wildtta.Output, selection: wildtta.Selection) -> wildtta.Loss:
        return super().loss(engine, output, selection)


def use(network: nn.Module, images: Tensor) -> int:
    model: wildtta.Adapter = wildtta.adapt(network, wildtta.SAR2(redundancy=None))
    model(images)
    report: wildtta.StepReport = model.last
    selected: Tensor = model.last.selected
    rate: float = model.learning_rate
    with model.paused() as paused:
        paused(images)
    base: wildtta.GradientMethod = Sharpened(lr=1e-3, temperature=0.7)
    bare: nn.Module = model.unload()
    del report, rate, base, bare
    return int(selected)


wildtta.SAR2(redundancie=None)  # type: ignore[call-arg]
wildtta.SAR2(redundancy="much")  # type: ignore[arg-type]
wildtta.NoSuchMethod  # type: ignore[attr-defined]
"""


def test_a_users_file_passes_strict_type_checking(tmp_path: Path) -> None:
    """Unused ignores are errors in strict mode: so the three wrong lines at its end must be noticed."""
    file = tmp_path / "my_method.py"
    file.write_text(USER_FILE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_method_of_the_package_is_exported_by_name() -> None:
    exported = {getattr(wildtta, name) for name in wildtta.__all__}
    missing = [cls.__name__ for cls in config_classes().values() if "wildtta." in cls.__module__ and cls not in exported]
    assert missing == []
