"""The definition of the container image. `make test-image` installs what it installs; no engine has ever built it."""

from __future__ import annotations

import tomllib

import pytest

from ext_proc.cli import parser
from tests.unit.deploy.dockerfile import DOCKERFILE, ROOT, copied, stages, texts, vector

TEXT = DOCKERFILE.read_text("utf-8")
HEAD, BUILD, FINAL = stages(TEXT)


def test_a_line_that_is_no_instruction_is_noticed() -> None:
    """The reader of these tests reads every line."""
    with pytest.raises(ValueError, match="no instruction: RUNN x"):
        stages("FROM a\nRUNN x\n")


def test_everything_that_is_copied_is_there() -> None:
    """Each source exists, and the list of what the build may see lets it through."""
    allowed = {
        line.removeprefix("!")
        for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    sources = {source for names, _ in copied(BUILD) for source in names}
    assert sources == allowed
    for source in sources:
        assert (ROOT / source).exists(), source
    assert copied(FINAL) == []


def test_what_the_wheel_holds_is_copied() -> None:
    """A folder that pyproject.toml packages is part of the build, as are the files that it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    sources = {source for names, _ in copied(BUILD) for source in names}
    named = {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    named |= {project["project"]["readme"], *project["project"]["license-files"]}
    assert named <= sources


def test_extras_are_all_but_envoy() -> None:
    """Whatever kvpicker can do it can in the image; only Envoy has an image of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (install,) = (text for text in texts(BUILD, "RUN") if "pip install" in text)
    extras = set(install.partition("[")[2].partition("]")[0].split(","))
    assert extras == set(project["project"]["optional-dependencies"]) - {"envoy"}


def test_python_is_one_that_is_supported() -> None:
    """Both stages have the same base, of a version that pyproject.toml allows, and no floating tag."""
    (base,) = texts(HEAD, "ARG")
    assert base.startswith("PYTHON=python:3.11-slim-")
    assert [texts(stage, "FROM") for stage in (BUILD, FINAL)] == [["${PYTHON} AS build"], ["${PYTHON}"]]


def test_nobody_is_root() -> None:
    """The user is a number other than that of root, and nothing is run as root in the final stage."""
    (user,) = texts(FINAL, "USER")
    assert all(part.isdecimal() and int(part) > 1000 for part in user.split(":"))
    assert texts(FINAL, "RUN") == []


def test_the_command_is_one() -> None:
    """What the image runs by default is a command of kvpicker, with a file that the manifests mount."""
    assert vector(FINAL, "ENTRYPOINT") == ["kvpicker"]
    words = vector(FINAL, "CMD")
    assert str(parser().parse_args(words).config) == "/etc/kvpicker/kvpicker.yaml"
