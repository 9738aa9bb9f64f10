"""The container file and the cluster's file say what this project has, in the formats that read them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from wildtta.cli import serve

ROOT = Path(__file__).parent.parent.parent
CLUSTER = ROOT / "docs" / "examples" / "serve-cluster.yaml"
CONTAINER = ROOT / "Containerfile"


def parsed(command: list[str]) -> Any:
    """The options of ``wildtta serve`` as its own parser reads them."""
    app = typer.Typer()
    serve.register(app)
    words = command[2:] if command[:2] == ["wildtta", "serve"] else command
    return typer.main.get_command(app).make_context("serve", words).params


def test_the_cluster_file_is_one_that_ray_reads() -> None:
    ray = pytest.importorskip("ray")
    import jsonschema
    import yaml

    told = yaml.safe_load(CLUSTER.read_text(encoding="utf-8"))
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(told, schema)
    assert told["head_node_type"] in told["available_node_types"]
    text = re.sub(r"\\\n#\s*", "", CLUSTER.read_text(encoding="utf-8"))
    (command,) = re.findall(r"^#\s+(wildtta serve .*)$", text, re.MULTILINE)
    assert parsed(shlex.split(command))["replicas"] == 2


def test_the_container_file_installs_what_there_is_and_starts_what_exists() -> None:
    lines = re.sub(r"\\\n\s*", "", CONTAINER.read_text(encoding="utf-8")).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert steps[0][0] == "FROM"
    known = (
        "FROM",
        "ARG",
        "ENV",
        "RUN",
        "WORKDIR",
        "COPY",
        "USER",
        "VOLUME",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    )
    assert {name for name, _ in steps} <= set(known)
    for name, rest in steps:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), f"COPY {source}"
    entry, command = (json.loads(next(rest for name, rest in steps if name == kind)) for kind in ("ENTRYPOINT", "CMD"))
    told = parsed([*entry, *command])
    assert told["folder"] == Path("/states")
    extras = re.search(r"\.\[([a-z,]+)\]", CONTAINER.read_text(encoding="utf-8"))
    assert extras
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = ", project, re.MULTILINE) for extra in extras[1].split(","))
