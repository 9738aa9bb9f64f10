"""The notebooks of the documentation run from top to bottom, offline, in a real kernel."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_four() -> None:
    names = ["add-a-method", "compare-methods", "ten-minutes", "watch-and-guard"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    import nbformat

    # No proxy leads anywhere: whatever would fetch something fails.
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts = [str(output) for cell in notebook.cells for output in cell.get("outputs", [])]
    assert texts
    assert not any(output.get("output_type") == "error" for cell in notebook.cells for output in cell.get("outputs", []))


ABSOLUTE = re.compile(r"(?<![\w.:/<])/(?:[\w.-]+/)+[\w.-]+")
"""A file by its place on a machine."""


def _texts(output: dict[str, Any]) -> list[Any]:
    """What an output says in words; pictures are left out."""
    data = output.get("data", {})
    return [output.get("text", ""), *(value for kind, value in data.items() if kind.startswith("text/"))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_as_it_ran(path: Path) -> None:
    """With its outputs, so that the site shows them; without the traces of the machine it ran on."""
    content = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code)
    assert all(output["output_type"] != "error" for cell in code for output in cell["outputs"])
    assert "ipykernel_" not in path.read_text(encoding="utf-8")
    written = json.dumps([cell["source"] for cell in content["cells"]])
    printed = json.dumps([_texts(output) for cell in code for output in cell["outputs"]])
    assert ABSOLUTE.findall(written + printed) == []
