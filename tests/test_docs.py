"""The documentation stays true: generated pages, code that runs, commands that exist, links that lead somewhere."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import wildtta
import wildtta.cli
from toy_networks import build, images
from wildtta.bench import load_grid, parse_grid
from wildtta.methods import registry
from wildtta.methods.pages import PAGES, methods_page, options_page
from wildtta.methods.registry import config_classes

ROOT = Path(__file__).parent.parent
PROSE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
LONGEST_LINE, LONGEST_README = 110, 130
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r"\]\([^)]*\)|<?https?://\S+")
MODULES_WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code of one language."""
    return [code for kind, code in _FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_what_the_registry_says(name: str) -> None:
    committed = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert committed == PAGES[name](), f"write it anew: wildtta methods --markdown {name} > docs/{name}.md"


def test_every_method_and_option_has_its_row() -> None:
    table, options = methods_page(), options_page()
    for name, cls in config_classes().items():
        assert f"| [`{name}`](#{name}) |" in table
        assert f"\n## {name}\n" in table
        for entry in dataclasses.fields(cls):
            assert f"| `{entry.name}` |" in options
            assert entry.metadata.get("help"), f"{name}.{entry.name} has no help text"


@pytest.mark.parametrize("page", [page for page in PROSE if blocks(page, "python")], ids=name_of)
def test_python_in_the_documentation_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's snippets in order, in one namespace; the one that would fetch weights gets random ones."""
    monkeypatch.chdir(tmp_path)
    # An example may register a method: the registry that other tests see stays as it is.
    monkeypatch.setattr(registry, "_REGISTRY", dict(config_classes()))
    names: dict[str, object] = {"images": torch.randn(2, 3, 224, 224), "__name__": "documentation"}
    for number, code in enumerate(blocks(page, "python")):
        offline = code.replace("pretrained=True", "pretrained=False")
        exec(compile(offline, f"{page.name}, snippet {number}", "exec", dont_inherit=True), names)


def test_the_example_of_contributing_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(config_classes()))
    (code,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), {"__name__": "documentation"})
    network = build("ln_mlp")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = wildtta.adapt(network, "sharpened-example", temperature=0.25)
    model(images("ln_mlp", 8))
    moved = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert sorted(moved) == sorted(model.learned_parameters)


def _verbs() -> dict[str, Any]:
    """The verbs as ``wildtta.cli.main`` finds them."""
    app = typer.Typer()
    for module in pkgutil.iter_modules(wildtta.cli.__path__):
        verb = importlib.import_module(f"wildtta.cli.{module.name}")
        if hasattr(verb, "register"):
            verb.register(app)
    commands: dict[str, Any] = typer.main.get_command(app).commands
    return commands


VERBS = _verbs()


def commands(page: Path) -> list[str]:
    lines = [line.split("  #")[0].strip() for code in blocks(page, "bash") for line in code.splitlines()]
    inline = re.findall(r"`(wildtta [a-z][^`]*)`", re.sub(_FENCE, "", page.read_text(encoding="utf-8")))
    return [line for line in lines if line.startswith("wildtta ")] + inline


@pytest.mark.parametrize("page", [page for page in PROSE if commands(page)], ids=name_of)
def test_commands_in_the_documentation_exist(page: Path) -> None:
    """Every verb is one, and what follows it can be parsed by it (nothing is run)."""
    for command in commands(page):
        verb, *arguments = shlex.split(command.split(">")[0])[1:]
        if verb == "--version":
            continue
        assert verb in VERBS, f"{command}: there is no such verb"
        bare = not arguments or any(word.isupper() for word in arguments)
        if not bare:
            VERBS[verb].make_context(verb, list(arguments))


@pytest.mark.parametrize("page", [page for page in PROSE if commands(page)], ids=name_of)
def test_files_that_commands_read_exist(page: Path) -> None:
    """A path of this project in a command is there, unless the command writes it."""
    writes = {"--page", "--out", "--journal", "--into", ">"}
    for command in commands(page):
        words = shlex.split(command)
        for before, word in zip(["", *words], words, strict=False):
            if word.startswith(("docs/", "studies/", "tests/", "benchmarks/")) and before not in writes:
                assert (ROOT / word).exists(), f"{command}: there is no {word}"


@pytest.mark.parametrize("code", [code for page in PROSE for code in blocks(page, "toml")])
def test_grids_in_the_documentation_are_grids(code: str) -> None:
    cells = parse_grid(code)
    assert len({cell.key for cell in cells}) == len(cells) > 1


@pytest.mark.parametrize("page", PROSE, ids=name_of)
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    """Code, formulas (indented), tables and addresses may be longer."""
    prose = re.sub(_FENCE, "", page.read_text(encoding="utf-8")).splitlines()
    prose = [line for line in prose if not line.startswith("    ") and not line.lstrip().startswith(("|", "!["))]
    assert [line for line in prose if len(_ADDRESS.sub("", line)) > LONGEST_LINE] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= LONGEST_README


def test_the_example_grid() -> None:
    cells = load_grid(ROOT / "docs" / "examples" / "glyphs.toml")
    assert len({cell.key for cell in cells}) == len(cells) == 24


def test_links_within_the_documentation() -> None:
    for page in PROSE:
        text = re.sub(_FENCE, "", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name) if name else page
            assert file.exists(), f"{page.name} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


def test_decisions_that_the_code_cites_are_explained() -> None:
    explained = set(
        re.findall(r"^\*\*(D\d+)\.", (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert explained == {f"D{number}" for number in range(1, len(explained) + 1)}
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    cited = {
        found for path in sources for found in re.findall(r"\(?\b(D\d{1,2})\b[:.)]", path.read_text(encoding="utf-8"))
    }
    assert {"D5", "D17"} <= cited <= explained


@pytest.mark.parametrize("module", MODULES_WITH_EXAMPLES)
def test_examples_in_docstrings(module: str) -> None:
    failures, tried = doctest.testmod(importlib.import_module(module))
    assert tried > 0
    assert failures == 0
